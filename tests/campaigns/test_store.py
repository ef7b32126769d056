"""The store: campaigns, blindness, judgements that stay, and their undoing."""

from typing import Any

import pytest

from campaigns.conftest import Opening, codes, someone
from mnemoscope.annotate.campaigns.views import AuthoredPattern, Progress
from mnemoscope.annotate.judgements.tables import GROWING, insert
from mnemoscope.annotations import Annotator, CaseView, KeyView, Store
from mnemoscope.errors import AnnotationError, MemoryIdError
from mnemoscope.foundation.memory_names import MemoryId


def rows(store: Store, table: str = "judgements") -> int:
    with store.database.reading() as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def key_view(store: Store, code: str, annotator: Annotator) -> KeyView:
    view = store.view(code, annotator)
    assert isinstance(view, KeyView)
    return view


def shallow(store: Store, code: str, annotator: Annotator, **changes: Any) -> Any:
    given: dict[str, Any] = {"kind": "shallow", "description": "ends alike", "marks": [0, 1, 4]} | changes
    return store.save(code, annotator, **given)


def test_a_campaign_draws_keys_controls_and_compositions_once(store: Store, opening: Opening) -> None:
    campaign = store.campaign()
    assert (campaign.keys, campaign.controls, campaign.cases) == (6, 5, 100)
    assert [len(codes(store, kind)) for kind in ("key", "control", "case")] == [6, 5, 4]
    assert opening().start_campaign(keys_per_layer=3) == campaign
    with pytest.raises(AnnotationError, match=r"holds a campaign already \(seed 0, 3 keys per layer, 5 controls"):
        opening().start_campaign(keys_per_layer=3, seed=1)
    assert rows(store, "campaigns") == 1


def test_the_seed_draws_and_no_memory_that_never_fires(store: Store) -> None:
    from mnemoscope.annotate.campaigns.items import sample

    first, again, other = (sample(store.atlas, keys_per_layer=3, controls=2, cases=2, seed=s)[1] for s in (0, 0, 1))
    assert first == again != other
    every = sample(store.atlas, keys_per_layer=10, controls=0, cases=0, seed=0)[1]
    assert [(item.layer, item.memory) for item in every] == [(layer, m) for layer in (0, 1) for m in range(5)]


def test_a_control_shows_different_random_prefixes_and_looks_like_a_key(store: Store) -> None:
    ada = someone(store)
    sizes = []
    for code in codes(store, "control"):
        view = key_view(store, code, ada)
        shown = [prefix.before + prefix.token for prefix in view.prefixes]
        assert len(set(shown)) == len(shown)
        assert ([prefix.number for prefix in view.prefixes], view.memory) == (list(range(len(shown))), None)
        sizes.append(len(shown))
    assert set(sizes) <= {24, 25}
    assert len({prefix.token for prefix in key_view(store, code, ada).prefixes}) > 1
    assert {place.kind for place in store.places(ada)} == {"key", "case"}


def test_a_view_gives_each_prefix_once_with_its_trigger_token_apart(store: Store) -> None:
    ada = someone(store)
    view = key_view(store, store.choose(MemoryId(0, 1)), ada)
    # Ranks 0 and 1 of this memory have the same prefix.
    assert (len(view.prefixes), view.prefixes[0].before, view.prefixes[0].token) == (24, " w0 v0", " last1")
    assert (view.prefixes[1].before, view.prefixes[1].token, view.memory) == (" w2 v2", " last1", "L0.M1")


def test_marks_are_stored_as_ranks_of_triggers(store: Store) -> None:
    ada, code = someone(store), store.choose(MemoryId(0, 1))
    shallow(store, code, ada, marks=[2, 0, 1, 1])
    with store.database.reading() as connection:
        assert [*map(tuple, connection.execute("SELECT triggers FROM judgements"))] == [("[0, 2, 3]",)]
    assert key_view(store, code, ada).patterns == (AuthoredPattern(0, "shallow", "ends alike", (0, 1, 2)),)


def test_every_annotator_has_an_order_of_their_own_that_stays(store: Store, opening: Opening) -> None:
    ada, ben = someone(store), someone(store, "Ben")
    mine = [place.code for place in store.places(ada)]
    assert mine == [place.code for place in opening().places(ada)]
    others = [place.code for place in store.places(ben)]
    assert mine != others
    assert (set(mine), [place.kind for place in store.places(ada)]) == (set(others), ["key"] * 11 + ["case"] * 4)


