"""The paper's sheet: patterns and verdicts of people and of models, counted apart; bad rows are refused whole."""

import csv
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from campaigns.conftest import Opening, codes, someone
from mnemoscope.annotate.campaigns.import_export import as_text, rows
from mnemoscope.annotate.judgements import read_judgements, read_verdicts
from mnemoscope.annotate.judgements.tables import SCHEMA
from mnemoscope.annotations import Store, export, import_judgements, open_store, results
from mnemoscope.atlas import Atlas
from mnemoscope.errors import AnnotationError, MnemoscopeError
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.questions import answer
from support.judged_atlas import judged_atlas

KEYS = [
    {"memory": "L0.M0", "pattern": "ends in last0", "kind": "shallow", "triggers": "0 1 2 3 4 5 6 7 8 9"},
    {"memory": "L0.M0", "pattern": "said twice", "kind": "semantic", "triggers": "8,9,10"},
    {"memory": "L0.M1", "pattern": "", "kind": "none", "triggers": ""},
]
"""Ada's: of 25 + 24 prefixes (two triggers of L0.M1 have one prefix) 8 shallow, 2 both, 1 semantic, 38 none."""
MODEL = {"memory": "L1.M2", "pattern": "words", "kind": "semantic", "triggers": "[4, 3, 2, 1, 0]"}
ADA, BOT = ({"author": name, "author_kind": kind} for name, kind in (("Ada", "person"), ("A Bot 1.0", "model")))
SHEET = [*({**row, **ADA} for row in KEYS), MODEL | BOT]
SAID = [(10, "distant", ADA), (11, "related", ADA), (10, "related", BOT), (12, "distant", BOT), (13, "distant", BOT)]
VERDICTS = [{"prefix": prefix, "verdict": verdict, **who} for prefix, verdict, who in SAID]


