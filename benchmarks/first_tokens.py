"""Measure mining over the first 100,000 tokens of a text, against the bare forward pass over the same batches.

A newcomer's text is that small, and mining is slowest there: every batch gets a histogram, and much of what it shows is
among the best so far. Whole runs of `mine` are timed by the clock, one of 120,000 tokens less one of 20,000 (seconds
of the pass over the text, with its checkpoints), and bare forwards over the batches of both, less likewise. Text is
Python's documentation. In turn, medians over rounds; prints JSON.

    python benchmarks/first_tokens.py [builtin|gpt2-small] [--rounds 3] [--dtype float32]
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from speed.documentation import TEXT, named_model

from mnemoscope.corpus import open_source, prepare
from mnemoscope.mining import mine
from mnemoscope.mining.text.batch_loader import BatchLoader
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.batches import default_batch_tokens

FEWER, MORE = 20_000, 120_000


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description="Mining the first 100,000 tokens against the bare forward pass.")
    parser.add_argument("model", nargs="?", default="builtin", choices=["builtin", "gpt2-small"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    model = named_model(given.model, given.dtype, torch.device("cpu"))
    seconds: dict[str, list[float]] = {"mining": [], "forward": []}
    with tempfile.TemporaryDirectory(prefix="mnemoscope-") as folder:
        batches = {tokens: batches_of(model, Path(folder) / str(tokens), tokens) for tokens in (FEWER, MORE)}
        for _ in range(given.rounds):
            seconds["mining"].append(mined(model, MORE) - mined(model, FEWER))
            seconds["forward"].append(forward(model, batches[MORE]) - forward(model, batches[FEWER]))
    shares = [bare / own for bare, own in zip(seconds["forward"], seconds["mining"], strict=True)]
    found = {name: round((MORE - FEWER) / statistics.median(own)) for name, own in seconds.items()}
    print(
        json.dumps(
            {
                "model": given.model,
                "dtype": given.dtype,
                "threads": torch.get_num_threads(),
                "tokens_per_second": found,
                "share_of_bare": [round(share, 3) for share in shares],
                "median": round(statistics.median(shares), 3),
            },
            indent=1,
        )
    )


def batches_of(model: LanguageModel, folder: Path, tokens: int) -> list[torch.Tensor]:
    """The ids of all batches of a run over so many tokens."""
    copy = prepare(
        open_source(TEXT),
        model,
        directory=folder,
        longest=model.longest,
        split="sentence",
        vocabulary=model.sizes.vocabulary,
        max_tokens=tokens,
    )
    loader = BatchLoader(copy, model, batch_tokens=default_batch_tokens(model), seed=0)
    return [loader(number).ids for number in range(loader.count)]


def forward(model: LanguageModel, batches: list[torch.Tensor]) -> float:
    """Seconds of the bare forward pass over the batches."""
    began = time.perf_counter()
    for ids in batches:
        model.backbone(ids)
    return time.perf_counter() - began


def mined(model: LanguageModel, tokens: int) -> float:
    """Seconds of the pass over the text in a whole run over so many tokens."""
    with tempfile.TemporaryDirectory(prefix="mnemoscope-") as folder:
        atlas = mine(
            model,
            TEXT,
            out=Path(folder) / "atlas",
            max_tokens=tokens,
            dtype=str(model.dtype).removeprefix("torch."),
            prefixes=0,
            removals=0,
            neighbours=0,
        )
        return float(json.loads((atlas / "run.json").read_text())["seconds"]["mining"])


if __name__ == "__main__":
    main()
