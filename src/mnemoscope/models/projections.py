"""Hidden vectors as scores over the vocabulary: the three named projections of definitions.md section 2.

The head itself is behind a seam, `Head`: one matrix, or the two levels of an adaptive softmax (adaptive.py).

`raw` is the head's matrix alone, `gain` folds in what the norms on the way do to every vector alike (centring and
gain, never the data-dependent scale), `lens` is the model's own readout with norm, head bias, scale and soft-cap.
What a norm does is found by asking it, not by its class's name. `LanguageModel.scores` puts them together; softmax,
ranks and top lists are made elsewhere.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from mnemoscope.errors import ModelUnsupported

Projection = Literal["raw", "gain", "lens"]

_PROBES = 8


class Head(Protocol):
    """The last step from a vector to scores, in float32, without bias, scale or soft-cap."""

    @property
    def linear(self) -> bool:
        """Whether scores(-v) is -scores(v) and a positive factor changes no rank."""
        ...

    def scores(self, hidden: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Scores [..., vocab], float32, of vectors [..., hidden'], float32; written to `out` where it is given."""
        ...


@dataclass(frozen=True)
class LinearHead:
    """One matrix E [vocab, hidden'], float32."""

    matrix: Tensor
    linear = True

    def scores(self, hidden: Tensor, *, out: Tensor | None = None) -> Tensor:
        """The products with E's rows."""
        return torch.matmul(hidden, self.matrix.T, out=out)


@dataclass(frozen=True)
class Fold:
    """The part of a norm that treats every vector alike: optional centring, then an optional gain [hidden]."""

    centred: bool
    gain: Tensor | None

    def __call__(self, vectors: Tensor) -> Tensor:
        """The folded vectors [..., hidden], float32."""
        folded = vectors.float()
        if self.centred:
            folded = folded - folded.mean(dim=-1, keepdim=True)
        return folded if self.gain is None else folded * self.gain


def fold_of(norm: nn.Module | None, hidden: int, *, dtype: torch.dtype, device: torch.device) -> Fold:
    """What `norm` does to every vector alike, found by probing it with random vectors.

    Known forms are LayerNorm and RMSNorm, with gain w, 1 + w or none; no norm changes nothing. Raises ModelUnsupported
    for any other.
    """
    if norm is None:
        return Fold(False, None)
    weight, bias = _gain_and_bias(norm, hidden)
    probes = torch.randn(_PROBES, hidden, generator=torch.Generator().manual_seed(0)).to(device=device, dtype=dtype)
    with torch.inference_mode():
        out = norm(probes).float()
    if bias is not None:
        out = out - bias.float()
    gains = [None] if weight is None else [weight.float(), 1.0 + weight.float()]
    folds = [Fold(centred, gain) for centred in (False, True) for gain in gains]
    best = min(folds, key=lambda fold: _misfit(fold(probes), out))
    schema_error = _misfit(best(probes), out)
    if not schema_error < (1e-3 if dtype == torch.float32 else 3e-2):
        raise ModelUnsupported(
            f"a {type(norm).__name__} is neither a layer norm nor an RMS norm (schema_error {schema_error:.2g}); "
            "its gain cannot be folded into the scores"
        )
    return best


def _gain_and_bias(norm: nn.Module, hidden: int) -> tuple[Tensor | None, Tensor | None]:
    weight = bias = None
    for name, parameter in norm.named_parameters():
        if parameter.shape == (hidden,):
            if name.rpartition(".")[2] in ("bias", "beta"):
                bias = parameter.detach()
            else:
                weight = parameter.detach()
    return weight, bias


def _misfit(expected: Tensor, out: Tensor) -> float:
    """The relative distance between two sets of vectors when each pair may differ by a positive scale."""
    scale = (expected * out).sum(-1, keepdim=True) / expected.square().sum(-1, keepdim=True).clamp_min(1e-30)
    distance = (out - scale.clamp_min(0) * expected).norm()
    return float(distance / out.norm().clamp_min(1e-30))
