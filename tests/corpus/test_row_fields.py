"""Lists of token ids in rows: every kind of file gives the same texts, and no row fills the memory."""

import gzip
import json
import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.corpus import open_source
from mnemoscope.corpus.sources import readers, row_fields
from mnemoscope.corpus.sources.row_fields import RowField
from mnemoscope.corpus.sources.streams import Meter
from mnemoscope.errors import CorpusUnreadable, OptionError

ROWS = [[3, 1, 4], [], [1, 5, 9, 2, 6], None, [50256]]
TEXTS = ["3 1 4", "", "1 5 9 2 6", "", "50256"]


def texts(path: Path | str, *, vocabulary: int | None = None) -> list[str]:
    source = open_source(str(path), ids_field="ids", split="document")
    return [text for text, _ in source.pieces(vocabulary=vocabulary)]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.list_(pa.int32()), pa.list_(pa.uint16()), pa.large_list(pa.uint64())], ids=str
)
def test_parquet_of_every_kind_of_list(kind: pa.DataType, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": pa.array(["x"] * 5), "ids": pa.array(ROWS, kind), "more": pa.array([[1]] * 5)})
    pq.write_table(table, path, row_group_size=2)
    assert texts(path) == TEXTS
    assert texts(path, vocabulary=50257) == TEXTS
    with pytest.raises(CorpusUnreadable, match="row 5: field 'ids' holds token id 50256 at place 0"):
        texts(path, vocabulary=50256)


def test_packed_rows_of_one_length(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"ids": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))}), path)
    assert texts(path) == ["1 2", "3 4"]


def test_lines_of_json_packed_or_not(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"ids": row, "text": "x"}) + "\n" for row in ROWS)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert texts(tmp_path / "a.jsonl") == texts(tmp_path / "b.jsonl.gz") == TEXTS
    assert texts(tmp_path / "*.jsonl*") == [*TEXTS, *TEXTS]


def test_a_data_set_of_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"ids": row}) + "\n" for row in ([3, 1], [4])))
    assert texts(f"hub:{tmp_path}") == ["3 1", "4"]
    with pytest.raises(CorpusUnreadable, match="row 1: field 'ids' holds token id 4 at place 0"):
        texts(f"hub:{tmp_path}", vocabulary=4)


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_the_text_says_the_ids(ids: list[int]) -> None:
    text = RowField("ids", ids=True).text_of({"ids": ids}, "row 1")
    assert ([int(word) for word in text.split(" ") if word], text) == (ids, text.strip())


def test_which_field_is_read_is_part_of_a_source_s_identity(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"ids": [1], "text": "x"}\n')
    path = str(tmp_path / "a.jsonl")
    assert open_source(path, ids_field="text").identity != open_source(path).identity
    (tmp_path / "a.txt").write_text("x")
    for spec, what in ((str(tmp_path / "a.*"), r"a\.txt"), ("builtin:pydocs", "builtin:pydocs")):
        with pytest.raises(OptionError, match=f"{what} is plain text"):
            open_source(spec, ids_field="ids")


NO_IDS = [
    *(("3 1", "holds str"), ([3, True], "holds 'True' at place 1"), ([3, 1.0, "x"], "holds '1.0' at place 1")),
    *(([3, "4"], "holds '4' at place 1"), ([[1]], "holds '[1]' at place 0"), ([3, None], "holds 'None' at place 1")),
    *(([3, -1, -2], "holds -1 at place 1"), ([-(2**63)], "holds a number of more than 18 digits at place 0")),
    ([3, 4, 7, 9], "holds token id 7 at place 2, beyond the 5 rows"),
    ([5], "holds token id 5 at place 0, beyond the 5 rows"),
    ([2**63], "holds token id a number of more than 18 digits at place 0"),
    ([2**63 - 1], "holds token id 9223372036854775807 at place 0"),
]


@pytest.mark.parametrize(("ids", "said"), NO_IDS, ids=str)
def test_what_is_no_list_of_token_ids_is_refused_by_its_place(ids: object, said: str) -> None:
    with pytest.raises(CorpusUnreadable, match=f"^row 1: field 'ids' {re.escape(said)}"):
        RowField("ids", ids=True, vocabulary=5).text_of({"ids": ids}, "row 1")


def test_without_a_model_an_id_has_31_bits() -> None:
    field = RowField("ids", ids=True)
    assert field.text_of({"ids": [2**31 - 1]}, "row 1") == "2147483647"
    with pytest.raises(CorpusUnreadable, match="token id 2147483648 at place 0"):
        field.text_of({"ids": [2**31]}, "row 1")


def test_very_long_rows_are_refused_before_they_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (row_fields, readers):
        monkeypatch.setattr(module, "LONGEST_IDS", 500)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"ids": [[1] * 500, [7]]}), path)
    assert [len(text.split()) for text in texts(path)] == [500, 1]
    pq.write_table(pa.table({"ids": [[7], [1] * 501]}), path)
    with pytest.raises(CorpusUnreadable, match="row 2 of column 'ids' is longer than"):
        texts(path)
    # Of some the file itself says that one must be too long.
    pq.write_table(pa.table({"ids": [[1] * 5_000]}), path, compression="zstd")
    with pytest.raises(CorpusUnreadable, match=r"a\.parquet: a row of column 'ids' is longer than"):
        texts(path)
    (tmp_path / "a.jsonl").write_text(json.dumps({"ids": [1] * 501}) + "\n")
    with pytest.raises(CorpusUnreadable, match="line 1 is longer than"):
        texts(tmp_path / "a.jsonl")


def rows_together(path: Path) -> int:
    """How many rows are unpacked at once: the first that are read before the meter moves on."""
    meter = Meter()
    rows = readers.read_parquet(path, meter, field=RowField("ids", ids=True))
    return sum(1 for _ in takewhile(lambda _: not meter.done, rows))


@pytest.mark.parametrize(
    ("ids", "group", "rows"),
    [([np.ones(1_000_000, np.int64)] * 6, 2, 4), ([[1]] * 600, 3, 512)],
    ids=["16 MB", "24 bytes"],
)
def test_so_many_rows_are_unpacked_together_as_take_64_mb(tmp_path: Path, ids: Any, group: int, rows: int) -> None:
    """At most 512, and each as if it held all ids of its row group, eight bytes an id."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"ids": ids}), path, row_group_size=group)
    assert rows_together(path) == rows


def test_a_few_bytes_that_stand_for_many_ids_are_unpacked_row_by_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    starts, ids = pa.array(range(0, 9_000_001, 1_000_000), pa.int32()), pa.array(np.ones(9_000_000, np.int64))
    rows = pa.ListArray.from_arrays(starts, ids)
    pq.write_table(pa.table({"ids": rows}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    assert rows_together(path) == 1
    before = pa.total_allocated_bytes()
    reading = open_source(str(path), ids_field="ids").pieces()
    assert len(next(reading)[0]) == 1_999_999
    assert pa.total_allocated_bytes() - before < 100_000_000
    reading.close()  # type: ignore[attr-defined]
