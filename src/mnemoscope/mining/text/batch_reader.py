"""One batch through the model: every layer's triggers and activity, measured while the model runs.

The head is never run, and blocks only up to the last mined layer's coefficients. Measurements are counted when the
model has run to the end, so a batch that fails (memory, a NaN, Ctrl-C) is never half counted. Knows neither texts nor
tables.
"""

from collections.abc import Collection
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
"""Most batches that are counted before they are checked, where looking costs time."""


class ExpertMeasures:
    """Measures of one expert (a dense layer is one), reduced when the last share has come, to save memory. `together`:
    sentences of all lengths at once, since an expert has few of each.
    """

    def __init__(self, shares: int, *, together: bool) -> None:
        self._together = together
        self.measured: list[BatchMeasures] = []
        self.histogram: Tensor | None = None
        self._swept: dict[int, list[Swept]] = {}
        self._shares, self._lock = shares, Lock()

    def take(self, share: int, swept: list[Swept], histogram: Tensor | None) -> None:
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
            self.measured = [BatchMeasures.of(list(alike)) for _, alike in groupby(blocks, key=lambda one: one.length)]


class PieceMeasures:
    """Measures of a piece by (layer, expert), and the router's `weights` by layer and share."""

    def __init__(self, piece: Batch, shape: StateShape, shares: int) -> None:
        self.piece = piece
        self.experts = {
            (layer, expert): ExpertMeasures(shares, together=layer in shape.experts)
            for layer in shape.memories
            for expert in range(shape.width(layer))
        }
        self.weights: dict[int, dict[int, Tensor]] = {layer: {} for layer in shape.experts}


