"""Sources: the same documents whatever the file is wrapped in, and one plain line for everything that is wrong."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mnemoscope.corpus import open_source, split_sentences
from mnemoscope.corpus.sources import pydocs, readers, streams
from mnemoscope.errors import CorpusError, CorpusNotFound, CorpusUnreadable
from support.corpus_texts import PACKERS

TEXT = "First line.\nSecond line.\n\n \t\n  Third, indented.  \n\n\nCafé 日本 😀."
DOCUMENTS = ["First line.\nSecond line.", "  Third, indented.  ", "Café 日本 😀."]


def documents(path: Path | str, **options: Any) -> list[str]:
    return list(open_source(str(path), **options).documents())


def complaint(path: Path | str, **options: Any) -> str:
    """The one line that reading ends with."""
    with pytest.raises(CorpusError) as caught:
        documents(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "byte order mark"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_text_is_cut_at_blank_lines(tmp_path: Path, ending: str, mark: bytes, line_end: str) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(PACKERS[ending](mark + TEXT.replace("\n", line_end).encode()))
    source = open_source(str(path))
    assert list(source.documents()) == DOCUMENTS
    assert source.size == source.meter.done == path.stat().st_size


@pytest.mark.parametrize("ending", PACKERS)
def test_rows_of_json_lines(tmp_path: Path, ending: str) -> None:
    rows = [{"text": "One.\n\nStill one."}, {"text": "", "id": 3}, {"text": None}, {"text": "é\u2028"}]
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(PACKERS[ending]("\n\n".join(json.dumps(row) for row in rows).encode()))
    assert documents(path) == ["One.\n\nStill one.", "", "", "é\u2028"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_rows_of_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    texts = [f"Row {i}.\n\nEnd." for i in range(1200)] + [None]
    table = pa.table({"id": range(1201), "body": pa.array(texts, pa.string()).cast(kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    source = open_source(str(tmp_path / "a.parquet"), text_field="body")
    assert list(source.documents()) == [*texts[:-1], ""]


def test_a_glob_is_read_sorted_by_path_and_a_name_may_look_like_one(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_text("B")
    (tmp_path / "a.jsonl").write_text('{"text": "A"}')
    (tmp_path / "sub" / "a.txt").write_text("C")
    (tmp_path / "empty.txt").write_text("")
    assert documents(tmp_path / "*.*") == ["A", "B"]
    assert documents(tmp_path / "**" / "*.txt") == ["B", "C"]
    (tmp_path / "a[1].txt").write_text("A")
    assert documents(tmp_path / "a[1].txt") == ["A"]


@pytest.mark.parametrize("kind", ["txt", "jsonl.gz", "parquet"])
def test_bytes_of_all_files_are_metered(tmp_path: Path, kind: str) -> None:
    for name in "ab":
        path = tmp_path / f"{name}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.table({"text": [f"{name} {n}" for n in range(2_000)]}), path)
        else:
            rows = [json.dumps({"text": f"{name} {n}"}) for n in range(2_000)]
            path.write_bytes(PACKERS[".gz" if kind == "jsonl.gz" else ""]("\n\n".join(rows).encode()))
    source = open_source(str(tmp_path / f"*.{kind}"))
    sizes = [(tmp_path / f"{name}.{kind}").stat().st_size for name in "ab"]
    seen = []
    for _ in source.documents():
        seen.append(source.meter.done)
    assert (len(seen), seen) == (4_000, sorted(seen))
    assert seen[0] < seen[-1]
    assert seen[1_999] <= sizes[0] <= seen[2_600]
    assert source.size == source.meter.done == sum(sizes)
    next(source.documents())
    assert source.meter.done <= sizes[0]


def test_files_are_told_apart_by_size_and_date(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("A")
    before = open_source(str(path)).identity
    assert open_source(str(path)).identity == before
    path.write_text("AB")
    assert open_source(str(path)).identity != before


@given(st.text(alphabet="ab \t\n\r", max_size=120), st.integers(1, 12), st.integers(1, 9))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_text_in_small_blocks_and_pieces_is_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, block: int, piece: int
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    monkeypatch.setattr(streams, "BLOCK", block)
    monkeypatch.setattr(readers, "PIECE", piece)
    runs = re.split(r"\n(?:[ \t]*\n)+", "\n" + text.replace("\r\n", "\n").replace("\r", "\n") + "\n\n")
    reference = [run.removeprefix("\n").rstrip("\n") for run in runs]
    found = documents(path)
    assert [each.split() for each in found] == [each.split() for each in reference if each.strip()]
    pieces = list(open_source(str(path)).pieces())
    assert "".join(part for part, _ in pieces) == "".join(found)
    assert sum(ends for _, ends in pieces) == len(found)


def test_a_run_of_lines_comes_in_pieces_of_more_than_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "PIECE", 8)
    path = tmp_path / "a.txt"
    path.write_text("abc\n" * 7 + "\nlast")
    # Two lines are eight characters with their ends, which is not more; three are twelve.
    assert list(open_source(str(path)).pieces()) == [
        *(("abc\nabc\nabc", False), ("\nabc\nabc\nabc", False), ("\nabc", True), ("last", True)),
    ]


@pytest.mark.parametrize("spec", ["builtin:pydocs", "builtin:pydocs:stdlib"])
def test_the_built_in_corpus(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    texts = {"all": ["A.", "\u00df.", "C."], "stdlib": ["A.", "\u00df."]}
    monkeypatch.setattr(pydocs, "documents", lambda part: iter(texts[part]))
    monkeypatch.setattr(pydocs, "held_out_hashes", lambda: frozenset({"ab"}))
    source = open_source(spec)
    part = "stdlib" if spec.endswith("stdlib") else "all"
    assert list(source.documents()) == texts[part]
    assert source.meter.done == len("".join(texts[part]).encode())
    assert source.held_out == {"ab"}


# What can be wrong with a spec.


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nosuch.txt", "no such text: 'nosuch.txt'; give a .txt"),
        ("", "no such text: ''"),
        ("nosuch*.txt", "no file matches 'nosuch*.txt'"),
        ("builtin:shakespeare", "no built-in corpus 'builtin:shakespeare'; there are builtin:pydocs and"),
        ("hub:", "'hub:' does not name a data set; write hub:DATASET"),
        ("hub:a:b:c:d", "does not name a data set"),
    ],
)
def test_a_spec_that_names_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusNotFound, match=re.escape(message)):
        open_source(spec)


# What can be wrong with a file.


def table(**columns: Any) -> bytes:
    """A file of Parquet."""
    held = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), held)
    return bytes(held.getvalue())


MANY = table(text=[f"Row {i}" for i in range(999)])
LETTERS = pa.array([b"fine", b"caf\xe9", b"fine"]).view(pa.string())
BAD: list[tuple[str, bytes, dict[str, Any], str]] = [
    *((name, b"A", {}, "unknown kind") for name in ("a.pdf", "a", "a.gz", "a.txt.zip", "a.xlsx.gz", "txt")),
    *((name, b"text\nA\n", {}, "CSV or TSV") for name in ("a.csv", "a.TSV", "a.csv.gz")),
    *((f"a.txt{end}", b"plain text that is long enough", {}, "damaged compression") for end in (".gz", ".xz", ".zst")),
    ("a.txt.zst", PACKERS[".zst"](b"One.\n\n") + PACKERS[".zst"](b"Two." * 99)[:-3], {}, "ends too early"),
    ("a.parquet.gz", b"A", {}, "unpack the .gz"),
    ("a.parquet", b"", {}, "not a readable Parquet"),
    ("a.parquet", b"PAR1 and then nothing PAR1", {}, "not a readable Parquet"),
    ("a.parquet", MANY[:-20], {}, "not a readable Parquet"),
    ("a.parquet", table(body=["x"], id=[1]), {}, "no column 'text' (it has 'body', 'id')"),
    ("a.parquet", table(body=["x"], id=[1]), {"text_field": "id"}, "column 'id' holds int64"),
    ("a.parquet", table(text=LETTERS), {}, "row 2 of column 'text' is not UTF-8"),
    *(
        ("a.json", array, {"skip_bad_rows": skipped}, "one JSON array")
        for array in (b'[{"text": "a"}, {"text": "b"}]', b'[\n  {"text": "a"}\n]\n', b'\n [ {"text": "a"},')
        for skipped in (0, 5)
    ),
    *(
        ("a.jsonl", b'{"text": "fine"}\n\n' + line + b"\n", {}, said)
        for line, said in (
            (b'{"body": "x"}', "line 3 has no field 'text' (it has 'body')"),
            (b"{}", "line 3 has no field 'text' (it has no field at all)"),
            (b'{"text": "x"', "line 3 is not JSON"),
            (b'["text"]', "line 3 is not a JSON object"),
            (b'{"text": 5}', "line 3: field 'text' holds int"),
            (b'{"text": "\\ud800"}', "line 3: field 'text' holds half a surrogate"),
            (b"[" * 100_000, "line 3 is nested"),
        )
    ),
]


@pytest.mark.parametrize(("name", "content", "options", "said"), BAD, ids=lambda one: str(one)[:20])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, options: Any, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    line = complaint(tmp_path / name, **options)
    assert line.startswith(str(tmp_path / name))
    assert said in line


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz", "a.parquet"])
def test_a_file_that_goes_away_or_becomes_a_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("A")
    source = open_source(str(path))
    path.unlink()
    with pytest.raises(CorpusNotFound, match=f"no such file: {path}"):
        list(source.documents())
    if name != "a.parquet":
        path.mkdir()
        with pytest.raises(CorpusUnreadable, match="Is a directory"):
            list(source.documents())
    assert "is a folder" in complaint(tmp_path)


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("kind", [".txt", ".jsonl"])
def test_bytes_that_are_no_utf8_are_named_with_their_line(tmp_path: Path, kind: str, ending: str) -> None:
    path = tmp_path / f"a{kind}{ending}"
    path.write_bytes(PACKERS[ending](b'{"text": "a"}\n{"text": "b"}\n{"text": "caf\xe9 b"}\n'))
    assert "byte 0xe9 in line 3 is not UTF-8; convert the text" in complaint(path)


@pytest.mark.parametrize("block", [1, 3, 7, 100])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a\nbc\n\nd\xff", "byte 0xff in line 4 is not UTF-8"),
        (b"a\nbc\n\0\n", "NUL byte in line 3, so"),
        (b"one\ntwo\xc3\nthree", "byte 0xc3 in line 2 is not UTF-8"),
        (b"a\n\xc3", "byte 0xc3 in line 2 is not UTF-8"),
    ],
)
def test_the_line_is_right_however_the_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, said: str, block: int
) -> None:
    monkeypatch.setattr(streams, "BLOCK", block)
    (tmp_path / "a.txt").write_bytes(content)
    assert said in complaint(tmp_path / "a.txt")


def test_a_line_of_one_word_is_cut_anywhere(tmp_path: Path) -> None:
    """And one of blanks only is waited for: no piece is only white space."""
    (tmp_path / "a.txt").write_text("x" * 30)
    cut = list(streams.lines(tmp_path / "a.txt", streams.Meter(), cut_after=10))
    assert cut == [("x" * 29, False), ("x", True)]
    (tmp_path / "a.txt").write_text(" " * 30)
    assert list(streams.lines(tmp_path / "a.txt", streams.Meter(), cut_after=10)) == [(" " * 30, True)]
    (tmp_path / "a.txt").write_text("some words")
    assert list(streams.lines(tmp_path / "a.txt", streams.Meter(), cut_after=10)) == [("some words", True)]
    assert list(streams.lines(tmp_path / "a.txt", streams.Meter(), cut_after=9)) == [("some ", False), ("words", True)]


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("kind", [".txt", ".jsonl"])
def test_every_truncation_of_a_compressed_file_is_noticed(tmp_path: Path, kind: str, ending: str) -> None:
    rows = "".join(json.dumps({"text": f"Sentence {i}. {i * 7919 % 1000}"}) + "\n" for i in range(60))
    packed = PACKERS[ending](rows.encode())
    path = tmp_path / f"a{kind}{ending}"
    for size in range(1, len(packed), 7):
        path.write_bytes(packed[:size])
        assert re.search(r"ends too early|damaged compression", complaint(path)), size


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_compressed_files_may_be_put_together(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(PACKERS[ending](b"One.\n\nTw") + PACKERS[ending](b"o."))
    assert documents(path) == ["One.", "Two."]


@pytest.mark.parametrize("name", ["a.ndjson", "a.json", "A.JSON", "a.json.gz", "a.ndjson.xz", "a.json.zst"])
def test_json_lines_by_their_other_names(tmp_path: Path, name: str) -> None:
    lines = b'{"text": "one"}\r\n{"text": "two"}\r{"text": "three"}\n'
    (tmp_path / name).write_bytes(PACKERS[Path(name).suffix if name.count(".") == 2 else ""](lines))
    assert documents(tmp_path / name) == ["one", "two", "three"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz", "a.parquet"])
def test_a_pointer_in_place_of_a_text_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n")
    assert complaint(path) == f"{path} is a pointer, not the text itself; fetch the text with `git lfs pull`"
    path.write_text("/annex/objects/SHA256E-s5--00.txt\n")
    assert complaint(path).endswith("fetch the text with `git annex get`")
    (tmp_path / "b.txt").write_text("A text about version https://git-lfs.github.com/spec/v1.")
    assert len(documents(tmp_path / "b.txt")) == 1


@pytest.mark.parametrize("split", ["sentence", "line", "document"])
def test_lines_end_as_on_every_system(tmp_path: Path, split: str) -> None:
    """Alone, mixed, and inside the text of a row."""
    found = set()
    for number, end in enumerate(("\n", "\r\n", "\r")):
        text = f"One{end}two.{end}{end}  three{end}"
        (tmp_path / f"{number}.txt").write_bytes(text.encode())
        (tmp_path / f"{number}.jsonl").write_text(json.dumps({"text": text}) + "\n")
        lines = [line for each in documents(tmp_path / f"{number}.txt", split=split) for line in each.split("\n")]
        [row] = documents(tmp_path / f"{number}.jsonl", split=split)
        assert row == text
        cut = split_sentences(row, split)
        found.add((tuple(lines), tuple(cut) if split != "document" else ()))
    assert len(found) == 1
    assert found.pop()[0] == ("One", "two.", "  three")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], names=["text", "text", "body"]), path)
    assert complaint(path) == f"{path} has 2 columns of the name 'text'; rename all but one"
    assert documents(path, text_field="body") == ["c"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_fields_within_fields(tmp_path: Path, kind: str) -> None:
    rows = [{"meta": {"text": "a", "more": {"text": "deep"}}}, {"meta": None}, {"meta": {"text": None, "more": None}}]
    literal = [{**row, "meta.text": f"literal {number}"} for number, row in enumerate(rows)]
    for name, content in (("inner", rows), ("both", literal)):
        path = tmp_path / f"{name}.{kind}"
        if kind == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in content))
        else:
            pq.write_table(pa.Table.from_pylist(content), path)
    assert documents(tmp_path / f"inner.{kind}", text_field="meta.text") == ["a", "", ""]
    assert documents(tmp_path / f"inner.{kind}", text_field="meta.more.text") == ["deep", "", ""]
    assert documents(tmp_path / f"both.{kind}", text_field="meta.text") == ["literal 0", "literal 1", "literal 2"]
    assert "'meta.body'" in complaint(tmp_path / f"inner.{kind}", text_field="meta.body")


def test_bad_rows_are_passed_over_counted_and_listed_up_to_the_number_given(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\nno json\n\n{"body": "x"}\n{"text": 3}\nnull\n{"text": null}\n{"text": "two"}\n')
    source = open_source(str(path), skip_bad_rows=4)
    for _ in range(2):  # a text is read more than once
        assert list(source.documents()) == ["one", "", "two"]
        listed = [f"a.jsonl: line {number}" for number in (2, 4, 5, 6)]
        assert source.rows.bad.document() == {"count": 4, "rows": listed}
    said = complaint(path, skip_bad_rows=3)
    assert said.endswith("is not a JSON object but NoneType (after 3 skipped bad rows)")
    assert complaint(path).startswith(f"{path}: line 2 is not JSON (")


def test_bad_rows_of_parquet_and_of_token_ids(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"ids": [[1, 2], [-1], [3]]}), path)
    source = open_source(str(path), ids_field="ids", skip_bad_rows=1)
    assert list(source.documents()) == ["1 2", "3"]
    assert source.rows.bad.document() == {"count": 1, "rows": ["a.parquet: row 2"]}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_what_the_mask_beside_token_ids_hides_is_no_text(tmp_path: Path, kind: str) -> None:
    rows = [([7, 8, 0, 0], [1, 1, 0, 0]), ([0, 0, 7], [0, 0, 1]), ([0, 0], [0, 0]), ([], []), ([0, 5], [1, 1])]
    path = tmp_path / f"a.{kind}"

    def write(rows: list[tuple[list[int], list[int]]]) -> None:
        table = [{"x": {"input_ids": ids, "attention_mask": mask}} for ids, mask in rows]
        if kind == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in table))
        else:
            pq.write_table(pa.Table.from_pylist(table), path)

    write(rows)
    assert documents(path, ids_field="x.input_ids") == ["7 8", "7", "", "", "0 5"]
    for ids, mask, said in (
        ([1, 2, 3, 4], [1, 0, 0, 1], "has a 0 at place 1 between ones; padding stands at the ends of a row"),
        ([1, 2, 3], [1, 1], "is not a mask of 3 zeros and ones, one for each id of 'x.input_ids'"),
        ([1, 2, 3], [1, 1, 2], "is not a mask of 3 zeros and ones"),
    ):
        write([([5], [1]), (ids, mask)])
        assert f"2: field 'x.attention_mask' {said}" in complaint(path, ids_field="x.input_ids")
