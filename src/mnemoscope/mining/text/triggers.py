"""The prefixes with the highest coefficients of every memory of one layer, kept while a text streams by.

Two steps, so that a batch counts whole or not at all: `survivors` finds, without changing anything, what could still
enter the best; `add` puts it into a short queue, which is merged by sorting when it is as long as the state. Prefixes
are ordered by coefficient (falling), sentence id, position (definitions.md section 3), so the result does not depend on
batches, order or merges.

Where the host may not look (kernels/devices.py) every step has a fixed size: a batch gives every memory as many
candidates as are kept, some of them empty, and the merge sorts them all.

Magnitudes are stored: the best of sign -1 are the lowest coefficients, negated.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.kernels.choose import Best, card_kernels
from mnemoscope.kernels.devices import may_look

NEVER = -1
"""The sentence id of an empty place."""
STORED = ("magnitude", "sentence", "position", "weight")
"""The tensors of a state, in order; the last only in a layer of experts."""
_LEAST_POSITIVE = 2.0**-149
"""The smallest positive float32: a coefficient of zero never triggers."""


@dataclass(frozen=True)
class Survivors:
    """Candidates of one batch; an empty place has sentence NEVER and memory = memories. `weight`: the router's;
    `firings`: how many each memory had, where they are drawn at random.
    """

    memory: Tensor
    magnitude: Tensor
    sentence: Tensor
    position: Tensor
    weight: Tensor | None = None
    firings: Tensor | None = None

    def __len__(self) -> int:
        return int(self.memory.shape[0])


@dataclass(frozen=True)
class RoutedBlock:
    """A block of `count` experts, the first of which begins at memory `first_memory`: the expert of every row,
    `[batch]`, and the positions and router's weights of its entries, `[batch, place]`.
    """

    first_memory: int
    count: int
    experts: Tensor
    positions: Tensor
    weights: Tensor


class Triggers:
    """The best `keep` prefixes `[memory, rank]` of one sign; `weighted`: with the router's weights."""

    def __init__(self, memories: int, keep: int, *, weighted: bool = False, device: torch.device | str = "cpu") -> None:
        self.memories, self.keep = memories, keep
        self.device = torch.device(device)
        self.magnitude = torch.zeros(memories, keep, device=device)
        self.sentence = torch.full((memories, keep), NEVER, dtype=torch.int64, device=device)
        self.position = torch.full((memories, keep), NEVER, dtype=torch.int32, device=device)
        self.weight = torch.zeros(memories, keep, device=device) if weighted else None
        self.threshold = torch.full((memories,), _LEAST_POSITIVE, device=device)
        self._queue: list[Survivors] = []
        self._queued = 0

    def survivors(
        self,
        peaks: Tensor,
        block: Tensor,
        sentences: Tensor,
        *,
        sign: int,
        first: int,
        routed: RoutedBlock | None = None,
    ) -> Survivors:
        """The prefixes of a block that may be among the best: one per sentence, its first highest. `block [batch,
        position, memory]` has whole sentences of one length, `peaks [batch, memory]` their largest `sign * coefficient`
        over positions, `sentences [batch]` their ids; `first` is the position of the block's first column.
        """
        row, memory = (peaks >= self._thresholds(peaks.shape[1], routed)).nonzero(as_tuple=True)
        candidates = block[row, :, memory]
        place = (candidates if sign > 0 else -candidates).argmax(dim=1)
        return self._locate(peaks[row, memory].float(), row, place, memory, sentences, first, routed, peaks.shape[-1])

    def _thresholds(self, width: int, routed: RoutedBlock | None) -> Tensor:
        """What the memories of a block must reach: `[1, memory]` or, of experts, `[batch, memory]`."""
        if routed is None:
            return self.threshold[None]
        thresholds = self.threshold[routed.first_memory : routed.first_memory + routed.count * width]
        return thresholds.view(routed.count, width)[routed.experts]

    def _locate(
        self,
        magnitude: Tensor,
        row: Tensor,
        place: Tensor,
        memory: Tensor,
        sentences: Tensor,
        first: int,
        routed: RoutedBlock | None,
        width: int,
    ) -> Survivors:
        if routed is None:
            weight = None if self.weight is None else torch.ones_like(magnitude)
            return Survivors(memory, magnitude, sentences[row], (place + first).to(torch.int32), weight)
        position, weight = routed.positions[row, place].to(torch.int32), routed.weights[row, place].float()
        numbers = routed.first_memory + routed.experts[row] * width + memory
        return Survivors(numbers, magnitude, sentences[row], position, weight)

    def best_of_batch(self, peaks: Tensor, place: Tensor, sentences: Tensor, *, first: int) -> Survivors:
        """`survivors` of a whole batch in a fixed size: `keep` candidates of every memory, some empty."""
        order = sentences.argsort()
        peaks, place, sentences = peaks[order].float(), place[order], sentences[order]
        # More than `keep` sentences of one batch cannot be among the best; of equal ones the lower ids are.
        least = peaks.topk(min(self.keep, len(peaks)), dim=0).values[-1].maximum(self.threshold)
        above, equal = peaks > least, peaks == least
        kept = above | (equal & (equal.cumsum(0) <= self.keep - above.sum(0)))
        memory = torch.arange(self.memories, device=self.device)
        slot = torch.where(kept, memory * self.keep + kept.cumsum(0) - 1, self.memories * self.keep).flatten()

        def spread(values: Tensor, empty: float, dtype: torch.dtype) -> Tensor:
            slots = torch.full((self.memories * self.keep + 1,), empty, dtype=dtype, device=self.device)
            slots[slot] = values.expand_as(kept).flatten().to(dtype)
            return slots[:-1]

        return Survivors(
            spread(memory, self.memories, torch.int64),
            spread(peaks, 0.0, torch.float32),
            spread(sentences[:, None], NEVER, torch.int64),
            spread(place + first, NEVER, torch.int32),
        )

    def survivors_everywhere(
        self, block: Tensor, sentences: Tensor, *, sign: int, first: int, routed: RoutedBlock | None = None
    ) -> Survivors:
        """`survivors`, but every position of a sentence may be a trigger (the paper's literal text)."""
        magnitude, least = block if sign > 0 else -block, self._thresholds(block.shape[-1], routed)
        row, place, memory = (magnitude >= least[:, None]).nonzero(as_tuple=True)
        reached = magnitude[row, place, memory].float()
        return self._locate(reached, row, place, memory, sentences, first, routed, block.shape[-1])

    def add(self, survivors: Survivors) -> None:
        self.enqueue(survivors)
        if self.is_due:
            self.settle()

    def enqueue(self, candidates: Survivors | Best) -> None:
        """Queues survivors; the caller settles when that `is_due`. What a card chose is merged at once."""
        if isinstance(candidates, Best):
            self.settle()
            kernels = card_kernels(self.device)
            assert kernels is not None
            tensors = self.magnitude, self.sentence, self.position
            self.magnitude, self.sentence, self.position = kernels.merge(tensors, candidates)
            self.raise_threshold()
        elif len(candidates):
            self._queue.append(candidates)
            self._queued += len(candidates)

    @property
    def is_due(self) -> bool:
        room = self.memories * self.keep
        return self._queued >= (room // 2 if may_look(self.device) else 4 * room)

    def settle(self) -> None:
        if not self._queue:
            return
        parts = [self._rows(self._tensors()), *self._queue]
        self._queue, self._queued = [], 0
        names = list(Survivors.__dataclass_fields__)[: 4 if self.weight is None else 5]
        self._take(Survivors(*(torch.cat([getattr(p, name) for p in parts]) for name in names)))

    def add_state(self, state: dict[str, Tensor]) -> None:
        """Adds another state of the same memories; only rows that may be among the best are queued."""
        self.add(self._rows(tuple(state[name] for name in STORED if name in state), least=self.threshold[:, None]))

    def _rows(self, state: tuple[Tensor, ...], *, least: Tensor | float = 0.0) -> Survivors:
        """The full places of a state with at least the magnitude `least`."""
        magnitude, sentence = state[:2]
        memory = torch.arange(self.memories, device=self.device)[:, None].expand_as(sentence)
        full = (sentence != NEVER) & (magnitude >= least)
        rows = (memory.masked_fill(~full, self.memories), *state)
        drops_empty = may_look(self.device) and not bool(full.all())
        return Survivors(*(row[full] if drops_empty else row.flatten() for row in rows))

    def _take(self, rows: Survivors) -> None:
        order = self.order_of(rows)
        memory = rows.memory[order]
        begins = torch.searchsorted(memory, torch.arange(self.memories + 1, device=self.device))
        rank = torch.arange(len(order), device=self.device) - begins[memory]
        kept, most = (rank < self.keep) & (memory < self.memories), self.memories * self.keep
        at = memory * self.keep + rank
        if may_look(self.device):
            order, at = order[kept], at[kept]
        else:  # whatever is not among the best is written to one place more, which is cut away
            at = torch.where(kept, at, most)
        taken = (rows.magnitude, rows.sentence, rows.position, *(() if rows.weight is None else (rows.weight,)))
        for tensor, column in zip(self._tensors(), taken, strict=True):
            best = tensor.new_full((most + 1,), 0 if tensor.is_floating_point() else NEVER)
            best[at] = column[order]
            tensor.copy_(best[:-1].view_as(tensor))
        self.raise_threshold()

    def order_of(self, rows: Survivors) -> Tensor:
        """The order of rows by memory and rank."""
        # A positive float32 sorts as its bits do; memory above, falling magnitude below, in one integer.
        key = (rows.memory << 32) - rows.magnitude.view(torch.int32)
        order = (rows.sentence * (1 << 24) + rows.position).argsort(stable=True)
        return order[key[order].argsort(stable=True)]

    def raise_threshold(self) -> None:
        self.threshold = self.magnitude[:, -1].clamp(min=_LEAST_POSITIVE)

    def _tensors(self) -> tuple[Tensor, ...]:
        weight = () if self.weight is None else (self.weight,)
        return self.magnitude, self.sentence, self.position, *weight

    def state(self) -> dict[str, Tensor]:
        self.settle()
        return dict(zip(STORED, self._tensors(), strict=False))

    def load(self, state: dict[str, Tensor]) -> None:
        for name, tensor in state.items():
            getattr(self, name).copy_(tensor)
        self.raise_threshold()
