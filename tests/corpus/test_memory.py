"""Resident memory of a preparation does not grow with the text."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import mnemoscope

# VmHWM is the peak of the child alone; the peak that getrusage reports would include this process's at the fork.
CHILD = """
import re, sys, zlib
from pathlib import Path
from mnemoscope.corpus import open_source, prepare

class Words:
    def encode(self, texts):
        return [[zlib.crc32(word.encode()) % 5_000 for word in text.split()] for text in texts]
    def offsets(self, text):
        return [found.span() for found in re.finditer(r"\\S+", text)]

options = {"longest": 50, "split": "sentence", "vocabulary": 5_000}
copy = prepare(open_source(sys.argv[1]), Words(), directory=Path(sys.argv[2]), **options)
batches = copy.batches(4_096)
tokens = sum(len(copy.tokens(int(i))) for k in range(batches.count) for i in batches.ids(k))
assert tokens == copy.counts["mined_tokens"]
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(peak.split()[1], copy.sentences)
"""


def peak(text: Path, directory: Path) -> tuple[int, int]:
    """Bytes of resident memory at the peak, and distinct sentences."""
    environment = {**os.environ, "PYTHONPATH": str(Path(mnemoscope.__file__).parent.parent)}
    command = [sys.executable, "-c", CHILD, str(text), str(directory)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    kilobytes, sentences = map(int, ran.stdout.split())
    return kilobytes * 1024, sentences


@pytest.mark.full
def test_ten_times_the_text_needs_hardly_more_memory(tmp_path: Path) -> None:
    chance = random.Random(0)
    # Without blank lines, so that the whole text is one document: the hardest case for a reader.
    lines = ["The " + " ".join(f"w{chance.randint(0, 9_999)}" for _ in range(15)) + ".\n" for _ in range(120_000)]
    (tmp_path / "small.txt").write_text("".join(lines[:12_000]))
    (tmp_path / "large.txt").write_text("".join(lines))
    small, _ = peak(tmp_path / "small.txt", tmp_path / "small")
    large, sentences = peak(tmp_path / "large.txt", tmp_path / "large")
    assert sentences > 115_000
    assert large <= 1.1 * small + 24 * sentences
