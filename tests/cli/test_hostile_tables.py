"""Tables that agree with the manifest's hashes and with nothing else: one plain line or an answer, whatever they hold.

The atlas is mined; one column of one table is taken away, retyped, emptied or filled with what no run writes, and the
manifest is sealed again over it. `MNEMOSCOPE_EXAMPLES` tries more of them (runs/fuzz.sh).
"""

import hashlib
import json
import math
import os
import random
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mnemoscope.atlas import verify
from mnemoscope.atlas.manifest import MANIFEST, file_entry
from mnemoscope.atlas.schema import TABLES
from mnemoscope.cli.app import app
from mnemoscope.cli.runner import run
from mnemoscope.mining import mine
from support.hostile_json import changed
from web.served import client

pytestmark = pytest.mark.full

Capture = pytest.CaptureFixture[str]
EXAMPLES = int(os.environ.get("MNEMOSCOPE_EXAMPLES", "12"))
PAGES = ("/", "/L1.M0", "/layers/1", "/tokens/3", "/questions/value_rank", "/search?q=cat", "/routing", "/L1.M0.json")
VERBS = (["show", "L1.M0"], ["verify"], ["analyze", "--patterns"], ["search", "cat"])

WHOLE = ("dropped", "renamed", "empty", "twice", "backwards")
NUMBERS: dict[str, list[Any]] = {
    **{"int": [-1, 0, 2**31 - 1, -(2**31)], "float": [float("nan"), float("inf"), -1.0, 3e38]},
    **{"string": ["", "\0", "\ud7ff" * 3, "x" * 10_000], "binary": [b"", b"\xff"], "bool": [True, False]},
}


@pytest.fixture(scope="module")
def mined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "text.txt").write_text("".join(f"the cat sat on mat {number}\n" for number in range(40)))
    options = {"split": "line", "prefixes": 20, "removals": 2}
    return mine("handmade:planted", folder / "text.txt", out=folder / "atlas", **options).path


def tables_of(atlas: Path) -> list[str]:
    return sorted(path.relative_to(atlas).as_posix() for path in atlas.rglob("*.parquet"))


def sort_of(kind: pa.DataType) -> str:
    types = pa.types
    tests = {"int": types.is_integer, "float": types.is_floating, "bool": types.is_boolean, "binary": types.is_binary}
    return next((name for name, test in tests.items() if test(kind)), "string")


def hostile_column(column: pa.ChunkedArray, draw: random.Random) -> tuple[str, pa.Array]:
    """Another column of as many rows, and in words what it is."""
    kind, rows = column.type, column.to_pylist()
    how = draw.choice(["null", "one null", "value", "one value", "type", "lists"])
    if how == "type":
        return "other type", pa.array([None if one is None else str(one) for one in rows], pa.string())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = draw.choice(NUMBERS[sort_of(kind.value_type)])
        new: Any = {"null": None, "one null": None, "lists": []}.get(how, draw.choice([[inner], [None], [inner] * 300]))
    else:
        new = None if "null" in how else draw.choice(NUMBERS[sort_of(kind)])
    if how.startswith("one") and rows:
        rows[draw.randrange(len(rows))] = new
    else:
        rows = [new] * len(rows)
    try:
        return f"{how} {str(new)[:20]!r}", pa.array(rows, kind)
    except (pa.ArrowInvalid, OverflowError):
        return "null", pa.nulls(len(rows), kind)


def write_sealed(atlas: Path, path: str, table: pa.Table) -> None:
    """Writes a table, and seals the atlas again over it."""
    pq.write_table(table, atlas / path)
    if (atlas / "manifest.json").is_file():
        manifest = json.loads((atlas / "manifest.json").read_text())
        if path in manifest["files"]:
            manifest["files"][path] = file_entry(atlas / path)
            data = json.dumps(manifest).encode()
            (atlas / "manifest.json").write_bytes(data)
            (atlas / "manifest.sha256").write_text(hashlib.sha256(data).hexdigest() + "\n")


def spoil(atlas: Path, path: str, draw: random.Random) -> str:
    """Rewrites a table, seals the atlas again over it, and says what was done."""
    table = pq.read_table(atlas / path)
    name, metadata = draw.choice(table.column_names), table.schema.metadata
    how = draw.choice([*WHOLE, *["column"] * 12])
    place = table.column_names.index(name)
    if how == "dropped":
        table = table.drop_columns([name])
    elif how == "renamed":
        table = table.rename_columns([f"{one}2" if one == name else one for one in table.column_names])
    elif how == "empty":
        table = table.slice(0, 0)
    elif how == "twice":
        table = pa.concat_tables([table, table])
    elif how == "backwards":
        table = table.take(pa.array(range(table.num_rows - 1, -1, -1), pa.int64()))
    else:
        how, column = hostile_column(table[name], draw)
        table = table.set_column(place, pa.field(name, column.type), column)
    write_sealed(atlas, path, table.replace_schema_metadata(metadata))
    return f"{path}, {name}: {how}"


