"""One batch through the model: every layer's triggers and activity, measured as its coefficients pass by.

The head is never run, and the blocks only up to the last mined layer's coefficients. In a batch, sentences of one
length lie together, so padding is cut away before anything is measured. A batch's measurements are taken while the
model runs and counted when it has run to the end: a batch that fails (memory, a NaN, Ctrl-C) has not been half counted.
Knows neither texts nor tables.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, groupby, pairwise
from threading import Lock
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import NotFinite
from mnemoscope.mining.activity import Measured, Observer, Swept
from mnemoscope.mining.batches import Batch, run_in_halves
from mnemoscope.mining.host import may_look
from mnemoscope.mining.state import MiningState
from mnemoscope.mining.thread_team import ThreadTeam
from mnemoscope.mining.triggers import Survivors
from mnemoscope.models import LanguageModel
from mnemoscope.models.hooks import read_coefficients

_LOOKED_AT = 16
"""Batches that are counted unseen, at most, where looking costs time."""


class LayerMeasures:
    """What all shares of a piece measured of one layer: put together when the last has come, so that little waits."""

    def __init__(self, shares: int) -> None:
        self.measured: list[Measured] = []
        self.histogram: Tensor | None = None
        self._swept: dict[int, list[Swept]] = {}
        self._shares, self._lock = shares, Lock()

    def take(self, share: int, swept: list[Swept], histogram: Tensor | None) -> None:
        """Takes in the blocks of one share, in order of length."""
        with self._lock:
            self._swept[share] = swept
            if histogram is not None:
                self.histogram = histogram if self.histogram is None else self.histogram + histogram
            if len(self._swept) < self._shares:
                return
        blocks = chain.from_iterable(self._swept.pop(number) for number in range(self._shares))
        self.measured = [Measured.of(list(own)) for _, own in groupby(blocks, key=lambda one: one.length)]


class BatchReader:
    """Measures one batch as its coefficients pass by, and counts it when told to.

    A sentence gives a memory one trigger at most; `everywhere`, every position may be one. On a CPU several threads
    take a batch's rows, as many each.
    """

    def __init__(self, model: LanguageModel, state: MiningState, *, everywhere: bool = False) -> None:
        self.model, self.state, self.everywhere = model, state, everywhere
        self.layers = list(state.shape.memories)
        # Column 0 is the beginning token or, in a model without one, an attention sink: never a candidate.
        self._first = 1 - model.beginning.length
        self._team = ThreadTeam.of(model)
        self._observers = [Observer() for _ in range(self._team.size)]
        self._pieces: list[Batch] = []
        self._found: list[tuple[int, int, Survivors]] = []
        self._measured: list[dict[int, LayerMeasures]] = []
        self._unchecked: list[tuple[list[Batch], Tensor]] = []
        """Batches that were counted where the host may not look, and whether their numbers are finite."""

    def read(self, batch: Batch) -> bool:
        """Runs the model over the batch and measures it, in halves where memory runs out; whether it fitted whole.

        Forgets what was measured before and not counted.
        """
        self._pieces, self._found, self._measured = [], [], []
        return run_in_halves(self._read_piece, batch, Batch.halves)

    def _read_piece(self, piece: Batch) -> None:
        found, shares = len(self._found), piece.split(self._team.size)
        layers = {layer: LayerMeasures(len(shares)) for layer in self.layers}
        try:
            self._team.run([partial(self._read_share, layers, number, share) for number, share in enumerate(shares)])
        except (RuntimeError, MemoryError):  # a piece that does not fit is measured again, in halves
            del self._found[found:]
            for observer in self._observers:
                observer.forget()
            raise
        self._pieces.append(piece)
        self._measured.append(layers)

    def _read_share(self, layers: Mapping[int, LayerMeasures], number: int, share: Batch) -> None:
        """Runs the model over some rows of a piece, in the thread that has this number."""
        edges = [0, *(np.flatnonzero(np.diff(share.lengths)) + 1).tolist(), len(share.lengths)]

        def measure(layer: int, coefficients: Tensor) -> None:
            blocks = [
                (coefficients[first:last, 1 : int(share.lengths[first]) + 1 - self._first], share.sentences[first:last])
                for first, last in pairwise(edges)
            ]
            blocks = [one for one in blocks if one[0].shape[1]]
            swept = self._sweep(self._observers[number], blocks, layer, sampled=share.sampled)
            layers[layer].take(number, *swept)

        with read_coefficients(self.model, measure, layers=self.layers, own_thread=True):
            self.model.backbone(share.ids, stop_after=self.layers[-1])

    def _sweep(
        self, observer: Observer, blocks: list[tuple[Tensor, Tensor]], layer: int, *, sampled: bool
    ) -> tuple[list[Swept], Tensor | None]:
        """What is read off blocks of whole sentences of one length, given with the sentences' ids; notes survivors."""
        if not blocks:
            return [], None
        signs, block = self.state.shape.signs, blocks[0][0]
        swept = [observer.sweep(block, negative=-1 in signs, sampled=sampled) for block, _ in blocks]
        for sign in signs:
            triggers = self.state.triggers[layer, sign]
            highest = [one.peaks if one.lows is None or sign > 0 else -one.lows for one in swept]
            if self.everywhere:
                found = [triggers.survivors_everywhere(*one, sign=sign, first=self._first) for one in blocks]
            elif may_look(block.device):
                found = [
                    triggers.survivors(peaks, *one, sign=sign, first=self._first)
                    for peaks, one in zip(highest, blocks, strict=True)
                ]
            else:
                place = torch.cat([(block if sign > 0 else -block).argmax(1) for block, _ in blocks])
                ids = torch.cat([sentences for _, sentences in blocks])
                found = [triggers.best_of_batch(torch.cat(highest), place, ids, first=self._first)]
            self._found += [(layer, sign, one) for one in found]
        if not sampled:
            return swept, None
        return swept, observer.histogram(block.shape[-1], negative=-1 in signs, device=block.device)

    def count(self) -> None:
        """Adds what was measured to the state; raises NotFinite, naming layer and sentence, and adds nothing.

        Where the host may not look, it is added unseen, and `check` looks at it.
        """
        finite = [one.finite() for layers in self._measured for own in layers.values() for one in own.measured]
        if finite:
            self._unchecked.append((self._pieces, torch.stack(finite).all()))
            if may_look(self.model.device):
                self.check()
        size = self._team.size
        self._team.run([partial(self._count_layers, self.layers[first::size]) for first in range(size)])
        if len(self._unchecked) >= _LOOKED_AT:
            self.check()

    def _count_layers(self, layers: Sequence[int]) -> None:
        for layer in layers:
            own = [measures[layer] for measures in self._measured]
            measured = [one for measures in own for one in measures.measured]
            if measured:
                histograms = [measures.histogram for measures in own if measures.histogram is not None]
                self.state.activity[layer].add(measured, histograms)
        for layer, sign, found in self._found:
            if layer in layers:
                self.state.triggers[layer, sign].add(found)

    def check(self) -> None:
        """Looks at what was counted unseen; raises NotFinite, and then the state is not to be saved."""
        unchecked, self._unchecked = self._unchecked, []
        if unchecked and not bool(torch.stack([finite for _, finite in unchecked]).all()):
            self._name_what_is_not_finite(next(pieces for pieces, finite in unchecked if not bool(finite)))

    def _name_what_is_not_finite(self, pieces: list[Batch]) -> NoReturn:
        """Runs the batch again, looking for the first layer and sentence with a NaN or infinity."""
        places: list[tuple[int, int]] = []
        for piece in pieces:

            def look(layer: int, coefficients: Tensor, piece: Batch = piece) -> None:
                for row, length in enumerate(piece.lengths.tolist()):
                    own = coefficients[row, 1 : length + 1 - self._first]
                    if not places and not bool(torch.isfinite(own).all()):
                        places.append((layer, int(piece.sentences[row])))

            with read_coefficients(self.model, look, layers=self.layers):
                self.model.backbone(piece.ids, stop_after=self.layers[-1])
        layer, sentence = places[0] if places else (self.layers[0], int(pieces[0].sentences[0]))
        raise NotFinite(
            f"layer {layer} has NaN or infinite coefficients on sentence {sentence}; "
            "try --dtype float32, or check the model's weights"
        )
