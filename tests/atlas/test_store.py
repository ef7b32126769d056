"""The store: the same rows give the same bytes, and no crash or full disk leaves half a file."""

import errno
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.atlas import store
from mnemoscope.atlas.manifest import table_files
from mnemoscope.atlas.schema import SCHEMA_VERSION, TABLES, place, schema_error
from mnemoscope.atlas.store import write_free_table, write_sentences, write_table
from mnemoscope.errors import StoreFailed
from mnemoscope.foundation import files
from mnemoscope.foundation.files import replacing, storing, write_json
from mnemoscope.foundation.memory_names import HISTOGRAM_BINS, HISTOGRAM_EDGES
from support.handbuilt_atlas import PROVENANCE, sentence_columns, trigger_columns, trigger_rows, write_tables


def test_histogram_edges_are_the_contract_s() -> None:
    assert (len(HISTOGRAM_EDGES), HISTOGRAM_BINS) == (35, 36)
    assert list(HISTOGRAM_EDGES) == sorted({0.0} | {s * 2.0**k for s in (1, -1) for k in range(-10, 7)})


def test_every_table_has_a_place_and_every_place_a_table() -> None:
    for kind in TABLES.values():
        number = 3 if kind.numbered else None
        assert place(kind.path(number)) == (kind, number)
    for path in ("triggers", "triggers/part-000", "triggers/layer-0", "triggers/layer-0007", "tokens/layer-000"):
        assert place(f"{path}.parquet") is None
    assert TABLES["triggers"].path(1000) == "triggers/layer-1000.parquet"


def test_the_same_rows_give_the_same_bytes_however_they_came(tmp_path: Path) -> None:
    """Columns as lists, as numpy arrays, as sliced and as chunked tables."""
    columns = trigger_columns(trigger_rows()[0])
    kind = TABLES["triggers"]
    whole = pa.table({f.name: pa.array(columns[f.name], type=f.type) for f in kind.columns}, schema=kind.columns)
    doubled = pa.concat_tables([whole, whole])
    arrays = {f.name: whole[f.name].to_numpy() for f in kind.columns if f.name != "next_token"}
    following = columns["next_token"]
    arrays["next_token"] = np.ma.array([n or 0 for n in following], mask=[n is None for n in following], dtype=np.int32)
    chunked = pa.concat_tables([whole.slice(0, 3), whole.slice(3)])
    ways: list[Any] = [columns, dict(reversed(columns.items())), whole, doubled.slice(7), chunked, arrays]
    files = []
    for index, way in enumerate(ways):
        path = tmp_path / f"{index}.parquet"
        write_table(path, way, name="triggers", provenance=PROVENANCE)
        files.append(path.read_bytes())
    assert len(set(files)) == 1
    assert schema_error("triggers", pq.read_schema(tmp_path / "0.parquet"), PROVENANCE) is None


def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    write_tables(tmp_path / "here")
    script = "import sys\nfrom support.handbuilt_atlas import *\nwrite_tables(Path(sys.argv[1]))"
    folders = f"{Path(__file__).parents[1]}:{Path(files.__file__).parents[2]}"
    environment = {**os.environ, "PYTHONPATH": folders, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "there")], check=True, env=environment)
    names = table_files(tmp_path / "here")
    assert len(names) == 12
    for name in names:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes(), name


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 25), max_size=4))
def test_sentence_parts_depend_on_the_rows_alone(cuts: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    """25 sentences in parts of 10, handed over in any pieces."""
    sentences = [[index % 24, 1] for index in range(25)]
    columns = sentence_columns(sentences)
    bounds = [0, *sorted(cuts), 25]
    cut_out = (slice(*pair) for pair in itertools.pairwise(bounds))
    pieces = [{name: list(column)[part] for name, column in columns.items()} for part in cut_out]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "SENTENCES_PER_PART", 10)
        whole, cut = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("cut")
        assert write_sentences(whole, [columns], provenance=PROVENANCE) == 3
        assert write_sentences(cut, pieces, provenance=PROVENANCE) == 3
    names = table_files(whole)
    assert [pq.read_metadata(whole / name).num_rows for name in names] == [10, 10, 5]
    assert all((whole / name).read_bytes() == (cut / name).read_bytes() for name in names)


