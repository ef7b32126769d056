"""Coefficients of one thread's share of a batch, cut into blocks of whole sentences with equal numbers of positions.

In a dense layer those are sentences of one length, without padding. Of experts a row is a sentence in one expert: its
tokens that were routed there. So one sweep measures both and reads no zeros.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from mnemoscope.foundation.reading import Reading
from mnemoscope.kernels.choose import BatchRows
from mnemoscope.mining.text.batches import Batch
from mnemoscope.models import Group
from mnemoscope.models.forward.batches import send, texts_in


@dataclass(frozen=True)
class CoefficientBlock:
    """`coefficients [row, place, memory]` of `sentences [row]` at `positions [row, place]`. Those that are `hidden` are
    no triggers; None if all may be. In a layer of experts `firsts [row]`, ascending, are the numbers of the experts'
    first memories, and `weights [row, place]` the router's.
    """

    coefficients: Tensor
    sentences: Tensor
    positions: Tensor
    hidden: Tensor | None = None
    firsts: Tensor | None = None
    weights: Tensor | None = None

    def runs(self) -> list[tuple[int, slice]]:
        """The first memory of each expert that has rows, and these; a dense layer is one expert."""
        if self.firsts is None:
            return [(0, slice(None))]
        firsts, counts = (one.tolist() for one in torch.unique_consecutive(self.firsts, return_counts=True))
        return [(first, slice(*rows)) for first, rows in zip(firsts, pairwise([0, *accumulate(counts)]), strict=True)]


class Places:
    """The places `[sentence, column]` of a share, whose rows ascend in length, on a device. The tokens `never` are no
    triggers.
    """

    def __init__(self, share: Batch, reading: Reading, never: Tensor, device: torch.device) -> None:
        self._share, self._reading = share, reading
        self._lengths = np.maximum(share.lengths - reading.first, 0)
        self.sentences = share.sentences.to(device, non_blocking=True)
        self.first = reading.counted_columns(0).start
        """The first column that counts."""
        ids = texts_in(share.ids, reading)
        self.positions = torch.arange(ids.shape[1], device=device) - reading.offset
        """The position of each column."""
        self.hidden = torch.isin(ids, never.to(ids.device)).to(device) if len(never) else None
        """Which places are no triggers; None if all may be."""

    @cached_property
    def is_counted(self) -> Tensor:
        """Which places are positions that count, row by row."""
        inside = self._reading.inside(self._share.lengths, len(self.positions), first=self._reading.first)
        return torch.from_numpy(inside.reshape(-1)).to(self.sentences.device)

    @cached_property
    def rows(self) -> BatchRows:
        """The sentences for the kernels of a card: whole, of all lengths."""
        lengths = send(self._lengths, self.sentences.device)
        return BatchRows.of(lengths, self.sentences, positions=int(self._lengths.sum()), first=self._reading.first)

    def cut_dense(self, coefficients: Tensor) -> list[CoefficientBlock]:
        """The blocks of a dense layer's coefficients `[sentence, column, memory]`."""
        blocks, share_lengths = [], self._share.lengths
        for a, b in pairwise([0, *(np.flatnonzero(np.diff(self._lengths)) + 1).tolist(), len(self._lengths)]):
            cut = slice(a, b), self._reading.counted_columns(int(share_lengths[a]))
            if self._lengths[a]:
                positions = self.positions[cut[1]].expand(b - a, -1)
                hidden = None if self.hidden is None else self.hidden[cut]
                blocks.append(CoefficientBlock(coefficients[cut], self.sentences[a:b], positions, hidden))
        return blocks

    def locate(self, group: Group) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The rows of a group that count, and of each the sentence's row, the column, the first memory of its expert
        and the router's weight.
        """
        places = torch.arange(group.of, device=self.sentences.device) if group.tokens is None else group.tokens
        at = self.is_counted[places].nonzero()[:, 0]
        experts = torch.zeros_like(at) if group.experts is None else group.experts[at]
        weights = torch.ones_like(at, dtype=torch.float32) if group.weights is None else group.weights[at].float()
        row, column = places[at] // len(self.positions), places[at] % len(self.positions)
        return at, row, column, group.first + experts * group.coefficients.shape[-1], weights

    def cut_experts(self, group: Group) -> list[CoefficientBlock]:
        """The blocks of experts, rows by expert and sentence."""
        at, row, column, firsts, weights = self.locate(group)
        pairs, counts = torch.unique_consecutive(firsts * len(self.sentences) + row, return_counts=True)
        starts, blocks = counts.cumsum(0) - counts, []
        for count in counts.unique().tolist():
            alike = (counts == count).nonzero()[:, 0]
            each = starts[alike, None] + torch.arange(count, device=at.device)
            blocks.append(
                CoefficientBlock(
                    group.coefficients[at[each]],
                    self.sentences[pairs[alike] % len(self.sentences)],
                    self.positions[column[each]],
                    None if self.hidden is None else self.hidden[row[each], column[each]],
                    pairs[alike] // len(self.sentences),
                    weights[each],
                )
            )
        return blocks
