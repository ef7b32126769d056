"""How shortened sentences are run: as trees, which compute once what they share, or one by one, padded.

A run is a sentence without one of its tokens, or as it stands, as far as anything in it is asked on one side of a
boundary of the model (company.py). Trees take less time (LOG.md: speed, seventh part); which models allow them,
tree_forward.py finds out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.mining.batches import fill, pack, pad
from mnemoscope.mining.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel
from mnemoscope.models.company import sides
from mnemoscope.models.hooks import read_coefficients
from mnemoscope.models.token_trees import Branch, TokenRow, Tree
from mnemoscope.models.tree_forward import TreeForward

Ints = NDArray[np.int64]

WHOLE = -1
"""In place of a removed token: the sentence as it stands."""

_LARGEST = 1024
"""Tokens of a tree, unless one run has more: larger ones copy trunks less often, smaller ones fit in less memory."""
_AT_A_TIME = 8
"""Batches' worth of tokens between two looks at the clock: in fewer, threads would wait longer for one another."""
_WORK = 1e13
"""Operations between two looks at the clock, for models of which a batch is no less: a minute of two cores, or so."""

Answer = Callable[[int, Ints, Tensor], None]
"""Given a layer, the numbers of requests and their coefficients."""


@dataclass(frozen=True)
class Requests:
    """What is asked: for each request a layer and memory, and the coefficient at `position - 1` of its sentence without
    token `gap`.
    """

    layer: Ints
    memory: Ints
    sentence: Ints
    gap: Ints
    position: Ints

    def at(self, places: Ints | slice) -> "Requests":
        """Some of them."""
        return Requests(*(each[places] for each in vars(self).values()))


class Runs(Protocol):
    """Items that are run a batch at a time."""

    @property
    def cuts(self) -> list[slice]:
        """The items of each batch."""

    @property
    def sizes(self) -> Ints | None:
        """The tokens of each item; None where neighbours have about as many."""

    def take(self, items: slice, answer: Answer) -> None:
        """Runs items, and answers all that is asked of them."""


def plan_runs(requests: Requests, model: LanguageModel, sentences: NamedSentences, *, area: int) -> Runs:
    """How the requests are run, `area` tokens at a time."""
    longest = int(requests.position.max(initial=0)) + model.beginning.length
    # What lies on two sides of a boundary shares nothing, and no row of trees is itself longer than the first of them.
    if not sides(model, [longest]).any():
        forward = TreeForward(model, longest=longest)
        if forward.possible:
            most = min((area, *model.boundaries[:1]))
            return TreeRuns(requests, model, sentences, forward, area=most)
    return LoneRuns(requests, model, sentences, area=area)


class LoneRuns:
    """Every run is an item, and a row of a batch; they are sorted by their deepest layer, and by length."""

    sizes: None = None

    def __init__(self, requests: Requests, model: LanguageModel, sentences: NamedSentences, *, area: int) -> None:
        self._model, self._sentences, self._extra = model, sentences, model.beginning.length
        side = sides(model, requests.position + self._extra)
        self._runs, run = _runs_of(requests, side, "layer", "position", "sentence", "gap")
        self._order = np.argsort(run, kind="stable")
        self._run, self._requests = run[self._order], requests.at(self._order)
        lengths = self._runs["position"].to_numpy() + self._extra
        apart = self._runs["layer"].to_numpy() * (1 + len(model.boundaries)) + self._runs["side"].to_numpy()
        self.cuts = pack(lengths, area=area, rows=area, apart=apart)

    def take(self, items: slice, answer: Answer) -> None:
        """See `Runs`."""
        ids = pad([self._shorten(*run) for run in self._runs[items].select("sentence", "gap", "position").iter_rows()],
                  self._model)  # fmt: skip
        begin, end = np.searchsorted(self._run, (items.start, items.stop))
        asked, numbers, run = self._requests.at(slice(begin, end)), self._order[begin:end], self._run[begin:end]

        def read(layer: int, coefficients: Tensor) -> None:
            here = np.flatnonzero(asked.layer == layer)
            places = (run[here] - items.start, asked.position[here] - 1 + self._extra, asked.memory[here])
            answer(layer, numbers[here], coefficients[_tensors(*places)])

        layers = np.unique(asked.layer).tolist()
        with torch.inference_mode(), read_coefficients(self._model, read, layers=layers, own_thread=True):
            self._model.backbone(ids, stop_after=layers[-1])

    def _shorten(self, sentence: int, gap: int, position: int) -> NDArray[np.int32]:
        """The tokens of one run's sentence without the removed one, as far as they are asked about."""
        tokens = self._sentences.of(sentence)[: position + 1]
        return tokens[:-1] if gap == WHOLE else np.delete(tokens, gap)


