"""What is read off the coefficients of one layer before anything is counted, and the seam of what counts it.

A batch is measured whole, by threads that share its rows, and only then do the collectors take it in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.kernels.choose import Best, MemorySums
from mnemoscope.kernels.reference import Swept

Rows = tuple[Tensor, ...]
"""Feature, magnitude, sentence, position and, in a layer of experts, router's weight of prefixes, each `[row]`."""


@dataclass
class Measures:
    """What one thread, or together all of them, read off one layer. The first three go by expert, which is named by its
    first memory; a dense layer is one.
    """

    swept: list[tuple[int, Swept]] = field(default_factory=list)
    histograms: list[tuple[int, Tensor]] = field(default_factory=list)
    """`[bin, memory]`, of a sampled batch."""
    sums: list[tuple[int, MemorySums]] = field(default_factory=list)
    """Those of both."""
    candidates: list[Rows | Best] = field(default_factory=list)
    """For triggers."""
    firings: list[tuple[list[Rows], Tensor]] = field(default_factory=list)
    """Those drawn at random, and how many there were, `[feature]`."""
    weights: list[Tensor] = field(default_factory=list)
    """The router's `[token, expert]`; zero where a token was not routed to the expert."""
    finite: list[Tensor] = field(default_factory=list)
    """Whether coefficients are of which nothing else is measured, each one boolean on its device."""

    @classmethod
    def join(cls, shares: Sequence[Self], *, together: bool, negative: bool) -> Self:
        """The measures of all shares, in the order of rows, with sums in place of sentences. Sums are added up by
        length across shares, so that they do not depend on how many there are; `together`: sentences of all lengths at
        once, since an expert has few of each. Without `negative` no coefficient is below zero.
        """
        whole = cls()
        for name, joined in vars(whole).items():
            joined.extend(chain.from_iterable(getattr(share, name) for share in shares))
        histograms: dict[int, Tensor] = {}
        for first, bins in whole.histograms:
            histograms[first] = histograms[first] + bins if first in histograms else bins
        for first, of_expert in groupby(sorted(whole.swept, key=itemgetter(0)), key=itemgetter(0)):
            swept = sorted((one for _, one in of_expert), key=attrgetter("positions"))
            alike = [swept] if together else [list(run) for _, run in groupby(swept, key=attrgetter("positions"))]

            def sum_of(name: str, alike: Sequence[Sequence[Swept]] = alike) -> Tensor:
                runs = [torch.cat([getattr(one, name) for one in run]) for run in alike]
                return torch.stack([rows.sum(0, dtype=torch.float64) for rows in runs]).sum(0)

            least = torch.stack([one.lows.amin(0) for one in swept]).amin(0)
            sums = MemorySums(
                positions=sum(len(one.peaks) * one.positions for one in swept),
                positive=sum_of("fired").to(torch.int64),
                total=sum_of("sums"),
                least=least if negative else least + 0.0,  # of -0.0 it makes 0.0
                greatest=torch.stack([one.peaks.amax(0) for one in swept]).amax(0),
                squares=None if swept[0].squares is None else sum_of("squares"),
                histogram=histograms.get(first),
            )
            whole.sums.append((first, sums))
        whole.swept, whole.histograms = [], []
        return whole


class Collector:
    """What a pass accumulates of one layer: tensors. In whatever order batches are counted and states merged, the same
    bytes come out.
    """

    def update(self, measures: Measures) -> None:
        """Counts a batch, or a part of one."""
        raise NotImplementedError

    def merge(self, other: Self) -> None:
        """Adds what was counted of other batches."""
        raise NotImplementedError

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns of its table."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in vars(self).items() if isinstance(tensor, Tensor)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
