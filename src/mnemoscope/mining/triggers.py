"""The prefixes with the highest coefficients of every memory of one layer, kept while a text streams by.

Two steps, so that a batch counts whole or not at all: `survivors` finds, without changing anything, what could still
enter the best; `add` takes it in. What arrives waits in a short queue, and the queue is merged by sorting when it is
as long as the state, so the sort is rare. Which prefixes are kept does not depend on order, batches or merges: they
are ordered by coefficient (falling), sentence id, position (definitions.md section 3).

Where the host may not look (host.py) the same is done in fixed amounts: a batch gives every memory as many candidates
as are kept, some of them empty, and the merge sorts them all.

Magnitudes are stored: the best of sign -1 are the lowest coefficients, negated.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from mnemoscope.errors import PartsDiffer
from mnemoscope.mining.host import may_look

NEVER = -1
"""The sentence id of an empty place."""
_LEAST_POSITIVE = 2.0**-149
"""The smallest positive float32: a coefficient of zero never triggers."""


@dataclass(frozen=True)
class Survivors:
    """Candidates of one batch; four tensors of equal length. An empty place has sentence NEVER, memory = memories."""

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
        self.device = torch.device(device)
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

    def best_of_batch(self, peaks: Tensor, place: Tensor, sentences: Tensor, *, first: int) -> Survivors:
        """Like `survivors`, for a whole batch, and without looking: `keep` candidates of every memory, some empty.

        `place [batch, memory]` is the position of each of the `peaks [batch, memory]`.
        """
        order = sentences.argsort()
        peaks, place, sentences = peaks[order].float(), place[order], sentences[order]
        # More than `keep` sentences of one batch cannot be among the best; of equal ones the lower ids are.
        least = peaks.topk(min(self.keep, len(peaks)), dim=0).values[-1].maximum(self.threshold)
        above, equal = peaks > least, peaks == least
        chosen = above | (equal & (equal.cumsum(0) <= self.keep - above.sum(0)))
        memory = torch.arange(self.memories, device=self.device)
        slot = torch.where(chosen, memory * self.keep + chosen.cumsum(0) - 1, self.memories * self.keep).flatten()

        def spread(values: Tensor, empty: float, dtype: torch.dtype) -> Tensor:
            found = torch.full((self.memories * self.keep + 1,), empty, dtype=dtype, device=self.device)
            found[slot] = values.expand_as(chosen).flatten().to(dtype)
            return found[:-1]

        return Survivors(
            spread(memory, self.memories, torch.int64), spread(peaks, 0.0, torch.float32),
            spread(sentences[:, None], NEVER, torch.int64), spread(place + first, NEVER, torch.int32),
        )  # fmt: skip

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
            room = self.memories * self.keep
            if self._queued >= (room // 2 if may_look(self.device) else 4 * room):
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
        memory = torch.arange(self.memories, device=self.device)[:, None].expand_as(self.sentence)
        full = self.sentence != NEVER
        rows = (memory.masked_fill(~full, self.memories), *self._tensors())
        return Survivors(*(row[full] if may_look(self.device) else row.flatten() for row in rows))

    def _take(self, rows: Survivors) -> None:
        """Replaces the state by the best of `rows`."""
        order = torch.argsort(rows.sentence * (1 << 20) + rows.position, stable=True)
        # A positive float32 sorts as its bits do; memory above, falling magnitude below, in one integer.
        bits = rows.magnitude[order].view(torch.int32).to(torch.int64)
        order = order[torch.argsort((rows.memory[order] << 32) - bits, stable=True)]
        memory, every = rows.memory[order], torch.arange(len(order), device=self.device)
        begins = torch.searchsorted(memory, torch.arange(self.memories + 1, device=self.device))
        rank, most = every - begins[memory], self.memories * self.keep
        # Whatever is not among the best is written to one place more, which is cut away.
        at = torch.where((rank < self.keep) & (memory < self.memories), memory * self.keep + rank, most)
        for own, found in zip(self._tensors(), (rows.magnitude, rows.sentence, rows.position), strict=True):
            best = torch.full((most + 1,), 0 if own.is_floating_point() else NEVER, dtype=own.dtype, device=self.device)
            best[at] = found[order]
            own.copy_(best[:-1].view_as(own))
        self.threshold = self.magnitude[:, -1].clamp(min=_LEAST_POSITIVE)

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.magnitude, self.sentence, self.position

    def state(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint holds; `load` takes them back."""
        self.settle()
        return {"magnitude": self.magnitude, "sentence": self.sentence, "position": self.position}

    def load(self, state: dict[str, Tensor]) -> None:
        """Becomes the accumulator whose `state` this is."""
        for name, tensor in state.items():
            getattr(self, name).copy_(tensor)
        self.threshold = self.magnitude[:, -1].clamp(min=_LEAST_POSITIVE)
