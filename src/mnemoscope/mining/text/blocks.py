"""Coefficients of a batch cut into blocks of whole sentences with equal numbers of positions.

In a dense layer those are sentences of one length, without padding. Of experts a row is a sentence in one expert: its
tokens that were routed there. So one sweep measures both and reads no zeros.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemoscope.foundation.reading import Reading
from mnemoscope.kernels.choose import BatchRows
from mnemoscope.mining.text.batches import Batch
from mnemoscope.mining.text.random_firings import DrawnPositions
from mnemoscope.mining.text.triggers import RoutedBlock
from mnemoscope.models import Group
from mnemoscope.models.forward.batches import send


@dataclass(frozen=True)
class CoefficientBlock:
    """`coefficients [row, place, memory]` of `sentences [row]`; `routed` has the rows and places of experts.
    `candidates` are the coefficients with 0, which is no trigger, at tokens that may not be one; None if all may.
    """

    coefficients: Tensor
    sentences: Tensor
    routed: RoutedBlock | None = None
    candidates: Tensor | None = None

    def runs(self) -> list[tuple[int, int, int]]:
        """The experts that have rows, with the first and end row of each; a dense layer is expert 0."""
        if self.routed is None:
            return [(0, 0, len(self.sentences))]
        edges = [0, *torch.bincount(self.routed.experts, minlength=self.routed.count).cumsum(0).tolist()]
        return [(expert, a, b) for expert, (a, b) in enumerate(pairwise(edges)) if b > a]


@dataclass(frozen=True)
class Places:
    """The sentences of a batch, whose rows ascend in length. Column 0 never counts: it holds the beginning token or,
    without one, an attention sink. The tokens `never` are no candidates.
    """

    batch: Batch
    reading: Reading
    never: Tensor

    @cached_property
    def _hidden(self) -> Tensor | None:
        """Which ids `[batch, position]` are no candidates; None if `never` is empty."""
        return torch.isin(self.batch.ids, self.never.to(self.batch.ids.device)) if len(self.never) else None

    def _candidates(self, coefficients: Tensor, where: tuple[Any, Any]) -> Tensor | None:
        """The coefficients at these rows and columns, with 0 at tokens that are no candidates."""
        if self._hidden is None:
            return None
        return coefficients.masked_fill(self._hidden.to(coefficients.device)[where][..., None], 0)

    def whole(self, coefficients: Tensor) -> list[CoefficientBlock]:
        """The blocks of a dense layer's coefficients `[batch, position, memory]`."""
        lengths = self.batch.lengths
        edges = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)]
        sentences = self.batch.sentences.to(coefficients.device)
        cuts = [(slice(a, b), slice(1, int(lengths[a]) + 1 - self.reading.first)) for a, b in pairwise(edges)]
        return [
            CoefficientBlock(block, sentences[cut[0]], candidates=self._candidates(block, cut))
            for cut in cuts
            if (block := coefficients[cut]).shape[1]
        ]

    def rows(self, device: torch.device) -> BatchRows:
        """The sentences for the kernels of a card: whole, of all lengths."""
        lengths = np.maximum(self.batch.lengths - self.reading.first, 0)
        sent = send(lengths, device), self.batch.sentences.to(device, non_blocking=True)
        return BatchRows.of(*sent, positions=int(lengths.sum()))

    @cached_property
    def is_counted(self) -> Tensor:
        """Which of the columns, flattened row by row, are positions that count."""
        reading, width = self.reading, self.batch.ids.shape[1]
        return torch.from_numpy(reading.inside(self.batch.lengths, width, first=reading.first).reshape(-1))

    def draw(self, *, seed: int, one_in: int) -> DrawnPositions:
        """The positions that are looked at, on the CPU; none of the tokens `never`."""
        counted = self.is_counted if self._hidden is None else self.is_counted & ~self._hidden.flatten().cpu()
        tokens, width = counted.nonzero()[:, 0], self.batch.ids.shape[1]
        sentences = self.batch.sentences.cpu()[tokens // width]
        positions = tokens % width - self.reading.offset
        return DrawnPositions.among(tokens, sentences, positions, seed=seed, one_in=one_in)

    def of_experts(self, group: Group) -> list[CoefficientBlock]:
        """The blocks of experts, rows by expert and sentence."""
        (rows, width), device = self.batch.ids.shape, group.coefficients.device
        tokens = torch.arange(rows * width, device=device) if group.tokens is None else group.tokens
        sentences = self.batch.sentences.to(device)
        at = self.is_counted.to(device)[tokens].nonzero()[:, 0]
        tokens = tokens[at]
        experts = torch.zeros_like(tokens) if group.experts is None else group.experts[at]
        pairs, counts = torch.unique_consecutive(experts * rows + tokens // width, return_counts=True)
        starts, positions = counts.cumsum(0) - counts, tokens % width - 1 + self.reading.first
        weights = torch.ones_like(at, dtype=torch.float32) if group.weights is None else group.weights[at].float()
        order = counts.argsort(stable=True)
        blocks, begin = [], 0
        for count, length in enumerate(torch.bincount(counts).tolist()):
            if length:
                of_length = order[begin : begin + length]
                place = starts[of_length, None] + torch.arange(count, device=device)
                of, row = pairs[of_length] // rows, pairs[of_length] % rows
                routed = RoutedBlock(group.first, group.count, of, positions[place], weights[place])
                block, where = group.coefficients[at[place]], (tokens[place] // width, tokens[place] % width)
                blocks.append(CoefficientBlock(block, sentences[row], routed, self._candidates(block, where)))
                begin += length
        return blocks
