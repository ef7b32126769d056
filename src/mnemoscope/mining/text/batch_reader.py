"""One batch through the model: every layer's triggers and activity, measured as its coefficients pass by.

The head is never run, and the blocks only up to the last mined layer's coefficients. In a batch, sentences of one
length lie together, so padding is cut away before anything is measured. A batch's measurements are taken while the
model runs and counted when it has run to the end: a batch that fails (memory, a NaN, Ctrl-C) has not been half counted.
Knows neither texts nor tables.
"""

from collections.abc import Collection, Sequence
from functools import cache, partial
from itertools import chain, groupby
from threading import Lock
from typing import NoReturn

import torch
from torch import Tensor

from mnemoscope.errors import NotFinite
from mnemoscope.kernels.choose import BatchRows, Best, CardKernels, card_kernels
from mnemoscope.kernels.devices import may_look
from mnemoscope.kernels.reference import Observer, Swept
from mnemoscope.mining.text.activity import BatchMeasures
from mnemoscope.mining.text.batches import Batch, run_in_halves
from mnemoscope.mining.text.blocks import CoefficientBlock, Places
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.mining.text.thread_team import ThreadTeam
from mnemoscope.mining.text.triggers import Survivors, Triggers
from mnemoscope.models import Group, LanguageModel
from mnemoscope.models.forward.hooks import read_coefficients, read_groups
from mnemoscope.models.memories.groups import weights_of

_LOOKED_AT = 16
"""Batches that are counted unseen, at most, where looking costs time."""


class ExpertMeasures:
    """What all shares of a piece measured of one expert: put together when the last has come, so that little waits.

    A dense layer is one expert. `together`: sentences of all lengths, since an expert has few of each.
    """

    def __init__(self, shares: int, *, together: bool) -> None:
        self._together = together
        self.measured: list[BatchMeasures] = []
        self.histogram: Tensor | None = None
        self._swept: dict[int, list[Swept]] = {}
        self._shares, self._lock = shares, Lock()

    def take_measured(self, measured: BatchMeasures, histogram: Tensor | None) -> None:
        """Takes in what a card measured, which takes pieces whole."""
        self.measured, self.histogram = [measured], histogram

    def take(self, share: int, swept: list[Swept], histogram: Tensor | None) -> None:
        """Takes in the blocks of one share, in order of length."""
        with self._lock:
            self._swept[share] = swept
            if histogram is not None:
                self.histogram = histogram if self.histogram is None else self.histogram + histogram
            if len(self._swept) < self._shares:
                return
        # In order of length also across shares, so that the sums do not depend on how many there are.
        shares = chain.from_iterable(self._swept.pop(number) for number in range(self._shares))
        blocks = sorted(shares, key=lambda one: one.length)
        if self._together:
            self.measured = [BatchMeasures.of(blocks)] if blocks else []
        else:
            self.measured = [BatchMeasures.of(list(own)) for _, own in groupby(blocks, key=lambda one: one.length)]


class PieceMeasures:
    """What is measured of a piece that so many threads share: of each expert by (layer, number), and the routers'
    `weights` by layer and share.
    """

    def __init__(self, shape: StateShape, shares: int) -> None:
        self.experts = {
            (layer, expert): ExpertMeasures(shares, together=layer in shape.experts)
            for layer in shape.memories
            for expert in range(shape.width(layer))
        }
        self.weights: dict[int, dict[int, Tensor]] = {layer: {} for layer in shape.experts}

    def add_weights(self, layer: int, share: int, table: Tensor) -> None:
        """Notes the weights of some experts of a layer."""
        known = self.weights[layer].get(share)
        self.weights[layer][share] = table if known is None else known + table


