"""A process of its own that prepares a text in children which it kills, and says how that went, as JSON.

Run by test_resume.py. The children are forked from this warm process, so the moments of the kills fall into the work
and not into the imports; they are real processes and the kill is SIGKILL.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from mnemoscope.corpus import open_source, prepare
from mnemoscope.corpus.sources import readers
from mnemoscope.corpus.tokenized import preparation
from support.corpus_reference import Words


def work(text: str, directory: Path, caps: dict[str, int]) -> None:
    prepare(
        open_source(text),
        Words(),
        directory=directory,
        longest=12,
        split="sentence",
        vocabulary=5_000,
        **caps,
    )


def killed_after(seconds: float, text: str, directory: Path, caps: dict[str, int]) -> bool:
    """Work in a child, kill it after a while; return whether it was still working."""
    child = os.fork()
    if child == 0:
        work(text, directory, caps)
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("a child failed")
    return os.WIFSIGNALED(status)


def main() -> None:
    """Kill several children in each of several folders, finish each, and report."""
    text, base, trials, caps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    preparation.FIRST_LOOK = 256
    readers.PIECE = 3_000
    chance = random.Random(int(sys.argv[5]))
    start = time.perf_counter()
    work(text, base / "whole", caps)
    usual = time.perf_counter() - start
    kills, begun = 0, 0
    for trial in range(trials):
        directory = base / f"killed-{trial}"
        latest, landed = 0.6 * usual, 0
        while landed < 4:
            if not killed_after(chance.uniform(0, latest), text, directory, caps):
                # It was done before, since the machine has become faster: from the beginning, and sooner.
                shutil.rmtree(directory)
                latest, landed = latest / 2, 0
                continue
            landed += 1
            begun += (directory / "text.bin").exists() and not (directory / "copy.json").exists()
        kills += landed
        work(text, directory, caps)
    print(json.dumps({"kills": kills, "begun": begun}))


if __name__ == "__main__":
    main()
