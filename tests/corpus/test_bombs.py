"""A few packed bytes that stand for a very long line, text or document are refused in one line, in bounded memory."""

from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from mnemoscope.corpus import open_source
from mnemoscope.corpus.sources import opening as sources
from mnemoscope.corpus.sources import readers, row_fields, streams
from mnemoscope.corpus.sources.readers import read_jsonl, read_parquet, read_text
from mnemoscope.corpus.sources.row_fields import RowField
from mnemoscope.corpus.sources.streams import Meter, text_blocks
from mnemoscope.errors import CorpusUnreadable
from support.corpus_reference import make
from support.corpus_texts import PACKERS


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> int:
    """The bound, lowered to what a test can write."""
    for module in (streams, readers, row_fields, sources):
        monkeypatch.setattr(module, "LONGEST", 1_000)
    return 1_000


@pytest.mark.parametrize("ending", list(PACKERS))
def test_a_line_is_bounded_in_every_packing(ending: str, short: int, tmp_path: Path) -> None:
    path = tmp_path / f"x.jsonl{ending}"
    row = b'{"text": "fits"}\n'
    path.write_bytes(PACKERS[ending](row + b'{"text": "' + b"a" * 300_000 + b'"}\n'))
    reading = read_jsonl(path, Meter(), field=RowField("text"))
    assert next(reading) == ("fits", True)
    with pytest.raises(CorpusUnreadable, match=r"line 2 is longer than 1,000 characters"):
        next(reading)
    text = tmp_path / f"x.txt{ending}"
    text.write_bytes(PACKERS[ending](b"fits\n" + b"a " * 150_000))
    with pytest.raises(CorpusUnreadable, match="line 2 is longer"):
        list(read_text(text, Meter(), split="line"))
    # Runs of lines come in pieces, however long.
    assert "".join(piece for piece, _ in read_text(text, Meter(), split="sentence")) == "fits\n" + "a " * 150_000


def test_the_bound_itself_is_allowed(short: int, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a" * 1_000 + "\n" + "b" * 1_000)
    assert [len(line) for line, _ in read_text(tmp_path / "x.txt", Meter(), split="line")] == [1_000, 1_000]
    for character in "a\U0001f600":  # of one byte and of four, beside which a page has some of its own
        pq.write_table(pa.table({"text": [character * 1_000]}), tmp_path / "x.parquet", write_statistics=False)
        found = list(read_parquet(tmp_path / "x.parquet", Meter(), field=RowField("text")))
        assert [len(text) for text, _ in found] == [1_000]
    (tmp_path / "y.txt").write_text("a" * 1_000 + "\n\n" + "b" * 1_000)
    source = open_source(str(tmp_path / "y.txt"), split="document")
    assert [len(text) for text in source.documents()] == [1_000, 1_000]
    copy = make(source, tmp_path / "work", split="document")
    assert [len(copy.text(sentence)) for sentence in range(copy.sentences)] == [1_000, 1_000]


def test_texts_of_parquet_are_bounded(short: int, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["fits", None, "a" * 1_001]}), tmp_path / "x.parquet")
    with pytest.raises(CorpusUnreadable, match="row 3 is longer than 1,000 characters"):
        list(read_parquet(tmp_path / "x.parquet", Meter(), field=RowField("text")))
    # Of some the file itself says that one must be too long; they are not unpacked.
    pq.write_table(pa.table({"n": [1], "text": ["a" * 9_000]}), tmp_path / "y.parquet", compression="zstd")
    with pytest.raises(CorpusUnreadable, match=r"y\.parquet: a row of column 'text' is longer"):
        list(read_parquet(tmp_path / "y.parquet", Meter(), field=RowField("text")))


def test_one_long_text_that_a_dictionary_repeats_is_not_unpacked_many_times(tmp_path: Path) -> None:
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 512, pa.int32()), pa.array(["a" * 3_000_000]))
    path = tmp_path / "x.parquet"
    options = {"compression": "zstd", "store_schema": False, "dictionary_pagesize_limit": 1 << 28}
    pq.write_table(pa.table({"text": repeated}), path, **options)
    assert path.stat().st_size < 1_000
    before, meter = pa.total_allocated_bytes(), Meter()
    reading = read_parquet(path, meter, field=RowField("text"))
    assert len(next(reading)[0]) == 3_000_000
    assert pa.total_allocated_bytes() - before < 200_000_000
    together = 1 + sum(1 for _ in takewhile(lambda _: not meter.done, reading))  # the meter moves on behind them
    assert together <= 22
    reading.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("split", ["document", "sentence"])
def test_a_document_that_is_kept_whole_is_bounded(split: str, short: int, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(readers, "PIECE", 200)
    (tmp_path / "x.txt").write_text("fits\n\n" + "a line of words\n" * 100)
    source = open_source(str(tmp_path / "x.txt"), split=split)
    if split == "document":
        with pytest.raises(CorpusUnreadable, match=r"x\.txt: document 1 is longer than 1,000 characters"):
            make(source, tmp_path / "work", split=split, longest=5_000)
    else:
        assert make(source, tmp_path / "work", split=split, longest=5_000).sentences
    with pytest.raises(CorpusUnreadable, match="document 1 is longer"):
        list(source.documents())


def test_zstandard_is_unpacked_in_blocks_whatever_it_stands_for(tmp_path: Path) -> None:
    path = tmp_path / "x.txt.zst"
    body = b"a" * 20_000_000 + b"\n"
    path.write_bytes(zstandard.compress(body[:9_000_000]) + zstandard.compress(body[9_000_000:]))
    blocks = list(text_blocks(path, Meter()))
    assert max(map(len, blocks)) <= 1 << 18
    assert "".join(blocks).encode() == body
