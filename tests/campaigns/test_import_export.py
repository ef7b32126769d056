"""Export and import: everything, exactly, once; and nothing of a file with one bad line."""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from campaigns.conftest import Opening, codes, someone
from mnemoscope.annotate.campaigns.import_export import as_text, rows
from mnemoscope.annotate.judgements.tables import insert
from mnemoscope.annotations import Annotator, KeyView, Store, export, import_judgements, open_store, results
from mnemoscope.atlas import Atlas
from mnemoscope.errors import AnnotationError
from mnemoscope.foundation.memory_names import MemoryId
from support.judged_atlas import another_atlas

HOSTILE = 'says "of, the"; =1+1, <b>ünïcode</b> \u200b日本'


def work(store: Store) -> Store:
    """Everything that can be said is said in this store."""
    store.start_campaign(keys_per_layer=1, controls=2, cases=2)
    ada, ben = someone(store, "Ada"), someone(store, "Ben, the 2nd")
    for who in (ada, ben):
        for place in store.places(who):
            if place.kind == "case":
                store.judge(place.code, who, verdict="distant")
                continue
            store.save(place.code, who, kind="shallow", description=HOSTILE, marks=[0, 1, 2])
            store.save(place.code, who, kind="both", description="second", marks=[3, 4, 5, 6])
            store.undo(place.code, who)
            store.finish(place.code, who)
    store.hand_in(ben)
    first = codes(store, "control")[0]
    store.finish(first, ada, done=False)
    store.retract(first, ada, pattern=0)
    store.finish(first, ada, none=True)
    store.judge(codes(store, "case")[0], ada, verdict="none")
    store.save(store.choose(MemoryId(1, 4)), ada, kind="both", description="chosen", marks=[7, 8, 9])
    return store


@pytest.fixture
def worked(opening: Opening) -> Store:
    return work(opening())


