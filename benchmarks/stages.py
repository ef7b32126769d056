"""Time the stages of mining a model of GPT-2's shape, with this checkout's code and with another's, in turn.

The model is random, its tokenizer the built-in model's (12 layers of 3,072 memories, vocabulary 50,257). Every run is a
process of its own, which opens the same folder and mines the same text; the seconds of its stages are those in its
run.json. Ratios are the other's seconds over this one's, the median of all rounds.

    git worktree add ../before COMMIT
    python benchmarks/stages.py ../before TEXT VALIDATION --rounds 3
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from speed.shapes import random_model
from transformers import AutoTokenizer

from mnemoscope.models.opening.huggingface import builtin_folder

HERE = Path(__file__).resolve().parents[1]


def main() -> None:
    """Print a line of JSON for every stage: its seconds by round, and their ratios; peaks of memory likewise."""
    parser = argparse.ArgumentParser(description="The stages of mining, beside those of another checkout.")
    parser.add_argument("other", type=Path, help="a checkout of this project")
    parser.add_argument("text", type=Path)
    parser.add_argument("validation", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=20_000)
    parser.add_argument("--prefixes", type=int, default=400)
    parser.add_argument("--removals", type=int, default=10)
    given = parser.parse_args()
    given.text, given.validation = given.text.resolve(), given.validation.resolve()  # each code runs in its own folder
    if not (given.other / "src" / "mnemoscope").is_dir():
        parser.error(f"{given.other} is no checkout of this project")
    options = [f"--{name.replace('_', '-')}={getattr(given, name)}" for name in ("max_tokens", "prefixes", "removals")]
    found: dict[str, list[dict[str, float]]] = {"other": [], "this": []}
    with tempfile.TemporaryDirectory(prefix="mnemoscope-") as folder:
        place = Path(folder)
        save_model(place / "model")
        for turn in range(given.rounds):
            for name, checkout in (("other", given.other), ("this", HERE)):
                atlas = place / f"{name}-{turn}"
                texts = [str(given.text), f"--validation={given.validation}", f"--out={atlas}"]
                found[name].append(mine_with(checkout, [str(place / "model"), *texts, *options], atlas))
    for stage in found["this"][0]:
        pairs = [(other.get(stage), this[stage]) for other, this in zip(found["other"], found["this"], strict=True)]
        ratios = [round(other / this, 2) for other, this in pairs if other is not None and this > 0]
        line = {"stage": stage, "other_and_this": pairs, "ratios": ratios}
        print(json.dumps(line | {"median": round(median(ratios), 2) if ratios else None}))


def save_model(folder: Path) -> None:
    """Writes the model and its tokenizer as any other folder of a hub's model."""
    random_model("gpt2-small").anatomy.model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(builtin_folder("pydocs")).save_pretrained(folder)


def mine_with(checkout: Path, arguments: list[str], atlas: Path) -> dict[str, float]:
    """Mines in a process of its own with a checkout's code; its stages' seconds, and its peak in megabytes."""
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src")}
    command = [sys.executable, "-m", "mnemoscope", "mine", *arguments]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, cwd=atlas.parent)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"mining with the code of {checkout} failed")
    run = json.loads((atlas / "run.json").read_text())
    seconds: dict[str, float] = run["seconds"]
    return seconds | {"peak_mb": round(used.ru_maxrss / 1024)}


if __name__ == "__main__":
    main()
