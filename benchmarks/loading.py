"""Measure opening a GGUF file, with the proof, against what transformers needs for its tokenizer and weights alone.

Processor seconds without imports, in turn, each in a new process; medians over rounds; prints JSON. What transformers
wastes: it reads the file's fields three times (a numpy array for each of SmolLM2's 49,152 tokens: 4 s each), and makes
its map of tensor names once for every module (5 s).

    python benchmarks/loading.py FILE.gguf [--rounds 3]
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

OURS = """
import mnemoscope as ms
ms.load_model
begin = time.process_time()
ms.load_model(str(path))
"""
THEIRS = """
from transformers import AutoModelForCausalLM, AutoTokenizer
begin = time.process_time()
AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
"""


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description="Opening a GGUF file against transformers alone.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    seconds: dict[str, list[float]] = {"mnemoscope": [], "transformers": []}
    for _ in range(given.rounds):
        for name, script in (("mnemoscope", OURS), ("transformers", THEIRS)):
            seconds[name].append(measured(script, given.file.resolve()))
    medians = {name: round(statistics.median(own), 2) for name, own in seconds.items()}
    ratio = round(medians["mnemoscope"] / medians["transformers"], 3)
    print(json.dumps({"file": given.file.name, "processor_seconds": medians, "ratio": ratio}, indent=1))


def measured(script: str, path: Path) -> float:
    """The processor seconds that a script takes in a new process, from its `begin` on."""
    before = "import sys, time\nfrom pathlib import Path\npath = Path(sys.argv[1])\n"
    after = "print(time.process_time() - begin)\n"
    command = [sys.executable, "-c", before + script + after, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(ran.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
