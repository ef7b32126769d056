"""Adaptive input and adaptive softmax: a vocabulary in bands, rare words with narrower vectors (paper, section 2).

Band 0 holds the most frequent words at full width, each later band is narrower by a factor and is projected to and
from the hidden size. The softmax has two levels: band 0 and one class per later band compete, then the words within a
band. Modules only, with fairseq's names for their parts; which checkpoint has which is the business of fairseq/.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn

_IN_CACHE = 1 << 18
"""Scores normalised at a time on a CPU: 1 MiB."""


@dataclass(frozen=True)
class Bands:
    """The first id after each band, and the width of each band's word vectors."""

    edges: tuple[int, ...]
    widths: tuple[int, ...]

    def sizes(self) -> tuple[int, ...]:
        """How many words each band has."""
        return tuple(b - a for a, b in pairwise((0, *self.edges)))


class AdaptiveInput(nn.Module):
    """Ids [batch, position] -> vectors [batch, position, hidden]."""

    def __init__(self, bands: Bands, hidden: int) -> None:
        super().__init__()
        self._starts = (0, *bands.edges[:-1])
        self._hidden = hidden
        self.embeddings = nn.ModuleList(
            nn.Sequential(nn.Embedding(size, width), nn.Linear(width, hidden, bias=False))
            for size, width in zip(bands.sizes(), bands.widths, strict=True)
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Looks each word up in its band and projects it; an id beyond the last band is an IndexError there."""
        first: Tensor = self.embeddings[0].get_parameter("1.weight")
        vectors = torch.empty(*ids.shape, self._hidden, dtype=first.dtype, device=first.device)
        band = torch.bucketize(ids, torch.tensor(self._starts[1:], device=ids.device), right=True)
        for number, (start, words) in enumerate(zip(self._starts, self.embeddings, strict=True)):
            here = band == number
            vectors[here] = words(ids[here] - start)
        return vectors


class TransposedLinear(nn.Module):
    """`x W` for a matrix that is stored the way round its tied copy needs it: [in, out]."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inside, outside))

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return hidden @ self.weight


class SplitHead(nn.Module):
    """The first level where its words are tied to the input's: words and classes in matrices of their own."""

    def __init__(self, hidden: int, words: int, classes: int) -> None:
        super().__init__()
        self.word_proj = nn.Linear(hidden, words, bias=False)
        self.class_proj = nn.Linear(hidden, classes, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., words + classes]."""
        return torch.cat([self.word_proj(hidden), self.class_proj(hidden)], dim=-1)


@final
class AdaptiveSoftmax(nn.Module):
    """Hidden vectors -> log-probabilities of the whole vocabulary, in order of id. It has no matrix E.

    `tied_words`: the words are the input's; `tied_projections`: the projections to the bands are, too.
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
        """Log-probabilities [..., vocab], float32, of hidden vectors [..., hidden]."""
        return self.scores(hidden)

    def scores(self, hidden: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Log-probabilities [..., vocab], float32; written to `out` [row, vocab] where it is given, for [row, hidden].

        log p(word of a later band) = log p(its class) + log p(word within the band).
        """
        rows = hidden.reshape(-1, hidden.shape[-1])
        found = torch.empty(len(rows), self.rows, dtype=torch.float32, device=rows.device) if out is None else out
        head = self.head(rows).float().log_softmax(-1)
        first = self._edges[0]
        found[:, :first] = head[:, :first]
        for number, ((start, end), tail) in enumerate(zip(pairwise(self._edges), self.tail, strict=True)):
            narrow, words = tail.get_submodule("0")(rows), tail.get_parameter("2.weight")
            _within(narrow, words, head[:, first + number], out=found[:, start:end])
        return found.view(*hidden.shape[:-1], self.rows)


def _within(narrow: Tensor, words: Tensor, of_class: Tensor, *, out: Tensor) -> None:
    """Writes log p(class) + log p(word within it) to `out` [row, word].

    On a CPU normalised a cache's worth at a time: at the paper's size fresh memory for every step would cost more than
    the products themselves.
    """
    if narrow.dtype == out.dtype:
        torch.mm(narrow, words.T, out=out)
    else:
        out.copy_(narrow @ words.T)
    step = max(1, _IN_CACHE // len(words)) if out.device.type == "cpu" else max(1, len(out))
    for start in range(0, len(out), step):
        part = out[start : start + step]
        part.copy_(part.log_softmax(1).add_(of_class[start : start + step, None]))