def test_no_sentences_still_make_a_table(tmp_path: Path) -> None:
    assert write_sentences(tmp_path, [], provenance=PROVENANCE) == 1
    assert pq.read_metadata(tmp_path / "sentences/part-000.parquet").num_rows == 0


def test_lists_from_a_matrix_round_trip(tmp_path: Path) -> None:
    columns = {"memory": [0, 1], "mean": [0.5, 0.5], "histogram": np.arange(72).reshape(2, 36)}
    columns |= dict.fromkeys(("min", "std"), [0] * 2) | dict.fromkeys(
        ("prefixes", "positive", "max", "sampled"), [1] * 2
    )
    write_table(tmp_path / "a.parquet", columns, name="activity", provenance=PROVENANCE)
    assert pq.read_table(tmp_path / "a.parquet")["histogram"].to_pylist()[1] == list(range(36, 72))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rank": None}, "column rank is missing"),
        ({"token": [None] * 7}, "column token has 7 nulls"),
        ({"token": pa.array([1] * 7, type=pa.int64())}, "column token is int64, not int32"),
    ],
)
def test_rows_that_do_not_fit_are_a_bug(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    columns = {**trigger_columns(trigger_rows()[0]), **change}
    columns = {name: column for name, column in columns.items() if column is not None}
    with pytest.raises(ValueError, match=said):
        write_table(tmp_path / "a.parquet", columns, name="triggers", provenance=PROVENANCE)
    assert list(tmp_path.iterdir()) == []


LISTS = {"top_tokens": [[1, 2], [3]], "top_scores": [[1.0, 2.0], [3.0]], "bottom_tokens": [[1, 2], [3]]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"target": [None, 1]}, None),
        ({"memory": [None, 1]}, "column memory holds nulls"),
        ({"top_tokens": [[1, 2], None]}, "column top_tokens holds nulls"),
        ({"top_tokens": [[1, 2], [None]]}, "column top_tokens holds nulls"),
        ({"top_scores": [[1.0], [2.0, 3.0]]}, "top_tokens and top_scores are lists of different lengths"),
        ({"bottom_tokens": [[1], [3]]}, "top_tokens and bottom_tokens are lists of different lengths"),
        ({name: [rows[0], []] for name, rows in LISTS.items()}, "top_tokens holds empty lists"),
        ({"target": [3, -1]}, "target names token -1, and the model has tokens 0-3"),
        ({"target": [4, None]}, "target names token 4, and the model has tokens 0-3"),
        ({"top_tokens": [[1, 4], [3]]}, "top_tokens names token 4, and the model has tokens 0-3"),
        ({"bottom_tokens": [[1, 2], [-2]]}, "bottom_tokens names token -2, and the model has tokens 0-3"),
    ],
)
def test_what_no_run_writes_is_told(change: dict[str, Any], said: str | None) -> None:
    columns = {"memory": [0, 1], "target": [None, None], **LISTS, **change}
    arrays = {name: pa.array(rows, TABLES["values"].columns.field(name).type) for name, rows in columns.items()}
    assert TABLES["values"].content_error(pa.table(arrays), 4) == said
    assert TABLES["values"].content_error(pa.concat_tables([pa.table(arrays)] * 2), 4) == said


def test_a_table_is_of_a_layer_or_of_none() -> None:
    with pytest.raises(ValueError, match=r"^table triggers: a number is needed$"):
        TABLES["triggers"].path()
    with pytest.raises(ValueError, match=r"^table tokens: a number is not allowed$"):
        TABLES["tokens"].path(0)
    assert place("sentences/part-1234.parquet") == (TABLES["sentences"], 1234)