class BatchReader:
    """Measures batches and counts them. A sentence gives a memory at most one trigger; with `everywhere`
    every position may be one, except the tokens `never`, which only activity counts. Random firings are drawn at one
    of `one_in` positions. On a CPU several threads take equal parts of a batch's rows.
    """

    def __init__(
        self,
        model: LanguageModel,
        state: MiningState,
        *,
        everywhere: bool = False,
        never: Collection[int] = (),
        one_in: int = 1,
    ) -> None:
        self.model, self.state, self.everywhere = model, state, everywhere
        self._never = torch.tensor(sorted(never), dtype=torch.long)
        self._one_in = one_in
        self.layers = list(state.shape.memories)
        self._team = ThreadTeam.of(model)
        self._observers = [Observer() for _ in range(self._team.size)]
        self._candidates: list[tuple[Triggers, Survivors | Best]] = []
        self._measured: list[PieceMeasures] = []
        self._finite: list[Tensor] = []
        """Whether coefficients that are drawn without other measures are finite."""
        self._unchecked: list[tuple[list[Batch], Tensor]] = []
        """Batches that were counted without a look, and whether their numbers are finite."""

    def read(self, batch: Batch) -> bool:
        """Measures the batch, in halves where memory runs out, and counts it; returns whether it fitted whole. Raises
        NotFinite (nothing counted), or on a card leaves that to `check`.
        """
        self._candidates, self._measured, self._finite = [], [], []
        whole = run_in_halves(self._read_piece, batch, Batch.halves)
        self._count()
        return whole

    def _read_piece(self, piece: Batch) -> None:
        before, shares = len(self._candidates), piece.split(self._team.size)
        measures = PieceMeasures(piece, self.state.shape, len(shares))
        try:
            self._team.run([partial(self._read_share, measures, number, share) for number, share in enumerate(shares)])
        except (RuntimeError, MemoryError):  # a piece that does not fit is measured again, in halves
            del self._candidates[before:]
            for observer in self._observers:
                observer.forget()
            raise
        self._measured.append(measures)

    def _read_share(self, measures: PieceMeasures, number: int, share: Batch) -> None:
        places = Places(share, self.model.reading, self._never)
        rows_on = cache(places.rows)
        shape = self.state.shape
        looked_at = None if shape.random is None else places.draw(seed=shape.random, one_in=self._one_in)
        drawn_on = cache(lambda device: looked_at and looked_at.to(device))

        def measure(layer: int, group: Group) -> None:
            if (drawn := drawn_on(group.coefficients.device)) is not None:
                drawn = drawn if layer not in shape.experts else drawn.in_experts(group)
                coefficients = group.coefficients.flatten(0, -2)
                if shape.alone:
                    self._finite.append(coefficients[drawn.row].isfinite().all())
                for sign in shape.signs:
                    firings = self.state.random[layer, sign]
                    self._candidates.append((firings, firings.draw(coefficients, drawn, sign=sign)))
            if shape.alone:
                return
            dense = layer not in shape.experts
            if dense:
                block = self.model.split_batch(group.coefficients)
                if (kernels := self._kernels_of(layer, block.dtype)) is not None:
                    self._sweep_on_card(kernels, measures, block, rows_on(block.device), layer, sampled=share.sampled)
                    return
                blocks = places.whole(block)
            else:
                blocks = places.of_experts(group)
            swept = self._sweep(self._observers[number], blocks, layer, sampled=share.sampled)
            for expert in range(group.count):
                measures.experts[layer, group.expert + expert].take(number, *swept.get(expert, ([], None)))
            if not dense:
                table = weights_of(group, shape.width(layer))
                weights, by_share = table[places.is_counted.to(table.device)], measures.weights[layer]
                by_share[number] = by_share[number] + weights if number in by_share else weights

        with read_groups(self.model, measure, layers=self.layers, own_thread=True):
            self.model.backbone(share.ids, stop_after=self.layers[-1])

    def _kernels_of(self, layer: int, dtype: torch.dtype) -> CardKernels | None:
        """The kernels that measure a dense layer on a card, if they can."""
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
        """Measures a dense layer's coefficients `[batch, position, memory]` without a look."""
        if not rows.positions:
            return
        negative = -1 in self.state.shape.signs
        swept = kernels.sweep(block[:, 1:], rows, negative=negative, sampled=sampled)
        measures.experts[layer, 0].measured = [BatchMeasures.of_card(swept, rows, negative=negative)]
        measures.experts[layer, 0].histogram = swept.histogram
        for sign in self.state.shape.signs:
            triggers = self.state.triggers[layer, sign]
            first, keep = self.model.reading.first, triggers.keep
            best = kernels.best(swept.peaks[sign], rows, triggers.threshold, sign=sign, keep=keep, first=first)
            self._candidates.append((triggers, best))

    def _sweep(
        self, observer: Observer, blocks: list[CoefficientBlock], layer: int, *, sampled: bool
    ) -> dict[int, tuple[list[Swept], Tensor | None]]:
        """What is read off the blocks of a layer, by expert (0 in a dense layer); notes survivors."""
        negative, routed = -1 in self.state.shape.signs, layer in self.state.shape.experts
        swept = [observer.sweep(one.coefficients, negative=negative, sampled=sampled, apart=routed) for one in blocks]
        self._note_survivors(blocks, swept, layer)
        rows: dict[int, list[tuple[Swept, Tensor]]] = {}
        for block, one in zip(blocks, swept, strict=True):
            for expert, a, b in block.runs():
                rows.setdefault(expert, []).append((one.rows(a, b) if routed else one, block.coefficients[a:b]))
        by_expert: dict[int, tuple[list[Swept], Tensor | None]] = {}
        for expert, parts in rows.items():
            histogram, some = None, parts[0][1]
            if sampled:
                for _, each in parts if routed else []:  # of a dense layer the sweep has counted them
                    observer.count_bins(each, negative=negative)
                histogram = observer.histogram(some.shape[-1], negative=negative, device=some.device)
            by_expert[expert] = [one for one, _ in parts], histogram
        return by_expert

    def _note_survivors(self, blocks: list[CoefficientBlock], swept: list[Swept], layer: int) -> None:
        swept = [each.with_peaks_of(one.candidates) for each, one in zip(swept, blocks, strict=True)]
        for sign in self.state.shape.signs:
            triggers = self.state.triggers[layer, sign]
            highest = [one.peaks if one.lows is None or sign > 0 else -one.lows for one in swept]
            taken = [(one.coefficients if one.candidates is None else one.candidates, one.sentences) for one in blocks]
            if self.everywhere:
                survivors = [
                    triggers.survivors_everywhere(*each, sign=sign, first=self.model.reading.first, routed=one.routed)
                    for one, each in zip(blocks, taken, strict=True)
                ]
            elif may_look(self.model.device) or layer in self.state.shape.experts:
                survivors = [
                    triggers.survivors(peaks, *each, sign=sign, first=self.model.reading.first, routed=one.routed)
                    for peaks, one, each in zip(highest, blocks, taken, strict=True)
                ]
            else:
                place = torch.cat([(one if sign > 0 else -one).argmax(1) for one, _ in taken])
                ids = torch.cat([sentences for _, sentences in taken])
                survivors = [triggers.best_of_batch(torch.cat(highest), place, ids, first=self.model.reading.first)]
            self._candidates += [(triggers, one) for one in survivors]

    def _count(self) -> None:
        experts = [measures for piece in self._measured for measures in piece.experts.values()]
        finite = [one.finite() for measures in experts for one in measures.measured]
        finite += self._finite
        if finite:
            pieces = [measures.piece for measures in self._measured]
            self._unchecked.append((pieces, torch.stack([one.to(self.model.device) for one in finite]).all()))
            if may_look(self.model.device):
                self.check()
        for layer in self.layers:  # by one thread: small operations of several wait for Python
            self._count_layer(layer)
        for triggers, candidates in self._candidates:
            triggers.enqueue(candidates)
        every = [*self.state.triggers.values(), *self.state.random.values()]
        self._team.run([one.settle for one in every if one.is_due])
        if len(self._unchecked) >= _LOOKED_AT:
            self.check()

    def _count_layer(self, layer: int) -> None:
        for expert in range(self.state.shape.width(layer)):
            experts = [piece.experts[layer, expert] for piece in self._measured]
            measured = [one for measures in experts for one in measures.measured]
            if measured:
                histograms = [measures.histogram for measures in experts if measures.histogram is not None]
                self.state.activity[layer].add(measured, histograms, expert=expert)
        numbering = self.state.shape.experts.get(layer)
        if layer in self.state.routing and numbering is not None and numbering.routed is not None:
            tables = [table for piece in self._measured for _, table in sorted(piece.weights[layer].items())]
            self.state.routing[layer].add(torch.cat(tables), numbering.routed)

    def check(self) -> None:
        """Checks what was counted."""
        unchecked, self._unchecked = self._unchecked, []
        if unchecked and not bool(torch.stack([finite for _, finite in unchecked]).all()):
            self._raise_not_finite(next(pieces for pieces, finite in unchecked if not bool(finite)))

    def _raise_not_finite(self, pieces: list[Batch]) -> NoReturn:
        """Runs the batch again to find the first layer and sentence with a NaN or infinity."""
        places: list[tuple[int, int]] = []
        for piece in pieces:

            def look(layer: int, coefficients: Tensor, piece: Batch = piece) -> None:
                for row, length in enumerate(piece.lengths.tolist()):
                    counted = coefficients[row, 1 : length + 1 - self.model.reading.first]
                    if not places and not bool(torch.isfinite(counted).all()):
                        places.append((layer, int(piece.sentences[row])))

            with read_coefficients(self.model, look, layers=self.layers):
                self.model.backbone(piece.ids, stop_after=self.layers[-1])
        layer, sentence = places[0] if places else (self.layers[0], int(pieces[0].sentences[0]))
        raise NotFinite(
            f"layer {layer} has NaN or infinite coefficients on sentence {sentence}; "
            "try --dtype float32, or check the model's weights"
        )
