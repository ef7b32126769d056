"""Hidden vectors as scores over the vocabulary: the three named projections of definitions.md section 2.

The head itself is behind a seam, `Head`: one matrix, or the two levels of an adaptive softmax (adaptive.py).

`raw` is the head's matrix alone, `gain` folds in what the norms on the way do to every vector alike (centring and
gain, never the data-dependent scale), `lens` is the model's own readout with norm, head bias, scale and soft-cap.
What a norm does is found by asking it, not by its class's name. Softmax, ranks and top lists are made elsewhere.
"""

import copy
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from mnemoscope.errors import ModelUnsupported, OptionError
from mnemoscope.models.anatomy import Anatomy, matrix_of

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


def fold_of(norm: nn.Module, hidden: int, *, dtype: torch.dtype, device: torch.device) -> Fold:
    """What `norm` does to every vector alike, found by probing it with random vectors.

    Known forms are LayerNorm and RMSNorm, with gain w, 1 + w or none. Raises ModelUnsupported for any other.
    """
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


class Readout:
    """The way from a hidden vector to scores, of one model."""

    def __init__(self, anatomy: Anatomy, *, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self._anatomy = anatomy
        self._hidden = hidden
        self._dtype = dtype
        self._device = device
        self._final = None if anatomy.final_norm is None else self._fold(anatomy.final_norm)

    def _fold(self, norm: nn.Module) -> Fold:
        return fold_of(norm, self._hidden, dtype=self._dtype, device=self._device)

    def head(self) -> Tensor:
        """E [vocab, hidden'], float32 (a view where the model is float32); raises ModelUnsupported if there is none."""
        if self._anatomy.two_level is not None:
            raise ModelUnsupported("the head is an adaptive softmax, not one matrix; ask for scores instead")
        return matrix_of(self._anatomy.head).detach().float()

    def scorer(self) -> Head:
        """The head in float32 (views where the model is float32, else a copy: ask once per pass)."""
        two_level = self._anatomy.two_level
        if two_level is None:
            return LinearHead(self.head())
        return two_level if self._dtype == torch.float32 else copy.deepcopy(two_level).float()

    def fold(self, vectors: Tensor, *, layer: int | None) -> Tensor:
        """As `LanguageModel.fold`."""
        folded = vectors.float()
        if layer is not None:
            block = self._anatomy.layers[layer]
            norm = block.post_norm if block.output_norm is None else block.output_norm
            folded = folded if norm is None else self._fold(norm)(folded)
        folded = folded if self._final is None else self._final(folded)
        return self._project(folded)

    def scores(self, vectors: Tensor, *, projection: Projection, layer: int | None = None) -> Tensor:
        """Scores [..., vocab] float32 of vectors [..., hidden] under one of the three projections."""
        if projection == "lens":
            return self.lens(vectors)
        if projection == "gain":
            return self.scorer().scores(self.fold(vectors, layer=layer))
        if projection == "raw":
            return self.scorer().scores(self._project(vectors.float()))
        raise OptionError(f"projection {projection!r} does not exist; choose raw, gain or lens")

    def lens(self, streams: Tensor) -> Tensor:
        """The model's own readout of stream vectors [..., hidden]: scores [..., vocab], float32."""
        anatomy = self._anatomy
        hidden = streams.to(self._dtype)
        for module in (anatomy.final_norm, anatomy.project, anatomy.head):
            hidden = hidden if module is None else module(hidden)
        scores = hidden if anatomy.logit_scale == 1.0 else hidden * anatomy.logit_scale
        if anatomy.softcap is not None:
            scores = torch.tanh(scores / anatomy.softcap) * anatomy.softcap
        return scores.float()

    def _project(self, vectors: Tensor) -> Tensor:
        project = self._anatomy.project
        return vectors if project is None else nn.functional.linear(vectors, matrix_of(project).detach().float())
