"""Sentences that begin alike as trees of tokens, so that what they share is there once.

A tree is a trunk, the beginning, and branches, each of which goes on in its own way after some of the trunk's tokens.
Many trees lie one behind the other in one row; what a token follows is told by arrays, not by where it lies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]

_TOGETHER, _TOGETHER_ON_CARDS = 192, 1024
"""Tokens that attend in one call: more would mask out most of what they multiply, fewer would be many calls, for which
graphics cards wait (not measured).
"""


@dataclass(frozen=True)
class Branch:
    """Tokens that come after the first `after` of the trunk's."""

    after: int
    tokens: Ints


@dataclass(frozen=True)
class Tree:
    """A trunk, which may be empty, and its branches."""

    trunk: Ints
    branches: Sequence[Branch] = ()


@dataclass(frozen=True)
class Chunk:
    """Tokens `first..last` of a row that attend together, to one another and to those at `trunk`; the rest is masked.

    `mask` is added to the scores `[token, trunk's tokens and own]`.
    """

    first: int
    last: int
    trunk: slice
    mask: Tensor


@final
class TokenRow:
    """Trees in one row of `len(row)` tokens: their `ids`, and `places`, their numbers in their sentences.

    `starts` are where the trunk of the first tree begins, then each of its branches, then the next tree's trunk.
    """

    def __init__(self, trees: Sequence[Tree]) -> None:
        segments: list[tuple[int, Ints, bool]] = []
        for tree in trees:
            segments += [(0, tree.trunk, True), *((branch.after, branch.tokens, False) for branch in tree.branches)]
        lengths = [len(tokens) for _, tokens, _ in segments]
        edges = np.cumsum([0, *lengths])
        self.starts: Ints = edges[:-1]
        self.ids: Ints = np.concatenate([tokens for _, tokens, _ in segments]).astype(np.int64)
        own = np.arange(edges[-1]) - np.repeat(self.starts, lengths)
        self._sees = np.repeat([after for after, _, _ in segments], lengths)  # so many of the trunk's tokens
        self.places: Ints = own + self._sees
        self._segment = np.repeat(np.arange(len(segments)), lengths)
        trunks = np.maximum.accumulate([k if is_trunk else 0 for k, (_, _, is_trunk) in enumerate(segments)])
        self._trunk = np.repeat(trunks, lengths)

    def __len__(self) -> int:
        return len(self.ids)

    def deepest(self, asked: Mapping[int, Ints]) -> Ints:
        """The last layer `[token]` in which anything depends on a token; `asked` are the tokens of interest by layer.

        -1 where nothing ever does.
        """
        found = np.full(len(self), -1)
        for layer, tokens in asked.items():
            found[tokens] = np.maximum(found[tokens], layer)
        for first, last in reversed(list(pairwise([*self.starts.tolist(), len(self)]))):
            if first == last:
                continue
            found[first:last] = np.maximum.accumulate(found[first:last][::-1])[::-1]
            trunk = int(self.starts[self._trunk[first]])
            if trunk < first:  # a branch, whose trunk comes before it: what the branch needs, it needs
                seen = found[trunk : trunk + int(self._sees[first])]
                np.maximum(seen, found[first], out=seen)
        return found

    def chunks(self, kept: Ints, *, like: Tensor) -> list[Chunk]:
        """How those of the tokens that are `kept`, in ascending order, attend; places count the kept ones.

        Masks have the dtype of what they are `like`, and lie where it does.
        """
        together = _TOGETHER if like.device.type == "cpu" else _TOGETHER_ON_CARDS
        trunks, segments = self._trunk[kept], self._segment[kept]
        edges = [0, *(np.flatnonzero(np.diff(trunks)) + 1).tolist(), len(kept)]
        found: list[tuple[int, int, slice]] = []
        for first, last in pairwise(edges):  # one tree each
            if last - first <= together:
                if found and found[-1][2].stop == 0 and last - found[-1][0] <= together:
                    found[-1] = (found[-1][0], last, slice(0))
                else:
                    found.append((first, last, slice(0)))
                continue
            stem = slice(first, first + int((segments[first:last] == trunks[first]).sum()))
            inner = [first, *(np.flatnonzero(np.diff(segments[first:last])) + 1 + first).tolist(), last]
            begin = first
            for start, stop in pairwise(inner):
                if stop - begin > together and start > begin:
                    found.append((begin, start, stem if begin > first else slice(0)))
                    begin = start
            found.append((begin, last, stem if begin > first else slice(0)))
        return [
            Chunk(first, last, stem, self._mask(kept, np.arange(first, last), stem).to(like))
            for first, last, stem in found
        ]

    def _mask(self, kept: Ints, queries: Ints, stem: slice) -> Tensor:
        """What is added to the scores of the queries with the stem's tokens and one another: 0, or minus infinity."""
        keys = np.concatenate([np.arange(stem.start or 0, stem.stop), queries])
        query, key = kept[queries][:, None], kept[keys][None]
        follows = (self._segment[key] == self._segment[query]) & (key <= query)
        on_trunk = (self._segment[key] == self._trunk[query]) & (self.places[key] < self._sees[query])
        return torch.from_numpy(np.where(follows | on_trunk, 0, -np.inf))