def test_judging_undoing_and_finishing(store: Store) -> None:
    ada, code = someone(store), codes(store, "key")[0]
    assert shallow(store, code, ada).pattern == 0
    assert store.save(code, ada, kind="both", description="  two\n words ", marks=[5, 6, 7]).pattern == 1
    shallow(store, code, ada, pattern=0, marks=[0, 1, 2, 3])
    first = AuthoredPattern(0, "shallow", "ends alike", (0, 1, 2, 3))
    second = AuthoredPattern(1, "both", "two words", (5, 6, 7))
    assert key_view(store, code, ada).patterns == (first, second)
    store.retract(code, ada, pattern=1)
    assert key_view(store, code, ada).patterns == (first,)
    left = []
    for _ in range(4):
        store.undo(code, ada)
        left.append(len(key_view(store, code, ada).patterns))
    assert left == [2, 2, 1, 0]
    with pytest.raises(AnnotationError, match="nothing to undo"):
        store.undo(code, ada)
    assert rows(store) == 8, "every step and every undoing is a row"
    with pytest.raises(AnnotationError, match="no pattern is marked"):
        store.finish(code, ada)
    store.finish(code, ada, none=True)
    view = key_view(store, code, ada)
    assert (view.none, view.finished) == (True, True)
    with pytest.raises(AnnotationError, match="this item is finished"):
        shallow(store, code, ada)
    store.finish(code, ada, done=False)
    shallow(store, code, ada)
    with pytest.raises(AnnotationError, match="1 patterns are marked"):
        store.finish(code, ada, none=True)
    store.finish(code, ada)
    assert store.progress(ada) == Progress(11, 1, 4, 0, False)


def test_an_undone_step_can_be_followed_by_others(store: Store) -> None:
    ada, code = someone(store), codes(store, "key")[0]
    shallow(store, code, ada, description="a")
    shallow(store, code, ada, pattern=0, description="b")
    store.undo(code, ada)
    shallow(store, code, ada, pattern=0, description="c")
    assert [p.description for p in key_view(store, code, ada).patterns] == ["c"]
    store.undo(code, ada)
    assert [p.description for p in key_view(store, code, ada).patterns] == ["a"]
    store.undo(code, ada)
    assert key_view(store, code, ada).patterns == ()
    assert not key_view(store, code, ada).can_undo


def test_a_judgement_that_is_sent_again_is_stored_once(store: Store) -> None:
    ada, code, case = someone(store), codes(store, "key")[0], codes(store, "case")[0]
    saved = shallow(store, code, ada, key="abcdefgh")
    again = shallow(store, code, ada, key="abcdefgh")
    assert (again.made_at, again.pattern, again.again, saved.again) == (saved.made_at, 0, True, False)
    assert rows(store) == 1
    with pytest.raises(AnnotationError, match="key 'abcdefgh' was used for another judgement"):
        shallow(store, code, ada, key="abcdefgh", description="something else")
    shallow(store, code, someone(store, "Ben"), key="abcdefgh")
    assert rows(store) == 2, "keys are each annotator's own"
    for _ in range(2):
        store.undo(code, ada, key="undo-0001")
        store.finish(code, ada, none=True, key="finish-01")
        store.judge(case, ada, verdict="distant", key="verdict-1")
    assert [rows(store, table) for table in GROWING] == [4, 1, 1]
    # After the item was finished, the retry of a save that had been stored is no error.
    assert shallow(store, code, ada, key="abcdefgh").again


def test_compositions_are_related_or_distant(store: Store) -> None:
    ada, case = someone(store), codes(store, "case")[0]
    view = store.view(case, ada)
    assert view == CaseView(case, "people say 0", " later", " a", " earlier", None)
    for verdict, seen in (("related", "related"), ("distant", "distant"), ("none", None)):
        store.judge(case, ada, verdict=verdict)
        view = store.view(case, ada)
        assert isinstance(view, CaseView)
        assert (view.verdict, view.finished) == (seen, seen is not None)
    with pytest.raises(AnnotationError, match="this item is a composition"):
        shallow(store, case, ada)
    with pytest.raises(AnnotationError, match="this item is not a composition"):
        store.judge(codes(store, "key")[0], ada, verdict="distant")
    with pytest.raises(AnnotationError, match="the verdict is 'near'"):
        store.judge(case, ada, verdict="near")


def finish_all(store: Store, annotator: Annotator, *, last: bool = True) -> None:
    places = store.places(annotator)
    for place in (place for place in (places if last else places[:-1]) if not place.finished):
        if place.kind == "case":
            store.judge(place.code, annotator, verdict="related")
        else:
            shallow(store, place.code, annotator)
            store.finish(place.code, annotator)


