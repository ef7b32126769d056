"""Measure the passes that answer for the paper's questions on a GPT-2-small-shaped model: seconds and resident memory.

The model is random (12 layers of 3,072 memories, vocabulary 50,257). A little of TEXT is mined, so that there are
triggers and values; then 4,000 prefixes of the validation text are asked in every layer, and tokens are removed from
the triggers of 10 memories per layer. The bar for predictions: under 6 minutes on 2 cores, the process under 4 GB; for
attention: at most 1.5 times the predictions' seconds, of the same run.

    python benchmarks/questions.py TEXT VALIDATION
"""

import argparse
import json
import resource
import tempfile
from pathlib import Path

from mnemoscope.bench.shapes import random_model
from mnemoscope.mining import mine


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description="How long the questions' passes take.")
    parser.add_argument("text")
    parser.add_argument("validation")
    parser.add_argument("--max-tokens", type=int, default=20_000)
    parser.add_argument("--prefixes", type=int, default=4_000)
    parser.add_argument("--removals", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mnemoscope-") as folder:
        atlas = mine(
            random_model("gpt2-small"), given.text, out=Path(folder) / "atlas", validation=given.validation,
            max_tokens=given.max_tokens, prefixes=given.prefixes, removals=given.removals,
        )  # fmt: skip
        seconds = json.loads((atlas / "run.json").read_text())["seconds"]
        manifest = json.loads((atlas / "manifest.json").read_text())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ratio = seconds["attention"] / seconds["predictions"]
    found = {"attention_of_predictions": round(ratio, 2), "seconds": seconds, "asked": manifest["questions"]}
    print(json.dumps(found | {"peak_mb": round(peak)}, indent=1))


if __name__ == "__main__":
    main()