def write(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    """As CSV with the columns of all rows, or as JSONL, by the path's ending."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return path
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(dict.fromkeys(name for line in lines for name in line)))
        table.writeheader()
        table.writerows(lines)
    return path


def ours(store: Store, by: str, table: str) -> dict[tuple[int | None, str], float | None]:
    return {(row["layer"], row["name"]): row["value"] for row in getattr(results(store, by), table).to_dicts()}


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_people_and_models_are_counted_apart(tmp_path: Path, form: str) -> None:
    atlas = judged_atlas(tmp_path / "atlas")
    with open_store(atlas) as store:
        assert import_judgements(store, write(tmp_path / f"a.{form}", SHEET + VERDICTS)) == 9
        people, models = ours(store, "person", "figure"), ours(store, "model", "figure")
        assert ours(store, "person", "compositions")[None, "distant"] == 1 / 2
        assert ours(store, "model", "compositions")[None, "distant"] == pytest.approx(2 / 3)
        # The finder has L0.M0 as both; of its 7 prefixes Ada marks all, of Ada's 11 it explains 7, 4 of them alike.
        beside = ours(store, "person", "automatic")
        assert (beside[None, "precision"], beside[None, "recall"]) == (1, pytest.approx(7 / 11))
        assert beside[None, "same_class"] == 1, "both and both; none and none"
        assert ours(store, "model", "automatic")[None, "same_class"] == 0
    shares = {"shallow_only": 8 / 49, "both": 2 / 49, "semantic_only": 1 / 49, "none": 38 / 49}
    shares |= {"keys_with_pattern": 1 / 2, "patterns_per_key": 1.0}
    theirs = {"semantic_only": 5 / 25, "none": 20 / 25, "shallow": 0, "keys_with_pattern": 1, "patterns_per_key": 1}
    found = answer(atlas, "key_patterns")
    for who, wanted, table, layer in (("people", shares, people, 0), ("models", theirs, models, 1)):
        for name, value in wanted.items():
            assert table[layer, name] == table[None, name] == pytest.approx(value), name
            said = found.filter(name=f"{who}_{name}").select("layer", "value").rows()
            assert dict(said) == {layer: pytest.approx(value), 1 - layer: None, None: pytest.approx(value)}, name
    judged = dict(found.filter(found["layer"].is_null()).select("name", "judged_by").rows())
    assert judged["people_none"] == "by 1 person"
    assert judged["models_none"] == "by the model A Bot 1.0"
    assert judged["none"] is None


def test_two_imports_are_one_and_what_was_exported_comes_back(
    opening: Opening, shared_atlas: Atlas, tmp_path: Path
) -> None:
    store, sheet = opening(), write(tmp_path / "a.csv", SHEET + VERDICTS)
    assert import_judgements(store, sheet) == 9
    before = as_text(store, "jsonl")
    assert import_judgements(store, sheet) == 0
    assert as_text(store, "jsonl") == before
    store.start_campaign(keys_per_layer=5, controls=0, cases=4)
    for form in ("csv", "jsonl"):
        exported = tmp_path / f"exported.{form}"
        export(store, exported)
        with open_store(shared_atlas, tmp_path / f"{form}.sqlite") as other:
            assert import_judgements(other, exported) == len(rows(store))
            assert as_text(other, form) == as_text(store, form) == exported.read_text(encoding="utf-8")
            for by in ("person", "model"):
                assert ours(other, by, "figure") == ours(store, by, "figure")
            assert {(one.name, one.role) for one in other.annotators()} == {
                ("Ada", "annotator"),
                ("A Bot 1.0", "model"),
            }


def test_a_later_sheet_replaces_what_its_author_said_of_the_same(tmp_path: Path) -> None:
    atlas = judged_atlas(tmp_path / "atlas")
    later = [
        {**KEYS[0], **ADA, "pattern": "other words", "triggers": [0, 1, 2]},
        {**KEYS[0], **ADA, "memory": "L0.M1"},
        {"prefix": "10", "verdict": "related", **ADA},
    ]
    with open_store(atlas) as store:
        import_judgements(store, write(tmp_path / "a.csv", SHEET + VERDICTS))
        assert import_judgements(store, write(tmp_path / "b.jsonl", later)) == 3
    judged, verdicts = read_judgements(atlas.path), read_verdicts(atlas.path)
    assert judged is not None
    assert verdicts is not None
    said = judged.filter(kind="none").height, judged.filter(judged["kind"] != "none")
    assert said[1].select("author", "layer", "memory", "description", "triggers", "model").rows() == [
        ("Ada", 0, 0, "other words", [0, 1, 2], False),
        ("Ada", 0, 1, "ends in last0", list(range(10)), False),
        ("A Bot 1.0", 1, 2, "words", [0, 1, 2, 3, 4], True),
    ]
    assert verdicts.filter(author="Ada").rows() == [(10, "Ada", "related", False), (11, "Ada", "related", False)]
    with open_store(atlas) as store:  # the first file again: what it says counts again
        assert import_judgements(store, tmp_path / "a.csv") == 4
        assert ours(store, "person", "figure")[None, "shallow_only"] == pytest.approx(8 / 49)
        none = [{**KEYS[2], **ADA, "memory": "L0.M0"}]
        assert import_judgements(store, write(tmp_path / "c.jsonl", none)) == 1
        assert ours(store, "person", "figure")[None, "keys_with_pattern"] == 0


def test_a_campaign_goes_on_beside_a_sheet(opening: Opening, tmp_path: Path) -> None:
    """Its items are its own, and what an annotator said blind is not replaced."""
    store = opening()
    import_judgements(store, write(tmp_path / "a.csv", SHEET + VERDICTS))
    store.start_campaign(keys_per_layer=5, controls=0, cases=4)
    cleo = someone(store, "Cleo")
    assert store.progress(cleo).keys == 10
    assert store.progress(cleo).cases == 4
    store.judge(codes(store, "case")[0], cleo, verdict="distant")
    store.save(codes(store, "key")[0], cleo, kind="shallow", description="blind", marks=[0, 1, 2])
    for line in (VERDICTS[0], KEYS[0]):
        row = line | {"author": "Cleo", "author_kind": "person"}
        with pytest.raises(AnnotationError, match="line 1: Cleo has judged it in the campaign"):
            import_judgements(store, write(tmp_path / "b.jsonl", [row]))
    for kind in ("sheet_key", "sheet_case"):
        with pytest.raises(AnnotationError, match="there is no item"):
            store.view(codes(store, kind)[0], cleo)


FIRST = SHEET[0]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (FIRST | {"memory": "L0.M77"}, "L0.M77"),
        (FIRST | {"memory": "L9.M0"}, "L9.M0 is not in"),
        (FIRST | {"memory": "seven"}, "seven"),
        (FIRST | {"triggers": "0 1 25"}, "trigger 25 is no rank of its 25 best triggers"),
        (FIRST | {"memory": "L0.M5"}, "trigger 0 is no rank of its 0 best triggers"),
        (FIRST | {"triggers": "0 1 -2"}, "triggers is '0 1 -2', not ranks"),
        (FIRST | {"triggers": [0, 1, 2.5]}, "not ranks"),
        (FIRST | {"triggers": [0, 1, True]}, "not ranks"),
        (FIRST | {"triggers": "1 1 2"}, "a pattern is in at least 3"),
        (FIRST | {"kind": "deep"}, "the kind is 'deep'"),
        (FIRST | {"kind": "none"}, "of kind none has no pattern"),
        (FIRST | {"pattern": ""}, "no description"),
        (FIRST | {"author": "  "}, "the name is ''"),
        (FIRST | {"author_kind": "robot"}, "the author_kind is 'robot'; choose one of person, model"),
        (FIRST | {"author": "A Bot 1.0"}, "A Bot 1.0 is no person here"),
        (FIRST | {"author": "ADA"}, "there is an annotator 'Ada' already"),
        ({**KEYS[2], **ADA, "memory": "L0.M0"}, "says this, or the contrary, in an earlier row"),
        (SHEET[1], "in an earlier row"),
        (SHEET[2], "in an earlier row"),
        ({name: FIRST[name] for name in FIRST if name != "kind"}, "kind is missing"),
        ({name: FIRST[name] for name in FIRST if name != "memory"}, "prefix is missing"),
        (FIRST | {"note": "x"}, "note is unknown"),
        (FIRST | {"prefix": 10}, "prefix is unknown"),
        (VERDICTS[0] | {"prefix": 14}, "prefix '14' is no composition that the atlas lists; it lists 4"),
        (VERDICTS[0] | {"prefix": "-1"}, "prefix '-1' is no composition"),
        (VERDICTS[0] | {"prefix": 13, "verdict": "none"}, "the verdict is 'none'; choose one of related, distant"),
        (VERDICTS[1], "in an earlier row"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_stored(
    opening: Opening, tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    store, bad = opening(), write(tmp_path / "a.jsonl", [*SHEET, *VERDICTS, row])
    with pytest.raises(MnemoscopeError, match="line 10: ") as caught:
        import_judgements(store, bad)
    assert said in str(caught.value)
    assert str(caught.value).endswith("nothing was imported")
    assert "\n" not in str(caught.value)
    assert rows(store) == []
    assert store.annotators() == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("memory,author\nL0.M0,Ada\n", "line 2: author_kind is missing"),
        ("prefix,author,author_kind,verdict\n10,Ada,person\n", "line 2: has 3 columns, not 4"),
        ("memory,memory,author\n", "line 1: the columns are not"),
        ("author,author_kind,pattern\n", "line 1: the columns are not"),
    ],
)
def test_columns_that_are_none(opening: Opening, tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "a.csv").write_text(content, encoding="utf-8")
    with pytest.raises(AnnotationError, match=said):
        import_judgements(opening(), tmp_path / "a.csv")


def test_no_composition_was_listed(tmp_path: Path) -> None:
    atlas = judged_atlas(tmp_path / "atlas", cases=0)
    sheet = write(tmp_path / "a.jsonl", VERDICTS)
    with open_store(atlas) as store:
        with pytest.raises(AnnotationError, match=r"line 1: .* it lists none yet"):
            import_judgements(store, sheet)
        assert import_judgements(store, sheet, cases=dict.fromkeys(range(10, 14), 1)) == 5


def test_a_sheet_is_published_with_its_memory(opening: Opening, tmp_path: Path) -> None:
    store = opening()
    import_judgements(store, write(tmp_path / "a.csv", SHEET))
    shown = store.read_published(MemoryId(1, 2))
    assert shown.select("author", "sampled", "model").rows() == [("A Bot 1.0", True, True)]


def test_a_database_of_before_sheets_says_what_to_do(shared_atlas: Atlas, tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(SCHEMA.replace(", 'sheet_key', 'sheet_case'", "").replace(", 'model'", ""))
        database.execute("INSERT INTO annotations_version VALUES (1, ?)", (shared_atlas.manifest_hash,))
    with open_store(shared_atlas, path) as store:
        with pytest.raises(AnnotationError, match="an older version made the file; export it"):
            import_judgements(store, write(tmp_path / "a.csv", SHEET))
        assert rows(store) == []