def test_nobody_sees_others_before_handing_in_and_nothing_changes_after(store: Store) -> None:
    ada, ben, host = someone(store), someone(store, "Ben"), store.invite("Host", role="host").annotator
    key, case = codes(store, "key")[0], codes(store, "case")[0]
    finish_all(store, ben)
    finish_all(store, ada, last=False)
    with pytest.raises(AnnotationError, match="1 items are not finished yet"):
        store.hand_in(ada)
    with pytest.raises(AnnotationError, match="once you have handed in your own"):
        store.others(key, ada)
    finish_all(store, ada)
    assert store.progress(ada).complete
    with pytest.raises(AnnotationError, match="once you have handed in your own"):
        store.others(key, ada)
    store.hand_in(ada)
    assert store.hand_in(ada).again
    assert store.progress(ada).handed_in
    assert [(said.author, said.patterns[0].description) for said in store.others(key, ada)] == [("Ben", "ends alike")]
    verdicts = [(said.author, said.verdict) for said in store.others(case, host)]
    assert verdicts == [("Ada", "related"), ("Ben", "related")]
    for change in (
        lambda: shallow(store, key, ada, pattern=0),
        lambda: store.finish(key, ada, done=False),
        lambda: store.judge(case, ada, verdict="distant"),
        lambda: store.undo(key, ada),
    ):
        with pytest.raises(AnnotationError, match="Ada has handed in"):
            change()
    with pytest.raises(AnnotationError, match="a host sees all judgements and so cannot judge"):
        shallow(store, key, host)
    shallow(store, store.choose(MemoryId(0, 0)), ada)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"marks": [0, 1]}, "2 prefixes are marked; a pattern is in at least 3"),
        ({"marks": [0, 1, 25]}, "prefix 25 is marked, but there are only prefixes 0-"),
        ({"kind": "deep"}, "the class is 'deep'"),
        ({"description": "a\x00b"}, r"holds '\\x00', which cannot be read"),
        ({"key": "short"}, "the key is 'short'"),
    ],
)
def test_judgements_that_are_refused(store: Store, changes: dict[str, Any], said: str) -> None:
    ada = someone(store)
    with pytest.raises(AnnotationError, match=said) as caught:
        shallow(store, codes(store, "key")[0], ada, **changes)
    assert "\n" not in str(caught.value)
    assert rows(store) == 0


def test_what_is_not_there(store: Store) -> None:
    ada = someone(store)
    with pytest.raises(AnnotationError, match="there is no item 'nothing' to judge"):
        store.view("nothing", ada)
    with pytest.raises(AnnotationError, match="no annotator 'Eve'"):
        shallow(store, codes(store, "key")[0], Annotator("Eve"))
    with pytest.raises(AnnotationError, match="there is no pattern 3 to take back"):
        store.retract(codes(store, "key")[0], ada, pattern=3)
    with pytest.raises(MemoryIdError, match=r"L9\.M0 is not in"):
        store.choose(MemoryId(9, 0))
    assert store.choose(MemoryId(0, 0)) == store.choose(MemoryId(0, 0))


def test_invitations(store: Store) -> None:
    invitation = store.invite(" Ada   Lovelace ")
    assert (store.annotator(invitation.token), store.annotator("guessed")) == (Annotator("Ada Lovelace"), None)
    with pytest.raises(AnnotationError, match="there is an annotator 'Ada Lovelace' already"):
        store.invite("ada lovelace")
    fresh = store.renew("Ada Lovelace")
    assert (store.annotator(invitation.token), store.annotator(fresh.token)) == (None, Annotator("Ada Lovelace"))
    store.withdraw("Ada Lovelace")
    assert (store.annotator(fresh.token), store.annotators()) == (None, (Annotator("Ada Lovelace"),))
    for name, said in (("", "at least one letter"), ("x" * 81, "81 characters"), ("a\x07b", "cannot be read")):
        with pytest.raises(AnnotationError, match=said):
            store.invite(name)
    with pytest.raises(AnnotationError, match="the role is 'king'"):
        store.invite("Bob", role="king")
    with store.database.reading() as connection:
        stored = str([*map(tuple, connection.execute("SELECT * FROM annotators"))])
    assert invitation.token not in stored
    assert fresh.token not in stored


@pytest.mark.fast(1)
@pytest.mark.parametrize("table", GROWING)
@pytest.mark.parametrize("statement", ["UPDATE {} SET made_at = 'never'", "DELETE FROM {}"])
def test_what_people_said_is_never_changed_or_deleted(store: Store, table: str, statement: str) -> None:
    ada = someone(store)
    finish_all(store, ada)
    with pytest.raises(AnnotationError, match=f"{table} only grows"), store.database.writing() as connection:
        connection.execute(statement.format(table))


def test_nothing_is_replaced(store: Store) -> None:
    ada, code = someone(store), codes(store, "key")[0]
    shallow(store, code, ada, key="abcdefgh")
    statement = (
        "INSERT OR REPLACE INTO judgements SELECT 1, author, made_at, layer, memory, control, pattern, kind,"
        " 'changed', triggers, item, undoes, key FROM judgements"
    )
    with pytest.raises(AnnotationError, match="judgements only grows"), store.database.writing() as connection:
        connection.execute(statement)
    assert key_view(store, code, ada).patterns[0].description == "ends alike"


def test_a_clock_that_was_set_back_does_not_make_an_old_judgement_the_latest(store: Store) -> None:
    ada, code = someone(store), codes(store, "key")[0]
    row = {"author": "Ada", "made_at": "2999-01-01T00:00:00.000000+00:00", "pattern": 0, "kind": "shallow"}
    row |= {"description": "from a wrong clock", "triggers": "[0, 1, 2]", "key": "x" * 8, "control": 0}
    with store.database.writing() as connection:
        item = connection.execute("SELECT id AS item, layer, memory FROM items WHERE code = ?", (code,)).fetchone()
        insert(connection, "judgements", row | dict(item))
    assert shallow(store, code, ada, pattern=0).made_at == "2999-01-01T00:00:00.000001+00:00"
    assert key_view(store, code, ada).patterns[0].description == "ends alike"
