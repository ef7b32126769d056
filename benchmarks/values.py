"""What the value pass reads off scores, against the bare product: 2,048 memories at the sizes of Gemma 3 270M.

In turn, a block of values each, in one process: `python benchmarks/values.py`. Prints medians and quartiles over blocks
of the product's share, of the clock and of the processor's own time, which other work on the machine disturbs less.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from mnemoscope.mining.passes.vectors.projector import Projector
from mnemoscope.mining.passes.vectors.values import Targets, _read_scores
from mnemoscope.models.modules.projections import LinearHead

MEMORIES, VOCABULARY, WIDTH, TRIGGERS = 2_048, 262_144, 640, 50


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """How long it takes, by the clock and by the processor's."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - processor


def main() -> None:
    """Runs both on every block."""
    chance, draw = torch.Generator().manual_seed(0), np.random.default_rng(0)
    head = LinearHead(0.04 * torch.randn(VOCABULARY, WIDTH, generator=chance))
    projector = Projector(head, VOCABULARY, device=torch.device("cpu"))
    rows = projector.rows
    following = draw.integers(VOCABULARY, size=(rows, TRIGGERS))
    wanted = Targets(following[:, 0], following[:, 0], np.repeat(np.arange(rows), TRIGGERS), following.ravel())
    shares = []
    for block in torch.split(torch.randn(MEMORIES + rows, WIDTH, generator=chance), rows):
        works = (
            (lambda v=block: projector.scores(v)),
            (lambda v=block: projector.read_all(v, partial(_read_scores, wanted, ()), opposite=True)),
        )
        product, both = map(seconds, works)
        shares.append((product[0] / both[0], product[1] / both[1]))
    for name, own in zip(("clock", "processor"), zip(*shares[1:], strict=True), strict=True):  # the first warms up
        low, middle, high = np.quantile(own, (0.25, 0.5, 0.75))
        print(f"product / value pass, {name}: {middle:.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
