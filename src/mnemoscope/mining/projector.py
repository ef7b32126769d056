"""Many vectors against a vocabulary, a block of scores at a time, and what is read off every block by all cores.

A block takes the room of the one before it: fresh memory for each took nearly half of the time of `roles` (LOG.md).
What sweeps the scores does so some rows at a time, while a core's cache holds them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Self, TypeVar

import torch
from torch import Tensor

from mnemoscope.cores import IN_CACHE
from mnemoscope.mining.batches import even_parts
from mnemoscope.mining.thread_team import ThreadTeam
from mnemoscope.models import LanguageModel
from mnemoscope.models.projections import Head, room_for_scores
from mnemoscope.tracing import Distribution, Ranking, distribution, rank_tokens

_SCORES = 1 << 24
"""Scores that exist at one time."""
_SHARED = 1 << 22
"""Scores from which on threads share them: of fewer, handing them over takes longer than it saves."""

Found = TypeVar("Found")


class Projector:
    """A head, room for one block of scores, used again for every block, and threads that read it."""

    def __init__(self, head: Head, vocabulary: int, *, device: torch.device) -> None:
        self._head = head
        self.rows = max(16, min(1024, _SCORES // vocabulary))
        self._scores = room_for_scores(self.rows, vocabulary, device=device)
        self._opposite = None if self._head.linear else torch.empty(self.rows, vocabulary, device=device)
        on_cpu = device.type == "cpu"
        self.slice = max(1, min(self.rows, IN_CACHE // vocabulary)) if on_cpu else self.rows
        """Rows read at a time: on a CPU as many as its cache holds, since every row is swept several times."""
        self._team = ThreadTeam.of_cores(device)

    @classmethod
    def of(cls, model: LanguageModel) -> Self:
        """That of a model's own head."""
        return cls(model.scorer(), model.sizes.vocabulary, device=model.device)

    def scores(self, folded: Tensor) -> Tensor:
        """Scores `[row, vocab]` of at most `rows` folded vectors; valid until the next call."""
        with torch.inference_mode():
            return self._head.scores(folded, out=self._scores[: len(folded)])

    def opposite(self, folded: Tensor) -> Tensor | None:
        """Scores `[row, vocab]` of the negated vectors, valid until the next call; None where they are -scores."""
        if self._opposite is None:
            return None
        with torch.inference_mode():
            return self._head.scores(-folded, out=self._opposite[: len(folded)])

    def read_all(self, vectors: Tensor, read: Callable[[Tensor, int, slice], Found]) -> list[Found]:
        """What is read off the scores of all vectors `[row, hidden']`, in their order.

        `read(scores, start, rows)` takes some rows of a block's scores, the first of which are those of vector `start`.
        """
        found: list[Found] = []
        for start in range(0, len(vectors), self.rows):
            scores = self.scores(vectors[start : start + self.rows])
            found += self.share_out(len(scores), partial(read, scores, start))
        return found

    def share_out(self, rows: int, read: Callable[[slice], Found]) -> list[Found]:
        """What is read off all rows of a block, in their order: every thread reads as many rows, on one core."""
        size = self._team.size if rows * self._scores.shape[1] >= _SHARED else 1
        shares = even_parts(slice(0, rows), size)
        found: dict[int, Found] = {}

        def take(number: int) -> None:
            found[number] = read(shares[number])

        self._team.run([partial(take, number) for number in range(len(shares))])
        return [found[number] for number in range(len(shares))]


def sweep_scores(
    scores: Tensor, *, step: int, best: int, worst: int = 0, of: Sequence[Tensor] = ()
) -> tuple[Ranking, Distribution]:
    """What needs all of `scores [row, vocab]`, `step` rows of each core at a time: their ranking, asked for as of
    `rank_tokens` and with one best token at least, and their distributions.
    """
    step *= torch.get_num_threads()
    rankings, shapes = list[Ranking](), list[Distribution]()
    room = torch.empty_like(scores[:step])
    for start in range(0, len(scores), step):
        rows = slice(start, start + step)
        part = scores[rows]
        scratch = room[: len(part)]
        found = rank_tokens(part, best=best, worst=worst, of=[tokens[rows] for tokens in of], scratch=scratch)
        rankings.append(found)
        shapes.append(distribution(part, highest=found.best[1][:, 0], scratch=scratch))
    return Ranking.join(rankings), Distribution.join(shapes)