@pytest.fixture(scope="module")
def standing(shared_atlas: Atlas, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """For tests that change nothing."""
    with open_store(shared_atlas, tmp_path_factory.mktemp("standing") / "annotations.sqlite") as store:
        yield work(store)


@pytest.mark.fast(1)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_round_trip_is_exact(worked: Store, shared_atlas: Atlas, tmp_path: Path, form: str) -> None:
    path = tmp_path / f"judgements.{form}"
    written = export(worked, path)
    assert written == len(rows(worked)) > 40
    with open_store(shared_atlas, tmp_path / "other.sqlite") as other:
        assert (import_judgements(other, path), as_text(other, form)) == (written, path.read_text(encoding="utf-8"))
        assert import_judgements(other, path) == 0, "twice is once"
        assert import_judgements(worked, path) == 0
        theirs, ours = results(other), results(worked)
        for name in ("figure", "controls", "agreement", "automatic", "compositions", "authors"):
            assert getattr(theirs, name).equals(getattr(ours, name)), name
        # The campaign goes on there: the same items, in the same order; only invitations are made anew.
        ada = Annotator("Ada")
        assert other.places(ada) == worked.places(ada)
        assert other.view(codes(worked, "key")[1], ada) == worked.view(codes(worked, "key")[1], ada)
        assert other.annotator(other.renew("Ada").token) == ada


def test_two_halves_of_a_team_come_together(worked: Store, shared_atlas: Atlas, tmp_path: Path) -> None:
    path = tmp_path / "judgements.csv"
    export(worked, path)
    with open_store(shared_atlas, tmp_path / "other.sqlite") as other:
        import_judgements(other, path)
        cleo = someone(other, "Cleo")
        other.judge(codes(other, "case")[0], cleo, verdict="related")
        export(other, path)
    assert (import_judgements(worked, path), [row["author"] for row in rows(worked)][-1]) == (1, "Cleo")


def test_jsonl_holds_values_and_csv_opens_as_a_table(standing: Store, tmp_path: Path) -> None:
    export(standing, tmp_path / "a.jsonl")
    export(standing, tmp_path / "a.csv")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [line["key"] for line in lines] == [line["key"] for line in table]
    first = next(line for line in lines if line["event"] == "judgement")
    assert (len(first["triggers"]), first["description"], first["kind"]) == (3, HOSTILE, "shallow")


# What somebody wrote, and the cell that it becomes.
AS_THEY_ARE = ("'s at the end", "'", "a = b")
CELLS = {text: f"'{text}" for text in ("=1+1", "+1", "-1", "@SUM(A1)", "= of", "'=2", "''-1")}
CELLS |= {text: text for text in AS_THEY_ARE}


def test_no_cell_is_a_formula_and_every_word_comes_back(shared_atlas: Atlas, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with open_store(shared_atlas, tmp_path / "one.sqlite") as store:
        store.start_campaign(keys_per_layer=1, controls=0, cases=0)
        ada, code = someone(store, "=Ada"), codes(store, "key")[0]
        for number, said in enumerate(CELLS):
            store.save(code, ada, kind="both", description=said, marks=[0, 1, 2], pattern=0, key=f"-{number}-2-3-4-5")
        export(store, path)
        with path.open(encoding="utf-8", newline="") as file:
            table = list(csv.DictReader(file))
        assert not [cell for row in table for cell in row.values() if cell.startswith(("=", "+", "-", "@"))]
        assert [row["description"] for row in table] == [*CELLS.values()]
        with open_store(shared_atlas, tmp_path / "other.sqlite") as other:
            assert (import_judgements(other, path), rows(other)) == (len(CELLS), rows(store))
            assert [row["description"] for row in rows(other)] == [*CELLS]
        # As it was written before cells were kept from being formulas.
        path.write_text(path.read_text(encoding="utf-8").replace(",'=1+1,", ",=1+1,"), encoding="utf-8")
        assert import_judgements(store, path) == 0


def test_a_judgement_at_the_end_of_time_can_be_followed(shared_atlas: Atlas, tmp_path: Path) -> None:
    """A row that was imported while such times were taken: its author's next word on the item counts all the same."""
    with open_store(shared_atlas, tmp_path / "one.sqlite") as store:
        store.start_campaign(keys_per_layer=1, controls=0, cases=0)
        ada, code = someone(store, "Ada"), codes(store, "key")[0]
        store.save(code, ada, kind="both", description="first", marks=[0, 1, 2], pattern=0)
        with store.database.writing() as connection:
            row = dict(connection.execute("SELECT * FROM judgements").fetchone())
            last = {"id": 2, "key": "the-last-one", "made_at": "9999-12-31T23:59:59.999999+00:00"}
            insert(connection, "judgements", row | last)
        for said in ("second", "third"):
            store.save(code, ada, kind="both", description=said, marks=[0, 1, 2], pattern=0)
            seen = store.view(code, ada)
            assert isinstance(seen, KeyView)
            assert [pattern.description for pattern in seen.patterns] == [said]


def test_nothing_to_export(opening: Opening, tmp_path: Path) -> None:
    store = opening()
    assert export(store, tmp_path / "a.csv") == export(store, tmp_path / "a.jsonl") == 0
    assert import_judgements(store, tmp_path / "a.csv") == import_judgements(store, tmp_path / "a.jsonl") == 0


Change = Callable[[list[dict[str, Any]]], Any]


def changed(number: int, **values: Any) -> Change:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[number] |= values

    return change


def other_campaign(lines: list[dict[str, Any]]) -> None:
    lines[2]["campaign"] = lines[2]["campaign"] | {"seed": 5}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed(2, kind="deep"), "line 3: the kind is 'deep'; choose one of shallow, semantic, both, none"),
        (changed(2, triggers=[0, 1, 40]), "line 3: trigger 40 is not shown in this item"),
        (changed(2, memory=77), "line 3: the campaign has no [a-z]+ 77 in layer"),
        (changed(2, code="0" * 20), "line 3: .* was shown with other prefixes there"),
        (
            changed(2, description="other words"),
            "line 3: .* is stored with another description, and nothing is overwritten",
        ),
        (changed(2, atlas="f" * 64), "line 3: it is about another atlas"),
        (other_campaign, "line 3: it belongs to another campaign"),
        (changed(0, item_kind="chosen", layer=9), r"line 1: layer 9 is not in"),
    ],
)
def test_one_bad_line_and_nothing_is_imported(standing: Store, tmp_path: Path, change: Change, said: str) -> None:
    before = as_text(standing, "csv")
    lines = [json.loads(line) for line in as_text(standing, "jsonl").splitlines()]
    lines = [line for line in lines if line["event"] == "judgement" and line["kind"] != "none"][:4]
    lines[0]["key"] = "new-judgement"  # would be added, were the rest not refused
    change(lines)
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(AnnotationError, match=said) as caught:
        import_judgements(standing, path)
    assert "\n" not in str(caught.value)
    assert "nothing was imported" in str(caught.value)
    assert as_text(standing, "csv") == before


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"author,made_at\nAda,now\n", "line 1: the columns are not author, author_kind, made_at, event"),
        ("a.csv", b"", "line 1: the columns are not"),
        ("a.csv", b'"author', "is not CSV"),
        ("a.jsonl", b"{]\n", "line 1: is not JSON"),
        ("a.jsonl", b"\n", "line 1: is not JSON"),
        ("a.jsonl", b"[1]\n", "line 1: is not a JSON object"),
        ("a.jsonl", b"[" * 100_000, "line 1: is not JSON"),
        ("a.jsonl", b"\xff\xfe", "is not UTF-8 text"),
        ("a.txt", b"", "does not end in .csv or .jsonl"),
    ],
)
def test_files_that_are_no_export(standing: Store, tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AnnotationError, match=said) as caught:
        import_judgements(standing, tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_csv_line_is_named_where_it_is(standing: Store, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = as_text(standing, "csv").splitlines()
    path.write_text("\n".join([*lines[:5], "too,short", *lines[5:]]), encoding="utf-8")
    with pytest.raises(AnnotationError, match="line 6: has 2 columns, not 16"):
        import_judgements(standing, path)
    path.write_text("\n".join(lines).replace("judgement,key,0,", "judgement,key,zero,"), encoding="utf-8")
    with pytest.raises(AnnotationError, match="layer is 'zero', not a number"):
        import_judgements(standing, path)


def test_a_file_that_is_not_there(standing: Store, tmp_path: Path) -> None:
    with pytest.raises(AnnotationError, match=r"cannot be read \(No such file"):
        import_judgements(standing, tmp_path / "none.csv")


def test_another_atlas(standing: Store, tmp_path: Path) -> None:
    export(standing, tmp_path / "a.csv")
    atlas = another_atlas(tmp_path / "other")
    with open_store(atlas) as other, pytest.raises(AnnotationError, match="line 2: it is about another atlas"):
        import_judgements(other, tmp_path / "a.csv")
