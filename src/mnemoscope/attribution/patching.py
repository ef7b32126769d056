"""Activation patching of memories: in a second run some contribute m1_i v1_i, as in a first one, in place of their own
(definitions.md section 9, diff).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor

from mnemoscope.attribution.ablations import Change, Grid, Places
from mnemoscope.foundation.intervals import Floats
from mnemoscope.models import LanguageModel

Patch = Literal["contribution", "coefficient"]
PATCHES: tuple[Patch, ...] = ("contribution", "coefficient")


@dataclass(frozen=True)
class Run:
    """One run of a diff: its model, and by layer its coefficients `[column, memory]`."""

    model: LanguageModel
    coefficients: Sequence[Floats]


@final
class Patcher:
    """Makes the changes of the second run, whose columns correspond to those of the first from the last one on."""

    def __init__(self, first: Run, second: Run, grid: Grid, patch: Patch) -> None:
        self._first, self._second, self._grid = first, second, grid
        self._values = patch == "contribution" and first.model is not second.model
        self._shift = len(first.coefficients[0]) - grid.columns

    def set_back(self, places: Places) -> Change:
        """The change that puts the first run's contributions, or coefficients, at places of the second."""
        layers, columns, memories = self._grid.split(places)
        before = np.zeros(len(places))
        for layer in np.unique(layers).tolist():
            here = layers == layer
            before[here] = self._first.coefficients[layer][columns[here] + self._shift, memories[here]]
        if not self._values:
            return Change(places, before)
        added: dict[tuple[int, int], Tensor] = {}
        for layer in np.unique(layers).tolist():
            here = layers == layer
            of = self._first.model.branch_of(layer, torch.from_numpy(memories[here])).numpy()
            values = self._first.model.values(layer)
            for branch in np.unique(of).tolist():
                own = np.flatnonzero(here)[of == branch]
                coefficients = torch.zeros(self._grid.columns, len(values))
                coefficients[columns[own], memories[own]] = torch.from_numpy(before[own]).float()
                added[layer, branch] = coefficients @ values.float().cpu()
        return Change(places, None, added)
