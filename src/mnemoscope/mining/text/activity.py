"""How often, how strongly and how unevenly the memories of a layer fire (definitions.md section 4, Figure 7), and how
its router chooses among experts (section 7.1).

Over all positions: counts, sums and extremes. Over the plan's sampled batches also sums of squares and a histogram.
Sums of batches are added as integers (exact_sums.py), since adding floats is not associative.
"""

from collections.abc import Mapping
from typing import Any, Self

import torch
from numpy.typing import NDArray

from mnemoscope.foundation.memory_names import HISTOGRAM_BINS, Numbering
from mnemoscope.mining.text.exact_sums import ROWS, add_sums, exact_sum, value_of
from mnemoscope.mining.text.measures import Collector, Measures

_SUMS = ("total", "sampled_total", "squares", "weight")
"""Exact sums; `least` and `greatest` are extremes, all else is counted."""


class Totals(Collector):
    """Running totals, whose last axis is the memory (or the expert)."""

    def merge(self, other: Self) -> None:
        self._add(other.state())

    def _add(self, totals: Mapping[str, Any], memories: slice = slice(None)) -> None:
        for name, more in totals.items():
            ours = getattr(self, name)[..., memories]
            if name in _SUMS:
                ours.copy_(add_sums(ours, more))
            elif name in ("least", "greatest"):
                (torch.minimum if name == "least" else torch.maximum)(ours, more, out=ours)
            else:
                ours += more


class Activity(Totals):
    """Of every memory: `prefixes` and `sampled` are those that its expert was routed (of a dense layer all)."""

    def __init__(self, memories: int, *, device: torch.device | str = "cpu") -> None:
        self.prefixes = torch.zeros(memories, dtype=torch.int64, device=device)
        self.sampled, self.positive = torch.zeros_like(self.prefixes), torch.zeros_like(self.prefixes)
        self.least = torch.full((memories,), torch.inf, device=device)
        self.greatest = torch.full((memories,), -torch.inf, device=device)
        self.total = torch.zeros(ROWS, memories, dtype=torch.int64, device=device)
        self.sampled_total, self.squares = torch.zeros_like(self.total), torch.zeros_like(self.total)
        self.histogram = torch.zeros(HISTOGRAM_BINS, memories, dtype=torch.int64, device=device)

    def update(self, measures: Measures) -> None:
        for first, sums in measures.sums:
            memories, total = slice(first, first + len(sums.least)), exact_sum(sums.total)
            self._add({"prefixes": sums.positions, "positive": sums.positive, "total": total}, memories)
            self._add({"least": sums.least, "greatest": sums.greatest}, memories)
            if sums.squares is not None:
                self._add({"sampled": sums.positions, "sampled_total": total}, memories)
                self._add({"squares": exact_sum(sums.squares), "histogram": sums.histogram}, memories)

    def columns(self) -> dict[str, NDArray[Any]]:
        sampled = self.sampled.clamp(min=1)
        variance = value_of(self.squares) / sampled - (value_of(self.sampled_total) / sampled).square()
        columns = {
            "memory": torch.arange(len(self.prefixes), dtype=torch.int32),
            "prefixes": self.prefixes,
            "positive": self.positive,
            "mean": value_of(self.total) / self.prefixes.clamp(min=1),
            "min": torch.where(self.prefixes > 0, self.least, 0),
            "max": torch.where(self.prefixes > 0, self.greatest, 0),
            "sampled": self.sampled,
            "std": variance.clamp(min=0).sqrt(),
            "histogram": self.histogram.T.contiguous(),
        }
        return {name: tensor.cpu().numpy() for name, tensor in columns.items()}


class Routing(Totals):
    """Of every expert: `tokens` routed to it, the sum of their `weight`, and how often it was the `first` choice: the
    largest weight, of equal ones that of the lowest expert. A shared expert takes all tokens and is never a choice.
    """

    def __init__(self, layer: int, numbering: Numbering, *, device: torch.device | str = "cpu") -> None:
        self._layer, self._routed = layer, numbering.routed or 0
        self.positions = torch.zeros(1, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(len(numbering.widths), dtype=torch.int64, device=device)
        self.weight = torch.zeros(ROWS, len(self.tokens), dtype=torch.int64, device=device)
        self.first = torch.zeros_like(self.tokens)

    def update(self, measures: Measures) -> None:
        if not measures.weights:
            return
        weights = torch.cat(measures.weights)
        routed = weights[:, : self._routed]
        tokens = (routed != 0).sum(0)
        choices = routed.max(1).indices[routed.any(1)]
        self._add({"positions": len(weights), "weight": exact_sum(weights.double().sum(0))})
        self._add({"tokens": tokens, "first": torch.bincount(choices, minlength=self._routed)}, slice(self._routed))
        self._add({"tokens": len(weights)}, slice(self._routed, None))

    def columns(self) -> dict[str, NDArray[Any]]:
        columns = {
            "layer": torch.full(self.tokens.shape, self._layer, dtype=torch.int16),
            "expert": torch.arange(len(self.tokens), dtype=torch.int16),
            "tokens": self.tokens,
            "weight_sum": value_of(self.weight),
            "first_choice": self.first,
        }
        return {name: tensor.cpu().numpy() for name, tensor in columns.items()}
