"""One pass of the model over the text: every layer's triggers and activity at once, checkpointed.

The head is never run, and the blocks only up to the last mined layer's coefficients. In a batch, sentences of one
length lie together, so padding is cut away before anything is measured. A batch's measurements are taken while the
model runs and counted when it has run to the end: a batch that fails (memory, a NaN, Ctrl-C) has not been half counted.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.errors import Interrupted, MiningError, NotFinite
from mnemoscope.interruption import CtrlC
from mnemoscope.mining.activity import Measured, Observer
from mnemoscope.mining.context import CHECKPOINT, RunContext
from mnemoscope.mining.heap import HeapTrimmer
from mnemoscope.mining.plan import MiningPlan
from mnemoscope.mining.state import MiningState
from mnemoscope.mining.triggers import Survivors
from mnemoscope.models import LanguageModel
from mnemoscope.models.taps import read_coefficients


@dataclass(frozen=True)
class Batch:
    """Padded token ids `[batch, position]` with the beginning token, if any; rows ascend in length."""

    number: int
    ids: Tensor
    lengths: NDArray[np.int64]
    sentences: Tensor
    sampled: bool

    def halves(self) -> list["Batch"]:
        """The same sentences in two batches."""
        middle = len(self.lengths) // 2
        return [
            Batch(self.number, self.ids[part], self.lengths[part], self.sentences[part], self.sampled)
            for part in (slice(0, middle), slice(middle, None))
        ]

    @property
    def tokens(self) -> int:
        """The sentences' own tokens."""
        return int(self.lengths.sum())


