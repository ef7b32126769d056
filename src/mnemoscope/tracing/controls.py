"""Controls: other memories, as strong at the same place as the memory in question (definitions.md 9).

Removing a silent or weak memory changes nothing, so a comparison with an arbitrary memory of the layer cannot fail.
"""

import math
from collections.abc import Collection, Iterable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mnemoscope.foundation.intervals import Floats
from mnemoscope.models import LanguageModel, read_coefficients
from mnemoscope.tracing.predictions import ids_of
from mnemoscope.tracing.scoring.scores import contributions, value_norms

WITHIN = 1.25
"""Largest factor between the contributions of a control and of its memory."""


def contributions_of(model: LanguageModel, words: list[int], layers: Iterable[int]) -> dict[int, Floats]:
    """By layer, |m_i| norm(v_i) `[position, memory]` in a run of the words, with the beginning token's position."""
    sizes: dict[int, Floats] = {}

    def keep(layer: int, coefficients: Tensor) -> None:
        norms = value_norms(model, layer).to(coefficients.device)
        sizes[layer] = contributions(coefficients[0], norms).cpu().numpy()

    with model.lock, torch.inference_mode(), read_coefficients(model, keep, layers=sorted(set(layers))):
        model.backbone(ids_of(model, words))
    return sizes


def draw_control(
    contributions: ArrayLike, memory: int, *, barred: Collection[int], generator: np.random.Generator
) -> int | None:
    """A random memory with a contribution within a factor of `WITHIN`, else the nearest; neither the memory itself, nor
    `barred`, nor silent; None where none is left. `contributions [memory]` are |m_i| norm(v_i).
    """
    sizes = np.asarray(contributions, np.float64)
    free = sizes > 0
    free[[memory, *barred]] = False
    left = np.flatnonzero(free)
    if not len(left) or not sizes[memory] > 0:
        return None
    apart = np.abs(np.log(sizes[left] / sizes[memory]))
    near = left[apart <= math.log(WITHIN)]
    return int(generator.choice(near) if len(near) else left[apart.argmin()])
