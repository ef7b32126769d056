"""The prefixes with the highest coefficients of every memory of one layer, kept while a text streams by.

Two steps, so that a batch counts whole or not at all: `survivors` finds, without changing anything, what could still
enter the best; `add` takes it in. What arrives waits in a short queue, and the queue is merged by sorting when it is
as long as the state, so the sort is rare. Which prefixes are kept does not depend on order, batches or merges: they
are ordered by coefficient (falling), sentence id, position (definitions.md section 3).

Magnitudes are stored: the best of sign -1 are the lowest coefficients, negated.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from mnemoscope.errors import PartsDiffer

NEVER = -1
"""The sentence id of an empty place."""
_LEAST_POSITIVE = 2.0**-149
"""The smallest positive float32: a coefficient of zero never triggers."""


@dataclass(frozen=True)
class Survivors:
    """Candidates of one batch; four tensors of equal length."""

    memory: Tensor
    magnitude: Tensor
    sentence: Tensor
    position: Tensor

    def __len__(self) -> int:
        return int(self.memory.shape[0])


class Triggers:
    """The best `keep` prefixes `[memory, rank]` of one sign; `merge` is associative and commutative."""

    def __init__(self, memories: int, keep: int, *, device: torch.device | str = "cpu") -> None:
        self.memories, self.keep = memories, keep
        self.magnitude = torch.zeros(memories, keep, device=device)
        self.sentence = torch.full((memories, keep), NEVER, dtype=torch.int64, device=device)
        self.position = torch.full((memories, keep), NEVER, dtype=torch.int32, device=device)
        self.threshold = torch.full((memories,), _LEAST_POSITIVE, device=device)
        self._queue: list[Survivors] = []
        self._queued = 0

    def survivors(self, peaks: Tensor, block: Tensor, sentences: Tensor, *, sign: int, first: int) -> Survivors:
        """What of a block of sentences may be among the best: one prefix per sentence, its first highest.

        `block [batch, position, memory]` holds the coefficients of whole sentences of one length, `peaks
        [batch, memory]` their largest `sign * coefficient` over positions, `sentences [batch]` their ids; `first` is
        the position number of the block's first position.
        """
        row, memory = (peaks >= self.threshold).nonzero(as_tuple=True)
        if 4 * len(row) > peaks.numel():  # a dense start: one sweep is cheaper than many gathers
            place = (block if sign > 0 else -block).max(dim=1).indices[row, memory]
        else:
            candidates = block[row, :, memory]
            place = (candidates if sign > 0 else -candidates).argmax(dim=1)
        return Survivors(memory, peaks[row, memory].float(), sentences[row], (place + first).to(torch.int32))

    def survivors_everywhere(self, block: Tensor, sentences: Tensor, *, sign: int, first: int) -> Survivors:
        """Like `survivors`, but every position of a sentence may be a trigger (the paper's literal text)."""
        magnitude = block if sign > 0 else -block
        row, place, memory = (magnitude >= self.threshold).nonzero(as_tuple=True)
        found = magnitude[row, place, memory].float()
        return Survivors(memory, found, sentences[row], (place + first).to(torch.int32))

    def add(self, found: Survivors) -> None:
        """Takes in the survivors of a batch."""
        if len(found):
            self._queue.append(found)
            self._queued += len(found)
            if self._queued >= self.memories * self.keep // 2:
                self.settle()

    def settle(self) -> None:
        """Merges the queue into the state."""
        if not self._queue:
            return
        kept = self._rows()
        parts = [kept, *self._queue]
        self._queue, self._queued = [], 0
        self._take(
            Survivors(*(torch.cat([getattr(p, name) for p in parts]) for name in Survivors.__dataclass_fields__))
        )

    def merge(self, other: Self) -> None:
        """Takes in another accumulator of the same memories (a part of the same plan)."""
        if (self.memories, self.keep) != (other.memories, other.keep):
            raise PartsDiffer(
                f"parts keep {self.keep} and {other.keep} triggers of {self.memories} and {other.memories} memories"
            )
        other.settle()
        self._queue.append(other._rows())
        self.settle()

    def _rows(self) -> Survivors:
        memory, rank = (self.sentence != NEVER).nonzero(as_tuple=True)
        at = (memory, rank)
        return Survivors(memory, self.magnitude[at], self.sentence[at], self.position[at])

    def _take(self, rows: Survivors) -> None:
        """Replaces the state by the best of `rows`."""
        order = torch.argsort(rows.sentence * (1 << 20) + rows.position, stable=True)
        # A positive float32 sorts as its bits do; memory above, falling magnitude below, in one integer.
        bits = rows.magnitude[order].view(torch.int32).to(torch.int64)
        order = order[torch.argsort((rows.memory[order] << 32) - bits, stable=True)]
        memory = rows.memory[order]
        counts = torch.bincount(memory, minlength=self.memories)
        begins = torch.cumsum(counts, 0) - counts
        rank = torch.arange(len(memory), device=memory.device) - begins[memory]
        best = rank < self.keep
        at = (memory[best], rank[best])
        order = order[best]
        self.magnitude.zero_()
        self.sentence.fill_(NEVER)
        self.position.fill_(NEVER)
        self.magnitude[at] = rows.magnitude[order]
        self.sentence[at] = rows.sentence[order]
        self.position[at] = rows.position[order]
        self.threshold = self.magnitude[:, -1].clamp(min=_LEAST_POSITIVE)

    def state(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint holds; `load` takes them back."""
        self.settle()
        return {"magnitude": self.magnitude, "sentence": self.sentence, "position": self.position}

    def load(self, state: dict[str, Tensor]) -> None:
        """Becomes the accumulator whose `state` this is."""
        for name, tensor in state.items():
            getattr(self, name).copy_(tensor)
        self.threshold = self.magnitude[:, -1].clamp(min=_LEAST_POSITIVE)
