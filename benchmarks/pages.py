"""How fast each kind of page of an atlas comes, one reader, one after the other.

    python benchmarks/pages.py ATLAS

Starts `mnemoscope serve` as a process, lets it make its index, and prints per kind of page the seconds of the first
request, the median and the slowest, and the median size; then the seconds that `mnemoscope report` takes for a copy of
the atlas's answers. Pages are those of random memories, layers and tokens (seed 1).
"""

import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median

from serve import running_server

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.search import build_index

WORDS = ("world", "the+king", "church", "war", "river", "music", "football", "%22of+the%22", "par*")


def pages(atlas: Atlas) -> dict[str, list[str]]:
    """The addresses of each kind, in the order asked for."""
    draw = random.Random(1)
    layers = [draw.choice(atlas.layers) for _ in range(40)]
    memories = [str(atlas.name(layer, draw.randrange(atlas.memories(layer)))) for layer in layers]
    tokens = range(len(atlas.vocabulary.texts))
    return {
        "first page": ["/"],
        "memory": [f"/{name}" for name in memories],
        "layer": [f"/layers/{layer}" for layer in layers[:12]],
        "layer, sorted": [f"/layers/{layer}?sort=strong&order=up&page=2" for layer in layers[:10]],
        "token": [f"/tokens/{draw.choice(tokens)}" for _ in range(15)],
        "search": [f"/search?q={word}" for word in WORDS],
        "questions": ["/questions", "/questions/value_agreement", "/questions/layer_activity", "/layers", "/"],
    }


def ask(address: str) -> tuple[float, int]:
    """The seconds and bytes of one page; raises HTTPError for a refusal."""
    began = time.perf_counter()
    with urllib.request.urlopen(address) as answer:
        size = len(answer.read())
    return time.perf_counter() - began, size


def main() -> None:
    """Prints a row for each kind of page, and one for the report."""
    atlas = open_atlas(Path(sys.argv[1]))
    build_index(atlas)
    with running_server(atlas.path) as (_, place, _):
        print("| page | first, s | median, s | slowest, s | kB |\n|---|---|---|---|---|")
        for kind, addresses in pages(atlas).items():
            seconds, sizes = zip(*(ask(f"http://{place}{address}") for address in addresses), strict=True)
            row = (seconds[0], median(seconds), max(seconds))
            print(f"| {kind} | {' | '.join(f'{one:.3f}' for one in row)} | {median(sizes) / 1000:.0f} |")
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        report = [sys.executable, "-m", "mnemoscope", "report", str(atlas.path), "--out", f"{folder}/report"]
        subprocess.run(report, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print(f"| report | {time.perf_counter() - began:.1f} | | | |")


if __name__ == "__main__":
    main()
