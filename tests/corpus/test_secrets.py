"""A file of strings: which are read, from which lines, and what is said of the rest."""

from pathlib import Path

import pytest

from mnemoscope.corpus.sources.secrets import Secrets, read_secrets
from mnemoscope.errors import CorpusError


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds no string; write one a line"),
        (b"\n \n", "holds no string; write one a line"),
        (b"a\xff", "is not UTF-8 at byte 1; save it as UTF-8"),
        (None, r"cannot be read \(No such file or directory\)"),
    ],
)
def test_a_file_without_strings_is_refused(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "secrets.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CorpusError, match=rf"secrets\.txt {said}"):
        read_secrets(path)


@pytest.mark.parametrize("end", ["", "\n"], ids=["cut off", "ended"])
def test_strings_are_read_with_their_lines(end: str, tmp_path: Path) -> None:
    path = tmp_path / "secrets.txt"
    path.write_text(f"\ufeff one two \r\n\u65e5\u672c{end}", encoding="utf-8", newline="")
    assert read_secrets(path) == Secrets(("one two", "\u65e5\u672c"), (1, 2), ())


def test_repeats_and_empty_lines_are_told_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "secrets.txt"
    path.write_text("one two\n\none two\nthree four\none two\n")
    repeats = [f"line {line} of {path} repeats line 1; one is kept" for line in (3, 5)]
    notes = (*repeats, f"{path} has 1 empty line, left out")
    assert read_secrets(path) == Secrets(("one two", "three four"), (1, 4), notes)
    path.write_text("\none\n \n")
    assert read_secrets(path).notes == (f"{path} has 2 empty lines, left out",)