class BatchReader:
    """Measures one batch as its coefficients pass by, and counts it when told to.

    A sentence gives a memory one trigger at most; `everywhere`, every position may be one, but none of the tokens
    `never`, which only activity counts. On a CPU several threads take a batch's rows, as many each.
    """

    def __init__(
        self, model: LanguageModel, state: MiningState, *, everywhere: bool = False, never: Collection[int] = ()
    ) -> None:
        self.model, self.state, self.everywhere = model, state, everywhere
        self._never = torch.tensor(sorted(never), dtype=torch.long)
        self.layers = list(state.shape.memories)
        self._team = ThreadTeam.of(model)
        self._observers = [Observer() for _ in range(self._team.size)]
        self._pieces: list[Batch] = []
        self._found: list[tuple[int, int, Survivors | Best]] = []
        self._measured: list[PieceMeasures] = []
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
        measures = PieceMeasures(self.state.shape, len(shares))
        try:
            self._team.run([partial(self._read_share, measures, number, share) for number, share in enumerate(shares)])
        except (RuntimeError, MemoryError):  # a piece that does not fit is measured again, in halves
            del self._found[found:]
            for observer in self._observers:
                observer.forget()
            raise
        self._pieces.append(piece)
        self._measured.append(measures)

    def _read_share(self, measures: PieceMeasures, number: int, share: Batch) -> None:
        """Runs the model over some rows of a piece, in the thread that has this number."""
        places = Places(share, self.model.reading, self._never)
        own = places.own() if self.state.shape.experts else None
        rows_on = cache(places.rows)

        def measure(layer: int, group: Group) -> None:
            observer = self._observers[number]
            if own is None or layer not in self.state.shape.experts:
                block = self.model.split_batch(group.coefficients)
                if (kernels := self._kernels_of(layer, group.coefficients.dtype)) is not None:
                    self._sweep_on_card(kernels, measures, block, rows_on(block.device), layer, sampled=share.sampled)
                    return
                swept = self._sweep(observer, places.whole(block), layer, sampled=share.sampled)
                measures.experts[layer, 0].take(number, *swept)
                return
            found = self._sweep_experts(observer, places.of_experts(group, own), layer, sampled=share.sampled)
            for expert in range(group.count):
                measures.experts[layer, group.expert + expert].take(number, *found.get(expert, ([], None)))
            table = weights_of(group, self.state.shape.width(layer))
            measures.add_weights(layer, number, table[own.to(table.device)])

        with read_groups(self.model, measure, layers=self.layers, own_thread=True):
            self.model.backbone(share.ids, stop_after=self.layers[-1])

    def _kernels_of(self, layer: int, dtype: torch.dtype) -> CardKernels | None:
        """What measures a dense layer on a graphics card, where it can."""
        if self.everywhere or len(self._never) or not CardKernels.fit(self.state.shape.keep, dtype):
            return None
        return card_kernels(self.state.triggers[layer, 1].device)

    def _sweep_on_card(
        self,
        kernels: CardKernels,
        measures: PieceMeasures,
        block: Tensor,
        rows: BatchRows,
        layer: int,
        *,
        sampled: bool,
    ) -> None:
        """Measures a dense layer's coefficients `[batch, position, memory]` where the host may not look."""
        if not rows.positions:
            return
        negative = -1 in self.state.shape.signs
        swept = kernels.sweep(block[:, 1:], rows, negative=negative, sampled=sampled)
        measures.experts[layer, 0].take_measured(BatchMeasures.of_card(swept, rows, negative=negative), swept.histogram)
        for sign in self.state.shape.signs:
            triggers = self.state.triggers[layer, sign]
            best = kernels.best(
                swept.peaks[sign], rows, triggers.threshold, sign=sign, keep=triggers.keep,
                first=self.model.reading.first,
            )
            self._found.append((layer, sign, best))

    def _sweep(
        self, observer: Observer, blocks: list[CoefficientBlock], layer: int, *, sampled: bool
    ) -> tuple[list[Swept], Tensor | None]:
        """What is read off the blocks of a dense layer; notes survivors."""
        if not blocks:
            return [], None
        negative, block = -1 in self.state.shape.signs, blocks[0].coefficients
        swept = [observer.sweep(one.coefficients, negative=negative, sampled=sampled) for one in blocks]
        self._note_survivors(blocks, swept, layer)
        if not sampled:
            return swept, None
        return swept, observer.histogram(block.shape[-1], negative=negative, device=block.device)

    def _sweep_experts(
        self, observer: Observer, blocks: list[CoefficientBlock], layer: int, *, sampled: bool
    ) -> dict[int, tuple[list[Swept], Tensor | None]]:
        """What is read off the blocks of experts, by expert; notes survivors."""
        negative = -1 in self.state.shape.signs
        swept = [observer.sweep(one.coefficients, negative=negative, sampled=sampled, apart=True) for one in blocks]
        self._note_survivors(blocks, swept, layer)
        rows: dict[int, list[tuple[Swept, Tensor]]] = {}
        for block, one in zip(blocks, swept, strict=True):
            for expert, a, b in block.runs():
                rows.setdefault(expert, []).append((one.rows(a, b), block.coefficients[a:b]))
        found: dict[int, tuple[list[Swept], Tensor | None]] = {}
        for expert, own in rows.items():
            histogram = None
            if sampled:
                for _, block_rows in own:
                    observer.count_bins(block_rows, negative=negative)
                some = own[0][1]
                histogram = observer.histogram(some.shape[-1], negative=negative, device=some.device)
            found[expert] = [one for one, _ in own], histogram
        return found

    def _note_survivors(self, blocks: list[CoefficientBlock], swept: list[Swept], layer: int) -> None:
        swept = [own.with_peaks_of(one.candidates) for own, one in zip(swept, blocks, strict=True)]
        for sign in self.state.shape.signs:
            triggers = self.state.triggers[layer, sign]
            highest = [one.peaks if one.lows is None or sign > 0 else -one.lows for one in swept]
            taken = [(one.coefficients if one.candidates is None else one.candidates, one.sentences) for one in blocks]
            if self.everywhere:
                found = [
                    triggers.survivors_everywhere(*own, sign=sign, first=self.model.reading.first, routed=one.routed)
                    for one, own in zip(blocks, taken, strict=True)
                ]
            elif may_look(self.model.device) or layer in self.state.shape.experts:
                found = [
                    triggers.survivors(peaks, *own, sign=sign, first=self.model.reading.first, routed=one.routed)
                    for peaks, one, own in zip(highest, blocks, taken, strict=True)
                ]
            else:
                place = torch.cat([(one if sign > 0 else -one).argmax(1) for one, _ in taken])
                ids = torch.cat([sentences for _, sentences in taken])
                found = [triggers.best_of_batch(torch.cat(highest), place, ids, first=self.model.reading.first)]
            self._found += [(layer, sign, one) for one in found]

    def count(self) -> None:
        """Adds what was measured to the state; raises NotFinite, naming layer and sentence, and adds nothing.

        Where the host may not look, it is added unseen, and `check` looks at it.
        """
        finite = [one.finite() for piece in self._measured for own in piece.experts.values() for one in own.measured]
        if finite:
            everywhere = [one.to(self.model.device) for one in finite]
            self._unchecked.append((self._pieces, torch.stack(everywhere).all()))
            if may_look(self.model.device):
                self.check()
        for layer in self.layers:  # by one thread: what is small costs several more, which wait for Python in turn
            self._count_layer(layer)
        for layer, sign, found in self._found:
            self.state.triggers[layer, sign].enqueue(found)
        if due := [triggers for triggers in self.state.triggers.values() if triggers.is_due]:
            size = self._team.size
            self._team.run([partial(_settle, due[first::size]) for first in range(min(size, len(due)))])
        if len(self._unchecked) >= _LOOKED_AT:
            self.check()

    def _count_layer(self, layer: int) -> None:
        for expert in range(self.state.shape.width(layer)):
            own = [piece.experts[layer, expert] for piece in self._measured]
            measured = [one for measures in own for one in measures.measured]
            if measured:
                histograms = [measures.histogram for measures in own if measures.histogram is not None]
                self.state.activity[layer].add(measured, histograms, expert=expert)
        numbering = self.state.shape.experts.get(layer)
        if numbering is not None and numbering.routed is not None:
            tables = [table for piece in self._measured for _, table in sorted(piece.weights[layer].items())]
            self.state.routing[layer].add(torch.cat(tables), numbering.routed)

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
                    own = coefficients[row, 1 : length + 1 - self.model.reading.first]
                    if not places and not bool(torch.isfinite(own).all()):
                        places.append((layer, int(piece.sentences[row])))

            with read_coefficients(self.model, look, layers=self.layers):
                self.model.backbone(piece.ids, stop_after=self.layers[-1])
        layer, sentence = places[0] if places else (self.layers[0], int(pieces[0].sentences[0]))
        raise NotFinite(
            f"layer {layer} has NaN or infinite coefficients on sentence {sentence}; "
            "try --dtype float32, or check the model's weights"
        )


def _settle(due: Sequence[Triggers]) -> None:
    for triggers in due:
        triggers.settle()
