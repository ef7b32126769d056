"""One batch through the model: every layer's coefficients are measured while the model runs, then counted.

The head is never run, and blocks only up to the last mined layer's coefficients. Collectors are updated when the model
has run to the end, so a batch that fails (memory, a NaN, Ctrl-C) is never half counted. Knows neither texts nor tables.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from functools import cache, partial
from threading import Lock

import torch
from torch import Tensor

from mnemoscope.errors import NotFinite
from mnemoscope.kernels.choose import CardKernels, card_kernels
from mnemoscope.kernels.devices import may_look
from mnemoscope.kernels.reference import count_bins, sweep
from mnemoscope.mining.text.batches import Batch, run_in_halves
from mnemoscope.mining.text.blocks import Places
from mnemoscope.mining.text.measures import Measures
from mnemoscope.mining.text.state import MiningState
from mnemoscope.mining.text.thread_team import ThreadTeam
from mnemoscope.models import Group, LanguageModel
from mnemoscope.models.forward.hooks import read_coefficients, read_groups
from mnemoscope.models.memories.groups import weights_of

_LOOKED_AT = 16
"""Most batches that are counted before they are checked, where looking costs time."""


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
        self._unchecked: list[tuple[Batch, Tensor]] = []
        """Batches that were measured without a look, and whether their numbers are finite."""

    def read(self, batch: Batch) -> bool:
        """Measures the batch, in halves where memory runs out, and counts it; returns whether it fitted whole. Raises
        NotFinite (nothing counted), or on a card leaves that to `check`.
        """
        measured: list[tuple[int, Measures]] = []
        whole = run_in_halves(lambda piece: measured.extend(self._measure_piece(piece).items()), batch, Batch.halves)
        finite = [sums.total.isfinite().all() for _, measures in measured for _, sums in measures.sums]
        if finite := finite + [flag for _, measures in measured for flag in measures.finite]:
            self._unchecked.append((batch, torch.stack([flag.to(self.model.device) for flag in finite]).all()))
        if may_look(self.model.device) or len(self._unchecked) >= _LOOKED_AT:
            self.check()
        state = self.state
        for layer, measures in measured:  # by one thread: small operations of several wait for Python
            for collectors in (state.activity, state.triggers, state.random, state.routing):
                if layer in collectors:
                    collectors[layer].update(measures)
        rankings = [*state.triggers.values(), *state.random.values()]
        self._team.run([one.settle for one in rankings if one.is_due])
        return whole

    def _measure_piece(self, piece: Batch) -> dict[int, Measures]:
        """The measures of every layer, joined as soon as all threads have brought theirs, to save memory."""
        shares, shape, lock = piece.split(self._team.size), self.state.shape, Lock()
        brought: dict[int, dict[int, Measures]] = {layer: {} for layer in self.layers}
        joined: dict[int, Measures] = {}

        def take(number: int, layer: int, measures: Measures) -> None:
            with lock:
                brought[layer][number] = measures
                if len(brought[layer]) < len(shares):
                    return
            ordered = [brought[layer].pop(number) for number in range(len(shares))]
            joined[layer] = Measures.join(ordered, together=layer in shape.experts, negative=-1 in shape.signs)

        self._team.run([partial(self._measure_share, share, partial(take, n)) for n, share in enumerate(shares)])
        return joined

    def _measure_share(self, share: Batch, take: Callable[[int, Measures], None]) -> None:
        places = cache(partial(Places, share, self.model.reading, self._never))
        waiting: dict[int, list[Group]] = defaultdict(list)

        def note(layer: int, group: Group) -> None:
            groups = waiting[layer]
            groups.append(group)
            if sum(each.count for each in groups) == len(self.model.numbering(layer).widths):
                del waiting[layer]
                on = places(group.coefficients.device)
                take(layer, self._measure(layer, groups, on, sampled=share.sampled))

        with read_groups(self.model, note, layers=self.layers, own_thread=True):
            self.model.backbone(share.ids, stop_after=self.layers[-1])

    def _measure(self, layer: int, groups: list[Group], places: Places, *, sampled: bool) -> Measures:
        """What one thread reads off a layer."""
        state, measures = self.state, Measures()
        if layer in state.random:
            measures.firings = [state.random[layer].find(group, places, one_in=self._one_in) for group in groups]
        if layer not in state.triggers:
            measures.finite = [group.coefficients[places.locate(group)[0]].isfinite().all() for group in groups]
            return measures
        triggers = state.triggers[layer]
        if layer in state.shape.experts:
            blocks = [block for group in groups for block in places.cut_experts(group)]
            experts = len(state.shape.experts[layer].widths)
            weights = torch.stack([weights_of(group, experts) for group in groups]).sum(0)
            measures.weights.append(weights[places.is_counted])
        else:
            coefficients = self.model.split_batch(groups[0].coefficients)
            plain = not (self.everywhere or len(self._never)) and CardKernels.fit(triggers.keep, coefficients.dtype)
            if plain and (kernels := card_kernels(coefficients.device)) is not None:
                if places.rows.positions:
                    thresholds = {sign: threshold for sign, _, threshold in triggers.by_sign()}
                    keep, every = triggers.keep, coefficients[:, places.first :]
                    sums, best = kernels.measure(every, places.rows, thresholds, keep=keep, sampled=sampled)
                    measures.sums.append((0, sums))
                    measures.candidates.append(best)
                return measures
            blocks = places.cut_dense(coefficients)
        histograms: dict[int, Tensor] = {}
        for block in blocks:
            swept = sweep(block.coefficients, sampled=sampled)
            measures.candidates += triggers.find(block, swept, everywhere=self.everywhere)
            for first, rows in block.runs():
                measures.swept.append((first, swept.part(rows)))
                if sampled:
                    bins = count_bins(block.coefficients[rows])
                    histograms[first] = histograms[first] + bins if first in histograms else bins
        measures.histograms += histograms.items()
        return measures

    def check(self) -> None:
        """Raises NotFinite if a batch that was measured without a look has a number that is not finite; runs it again
        to find the first layer and sentence.
        """
        unchecked, self._unchecked = self._unchecked, []
        if not unchecked or bool(torch.stack([finite for _, finite in unchecked]).all()):
            return
        batch = next(batch for batch, finite in unchecked if not bool(finite))
        places: list[tuple[int, int]] = []

        def look(piece: Batch, layer: int, coefficients: Tensor) -> None:
            for row, length in enumerate(piece.lengths.tolist()):
                counted = coefficients[row, self.model.reading.counted_columns(length)]
                if not places and not bool(counted.isfinite().all()):
                    places.append((layer, int(piece.sentences[row])))

        def run(piece: Batch) -> None:
            with read_coefficients(self.model, partial(look, piece), layers=self.layers):
                self.model.backbone(piece.ids, stop_after=self.layers[-1])

        run_in_halves(run, batch, Batch.halves)
        layer, sentence = places[0] if places else (self.layers[0], int(batch.sentences[0]))
        raise NotFinite(
            f"layer {layer} has NaN or infinite coefficients on sentence {sentence}; "
            "try --dtype float32, or check the model's weights"
        )
