"""Copying is told from knowing: what a hand-made masked model was built to hold is what its atlas and answers say."""

import polars as pl
import pytest

from mnemoscope.atlas import Atlas
from mnemoscope.models import load_model
from mnemoscope.questions import answer
from models.planted_masked import PLANTED, SENTENCES, WORDS, build_planted_masked
from support.handbuilt_answers import numbers
from support.mined import mined_text

OTHER = ("dog saw new york", "left hong kong", "cat left new york at night", "the cat saw hong kong")


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Atlas:
    hf, tokenizer = build_planted_masked()
    text, other = ("\n".join(lines) + "\n" for lines in (SENTENCES, OTHER))
    model = load_model(hf, tokenizer=tokenizer)
    return mined_text(model, tmp_path_factory.mktemp("planted"), text, other=other, per_sentence="all", removals="all")


def places(memory: int) -> list[tuple[int, int]]:
    """Where a planted memory is to fire: on its word, or on the right of it."""
    one, right = PLANTED[memory], int(not PLANTED[memory].copies)
    words = [(number, sentence.split()) for number, sentence in enumerate(SENTENCES)]
    return [(n, j) for n, own in words for j in range(right, len(own)) if own[j - right] == one.fires_on]


def test_every_planted_memory_fires_where_it_was_built_to(planted: Atlas) -> None:
    rows = planted.table("triggers", layer=0)
    values = planted.table("values", layer=0)
    for memory, one in enumerate(PLANTED):
        mine = rows.filter(pl.col("memory") == memory)
        assert sorted(mine.select("sentence", "position").rows()) == places(memory), one
        assert WORDS[values["top_tokens"][memory][0]] == one.promotes
        assert WORDS[values["target"][memory]] == ("night" if one.fires_on == "at" else one.promotes)


def test_a_copier_is_silent_where_its_word_is_masked_and_a_completer_is_not(planted: Atlas) -> None:
    rows = planted.table("triggers", layer=0).drop_nulls("own_coefficient")
    assert rows["memory"].to_list() == list(range(len(PLANTED)))
    for row in rows.iter_rows(named=True):
        if PLANTED[row["memory"]].copies:
            assert row["own_coefficient"] == 0 < row["coefficient"]
        else:
            assert row["own_coefficient"] == pytest.approx(row["coefficient"], rel=1e-5)


def test_the_headline_counts_what_is_known_and_all_what_is_copied_too(planted: Atlas) -> None:
    """Both copiers and two of three completers promote what stands at their triggers."""
    found = answer(planted, "value_agreement")
    assert numbers(found, "agreement") == {0: 2 / 3, None: 2 / 3}
    assert numbers(found, "every_agreement") == {0: 4 / 5, None: 4 / 5}
    assert numbers(found, "held_where_masked") == {0: 3 / 5, None: 3 / 5}
    assert numbers(found, "asked_where_masked") == {0: 1, None: 1}
    assert numbers(answer(planted, "value_rank"), "q50", "count") == {0: 3, None: 3}
    assert numbers(answer(planted, "value_rank"), "every_q50", "count") == {0: 5, None: 5}


def test_removals_name_the_token_that_a_memory_needs(planted: Atlas) -> None:
    rows = planted.table("removals").with_columns(left=pl.col("removed_coefficient") / pl.col("coefficient"))
    for memory, one in enumerate(PLANTED):
        mine = rows.filter(pl.col("memory") == memory)
        assert mine.height > 0
        own = mine.filter(pl.col("removed") == "own")["left"]
        assert set(own.round(4)) == ({0.0} if one.copies else {1.0}), one
        others = mine.filter(pl.col("removed") != "own")
        gone = others.filter(pl.col("left") < 0.5)
        needed = gone["removed_position"] == gone["position"] - 1
        assert gone.is_empty() if one.copies else needed.all(), one
        assert one.copies or gone.height > 0


def test_what_is_completed_is_the_prediction_at_the_mask(planted: Atlas) -> None:
    completed = {one.fires_on: one.promotes for one in PLANTED if not one.copies}
    seen = 0
    for row in planted.table("prefixes").iter_rows(named=True):
        words = OTHER[row["sentence"] - len(SENTENCES)].split()
        assert WORDS[row["next_token"]] == words[row["position"]]
        before = words[row["position"] - 1] if row["position"] else ""
        if before in completed:
            assert WORDS[row["final_top"]] == completed[before]
            seen += 1
    assert seen > 0


def test_at_the_mask_a_copier_votes_for_nothing(planted: Atlas) -> None:
    rows = planted.table("predictions").join(planted.table("prefixes"), on="prefix")
    for row in rows.iter_rows(named=True):
        words = OTHER[row["sentence"] - len(SENTENCES)].split()
        before = words[row["position"] - 1] if row["position"] else ""
        assert row["active"] == sum(one.fires_on == before for one in PLANTED if not one.copies)
