"""Two workers against one: how fast a text is read by one worker of one thread, and by two, in alternating rounds.

    python benchmarks/workers.py TEXT [--tokens N] [--rounds N] [--ray]

Every round is a run of its own, of processes of its own, in an empty folder. The rate is that of the middle of the text
pass (from 15 to 85 % of the tokens), which starting workers and merging states are no part of; the whole run is timed,
too. At the end the tables of the last two runs are compared. Needs two cores on which nobody else works.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FIRST, LAST = 0.15, 0.85


def measure(text: str, out: Path, *, workers: int, tokens: int, ray: bool) -> None:
    """One run, in this process; prints what it measured as JSON."""
    from mnemoscope.cluster.run import mine_with_workers
    from mnemoscope.foundation.options.fleet_options import RAY_HERE, FleetOptions
    from mnemoscope.foundation.options.mining_options import MiningOptions

    seen: list[tuple[float, float]] = []

    def note(stage: str, done: float, total: float | None, _: str) -> None:
        if stage == "mining" and total and FIRST * total <= done <= LAST * total and (not seen or done > seen[-1][1]):
            seen.append((time.monotonic(), done))

    began = time.monotonic()
    options = MiningOptions(split="line", max_tokens=tokens, prefixes=500, removals=2, device="cpu")
    fleet = FleetOptions(workers=workers, ray=RAY_HERE if ray else None)
    mine_with_workers("builtin:pydocs", text, out, options, fleet, progress=note)
    whole = time.monotonic() - began
    (first, before), (last, after) = seen[0], seen[-1]
    stages = json.loads((out / "run.json").read_text())["seconds"]
    print(json.dumps({"rate": (after - before) / (last - first), "whole": whole, "stages": stages}))


def run(text: str, out: Path, *, workers: int, tokens: int, ray: bool) -> dict[str, Any]:
    """One run, in a process with one thread for every worker."""
    shutil.rmtree(out, ignore_errors=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(workers)}
    words = [text, "--one", str(out), "--workers", str(workers), "--tokens", str(tokens), *(["--ray"] if ray else [])]
    done = subprocess.run([sys.executable, __file__, *words], env=environment, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Runs the rounds and prints medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text")
    parser.add_argument("--tokens", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        measure(asked.text, asked.one, workers=asked.workers, tokens=asked.tokens, ray=asked.ray)
        return
    folder = Path(tempfile.mkdtemp())
    rates: dict[int, list[float]] = {1: [], 2: []}
    wholes: dict[int, list[float]] = {1: [], 2: []}
    for number in range(asked.rounds):
        for workers in (1, 2) if number % 2 == 0 else (2, 1):
            found = run(asked.text, folder / str(workers), workers=workers, tokens=asked.tokens, ray=asked.ray)
            rates[workers].append(found["rate"])
            wholes[workers].append(found["whole"])
            print(f"{workers} workers: {found['rate']:,.0f} tokens/s, {found['whole']:.1f} s in all", flush=True)
    tables = [
        {path.relative_to(atlas).as_posix(): path.read_bytes() for path in sorted(atlas.rglob("*.parquet"))}
        for atlas in (folder / "1", folder / "2")
    ]
    ratios = [two / one for one, two in zip(rates[1], rates[2], strict=True)]
    times = [one / two for one, two in zip(wholes[1], wholes[2], strict=True)]
    print(f"rate: {statistics.median(ratios):.2f} times that of one (rounds: {', '.join(f'{r:.2f}' for r in ratios)})")
    print(f"whole run: {statistics.median(times):.2f} times as fast (rounds: {', '.join(f'{r:.2f}' for r in times)})")
    print("tables: the same bytes" if tables[0] == tables[1] else "tables: DIFFERENT")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
