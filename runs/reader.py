"""A reader's install, tried: `python runs/reader.py ATLAS` in an environment that was made of requirements-reader.txt.

It has none of the packages that run models, takes less than 650 MB, answers, reports, searches, shows, serves and
exports the atlas, and says of the rest in one line what is missing. `.ci/run` does this in an environment of its own.
"""

import os
import subprocess
import sys
import tempfile
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_path

from lowest import ask_pages

LEFT_OUT = ("torch", "transformers", "peft", "accelerate", "datasets", "pandas", "gguf")
MOST = 650
"""Megabytes of site-packages."""
VERBS = [
    ["verify"],
    ["analyze"],
    ["report"],
    ["search", "better"],
    ["show", "L5.M1"],
    ["compare", "."],
    ["export", "--to", "jsonl", "--out", "lines"],
    ["export", "--to", "neuronpedia", "--out", "batches", "--memories", "L5.M0-9"],
    ["report", "--browse", "--out", "pages", "--memories", "L5.M0-3"],
]
NEED_MODELS = [["trace", "builtin:pydocs", "a list of"], ["mine", "builtin:pydocs", "builtin:pydocs", "--out", "new"]]


def megabytes(folder: Path) -> float:
    """What `du` says of a folder."""
    return (
        float(subprocess.run(["du", "-sk", folder], check=True, capture_output=True, text=True).stdout.split()[0]) / 1e3
    )


def try_reading(atlas: str) -> None:
    from mnemoscope.cli import main

    there = list(filter(find_spec, LEFT_OUT))
    if there:
        raise SystemExit(f"this is no reader's install: {', '.join(there)} can be imported")
    for verb, *words in VERBS:
        print("==", verb, *words, flush=True)
        if code := main([verb, atlas, *(atlas if word == "." else word for word in words)]):
            raise SystemExit(code)
    ask_pages(["", "L5.M1", "layers/5", "search?q=better", "L5.M1.json"], atlas)
    for words in NEED_MODELS:
        said = subprocess.run([sys.executable, "-m", "mnemoscope", *words], capture_output=True, text=True)
        last = said.stderr.splitlines()[-1]
        print("==", *words, "->", said.returncode, last, flush=True)
        if said.returncode != 2 or "is not installed" not in last or os.path.exists("new"):
            raise SystemExit("what needs a model is not refused in one line")
    size = megabytes(Path(get_path("purelib")))
    print(f"site-packages: {size:.0f} MB of {MOST}")
    if size > MOST:
        raise SystemExit(1)


if __name__ == "__main__":
    place = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        try_reading(place)
