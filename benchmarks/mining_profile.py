"""Where the time of the mining pass goes: `python benchmarks/mining_profile.py [builtin|gpt2-small] [--rounds 3]`.

Python's documentation is mined from its beginning; the first 100,000 tokens and those after the 200,000th, where
batches have no histogram, are told apart. What threads do at the same time counts as often as it is done, divided by
their number: so the parts add up to the time by the clock. Prints the per cent of each, as medians over rounds.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from speed.documentation import TEXT, named_model

from mnemoscope.corpus import open_source, prepare
from mnemoscope.mining.text import batch_reader
from mnemoscope.mining.text.batch_loader import BatchLoader
from mnemoscope.mining.text.batch_reader import BatchReader
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.mining.text.thread_team import ThreadTeam
from mnemoscope.mining.text.triggers import Triggers
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.batches import default_batch_tokens
from mnemoscope.runs.plan import SAMPLED_TOKENS, default_triggers

PARTS: dict[str, tuple[Any, str]] = {
    "batch": (BatchReader, "read"),
    "piece": (BatchReader, "_measure_piece"),
    "share": (BatchReader, "_measure_share"),
    "sweep": (batch_reader, "sweep"),
    "histogram": (batch_reader, "count_bins"),
    "candidates": (Triggers, "find"),
}
FIRST, AFTER = 100_000, {"builtin": 100_000, "gpt2-small": 20_000}
"""Tokens of the two stretches that are looked at; a larger model's second is shorter."""


class Clocks:
    """Seconds of each part since the last `take`, of all threads."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._lock = threading.Lock()

    def wrap(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same work, clocked."""

        def clocked(*args: Any, **named: Any) -> Any:
            with self.of(name):
                return work(*args, **named)

        return clocked

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Adds what is done within it."""
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            with self._lock:
                self._spent[name] = self._spent.get(name, 0.0) + spent

    def take(self) -> dict[str, float]:
        """The seconds of each part."""
        spent, self._spent = self._spent, {}
        return spent


def main() -> None:
    """Prints one JSON document."""
    parser = argparse.ArgumentParser(description="Where the time of the mining pass goes.")
    parser.add_argument("model", nargs="?", default="builtin", choices=list(AFTER))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    model = named_model(given.model, given.dtype, torch.device("cpu"))
    clocks, team = Clocks(), ThreadTeam.of(model)
    with tempfile.TemporaryDirectory(prefix="mnemoscope-") as folder, ExitStack() as patches:
        copy = prepare(
            open_source(TEXT),
            model,
            directory=Path(folder),
            longest=model.longest,
            split="sentence",
            vocabulary=model.sizes.vocabulary,
            max_tokens=SAMPLED_TOKENS + 2 * FIRST,
        )
        loader = BatchLoader(copy, model, batch_tokens=default_batch_tokens(model), seed=0)
        for name, (owner, method) in PARTS.items():
            patches.enter_context(mock.patch.object(owner, method, clocks.wrap(name, getattr(owner, method))))
        rounds = [mine(model, loader, clocks, after=AFTER[given.model], team=team.size) for _ in range(given.rounds)]
    found = {
        stretch: {part: round(statistics.median(one[stretch][part] for one in rounds), 1) for part in shares}
        for stretch, shares in rounds[0].items()
    }
    print(json.dumps({"model": given.model, "dtype": given.dtype, "threads": team.size, "per cent": found}, indent=1))


def mine(
    model: LanguageModel, loader: BatchLoader, clocks: Clocks, *, after: int, team: int
) -> dict[str, dict[str, float]]:
    """The per cent of each part over the first tokens, and over some after the sampled ones."""
    state = MiningState(StateShape.of(model, keep=default_triggers(model)), devices=model.devices)
    reader, done, found = BatchReader(model, state), 0, dict[str, dict[str, float]]()
    clocks.take()
    began = time.perf_counter()
    for number in range(loader.count):
        with clocks.of("reading tokens"):
            batch = loader(number)
        reader.read(batch)
        before, done = done, done + batch.tokens
        if before < FIRST <= done:
            found["first 100,000 tokens"] = shares_of(clocks.take(), time.perf_counter() - began, team)
        if before < SAMPLED_TOKENS <= done:
            clocks.take()
            began = time.perf_counter()
        if before < SAMPLED_TOKENS + after <= done:
            found["after 200,000 tokens"] = shares_of(clocks.take(), time.perf_counter() - began, team)
            break
    return found


def shares_of(spent: dict[str, float], seconds: float, team: int) -> dict[str, float]:
    """Per cent of the seconds by the clock."""
    own = {name: spent.pop(name, 0.0) / team for name in ("share", "sweep", "histogram", "candidates")}
    parts = {
        "forward": own["share"] - own["sweep"] - own["histogram"] - own["candidates"],
        "sweep, with bins": own["sweep"] + own["histogram"],
        "candidates": own["candidates"],
        "threads wait": (piece := spent.pop("piece")) - own["share"],
        "counting": spent.pop("batch") - piece,
        **spent,
    }
    parts["rest"] = seconds - sum(parts.values())
    return {name: 100 * each / seconds for name, each in parts.items()}


if __name__ == "__main__":
    main()
