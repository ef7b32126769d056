"""`runs/paper.sh`: the commands it gives, in order, and what it leaves alone the second time. Runs no model."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "runs" / "paper.sh"

PYTHON = """#!/bin/sh
# A python that notes its arguments, one command to a line, and makes what each verb makes last.
shift 2
echo "$*" >> "$NOTES"
case $1 in
train) mkdir -p "$OUT/model" && : > "$OUT/model/MODEL_CARD.md" ;;
mine) mkdir -p "$OUT/atlas" && : > "$OUT/atlas/manifest.json" ;;
esac
"""


@pytest.fixture
def run(tmp_path: Path) -> "Run":
    if shutil.which("sh") is None or os.name == "nt":
        pytest.skip("needs a shell")
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return Run(tmp_path)


class Run:
    """The script in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str, **sizes: str) -> tuple[int, list[str]]:
        """The exit code and the commands that were given."""
        notes = self.folder / "notes"
        notes.write_text("")
        own = {"PYTHON": str(self.folder / "python"), "NOTES": str(notes), "OUT": str(self.folder / "out")}
        environment = {"PATH": os.environ["PATH"], **own, **sizes}
        done = subprocess.run(["sh", str(SCRIPT), *words], env=environment, capture_output=True, text=True, check=False)
        return done.returncode, notes.read_text().splitlines()


def test_train_mine_analyze_report_verify_and_nothing_twice(run: Run) -> None:
    out = str(run.folder / "out")
    code, commands = run("a b.txt", "c.txt", "v.txt", out, STEPS="7", MINE="--prefixes 9")
    assert code == 0
    train, mine, *rest = commands
    assert train.startswith("train --corpus a b.txt --corpus c.txt --validation v.txt --max-bytes 70000000 --out ")
    assert "--layers 16 --hidden 128 --heads 4 " in train
    assert "--steps 7 " in train
    assert train.endswith("--learning-rate 0.002")
    # The last text is mined, with the validation text for the questions.
    assert mine.startswith(f"mine {out}/model c.txt --validation v.txt --max-tokens 5000000 --device cpu ")
    assert mine.endswith(f"--out {out}/atlas --prefixes 9")
    assert rest == [f"analyze {out}/atlas", f"report {out}/atlas", f"verify {out}/atlas"]
    assert run("a b.txt", "c.txt", "v.txt", out) == (0, rest)


def test_too_few_words_are_refused(run: Run) -> None:
    assert run("text.txt", "out") == (2, [])