def nulls(column: str) -> Callable[[pa.Table], pa.Table]:
    return full_of(column, None)


def full_of(column: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    def spoil_it(table: pa.Table) -> pa.Table:
        kind = table.schema.field(column).type
        return table.set_column(table.column_names.index(column), column, pa.array([value] * table.num_rows, kind))

    return spoil_it


TRIGGERS, ANALYZE, SEARCH = "triggers/layer-000.parquet", ["analyze"], ["search", "cat"]
FOUND_ONCE = [
    ("tokens.parquet", lambda table: table.slice(0, 0), ANALYZE, "table tokens has 0 rows, and the model 24 tokens"),
    ("sentences/part-000.parquet", lambda table: pa.concat_tables([table, table]), SEARCH, "is stored more than once"),
    ("sentences/part-000.parquet", full_of("tokens", [-(2**31)]), SEARCH, "has a token beyond the vocabulary"),
    ("roles/layer-000.parquet", full_of("control_cosine", math.inf), ANALYZE, "control_cosine holds inf in 6 of"),
    ("attention.parquet", nulls("attention_logit_other"), ANALYZE, "attention_logit_other are null in different rows"),
    ("values/layer-001.parquet", full_of("working_probability", 0.5), ["show", "L1.M0"], "are null in different rows"),
    ("values/layer-001.parquet", full_of("target", -(2**31)), ["show", "L1.M0"], "target names token -2147483648, and"),
    ("values/layer-000.parquet", full_of("top_tokens", []), ["show", "L1.M0"], "top_tokens holds empty lists, which"),
    (TRIGGERS, full_of("next_token", 2**31 - 1), ANALYZE, "table triggers: next_token names token 2147483647, and"),
    ("activity/layer-000.parquet", full_of("histogram", [0] * 35), ["show", "L0.M0"], "a list of 35 entries, not 36"),
    (TRIGGERS, lambda table: table.slice(0, 0), SEARCH, None),
    (TRIGGERS, full_of("sign", 0), SEARCH, None),
]


@pytest.mark.parametrize(("path", "spoil_it", "words", "told"), FOUND_ONCE)
def test_what_a_thousand_tables_found(
    path: str, spoil_it: Any, words: list[str], told: str | None, mined: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Refused in one line that says what is wrong; or read, where a table only has nothing to say."""
    atlas = tmp_path / "atlas"
    shutil.copytree(mined, atlas)
    table = pq.read_table(atlas / path)
    write_sealed(atlas, path, spoil_it(table).replace_schema_metadata(table.schema.metadata))
    code = run(app, [words[0], str(atlas), *words[1:]])
    said = capsys.readouterr().err
    if told is None:
        assert code == 0
    else:
        assert code == 2
        assert told in said.splitlines()[-1]


LISTS = [(kind.name, own.name) for kind in TABLES.values() for own in kind.of_all if own.type.startswith("list")]


@pytest.fixture(scope="module")
def extended(mined: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With every table that has lists, answers, patterns and a saved comparison."""
    atlas = Path(shutil.copytree(mined, tmp_path_factory.mktemp("extended") / "atlas"))
    made = {path.split("/")[0].removesuffix(".parquet") for path in tables_of(atlas)}
    optional = [name for name in ("samples", "token_activations", "memorised", "random") if name not in made]
    for words in (
        ["extend", str(atlas), "--model", "handmade:planted", *optional],
        ["analyze", str(atlas)],
        ["compare", str(atlas), str(mined), "--save"],
    ):
        assert run(app, words) == 0, words
    return atlas


def reseal_side(atlas: Path, path: str) -> None:
    """Makes the manifests of the atlas's folders say the present hash of a file, and of the atlas's manifest."""
    for manifest in atlas.glob(f"*/{MANIFEST}"):
        said = json.loads(manifest.read_text())
        said["files"] |= {path: file_entry(atlas / path)} if path in said["files"] else {}
        said["atlas"] = hashlib.sha256((atlas / MANIFEST).read_bytes()).hexdigest()
        manifest.write_text(json.dumps(said))


def pages_that_fail(atlas: Path) -> list[str]:
    with client(atlas) as web:
        answers = {page: web.get(page) for page in (*PAGES, "/compare", "/questions/layer_activity", "/layers/0")}
    return [page for page, own in answers.items() if own.status_code not in (200, 404, 409, 503) or "a bug" in own.text]


@pytest.mark.parametrize(("table", "column"), LISTS)
def test_every_list_of_another_length(table: str, column: str, extended: Path, tmp_path: Path, capsys: Capture) -> None:
    """No page and no verb calls it a bug; where the length is fixed, or that of another list, `verify` tells, too."""
    paths = [path for path in tables_of(extended) if path.split("/")[0].removesuffix(".parquet") == table]
    for change in (lambda own: own[:-1], lambda own: [*own, *own[-1:]]):
        atlas = Path(shutil.copytree(extended, tmp_path / f"{len(list(tmp_path.iterdir()))}"))
        for path in paths[:1]:
            rows = pq.read_table(atlas / path)
            lists = [change(own) if number == 0 else own for number, own in enumerate(rows[column].to_pylist())]
            field = rows.schema.field(column)
            new = rows.set_column(rows.column_names.index(column), field, pa.array(lists, field.type))
            write_sealed(atlas, path, new.replace_schema_metadata(rows.schema.metadata))
            reseal_side(atlas, path)
        told, kind = verify(atlas), TABLES[table].by_name[column]
        filled = any(pq.read_metadata(atlas / path).num_rows > 1 for path in paths[:1])
        if filled and (kind.lengths_as or kind.items is not None):
            assert any(f"{column} " in line for line in told), told
        assert pages_that_fail(atlas) == []
        for words in (["show", "L0.M0"], ["compare", str(extended)]):
            assert run(app, [words[0], str(atlas), *words[1:]]) in (0, 2)
            assert "a bug" not in capsys.readouterr().err
    assert paths or table in ("similar_words", "readings", "key_readings", "roles", "random_sentences"), table


OTHERS: list[Any] = [None, 3, "text", [], [1], {}, [{}], 1e300]


@pytest.mark.parametrize(
    "path",
    [
        *("comparisons", "analyses/layer_activity.json", "run.json"),
        *(f"{folder}/{MANIFEST}" for folder in ("analyses", "extensions", "comparisons")),
    ],
)
def test_every_document_that_pages_read(path: str, extended: Path, tmp_path: Path) -> None:
    """Each entry of it of another type: read, refused in a sentence, or as if it were not there; never a bug."""
    atlas = Path(shutil.copytree(extended, tmp_path / "atlas"))
    found = next((atlas / path).glob("a*.json")) if path == "comparisons" else atlas / path
    whole = json.loads(found.read_text())
    inner = [(name,) for name in whole] + [
        (name, 0, key)
        for name, own in whole.items()
        if isinstance(own, list) and own and isinstance(own[0], dict)
        for key in own[0]
    ]
    for number, at in enumerate([*inner, ()]):
        other = OTHERS[number % len(OTHERS)]
        found.write_text(json.dumps(changed(whole, at, other) if at else [whole]))
        if found.name != MANIFEST:
            reseal_side(atlas, found.relative_to(atlas).as_posix())
        verify(atlas)
        assert pages_that_fail(atlas) == [], (at, other)


@pytest.mark.timeout(86_400 if "MNEMOSCOPE_EXAMPLES" in os.environ else 300)
def test_a_spoilt_table_is_read_or_refused_in_one_line(mined: Path, tmp_path: Path, capsys: Capture) -> None:
    wrong = []
    seed = int(os.environ.get("MNEMOSCOPE_SEED", "0"))
    for number in range(EXAMPLES):
        draw = random.Random(1_000_000 * seed + number)
        atlas = tmp_path / "atlas"
        shutil.rmtree(atlas, ignore_errors=True)
        shutil.copytree(mined, atlas)
        done = f"{number}: {spoil(atlas, draw.choice(tables_of(mined)), draw)}"
        for words in (*VERBS, ["export", "--to", "neuronpedia", "--out", str(tmp_path / "out")]):
            code = run(app, [words[0], str(atlas), *words[1:]])
            said = capsys.readouterr().err
            if code not in (0, 2) or "Traceback" in said or (code == 2 and len(said.strip().splitlines()) > 30):
                wrong.append(f"{done}; {words[0]}: {code}, {said[-300:]}")
        try:
            with client(atlas) as web:
                for page in PAGES:
                    answer = web.get(page)
                    if answer.status_code not in (200, 404, 409, 503) or "Traceback" in answer.text:
                        wrong.append(f"{done}; {page}: {answer.status_code} {answer.text[-200:]}")
        except Exception as problem:
            wrong.append(f"{done}; serve: {traceback.format_exception_only(problem)}")
    assert not wrong, f"{len(wrong)} of {EXAMPLES}\n" + "\n".join(wrong)
