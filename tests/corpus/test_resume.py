"""Killed at any moment, a preparation begins anew and ends with the same bytes; what a disk can refuse is one line."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mnemoscope
from mnemoscope.corpus import Source, open_source
from mnemoscope.corpus.tokenized import preparation
from mnemoscope.errors import StoreFailed
from support.corpus_reference import Words, make
from support.corpus_texts import varied_text

HERE = Path(__file__).parent.parent
KILLED = HERE.parent / "runs/corpus_killed.py"


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}


@pytest.mark.fast(0, full=1)
@pytest.mark.parametrize("caps", [{"max_tokens": 50_000}, {}], ids=str)
def test_killed_at_random_moments_the_bytes_are_the_same(tmp_path: Path, caps: dict[str, int]) -> None:
    text = tmp_path / "text.txt"
    # The second document is a long one that comes in many pieces.
    long = varied_text(1_000, seed=1).replace("\n\n", "\n")
    text.write_text(f"One.\n\n{long}\n\n{varied_text(2_000, seed=2)}")
    paths = [str(Path(mnemoscope.__file__).parent.parent), str(HERE)]
    command = [sys.executable, str(KILLED), str(text), str(tmp_path), "6", json.dumps(caps), "7"]
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    ran = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["kills"] == 24
    assert report["begun"] >= 3
    for trial in range(6):
        assert contents(tmp_path / f"killed-{trial}") == contents(tmp_path / "whole")


class Stop(Exception):
    """The moment at which a preparation breaks off."""


@pytest.mark.parametrize("where", ["reading", "finalizing", "describing"])
def test_a_text_that_was_not_prepared_to_its_end_is_read_again_which_is_said(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    make(open_source(str(text)), tmp_path / "whole")
    real = Source.pieces

    def some(self: Source, **options: Any) -> Iterator[Any]:
        for number, piece in enumerate(real(self, **options)):
            if number == 300:
                raise Stop
            yield piece

    def stop(*_: Any, **__: Any) -> None:
        raise Stop

    places = {"reading": (Source, "pieces", some), "finalizing": (preparation, "finalize", stop)}
    with monkeypatch.context() as patch:
        patch.setattr(*places.get(where, (preparation, "write_json", stop)))
        with pytest.raises(Stop):
            make(open_source(str(text)), tmp_path / "broken")
    told: list[tuple[str, str]] = []
    words = Words()
    make(
        open_source(str(text)),
        tmp_path / "broken",
        encoder=words,
        progress=lambda stage, *rest: told.append((stage, rest[-1])),
    )
    (said,) = [note for stage, note in told if stage == "note"]
    assert said.endswith("was not prepared to its end, or damaged; the text is prepared again")
    assert words.encoded >= 600
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


# What the disk can refuse.


def test_a_file_that_may_not_grow_is_said_in_one_line(text: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(StoreFailed, match=r"copy: File too large \(.* free"):
            make(open_source(str(text)), tmp_path / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    make(open_source(str(text)), tmp_path / "copy")


@pytest.mark.parametrize("documents", [9_000, 14_000, 20_000])
def test_a_full_disk_is_said_in_one_line(small_disk: Path, tmp_path: Path, documents: int) -> None:
    # The disk is full when the columns are written, when the hashes are spilled, while the text is read.
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Sentence {i}." for i in range(documents)))
    with pytest.raises(StoreFailed) as caught:
        make(open_source(str(text)), small_disk / "copy")
    assert "No space left on device (" in str(caught.value)
    assert "make room or choose another folder" in str(caught.value)


def test_a_read_only_disk_is_said_in_one_line(small_disk: Path, text: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreFailed, match="Read-only file system"):
        make(open_source(str(text)), small_disk / "copy")


def test_a_file_in_the_place_of_the_folder(text: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").write_text("")
    with pytest.raises(StoreFailed, match="cannot write"):
        make(open_source(str(text)), tmp_path / "copy" / "deeper")
    with pytest.raises(StoreFailed, match="cannot write"):
        make(open_source(str(text)), tmp_path / "copy")