def test_what_a_schema_lacks_is_told_in_a_few_words(tmp_path: Path) -> None:
    write_table(tmp_path / "a", trigger_columns(trigger_rows()[0]), name="triggers", provenance=PROVENANCE)
    schema = pq.read_schema(tmp_path / "a")
    assert schema_error("triggers", schema, PROVENANCE) is None
    at = schema.get_field_index("rank")
    assert schema_error("triggers", schema.remove(at), PROVENANCE) == "column rank is missing"
    wrong = ((at, "rank", pa.int32(), "int32, not int16"), (0, "memory", pa.int8(), "int8, not int32"))
    for index, name, kind, said in wrong:
        other = schema.set(index, pa.field(name, kind))
        assert schema_error("triggers", other, PROVENANCE) == f"column {name} is {said}"
    said = f"it says mnemoscope.schema = nothing, the manifest {SCHEMA_VERSION}"
    assert schema_error("triggers", schema.remove_metadata(), PROVENANCE) == said
    other = schema.with_metadata({**schema.metadata, b"mnemoscope.plan": b"\xff"})
    said = f"it says mnemoscope.plan = \ufffd, the manifest {PROVENANCE.plan}"
    assert schema_error("triggers", other, PROVENANCE) == said


def test_a_free_table_has_its_columns_first_and_plain_strings(tmp_path: Path) -> None:
    table = pa.table({"more": pa.array(["x"], pa.large_string()), "n": pa.array([1], pa.int32()), "name": ["a"]})
    columns = pa.schema([pa.field("name", pa.string(), nullable=False), pa.field("n", pa.int32())])
    write_free_table(tmp_path / "a", table, name="answer", provenance=PROVENANCE, columns=columns)
    found = pq.read_table(tmp_path / "a")
    assert found.column_names == ["name", "n", "more"]
    assert found.schema.field("more").type == pa.string()
    assert found.to_pylist() == [{"name": "a", "n": 1, "more": "x"}]
    assert found.schema.metadata[b"mnemoscope.table"] == b"answer"
    write_free_table(tmp_path / "b", table, name="answer", provenance=PROVENANCE)
    assert pq.read_table(tmp_path / "b").column_names == ["more", "n", "name"]
    wrong = pa.schema([pa.field("n", pa.int64())])
    with pytest.raises(ValueError, match=r"^table answer: column n is int32, not int64$"):
        write_free_table(tmp_path / "c", table, name="answer", provenance=PROVENANCE, columns=wrong)


def test_columns_beyond_the_schema_are_kept_last(tmp_path: Path) -> None:
    columns = {"expert": [4] * 7, **trigger_columns(trigger_rows()[0])}
    write_table(tmp_path / "a.parquet", columns, name="triggers", provenance=PROVENANCE)
    schema = pq.read_schema(tmp_path / "a.parquet")
    assert schema.names == [*TABLES["triggers"].columns.names, "expert"]
    assert schema_error("triggers", schema, PROVENANCE) is None


def test_json_has_one_spelling(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": [1, 0.5], "a": "é"})
    assert (tmp_path / "a.json").read_bytes() == '{\n "a": "é",\n "b": [\n  1,\n  0.5\n ]\n}\n'.encode()
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": "é", "b": [1, 0.5]}


def test_a_failed_write_keeps_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"old")

    def write_and_fail() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise KeyError("stop")

    with pytest.raises(KeyError):
        write_and_fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_what_the_system_refuses_is_one_plain_line(tmp_path: Path, code: int) -> None:
    path = tmp_path / "deep" / "table"
    with pytest.raises(StoreFailed) as caught, storing(path):
        raise OSError(code, os.strerror(code))
    said = str(caught.value)
    assert said.startswith(f"cannot write {path}: {os.strerror(code)}")
    assert ("MB free there" in said) == (code in (errno.ENOSPC, errno.EDQUOT))
    assert "\n" not in said


def test_a_folder_where_a_file_stands(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match="cannot write"):
        write_json(tmp_path / "file" / "a.json", {})
