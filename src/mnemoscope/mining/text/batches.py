"""Batches of tokens, and retrying in halves when memory runs out. Knows neither texts nor tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.errors import MiningError
from mnemoscope.kernels.devices import is_out_of_memory

Items = TypeVar("Items")
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Padded token ids `[batch, position]` with the beginning token, if any; rows ascend in length."""

    ids: Tensor
    lengths: Ints
    sentences: Tensor
    sampled: bool

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    def halves(self) -> list["Batch"]:
        """Raises MiningError for one sentence, since it did not fit."""
        if len(self.lengths) == 1:
            raise MiningError(
                f"memory ran out on sentence {int(self.sentences[0])}, alone, of {self.tokens} tokens; "
                "free memory or choose a smaller model"
            )
        return self.split(2)

    def split(self, parts: int) -> list["Batch"]:
        """The same rows, padded as they are, in at most `parts` batches of about equal size."""
        return [
            Batch(self.ids[part], self.lengths[part], self.sentences[part], self.sampled)
            for part in even_parts(slice(0, len(self.lengths)), parts)
        ]


def even_parts(items: slice, parts: int) -> list[slice]:
    """At most `parts` runs of about equal size; none is empty."""
    count = items.stop - items.start
    edges = [items.start + part * count // parts for part in range(parts + 1)]
    return [slice(first, last) for first, last in pairwise(edges) if first < last]


def halves_of(items: slice) -> list[slice]:
    """Raises MiningError for one item, since it did not fit."""
    if items.stop - items.start == 1:
        raise MiningError("memory ran out on one sentence, alone; use a machine with more, or --dtype bfloat16")
    return even_parts(items, 2)


def run_in_halves(step: Callable[[Items], object], items: Items, halves: Callable[[Items], Sequence[Items]]) -> bool:
    """Takes a step whole or, without memory, in ever smaller halves; returns whether it fitted whole."""
    try:
        step(items)
        return True
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside the handler: the error's traceback holds on to what filled the memory.
    for half in halves(items):
        run_in_halves(step, half, halves)
    return False