class TreeRuns:
    """An item is a tree of runs of one sentence: as many as fit in what one thread computes at a time.

    They are sorted by their deepest layer, and by size.
    """

    def __init__(
        self,
        requests: Requests,
        model: LanguageModel,
        sentences: NamedSentences,
        forward: TreeForward,
        *,
        area: int,
    ) -> None:
        self._sentences, self._forward = sentences, forward
        self._first, self._extra = np.array(model.beginning.tokens, np.int64), model.beginning.length
        runs, run = _runs_of(requests, np.zeros_like(requests.position), "sentence", "gap")
        begins, sizes = _group(runs, extra=self._extra, most=min(area, _LARGEST))
        deepest = np.maximum.reduceat(runs["layer"].to_numpy(), begins)
        rank = np.argsort(np.lexsort((sizes, deepest)))  # of every tree
        item = np.repeat(rank, np.diff([*begins, len(runs)]))
        order = np.argsort(item, kind="stable")
        self._runs, self._item = runs[order], item[order]
        run = np.argsort(order)[run]
        self._order = np.argsort(run, kind="stable")
        self._run, self._requests = run[self._order], requests.at(self._order)
        self.sizes = sizes[np.argsort(rank)]
        batches = min(_AT_A_TIME, _WORK / (2 * model.sizes.parameters * area))
        self._area, self.cuts = area, fill(self.sizes, int(area * max(1, batches)))

    def take(self, items: slice, answer: Answer) -> None:
        """See `Runs`."""
        for batch in fill(self.sizes[items], self._area):
            self._take(slice(items.start + batch.start, items.start + batch.stop), answer)

    def _take(self, items: slice, answer: Answer) -> None:
        """Runs items in one forward."""
        runs = slice(*np.searchsorted(self._item, (items.start, items.stop)).tolist())
        begin, end = np.searchsorted(self._run, (runs.start, runs.stop))
        asked, numbers = self._requests.at(slice(begin, end)), self._order[begin:end]
        row, origins = self._plant(runs)
        token = origins[self._run[begin:end] - runs.start] + asked.position - 1
        tokens = {layer: np.unique(token[asked.layer == layer]) for layer in np.unique(asked.layer).tolist()}

        def read(layer: int, coefficients: Tensor) -> None:
            here = np.flatnonzero(asked.layer == layer)
            places = np.searchsorted(tokens[layer], token[here]), asked.memory[here]
            answer(layer, numbers[here], coefficients[_tensors(*places)])

        self._forward.run(row, tokens, read)

    def _plant(self, runs: slice) -> tuple[TokenRow, Ints]:
        """The trees of some runs, and where in their row the first of a sentence's own tokens would lie for each run,
        were its trunk part of it.
        """
        starts = np.flatnonzero(np.diff(self._item[runs], prepend=-1))
        rows = self._runs[runs].select("sentence", "gap", "position").rows()
        trees, segments, shifts, segment = list[Tree](), list[int](), list[int](), 0
        for first, last in pairwise([*starts.tolist(), len(rows)]):
            tokens = self._sentences.of(rows[first][0]).astype(np.int64)
            whole = rows[first][1] == WHOLE
            gaps = [(gap, position) for _, gap, position in rows[first + whole : last]]
            trunk = max(rows[first][2] if whole else 0, rows[last - 1][1])
            branches = [Branch(gap + self._extra, tokens[gap + 1 : position + 1]) for gap, position in gaps]
            trees.append(Tree(np.concatenate([self._first, tokens[:trunk]]), branches))
            segments += [segment] * whole + list(range(segment + 1, segment + 1 + len(gaps)))
            shifts += [self._extra] * whole + [-gap for gap, _ in gaps]
            segment += 1 + len(gaps)
        row = TokenRow(trees)
        return row, row.starts[segments] + shifts


def _runs_of(requests: Requests, side: Ints, *order: str) -> tuple[pl.DataFrame, Ints]:
    """The runs that answer all requests, in that order, with their deepest layer and last position; each request's.

    `side` says of each request on which side of which boundary its row lies.
    """
    asked = pl.DataFrame({name: getattr(requests, name) for name in ("sentence", "gap", "layer", "position")})
    asked, one = asked.with_columns(pl.Series("side", side)), ("sentence", "gap", "side")
    runs = asked.group_by(one).agg(pl.col("layer").max(), pl.col("position").max()).sort(*order, "side")
    found = asked.join(runs.select(one).with_row_index("run"), on=one, maintain_order="left")["run"]
    return runs, found.to_numpy().astype(np.int64)


def _group(runs: pl.DataFrame, *, extra: int, most: int) -> tuple[Ints, Ints]:
    """Where each tree begins among runs sorted by sentence and gap, and the tokens of each: at most `most`, but for a
    tree of one run.
    """
    begins, sizes, of, trunk = list[int](), list[int](), None, 0
    for number, (sentence, gap, position) in enumerate(runs.select("sentence", "gap", "position").iter_rows()):
        stem, own = (extra + position, 0) if gap == WHOLE else (extra + gap, position - gap)
        if sentence == of and sizes[-1] + max(stem - trunk, 0) + own <= most:
            sizes[-1] += max(stem - trunk, 0) + own
            trunk = max(trunk, stem)
        else:
            begins.append(number)
            sizes.append(stem + own)
            of, trunk = sentence, stem
    return np.array(begins, np.int64), np.array(sizes, np.int64)


def _tensors(*arrays: Ints) -> tuple[Tensor, ...]:
    return tuple(map(torch.from_numpy, arrays))
