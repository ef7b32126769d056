"""What judgements add up to, on a campaign small enough to count by hand; the report reads the same from the file."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from campaigns.conftest import someone
from mnemoscope.annotate.judgements import read_judgements
from mnemoscope.annotate.judgements.reading import majority_calls, read_verdicts
from mnemoscope.annotations import Annotator, Store, open_store, results
from mnemoscope.atlas import Atlas
from mnemoscope.foundation.intervals import wilson
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.questions import answer
from support.judged_atlas import judged_atlas


def code_of(store: Store, kind: str, layer: int, memory: int) -> str:
    with store.database.reading() as connection:
        asked = "SELECT code FROM items WHERE kind = ? AND layer = ? AND memory = ?"
        return str(connection.execute(asked, (kind, layer, memory)).fetchone()[0])


def say(store: Store, who: Annotator, code: str, *patterns: tuple[str, range], finish: bool = True) -> None:
    for kind, marks in patterns:
        store.save(code, who, kind=kind, description="words", marks=list(marks))
    if finish:
        store.finish(code, who, none=not patterns)


def value(table: pl.DataFrame, name: str, layer: int | None = None) -> Any:
    row = table.filter((pl.col("name") == name) & pl.col("layer").eq_missing(layer)).to_dicts()
    assert len(row) == 1, name
    return row[0]["value"]


@pytest.fixture
def judged(store: Store) -> Store:
    """Every memory that fires is a key; Ada and Ben judged L0.M0 and control 0; Ada alone L1.M0; compositions."""
    full = store
    ada, ben = someone(full, "Ada"), someone(full, "Ben")
    key, other = code_of(full, "key", 0, 0), code_of(full, "key", 1, 0)
    say(full, ada, key, ("shallow", range(10)), ("semantic", range(5, 15)))
    say(full, ben, key, ("shallow", range(5)))
    say(full, ada, other)
    say(full, ben, other, ("both", range(25)), finish=False)  # not finished, so it does not count
    control = code_of(full, "control", 0, 0)
    say(full, ada, control, ("shallow", range(3)))
    say(full, ben, control)
    say(full, ben, code_of(full, "control", 1, 1))
    say(full, ben, full.choose(MemoryId(1, 3)), ("both", range(25)), finish=False)  # nobody drew it
    for who, verdicts in ((ada, "rdd"), (ben, "dd")):
        for case, verdict in enumerate(verdicts):
            name = {"r": "related", "d": "distant"}[verdict]
            full.judge(code_of(full, "case", 1, 10 + case), who, verdict=name)
    return full


@pytest.fixture
def store(shared_atlas: Atlas, swift: Path) -> Iterator[Store]:
    with open_store(shared_atlas, swift / "annotations.sqlite") as found:
        found.start_campaign(keys_per_layer=10, controls=2)
        yield found


def test_figure_2_from_people(judged: Store) -> None:
    figure = results(judged).figure
    # L0.M0, of 25 prefixes: Ada 5 shallow, 5 both, 5 semantic, 10 none; Ben 5 shallow, 20 none.
    expected = {"shallow_only": 5 / 25, "both": 5 / 50, "semantic_only": 5 / 50, "none": 30 / 50, "covered": 20 / 50}
    expected |= {"shallow": 15 / 50, "semantic": 10 / 50, "keys_with_pattern": 1.0, "patterns_per_key": 1.5}
    assert {name: value(figure, name, 0) for name in expected} == {n: pytest.approx(v) for n, v in expected.items()}
    assert (value(figure, "keys_with_pattern", 1), value(figure, "none", 1)) == (0.0, 1.0)
    # Ada found a pattern in one key of two, Ben in the one he judged.
    assert value(figure, "keys_with_pattern") == pytest.approx((1 / 2 + 1) / 2)


def test_false_alarms_on_controls(judged: Store) -> None:
    controls = results(judged).controls
    assert value(controls, "controls_with_pattern") == pytest.approx(1 / 3)
    with judged.database.reading() as connection:
        content = "SELECT content FROM items WHERE kind = 'control' ORDER BY memory"
        sizes = [text.count("[") - 1 for (text,) in connection.execute(content)]
    assert value(controls, "controls_covered") == pytest.approx(3 / (2 * sizes[0] + sizes[1]))


def test_agreement(judged: Store) -> None:
    agreement = results(judged).agreement
    rows = {row["name"]: row for row in agreement.to_dicts()}
    assert list(rows) == ["key_class", "trigger_marked", "trigger_class", "composition"]
    # One key was judged by both: both against shallow. By chance as well: alpha is 1 - (2 - 1) * 2 / 2.
    assert (rows["key_class"]["value"], rows["key_class"]["count"]) == (0.0, 2)
    # Of 25 prefixes 5 both mark, 10 only Ada, 10 neither: 20 values are marked, 30 are not.
    assert rows["trigger_marked"]["value"] == pytest.approx(1 - 49 * 20 / (2 * 20 * 30))
    # Compositions 0 (related, distant) and 1 (distant, distant): 4 values, one related.
    assert (rows["composition"]["value"], rows["composition"]["count"]) == (pytest.approx(1 - 3 * 2 / 6), 4)


def test_people_against_automatic_patterns(judged: Store) -> None:
    """Automatic patterns of L0.M0: 0-3 shallow, 4 both, 5 and 6 semantic. Nothing for L1.M0."""
    automatic = results(judged).automatic
    # Ada marks all 7, Ben 5 of them; Ada marks 15, Ben 5.
    assert value(automatic, "precision", 0) == pytest.approx((7 + 5) / 14)
    assert value(automatic, "recall", 0) == pytest.approx((7 + 5) / (15 + 5))
    # Ada: 0-4 shallow, 5-6 both, so alike on 0-3; Ben: 0-4 shallow, alike on 0-3.
    assert value(automatic, "same_kind", 0) == pytest.approx(8 / 12)
    # Ada calls the key both, as the patterns are; Ben shallow.
    assert (value(automatic, "same_class", 0), value(automatic, "precision", 1)) == (0.5, None)
    assert value(automatic, "same_class") == pytest.approx(2 / 3)


def test_compositions_and_authors(judged: Store) -> None:
    found = results(judged)
    shares = {row["name"]: row for row in found.compositions.to_dicts()}
    assert {name: (row["value"], row["count"]) for name, row in shares.items()} == {
        "related": (0.0, 3),
        "distant": (2 / 3, 3),
        "split": (1 / 3, 3),
    }
    assert (shares["distant"]["low"], shares["distant"]["high"]) == wilson(2 / 3, 3)
    assert found.authors.rows() == [("Ada", 2, 1, 3, 1.0, 1.0), ("Ben", 1, 2, 2, 1.0, 0.0)]


def test_nobody_judged_yet(store: Store) -> None:
    found = results(store)
    assert found.figure.is_empty()
    assert found.automatic.is_empty()
    assert found.authors.is_empty()
    assert (found.controls["value"].to_list(), found.agreement["value"].to_list()) == ([None, None], [None] * 4)
    assert found.compositions["value"].to_list() == [None] * 3


def test_an_atlas_without_patterns(tmp_path: Any) -> None:
    with open_store(judged_atlas(tmp_path / "atlas", patterns=False, cases=0)) as store:
        campaign = store.start_campaign()
        ada = someone(store, "Ada")
        say(store, ada, code_of(store, "key", 0, 0), ("shallow", range(3)))
        found = results(store)
    assert found.automatic.is_empty()
    assert not found.figure.is_empty()
    assert campaign.controls == max(5, math.ceil(10 / 5))


def test_the_question_key_patterns_reads_the_same_file(tmp_path: Any) -> None:
    """The people_* rows of the answer are those of the results: controls, chosen and unfinished keys left out."""
    atlas = judged_atlas(tmp_path / "atlas")
    with open_store(atlas) as store:
        store.start_campaign(keys_per_layer=10, controls=2)
        ada, ben = someone(store, "Ada"), someone(store, "Ben")
        say(store, ada, code_of(store, "key", 0, 0), ("shallow", range(10)), ("semantic", range(5, 15)))
        say(store, ben, code_of(store, "key", 0, 0))
        say(store, ben, code_of(store, "key", 1, 2), ("both", range(25)), finish=False)
        say(store, ada, code_of(store, "control", 0, 0), ("both", range(20)))
        say(store, ada, store.choose(MemoryId(0, 0)), ("both", range(25)), finish=False)
        read = read_judgements(atlas.path)  # while the store is open
        figure = results(store).figure
    assert read.select("layer", "memory", "control", "sampled", "author", "kind").rows() == [
        (0, 0, False, False, "Ada", "both"),
        (0, 0, False, True, "Ada", "shallow"),
        (0, 0, False, True, "Ada", "semantic"),
        (0, 0, False, True, "Ben", "none"),
        (0, 0, True, True, "Ada", "both"),
    ]
    said = pl.col("name").str.starts_with("people_") & pl.col("value").is_not_null()
    people = answer(atlas, "key_patterns").filter(said)
    people = people.with_columns(pl.col("name").str.strip_prefix("people_")).select(figure.columns)
    order = [*figure.columns[:2]]
    assert people.sort(order).rows() == figure.sort(order).rows()


def test_what_people_call_compositions_is_in_the_folder_too(tmp_path: Any) -> None:
    """Case 10: taken back; 11: distant, after second thoughts; 12: a tie; 13: related."""
    atlas = judged_atlas(tmp_path / "atlas", patterns=False)
    assert read_verdicts(atlas.path) is None
    with open_store(atlas) as store:
        assert read_verdicts(atlas.path) is not None
        store.start_campaign(keys_per_layer=1)
        ada, ben = someone(store, "Ada"), someone(store, "Ben")
        hers = ((10, "related"), (10, "none"), (11, "related"), (11, "distant"), (12, "related"))
        his = ((12, "distant"), (13, "related"))
        for who, case, verdict in (*((ada, *one) for one in hers), *((ben, *one) for one in his)):
            store.judge(code_of(store, "case", 1, case), who, verdict=verdict)
        compositions = results(store).compositions
    found = read_verdicts(atlas.path)
    expected = [(11, "Ada", "distant"), (12, "Ada", "related"), (12, "Ben", "distant"), (13, "Ben", "related")]
    assert found.rows() == [(*row, False) for row in expected]
    shares = {name: one.value for name, one in majority_calls(found).items()}
    assert shares == {"related": 1 / 3, "distant": 1 / 3, "split": 1 / 3}
    assert dict(compositions.select("name", "value").rows()) == shares
