"""What `model.coefficients(texts, reduce="max")` costs beside a bare batched forward: prints JSON.

    python benchmarks/coefficients.py MODEL [--texts 1000] [--tokens 30] [--rounds 5]

The texts are made up, of one length, and stand in the same batches both times. The bare forward is transformers' own,
of the blocks without the head; `with_head` is the model's own, of all logits. Each round takes the three on a share of
the texts in turn; given are the medians of the rounds' ratios of processor time, which other work on the machine
changes least (`OMP_WAIT_POLICY=PASSIVE`, so that waiting costs none), and how much memory grew beside the model.
"""

import argparse
import json
import resource
import statistics
import time

import numpy as np
import torch

import mnemoscope as ms
from mnemoscope.models.forward.batches import default_batch_tokens

PARTS = 5
"""Shares of the texts, of which a round takes one."""


def texts_of(model: ms.LanguageModel, count: int, tokens: int) -> list[str]:
    """Texts of so many tokens each, of common words in an order drawn by number."""
    words = "the old house by a river was sold to some people who came from another town and saw that it had no roof"
    made: list[str] = []
    generator = np.random.default_rng(0)
    while len(made) < count:
        text = " ".join(generator.choice(words.split(), 2 * tokens))
        spans = model.offsets(text)
        cut = text[: spans[tokens - 1][1]]
        if len(model.encode([cut])[0]) == tokens:
            made.append(cut)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="What coefficients of many texts cost.")
    parser.add_argument("model")
    parser.add_argument("--texts", type=int, default=1_000)
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=PARTS)
    given = parser.parse_args()
    model = ms.load_model(given.model, device="cpu")
    texts = texts_of(model, given.texts, given.tokens)
    network = model.anatomy.model
    rows = max(1, default_batch_tokens(model) // model.reading.columns(given.tokens))

    def bare(some: list[str], *, whole: bool = False) -> None:
        framed = [model.reading.frame(one) for one in model.encode(some)]
        with torch.inference_mode():
            for start in range(0, len(some), rows):
                ids = torch.tensor(framed[start : start + rows])
                (network if whole else network.base_model)(input_ids=ids, use_cache=False)

    def ours(some: list[str]) -> None:
        found = model.coefficients(some, reduce="max", as_arrays=True)
        assert len(found) == model.sizes.layers

    def frame(some: list[str]) -> None:
        assert len(model.coefficients(some, reduce="max")) == len(some) * sum(model.sizes.memories)

    ways = {"bare": bare, "arrays": ours, "frame": frame, "with_head": lambda some: bare(some, whole=True)}
    for way in ways.values():
        way(texts[:rows])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(given.rounds):
        some = texts[number % PARTS :: PARTS]
        order = list(ways) if number % 2 == 0 else list(ways)[::-1]
        for name in order:
            began = time.process_time()
            ways[name](some)
            seconds[name].append(time.process_time() - began)
    grew = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    def ratio(name: str, of: str) -> float:
        return round(statistics.median(a / b for a, b in zip(seconds[name], seconds[of], strict=True)), 3)

    print(
        json.dumps(
            {
                "model": model.spec,
                "texts": len(texts),
                "texts_of_a_round": len(texts[::PARTS]),
                "tokens": given.tokens,
                "seconds": {name: [round(one, 2) for one in times] for name, times in seconds.items()},
                "arrays_of_bare": ratio("arrays", "bare"),
                "frame_of_bare": ratio("frame", "bare"),
                "arrays_of_with_head": ratio("arrays", "with_head"),
                "result_mb": round(len(texts[::PARTS]) * sum(model.sizes.memories) * 4 / 1e6, 1),
                "grew_mb": round(grew / 1024, 1),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
