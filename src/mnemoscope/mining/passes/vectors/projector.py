"""Many vectors against a vocabulary, a block of scores at a time, read by all cores. Blocks reuse one buffer: fresh
memory for each took nearly half of the time of `roles` (docs/log).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.foundation.budget import BUDGET
from mnemoscope.mining.text.batches import even_parts
from mnemoscope.mining.text.thread_team import ThreadTeam
from mnemoscope.models import LanguageModel
from mnemoscope.models.modules.projections import Head, room_for_scores

Found = TypeVar("Found")
Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Share:
    """Scores of some vectors, from vector `start` on; `opposite` are scores(-v) where they are not -scores(v)."""

    start: int
    scores: Tensor
    opposite: Tensor | None

    @property
    def vectors(self) -> slice:
        return slice(self.start, self.start + len(self.scores))


Read = Callable[[Share], Found]


class Projector:
    """A head, a buffer for one block of scores, and threads that read it."""

    def __init__(self, head: Head, vocabulary: int, *, device: torch.device) -> None:
        self._head, self.linear = head, head.linear
        """`linear`: whether a multiple of a vector has that multiple of its scores."""
        self.rows = max(16, min(1024, BUDGET.scores // vocabulary))
        self._scores = room_for_scores(self.rows, vocabulary, device=device)
        self._opposite = None if self.linear else torch.empty(self.rows, vocabulary, device=device)
        self._team = ThreadTeam.of_cores(device)

    @classmethod
    def of(cls, model: LanguageModel) -> Self:
        return cls(model.scorer(), model.sizes.vocabulary, device=model.device)

    def scores(self, folded: Tensor) -> Tensor:
        """Scores `[row, vocab]` of at most `rows` folded vectors; valid until the next call."""
        with torch.inference_mode():
            return self._head.scores(folded, out=self._scores[: len(folded)])

    def read_all(self, vectors: Tensor, read: Read[Found], *, opposite: bool = False) -> list[Found]:
        """What `read` returns for all vectors `[row, hidden']`, in order; `opposite`: also negated ones."""
        results: list[Found] = []
        for start in range(0, len(vectors), self.rows):
            block = vectors[start : start + self.rows]
            scores, negated = self.scores(block), None
            if opposite and self._opposite is not None:
                with torch.inference_mode():
                    negated = self._head.scores(-block, out=self._opposite[: len(block)])
            results += self._share_out(Share(start, scores, negated), read)
        return results

    def _share_out(self, block: Share, read: Read[Found]) -> list[Found]:
        """What `read` returns for equal parts of a block, in order: one per thread at least, and on a CPU few enough
        scores for its cache, since each is read many times.
        """
        size, opposite = block.scores.numel(), block.opposite
        team = self._team.size if size >= BUDGET.shared_scores else 1
        parts = max(team, size // BUDGET.read_scores if block.scores.device.type == "cpu" else 1)
        shares = [
            Share(block.start + part.start, block.scores[part], None if opposite is None else opposite[part])
            for part in even_parts(slice(0, len(block.scores)), parts)
        ]
        if team == 1:
            return [read(share) for share in shares]
        return self._team.run([partial(read, share) for share in shares])


def join_columns(parts: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
