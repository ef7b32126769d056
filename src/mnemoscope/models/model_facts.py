"""A loaded model's sizes, and the errors of its proof."""

from dataclasses import dataclass, field


@dataclass(frozen=True, repr=False)
class Sizes:
    layers: int
    hidden: int
    memories: tuple[int, ...]
    vocabulary: int
    context: int
    parameters: int
    ffn_parameters: int

    def __repr__(self) -> str:
        memories = " or ".join(f"{count:,}" for count in sorted(set(self.memories)))
        return f"<{self.layers} layers of {memories} memories, hidden {self.hidden:,}, vocabulary {self.vocabulary:,}>"


@dataclass(frozen=True)
class Proof:
    """The largest error of each check, and those of each layer (residual, ablation, keys)."""

    residual: float
    ablation: float
    keys: float
    scores: float
    layers: tuple[tuple[float, float, float], ...] = field(repr=False)
