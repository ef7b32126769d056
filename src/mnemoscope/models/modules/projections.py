"""From hidden vectors to scores over the vocabulary: the head, and the linear part of the norms before it.

Of the three named projections (definitions.md section 2) `raw` is the head's matrix only, `gain` folds in centring and
gain of the norms (never the data-dependent scale), `lens` is the model's own readout with norm, head bias, scale and
soft-cap. A norm's function is found by calling it, not by its class's name.

A head is one matrix or an adaptive softmax (paper, section 2), whose vocabulary is divided into bands: band 0 holds the
most frequent words at full width, each later band is narrower by a factor and has its own projection. Its two levels:
band 0 and one class per later band compete, then the words within a band.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol, final

import torch
from torch import Tensor, nn

from mnemoscope.errors import ModelUnsupported
from mnemoscope.foundation.budget import BUDGET, rows_within
from mnemoscope.models.modules.offloading import hold_all_weights

Projection = Literal["raw", "gain", "lens"]

_PROBES = 8
_TOKENS = 2048
"""Tokens scored at a time on a CPU: rows of a head that stay in its cache for all vectors."""
_LINE = 16


@dataclass(frozen=True)
class Fold:
    """The linear part of a norm: optional centring, then an optional gain [hidden]."""

    centred: bool
    gain: Tensor | None

    def __call__(self, vectors: Tensor) -> Tensor:
        folded = vectors.float() if self.gain is None else vectors.to(self.gain.device).float()
        if self.centred:
            folded = folded - folded.mean(dim=-1, keepdim=True)
        return folded if self.gain is None else folded * self.gain


def fold_of(norm: nn.Module | None, hidden: int, *, dtype: torch.dtype, device: torch.device) -> Fold:
    """The linear part of `norm`, found by probing: LayerNorm or RMSNorm with gain w, 1 + w or none; no norm is the
    identity.
    """
    if norm is None:
        return Fold(False, None)
    weight, bias = gain_and_bias(norm, hidden)
    device = device if weight is None else weight.device
    probes = torch.randn(_PROBES, hidden, generator=torch.Generator().manual_seed(0)).to(device=device, dtype=dtype)
    with torch.inference_mode():
        out = norm(probes).float().to(device)
    if bias is not None:
        out = out - bias.float()
    gains = [None] if weight is None else [weight.float(), 1.0 + weight.float()]
    folds = [Fold(centred, gain) for centred in (False, True) for gain in gains]
    best = min(folds, key=lambda fold: _misfit(fold(probes), out))
    misfit = _misfit(best(probes), out)
    if not misfit < (1e-3 if dtype == torch.float32 else 3e-2):
        raise ModelUnsupported(
            f"a {type(norm).__name__} is neither a layer norm nor an RMS norm (misfit {misfit:.2g}); "
            "its gain cannot be folded into the scores"
        )
    return best


def scale_of(norm: nn.Module | None, fold: Fold, vectors: Tensor) -> Tensor:
    """The divisors `[row]`, float32, of `norm` for the vectors `[row, hidden]`: the part that its fold omits."""
    if norm is None:
        return torch.ones(len(vectors), device=vectors.device)
    _, bias = gain_and_bias(norm, vectors.shape[-1])
    vectors = vectors if fold.gain is None else vectors.to(fold.gain.device)
    out = norm(vectors).float()
    if bias is not None:
        out = out - bias.float()
    before, after = (torch.linalg.vector_norm(rows, dim=-1).clamp_min(1e-30) for rows in (fold(vectors), out))
    scale: Tensor = before / after
    return scale


def gain_and_bias(norm: nn.Module, hidden: int) -> tuple[Tensor | None, Tensor | None]:
    weight = bias = None
    with hold_all_weights(norm):
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


@dataclass(frozen=True)
class HeadTransform:
    """What a head of BERT's kind does between its dense map (the anatomy's `project`) and its matrix: a function of
    each entry, then a norm; None is the identity.
    """

    function: Callable[[Tensor], Tensor] | None
    norm: nn.Module | None

    def activate(self, projected: Tensor) -> Tensor:
        return projected if self.function is None else self.function(projected)

    def __call__(self, projected: Tensor) -> Tensor:
        activated = self.activate(projected)
        return activated if self.norm is None else self.norm(activated)


class Head(Protocol):
    """The last step from a vector to scores, in float32, without bias, scale or soft-cap."""

    @property
    def linear(self) -> bool:
        """Whether scores(-v) is -scores(v) and a positive factor changes no rank."""

    def scores(self, hidden: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Scores [..., vocab], float32, of vectors [..., hidden'], float32; written to `out` if given."""

    def vectors_of(self, tokens: Tensor) -> Tensor:
        """The vectors `[n, hidden']`, float64, whose products with a hidden vector are the tokens' scores.

        For an adaptive softmax, scores before normalisation: of the token's class, and of the token in it.
        """

    def mean_vector(self) -> Tensor:
        """The mean `[hidden']` of the rows of all tokens, float64."""


@dataclass(frozen=True)
class LinearHead:
    """One matrix E [vocab, hidden'], float32."""

    matrix: Tensor
    linear = True

    def scores(self, hidden: Tensor, *, out: Tensor | None = None) -> Tensor:
        """The products with E's rows; on a CPU with `out` in parts, up to four times as fast for few vectors."""
        if out is None or out.device.type != "cpu":
            return torch.matmul(hidden, self.matrix.T, out=out)
        for start in range(0, len(self.matrix), _TOKENS):
            part = slice(start, start + _TOKENS)
            torch.mm(hidden, self.matrix[part].T, out=out[:, part])
        return out

    def vectors_of(self, tokens: Tensor) -> Tensor:
        return self.matrix[tokens.to(self.matrix.device)].double()

    def mean_vector(self) -> Tensor:
        return self.matrix.mean(0, dtype=torch.float64)


