"""`--sample`: which documents are drawn, how they are counted, and that stops and limits change neither."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.corpus import open_source
from mnemoscope.errors import CorpusEmpty, StoreFailed
from mnemoscope.mining.plan.limits import limit_note, spread_note
from support.corpus_reference import Words, make


def drawn(text: str, share: float, seed: int) -> bool:
    """The rule of definitions.md, written again with whole numbers."""
    first = hashlib.blake2b((str(seed) + " " + text).encode("utf-8")).hexdigest()[:16]
    return int(first, 16) / 2**64 < share


ROWS = [f"row {number}." for number in range(400)]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": row}) for row in ROWS))
    return path


@pytest.mark.parametrize(("share", "seed"), [(0.3, 0), (0.3, 7), (0.01, 0), (1.0, 0)])
def test_the_drawn_documents_are_those_of_the_rule(rows: Path, share: float, seed: int) -> None:
    source = open_source(str(rows)).with_sample(share, seed)
    expected = [row for row in ROWS if drawn(row, share, seed)]
    assert list(source.documents()) == expected
    assert source.meter.passed_over == len(ROWS) - len(expected)
    assert abs(len(expected) - share * len(ROWS)) <= 4 * (len(ROWS) * share * (1 - share)) ** 0.5


def test_a_paragraph_of_a_text_file_is_drawn_as_a_whole(tmp_path: Path) -> None:
    paragraphs = [f"one {n}.\ntwo {n}." for n in range(100)]
    (tmp_path / "a.txt").write_text("\n\n".join(paragraphs))
    source = open_source(str(tmp_path / "a.txt")).with_sample(0.5, 3)
    assert list(source.documents()) == [one for one in paragraphs if drawn(one, 0.5, 3)]


def test_documents_and_those_passed_over_are_counted(rows: Path, tmp_path: Path) -> None:
    made = make(open_source(str(rows)).with_sample(0.3, 0), tmp_path / "copy")
    expected = [row for row in ROWS if drawn(row, 0.3, 0)]
    assert (made.counts["documents"], made.counts["documents_passed_over"]) == (len(expected), 400 - len(expected))
    assert [made.text(n) for n in range(made.sentences)] == expected
    assert "documents_passed_over" not in make(open_source(str(rows)), tmp_path / "all").counts
    with pytest.raises(CorpusEmpty, match="no usable sentence in 0 documents"):
        make(open_source(str(rows)).with_sample(1e-9, 0), tmp_path / "copy")


def test_another_share_or_seed_makes_the_text_anew(rows: Path, tmp_path: Path) -> None:
    marks = {
        make(source, tmp_path / "copy").fingerprint
        for source in [
            open_source(str(rows)),
            *(open_source(str(rows)).with_sample(*draw) for draw in [(0.3, 0), (0.3, 1), (0.6, 0)]),
        ]
    }
    assert len(marks) == 4


def test_a_source_that_was_broken_off_is_read_again_with_the_same_documents_and_counts(tmp_path: Path) -> None:
    lines = [json.dumps({"text": row}) if number % 5 else "no json" for number, row in enumerate(ROWS)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    kept = [row for number, row in enumerate(ROWS) if number % 5 and drawn(row, 0.5, 0)]

    class Stopping(Words):
        stops = (kept[9], kept[60])

        def encode(self, texts: list[str]) -> list[list[int]]:
            if self.stops and self.stops[0] in texts:
                self.stops = self.stops[1:]
                raise StoreFailed("stopped")
            return super().encode(texts)

    source = open_source(str(tmp_path / "a.jsonl"), skip_bad_rows=80).with_sample(0.5, 0)
    words = Stopping()
    for _ in range(2):
        with pytest.raises(StoreFailed):
            make(source, tmp_path / "copy", encoder=words)
    made = make(source, tmp_path / "copy", encoder=words)
    straight = make(open_source(str(tmp_path / "a.jsonl"), skip_bad_rows=80).with_sample(0.5, 0), tmp_path / "straight")
    assert (made.counts, made.fingerprint) == (straight.counts, straight.fingerprint)
    assert (made.counts["documents"], made.counts["bad_rows"]["count"]) == (len(kept), 80)
    assert made.counts["documents_passed_over"] == 320 - len(kept)


@pytest.mark.parametrize(
    ("share", "sample", "expected"),
    [
        *((0.5, None, None), (0.49, None, "0.54"), (0.0412, None, "0.046"), (0.000091, None, "0.00011")),
        *((0.3, 0.01, "0.0033"), (0.2, 0.5, "0.11")),
    ],
)
def test_a_limit_that_the_beginning_fills_is_said(share: float, sample: float | None, expected: str | None) -> None:
    note: Any = spread_note(1_512, share, sample)
    assert (note is None) == (expected is None)
    if expected is not None:
        assert note.startswith("the limit is filled by the first 1,512 documents, ")
        assert note.endswith(f"; --sample {expected} draws about as much from all of it")


def test_the_sample_that_a_note_names_spreads_the_limit(rows: Path, tmp_path: Path) -> None:
    source = open_source(str(rows))
    note = limit_note(source, make(source, tmp_path / "first", max_sentences=20))
    assert note is not None
    assert "the first 2" in note
    share = float(note.split("--sample ")[1].split()[0])
    assert 0.04 < share < 0.08
    spread = source.with_sample(share, 0)
    again = make(spread, tmp_path / "spread", max_sentences=20)
    assert limit_note(spread, again) is None
    assert int(again.text(int(again.mined[-1])).split()[1].rstrip(".")) > 200
    earlier = open_source(str(rows))
    assert limit_note(earlier, make(earlier, tmp_path / "first", max_sentences=20)) is None