class BatchReader:
    """Measures one batch as its coefficients pass by, and counts it when told to."""

    def __init__(self, model: LanguageModel, state: MiningState, *, per_sentence: int | None) -> None:
        self.model, self.state, self.per_sentence = model, state, per_sentence
        self.layers = list(state.shape.memories)
        # Column 0 is the beginning token or, in a model without one, an attention sink: never a candidate.
        self._first = 1 - model.beginning.length
        self._observer = Observer()
        self._found: list[tuple[int, int, Survivors]] = []
        self._measured: dict[int, list[Measured]] = {}
        self._batch: Batch | None = None
        self._runs: list[tuple[int, int, int]] = []

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Hooks the reader to the model's coefficients."""
        with read_coefficients(self.model, self._read, layers=self.layers):
            yield

    def read(self, batch: Batch) -> None:
        """Runs the model over the batch and measures it; forgets what was measured and not counted."""
        self._found, self._measured = [], {layer: [] for layer in self.layers}
        self._read_more(batch)

    def _read_more(self, batch: Batch) -> None:
        self._batch = batch
        edges = [0, *(np.flatnonzero(np.diff(batch.lengths)) + 1).tolist(), len(batch.lengths)]
        self._runs = [(a, b, int(batch.lengths[a])) for a, b in pairwise(edges)]
        self.model.backbone(batch.ids, stop_after=self.layers[-1])

    def read_in_halves(self, batch: Batch) -> None:
        """Like `read`, in ever smaller pieces, for when memory ran out."""
        self._found, self._measured = [], {layer: [] for layer in self.layers}
        waiting = batch.halves() if len(batch.lengths) > 1 else [batch]
        while waiting:
            piece = waiting.pop(0)
            before = len(self._found), {layer: len(m) for layer, m in self._measured.items()}
            try:
                self._read_more(piece)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                if len(piece.lengths) == 1:
                    raise MiningError(
                        f"memory ran out on sentence {int(piece.sentences[0])}, alone, of {piece.tokens} tokens; "
                        "free memory or choose a smaller model"
                    ) from error
                del self._found[before[0] :]
                for layer, count in before[1].items():
                    del self._measured[layer][count:]
                waiting[:0] = piece.halves()

    def count(self) -> None:
        """Adds what was measured to the state; raises NotFinite, naming layer and sentence, and adds nothing."""
        checks = [
            torch.stack([m.finite() for m in self._measured[layer]]).all()
            for layer in self.layers
            if self._measured[layer]
        ]
        if checks and not bool(torch.stack(checks).all()):
            self._name_what_is_not_finite()
        for layer, measured in self._measured.items():
            if measured:
                self.state.activity[layer].add(measured)
        for layer, sign, found in self._found:
            self.state.triggers[layer, sign].add(found)

    def _read(self, layer: int, coefficients: Tensor) -> None:
        assert self._batch is not None
        for first, last, length in self._runs:
            block = coefficients[first:last, 1 : length + 1 - self._first]
            if block.shape[1] == 0:
                continue
            sentences = self._batch.sentences[first:last]
            peaks, lows, measured = self._observer.observe(
                block, negative=-1 in self.state.shape.signs, sampled=self._batch.sampled
            )
            self._measured[layer].append(measured)
            self._search(layer, block, {1: peaks, -1: None if lows is None else -lows}, sentences)

    def _search(self, layer: int, block: Tensor, extremes: dict[int, Tensor | None], sentences: Tensor) -> None:
        for sign in self.state.shape.signs:
            triggers = self.state.triggers[layer, sign]
            peaks = extremes[sign]
            assert peaks is not None
            if self.per_sentence is None:
                found = triggers.survivors_everywhere(block, sentences, sign=sign, first=self._first)
            else:
                found = triggers.survivors(peaks, block, sentences, sign=sign, first=self._first)
            self._found.append((layer, sign, found))

    def _name_what_is_not_finite(self) -> None:
        """Runs the batch again, looking for the first layer and sentence with a NaN or infinity."""
        batch = self._batch
        assert batch is not None
        places: list[tuple[int, int]] = []

        def look(layer: int, coefficients: Tensor) -> None:
            for row, length in enumerate(batch.lengths.tolist()):
                own = coefficients[row, 1 : length + 1 - self._first]
                if not places and not bool(torch.isfinite(own).all()):
                    places.append((layer, int(batch.sentences[row])))

        with read_coefficients(self.model, look, layers=self.layers):
            self.model.backbone(batch.ids, stop_after=self.layers[-1])
        layer, sentence = places[0] if places else (self.layers[0], int(batch.sentences[0]))
        raise NotFinite(
            f"layer {layer} has NaN or infinite coefficients on sentence {sentence}; "
            "try --dtype float32, or check the model's weights"
        )


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that an allocation failed (CUDA and CPU word it differently)."""
    text = str(error)
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or "can't allocate memory" in text
        or "out of memory" in text
    )


def run_pass(
    context: RunContext,
    model: LanguageModel,
    state: MiningState,
    batches: Callable[[int], Batch],
    numbers: Iterable[int],
    *,
    plan: MiningPlan,
    tokens_before: int,
    total_tokens: int,
) -> None:
    """Reads the batches `numbers`, saving the state now and then, and at the end.

    `tokens_before` were counted by an earlier run. Raises NotFinite (nothing of that batch counted), Interrupted (state
    saved), StoreFailed.
    """
    reader = BatchReader(model, state, per_sentence=None if plan.per_sentence == "all" else 1)
    checkpoint, plan_hash = context.work / CHECKPOINT, plan.hash()
    heap = HeapTrimmer()
    saved = time.monotonic()
    done = tokens_before
    with CtrlC() as ctrl_c, reader.attached():
        for k in numbers:
            batch = batches(k)
            fits = True
            try:
                reader.read(batch)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                fits = False
            if not fits:  # outside the handler: the error's traceback holds on to what filled the memory
                state.halved.append(k)
                reader.read_in_halves(batch)
            reader.count()
            state.next_batch = k + 1
            done += batch.tokens
            heap.check()
            context.progress("mining", done, total_tokens, "tokens")
            if ctrl_c.pressed or time.monotonic() - saved >= context.checkpoint_every:
                state.save(checkpoint, plan=plan_hash)
                saved = time.monotonic()
            if ctrl_c.pressed:
                raise Interrupted("stopped after saving; run the same command again to go on from here")
    state.save(checkpoint, plan=plan_hash)
    heap.trim()
