"""Measure mining where threads spin and where they sleep while they wait, beside other work of several sizes.

The command line has threads sleep where other processes take more than 0.3 cores (mnemoscope/cli/waiting.py); this
says from what share on that pays. The built-in model reads made-up sentences in a process of its own for every figure;
beside it another process works for a share of every 20 ms. Both policies in turn, medians over rounds; prints JSON.

    python benchmarks/waiting.py [--rounds 3] [--batches 12]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOADS = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
"""Cores' worth of other work."""
_PERIOD = 0.02
_BATCH_TOKENS = 8192


def main() -> None:
    """Print tokens per second by load and policy, and their ratio."""
    parser = argparse.ArgumentParser(description="Spinning or sleeping threads, beside other work.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--load", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--mine", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load is not None:
        work(given.load)
    elif given.mine:
        print(mining_rate(given.batches))
    else:
        found = [compare(load, rounds=given.rounds, batches=given.batches) for load in LOADS]
        print(json.dumps({"cores": os.cpu_count(), "loads": found}, indent=1))


def compare(load: float, *, rounds: int, batches: int) -> dict[str, float]:
    """Tokens per second beside so much other work."""
    rates: dict[str, list[float]] = {"spin": [], "sleep": []}
    with other_work(load):
        for _ in range(rounds):
            for policy, own in rates.items():
                settings = {"OMP_WAIT_POLICY": "PASSIVE"} if policy == "sleep" else {}
                usual = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
                command = [sys.executable, __file__, "--mine", "--batches", str(batches)]
                done = subprocess.run(command, env=usual | settings, check=True, capture_output=True, text=True)
                own.append(float(done.stdout))
    ratio = statistics.median(b / a for a, b in zip(rates["spin"], rates["sleep"], strict=True))
    medians = {policy: round(statistics.median(own)) for policy, own in rates.items()}
    return {"other_cores": load, **medians, "sleep_over_spin": round(ratio, 2)}


@contextmanager
def other_work(load: float) -> Iterator[None]:
    """Another process that works for a share of the time."""
    if load == 0:
        yield
        return
    worker = subprocess.Popen([sys.executable, __file__, "--load", str(load)])
    try:
        yield
    finally:
        worker.kill()
        worker.wait()


def work(load: float) -> None:
    """Works for a share of every period, until it is killed."""
    while True:
        began = time.perf_counter()
        while time.perf_counter() - began < load * _PERIOD:
            pass
        time.sleep(max(0.0, (1 - load) * _PERIOD))


def mining_rate(batches: int) -> float:
    """Tokens per second of the built-in model's mining, after some batches that are not timed."""
    from mnemoscope.bench.loops import mine_batches
    from mnemoscope.bench.shapes import RandomText
    from mnemoscope.models import load_model

    model = load_model("builtin:pydocs", device="cpu")
    text = RandomText(model, tokens=(batches + 3) * _BATCH_TOKENS, batch_tokens=_BATCH_TOKENS)
    read = [text(number) for number in range(min(batches, text.count))]
    mine_batches(model, read[:2])
    return mine_batches(model, read)[1]


if __name__ == "__main__":
    main()
