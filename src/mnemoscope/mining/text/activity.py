"""How often, how strongly and how unevenly the memories of one layer fire (definitions.md section 4, Figure 7).

Over all positions: counts, sums and extremes. Over the plan's sampled batches also sums of squares and a histogram.
Sums of batches are added as integers (exact_sums.py), since adding floats is not associative.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from mnemoscope.foundation.memory_names import HISTOGRAM_BINS
from mnemoscope.kernels.choose import BatchRows, SweptRows
from mnemoscope.kernels.reference import Swept
from mnemoscope.mining.text.exact_sums import ROWS, add_sums, exact_sum, value_of


@dataclass(frozen=True)
class BatchMeasures:
    """Measures `[memory]` of one batch, or a part of it; the sums are float64."""

    positions: int
    positive: Tensor
    total: Tensor
    least: Tensor
    greatest: Tensor
    squares: Tensor | None

    @classmethod
    def of(cls, parts: Sequence[Swept]) -> Self:
        """The measures of sentences swept in parts; the parts of one length change no byte."""
        squares = [part.squares for part in parts if part.squares is not None]
        return cls(
            positions=sum(len(part.peaks) * part.length for part in parts),
            positive=_join([part.fired for part in parts]).sum(0, dtype=torch.float64).to(torch.int64),
            total=_join([part.sums for part in parts]).sum(0, dtype=torch.float64),
            least=_join([part.least[None] for part in parts]).amin(0),
            greatest=_join([part.peaks for part in parts]).amax(0).float(),
            squares=_join(squares).sum(0) if squares else None,
        )

    @classmethod
    def of_card(cls, swept: SweptRows, rows: BatchRows, *, negative: bool) -> Self:
        """The measures of a batch swept on a card; without `negative` no coefficient is below zero."""
        least = swept.least.amin(0)
        return cls(
            positions=rows.positions,
            positive=swept.fired.sum(0),
            total=swept.sums.sum(0),
            least=least if negative else least + 0.0,  # of -0.0 it makes 0.0
            greatest=swept.greatest.amax(0),
            squares=None if swept.squares is None else swept.squares.sum(0),
        )

    def finite(self) -> Tensor:
        """Whether no coefficient was NaN or infinite, as one boolean on the device."""
        return torch.isfinite(self.total).all()


class Activity:
    """Running counts of one layer, all `[memory]` but the histogram; `add_state` is associative and commutative. A
    layer of experts counts the prefixes routed to each; `widths` are the experts' numbers of memories.
    """

    def __init__(
        self, memories: int, *, widths: Sequence[int] | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self._widths = (memories,) if widths is None else tuple(widths)
        self.prefixes = torch.zeros(len(self._widths), dtype=torch.int64, device=device)
        self.sampled = torch.zeros(len(self._widths), dtype=torch.int64, device=device)
        self.positive = torch.zeros(memories, dtype=torch.int64, device=device)
        self.least = torch.full((memories,), torch.inf, device=device)
        self.greatest = torch.full((memories,), -torch.inf, device=device)
        self.total = torch.zeros(ROWS, memories, dtype=torch.int64, device=device)
        self.sampled_total, self.squares = torch.zeros_like(self.total), torch.zeros_like(self.total)
        self.histogram = torch.zeros(memories, HISTOGRAM_BINS, dtype=torch.int64, device=device)

    def add(self, batch: list[BatchMeasures], histograms: Sequence[Tensor] = (), *, expert: int = 0) -> None:
        """Counts one batch of an expert, in blocks; `histograms [memory, bin]` are those of a sampled batch."""
        first = sum(self._widths[:expert])
        memories = slice(first, first + self._widths[expert])
        positions = sum(m.positions for m in batch)
        self.prefixes[expert] += positions
        total = exact_sum(_sum([m.total for m in batch]))
        self.positive[memories] += _sum([m.positive for m in batch])
        self.total[:, memories] = add_sums(self.total[:, memories], total)
        self.least[memories] = torch.stack([self.least[memories], *(m.least for m in batch)]).amin(0)
        self.greatest[memories] = torch.stack([self.greatest[memories], *(m.greatest for m in batch)]).amax(0)
        squares = [m.squares for m in batch if m.squares is not None]
        if squares:
            self.sampled[expert] += positions
            self.sampled_total[:, memories] = add_sums(self.sampled_total[:, memories], total)
            self.squares[:, memories] = add_sums(self.squares[:, memories], exact_sum(_sum(squares)))
            self.histogram[memories] += _sum(list(histograms))

    def add_state(self, state: dict[str, Tensor]) -> None:
        for name in ("prefixes", "sampled", "positive", "histogram"):
            getattr(self, name).add_(state[name])
        for name in ("total", "sampled_total", "squares"):
            setattr(self, name, add_sums(getattr(self, name), state[name]))
        self.least = torch.minimum(self.least, state["least"])
        self.greatest = torch.maximum(self.greatest, state["greatest"])

    def mean(self) -> Tensor:
        """`[memory]`, float64; 0 without positions."""
        return value_of(self.total) / self._of_memories(self.prefixes).clamp(min=1)

    def _of_memories(self, counts: Tensor) -> Tensor:
        """Counts `[expert]` as `[memory]`."""
        return counts.repeat_interleave(torch.tensor(self._widths, device=counts.device))

    def deviation(self) -> Tensor:
        """The population standard deviation `[memory]` over the sampled positions, float64."""
        count = self._of_memories(self.sampled).clamp(min=1)
        mean = value_of(self.sampled_total) / count
        return (value_of(self.squares) / count - mean.square()).clamp(min=0).sqrt()

    def columns(self) -> dict[str, Any]:
        prefixes = self._of_memories(self.prefixes)
        columns = {
            "prefixes": prefixes,
            "positive": self.positive,
            "mean": self.mean(),
            "min": torch.where(prefixes > 0, self.least, 0),
            "max": torch.where(prefixes > 0, self.greatest, 0),
            "sampled": self._of_memories(self.sampled),
            "std": self.deviation(),
            "histogram": self.histogram,
        }
        memories = {"memory": np.arange(len(prefixes), dtype=np.int32)}
        return memories | {name: tensor.cpu().numpy() for name, tensor in columns.items()}

    def state(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in vars(self).items() if isinstance(tensor, Tensor)}

    def load(self, state: dict[str, Tensor]) -> None:
        for name, tensor in state.items():
            getattr(self, name).copy_(tensor)


def _join(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _sum(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack(tensors).sum(0)
