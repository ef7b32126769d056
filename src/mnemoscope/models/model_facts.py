"""A loaded model's sizes, and the errors of its proof."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    layers: int
    hidden: int
    memories: tuple[int, ...]
    vocabulary: int
    context: int
    parameters: int
    ffn_parameters: int


@dataclass(frozen=True)
class Proof:
    """The largest error of each check, and those of each layer (residual, ablation, keys)."""

    residual: float
    ablation: float
    keys: float
    scores: float
    layers: tuple[tuple[float, float, float], ...]
