"""One batch through the model: every layer's triggers and activity, measured as its coefficients pass by.

The head is never run, and the blocks only up to the last mined layer's coefficients. In a batch, sentences of one
length lie together, so padding is cut away before anything is measured. A batch's measurements are taken while the
model runs and counted when it has run to the end: a batch that fails (memory, a NaN, Ctrl-C) has not been half counted.
Knows neither texts nor tables.
"""

from itertools import pairwise
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import NotFinite
from mnemoscope.mining.activity import Measured, Observer
from mnemoscope.mining.batches import Batch, run_in_halves
from mnemoscope.mining.host import may_look
from mnemoscope.mining.state import MiningState
from mnemoscope.mining.triggers import Survivors
from mnemoscope.models import LanguageModel
from mnemoscope.models.hooks import read_coefficients

_LOOKED_AT = 16
"""Batches that are counted unseen, at most, where looking costs time."""


class BatchReader:
    """Measures one batch as its coefficients pass by, and counts it when told to.

    A sentence gives a memory one trigger at most; `everywhere`, every position may be one.
    """

    def __init__(self, model: LanguageModel, state: MiningState, *, everywhere: bool = False) -> None:
        self.model, self.state, self.everywhere = model, state, everywhere
        self.layers = list(state.shape.memories)
        # Column 0 is the beginning token or, in a model without one, an attention sink: never a candidate.
        self._first = 1 - model.beginning.length
        self._observer = Observer()
        self._pieces: list[Batch] = []
        self._found: list[tuple[int, int, Survivors]] = []
        self._measured: list[tuple[int, Measured]] = []
        self._unchecked: list[tuple[list[Batch], Tensor]] = []
        """Batches that were counted where the host may not look, and whether their numbers are finite."""

    def read(self, batch: Batch) -> bool:
        """Runs the model over the batch and measures it, in halves where memory runs out; whether it fitted whole.

        Forgets what was measured before and not counted.
        """
        self._pieces, self._found, self._measured = [], [], []
        return run_in_halves(self._read_piece, batch, Batch.halves)

    def _read_piece(self, piece: Batch) -> None:
        edges = [0, *(np.flatnonzero(np.diff(piece.lengths)) + 1).tolist(), len(piece.lengths)]
        found, measured = len(self._found), len(self._measured)

        def measure(layer: int, coefficients: Tensor) -> None:
            blocks = [
                (coefficients[first:last, 1 : int(piece.lengths[first]) + 1 - self._first], piece.sentences[first:last])
                for first, last in pairwise(edges)
            ]
            self._measure(layer, [one for one in blocks if one[0].shape[1]], sampled=piece.sampled)

        try:
            with read_coefficients(self.model, measure, layers=self.layers):
                self.model.backbone(piece.ids, stop_after=self.layers[-1])
        except (RuntimeError, MemoryError):  # a piece that does not fit is measured again, in halves
            del self._found[found:], self._measured[measured:]
            self._observer.forget()
            raise
        self._pieces.append(piece)

    def _measure(self, layer: int, blocks: list[tuple[Tensor, Tensor]], *, sampled: bool) -> None:
        """Measures a layer's coefficients: blocks of whole sentences of one length, and the sentences' ids."""
        signs = self.state.shape.signs
        extremes: list[tuple[Tensor, Tensor | None]] = []
        for number, (block, _) in enumerate(blocks, 1):
            peaks, lows, measured = self._observer.observe(
                block, negative=-1 in signs, sampled=sampled, last=number == len(blocks)
            )
            self._measured.append((layer, measured))
            extremes.append((peaks, lows))
        for sign in signs if blocks else ():
            triggers = self.state.triggers[layer, sign]
            highest = [peaks if lows is None or sign > 0 else -lows for peaks, lows in extremes]
            if self.everywhere:
                found = [triggers.survivors_everywhere(*one, sign=sign, first=self._first) for one in blocks]
            elif may_look(blocks[0][0].device):
                found = [
                    triggers.survivors(peaks, *one, sign=sign, first=self._first)
                    for peaks, one in zip(highest, blocks, strict=True)
                ]
            else:
                place = torch.cat([(block if sign > 0 else -block).argmax(1) for block, _ in blocks])
                ids = torch.cat([sentences for _, sentences in blocks])
                found = [triggers.best_of_batch(torch.cat(highest), place, ids, first=self._first)]
            self._found += [(layer, sign, one) for one in found]

    def count(self) -> None:
        """Adds what was measured to the state; raises NotFinite, naming layer and sentence, and adds nothing.

        Where the host may not look, it is added unseen, and `check` looks at it.
        """
        if self._measured:
            finite = torch.stack([m.finite() for _, m in self._measured]).all()
            self._unchecked.append((self._pieces, finite))
            if may_look(self.model.device):
                self.check()
        for layer in self.layers:
            if measured := [m for own, m in self._measured if own == layer]:
                self.state.activity[layer].add(measured)
        for layer, sign, found in self._found:
            self.state.triggers[layer, sign].add(found)
        if len(self._unchecked) >= _LOOKED_AT:
            self.check()

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