def room_for_scores(rows: int, vocabulary: int, *, device: torch.device) -> Tensor:
    """A buffer `[row, vocab]` for scores; rows start at a cache line, which makes writing products faster."""
    lines = -(-vocabulary // _LINE)
    return torch.empty(rows, lines * _LINE, device=device)[:, :vocabulary]


@dataclass(frozen=True)
class Bands:
    """The first id after each band, and the width of each band's word vectors."""

    edges: tuple[int, ...]
    widths: tuple[int, ...]

    def sizes(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in pairwise((0, *self.edges)))


class TransposedLinear(nn.Module):
    """`x W` for a matrix stored in the order of its tied copy: [in, out]."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inside, outside))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden @ self.weight


class SplitHead(nn.Module):
    """The first level if its words are tied to the input's: words and classes in separate matrices."""

    def __init__(self, hidden: int, words: int, classes: int) -> None:
        super().__init__()
        self.word_proj = nn.Linear(hidden, words, bias=False)
        self.class_proj = nn.Linear(hidden, classes, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.cat([self.word_proj(hidden), self.class_proj(hidden)], dim=-1)


@final
class AdaptiveSoftmax(nn.Module):
    """Hidden vectors -> log-probabilities by id. `tied_words`: the words are the input's; `tied_projections`: so are
    the projections to the bands.
    """

    linear = False

    def __init__(self, bands: Bands, hidden: int, *, tied_words: bool, tied_projections: bool) -> None:
        super().__init__()
        self.rows = bands.edges[-1]
        self._edges = bands.edges
        words, *later = bands.sizes()
        self.head: nn.Module = nn.Linear(hidden, words + len(later), bias=False)
        if tied_words:
            self.head = SplitHead(hidden, words, len(later))
        self.tail = nn.ModuleList()
        for size, width in zip(later, bands.widths[1:], strict=True):
            backwards = tied_words and tied_projections
            to_band = TransposedLinear(hidden, width) if backwards else nn.Linear(hidden, width, bias=False)
            self.tail.append(nn.Sequential(to_band, nn.Identity(), nn.Linear(width, size, bias=False)))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.scores(hidden)

    def scores(self, hidden: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Log-probabilities [..., vocab], float32; in `out` [row, vocab] if given, for [row, hidden]. log p(word of a
        later band) = log p(its class) + log p(word within the band).
        """
        rows = hidden.reshape(-1, hidden.shape[-1])
        scores = torch.empty(len(rows), self.rows, dtype=torch.float32, device=rows.device) if out is None else out
        head = self.head(rows).float().log_softmax(-1)
        first = self._edges[0]
        scores[:, :first] = head[:, :first]
        for number, ((start, end), tail) in enumerate(zip(pairwise(self._edges), self.tail, strict=True)):
            narrow, words = tail.get_submodule("0")(rows), tail.get_parameter("2.weight")
            _within(narrow, words, head[:, first + number], out=scores[:, start:end])
        return scores.view(*hidden.shape[:-1], self.rows)

    def vectors_of(self, tokens: Tensor) -> Tensor:
        """The token's own row, and in a later band that of its class."""
        first = self._first_level()
        tokens = tokens.to(first.device)
        band = torch.bucketize(tokens, torch.tensor(self._edges, device=tokens.device), right=True)
        vectors = first[torch.where(band == 0, tokens, self._edges[0] + band - 1)].double()
        for number, (start, _) in enumerate(pairwise(self._edges), start=1):
            here, (words, narrow) = band == number, self._later_band(number)
            vectors[here] += words[tokens[here] - start].double() @ narrow
        return vectors

    def mean_vector(self) -> Tensor:
        first = self._first_level()
        total = first[: self._edges[0]].sum(0, dtype=torch.float64)
        for number, (start, end) in enumerate(pairwise(self._edges), start=1):
            words, narrow = self._later_band(number)
            total += (end - start) * first[self._edges[0] + number - 1].double()
            total += words.sum(0, dtype=torch.float64) @ narrow
        return total / self.rows

    def _first_level(self) -> Tensor:
        """The rows of the words of band 0 and of the classes, `[words + classes, hidden]`."""
        parts = [self.head.word_proj, self.head.class_proj] if isinstance(self.head, SplitHead) else [self.head]
        return torch.cat([part.get_parameter("weight").detach() for part in parts])

    def _later_band(self, band: int) -> tuple[Tensor, Tensor]:
        """A later band's word vectors `[word, width]`, and the projection to them `[width, hidden]`, float64."""
        narrow = self.tail[band - 1].get_submodule("0")
        matrix = narrow.get_parameter("weight").detach().double()
        words = self.tail[band - 1].get_parameter("2.weight").detach()
        return words, matrix.T if isinstance(narrow, TransposedLinear) else matrix


def _within(narrow: Tensor, words: Tensor, of_class: Tensor, *, out: Tensor) -> None:
    """Writes log p(class) + log p(word within it) to `out` [row, word]; on a CPU a cache's worth at a time."""
    if narrow.requires_grad:  # a lens in training: gradients need fresh memory
        out.copy_((narrow @ words.T).log_softmax(1) + of_class[:, None])
        return
    if narrow.dtype == out.dtype:
        torch.mm(narrow, words.T, out=out)
    else:
        out.copy_(narrow @ words.T)
    step = rows_within(BUDGET.in_cache, len(words)) if out.device.type == "cpu" else max(1, len(out))
    for start in range(0, len(out), step):
        part = out[start : start + step]
        part.copy_(part.log_softmax(1).add_(of_class[start : start + step, None]))
