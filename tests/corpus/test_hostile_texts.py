"""Texts of any bytes in every wrapping, whole and damaged: documents that any encoding holds, or one plain line.

`MNEMOSCOPE_EXAMPLES` tries more of them, others every time (runs/fuzz.sh).
"""

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mnemoscope.cli.app import app
from mnemoscope.cli.runner import run
from mnemoscope.corpus import open_source
from mnemoscope.errors import CorpusError
from support.corpus_texts import PACKERS

pytestmark = pytest.mark.full

MORE = os.environ.get("MNEMOSCOPE_EXAMPLES")
MADE_UP = settings(
    max_examples=int(MORE or 100),
    deadline=None,
    derandomize=MORE is None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
PIECES = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"\xef\xbb\xbf", b"\0", b"\xe2\x80\xa8", b"x" * 5000]),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "b"]), inner, max_size=2),
    max_leaves=6,
)
"""Whatever JSON can say, lone surrogates among it."""
TEXTS = st.text(max_size=60).filter(str.strip)


def parquet(rows: list[Any]) -> bytes:
    """A table with such a column, or as near as Arrow comes: what it cannot say is a string."""
    for make in (lambda: pa.array(rows), lambda: pa.array([ascii(row) for row in rows])):
        with contextlib.suppress(pa.ArrowException, OverflowError, UnicodeEncodeError):
            sink = io.BytesIO()
            pq.write_table(pa.table({"text": make()}), sink)
            return sink.getvalue()
    raise AssertionError("strings of ASCII can be written")


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The bytes with a part lost, doubled, changed or added."""
    first = draw(st.integers(0, len(content)))
    last = draw(st.integers(first, len(content)))
    how = draw(st.sampled_from(["whole", "cut", "lost", "doubled", "changed", "added"]))
    middle = content[first:last]
    return {
        "whole": lambda: content,
        "cut": lambda: content[:first],
        "lost": lambda: content[:first] + content[last:],
        "doubled": lambda: content[:last] + middle + content[last:],
        "changed": lambda: content[:first] + bytes(255 - byte for byte in middle) + content[last:],
        "added": lambda: content[:first] + draw(st.binary(max_size=30)) + content[first:],
    }[how]()


def read(path: Path, **options: str) -> list[str] | None:
    """The documents, or None where they are refused in one line."""
    try:
        found = list(open_source(str(path), **options).documents())
    except CorpusError as problem:
        if "\n" in str(problem):
            raise AssertionError("more than one line") from problem
        return None
    for document in found:
        document.encode("utf-8")
    return found


@MADE_UP
@given(data=st.data())
def test_any_bytes_are_documents_or_one_line(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["txt", "jsonl", "parquet"]))
    content = {
        "txt": lambda: b"".join(data.draw(st.lists(PIECES, max_size=8))),
        "jsonl": lambda: b"\n".join(
            json.dumps(row).encode() for row in data.draw(st.lists(VALUES | st.fixed_dictionaries({"text": VALUES})))
        ),
        "parquet": lambda: parquet(data.draw(st.lists(VALUES, max_size=5))),
    }[kind]()
    packing = "" if kind == "parquet" else data.draw(st.sampled_from(list(PACKERS)))
    path = tmp_path / f"a.{kind}{packing}"
    path.write_bytes(data.draw(damaged(PACKERS[packing](content))))
    read(path, split=data.draw(st.sampled_from(["sentence", "line", "document"])))


@MADE_UP
@given(rows=st.lists(TEXTS, min_size=1, max_size=8), packing=st.sampled_from(list(PACKERS)), ascii=st.booleans())
def test_texts_come_as_they_were_written(tmp_path: Path, rows: list[str], packing: str, ascii: bool) -> None:
    lines = tmp_path / f"a.jsonl{packing}"
    written = [json.dumps({"text": row}, ensure_ascii=ascii) for row in rows]
    lines.write_bytes(PACKERS[packing]("\n".join(written).encode()))
    assert read(lines) == rows
    (tmp_path / "a.parquet").write_bytes(parquet(rows))
    assert read(tmp_path / "a.parquet") == rows


@settings(MADE_UP, max_examples=max(2, int(MORE or 0) // 20))
@given(data=st.data())
def test_mining_any_bytes_ends_well_or_in_one_line(tmp_path: Path, capsys: Any, data: st.DataObject) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"the cat sat\n" + b"".join(data.draw(st.lists(PIECES, max_size=8))))
    options = ["--split", "line", "--prefixes", "4", "--removals", "0", "--neighbours", "0", "--force", "--json"]
    capsys.readouterr()
    code = run(app, ["mine", "handmade:planted", str(path), "--out", str(tmp_path / "atlas"), *options])
    said = capsys.readouterr().err
    assert code in (0, 2), said
    assert "bug" not in said
    assert code == 0 or said.strip().splitlines()[-1].startswith("mnemoscope: ")
