"""The loss on held-out text without some memories of a layer, and without the layers above. Makes `width`.

A memory is taken out by setting it to its mean over the mined text (mean ablation): a narrower layer would carry that
in its bias. The least useful ones go, and for comparison as many random ones (definitions.md section 9, width). The
text is the whole sentences of the validation prefixes; a token is predicted where a validation prefix could end, or, by
a model that reads sentences whole, where the sentence is masked. The frame, or without one the first token, is left as
it is: its coefficients are not in the means, and attention relies on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from mnemoscope.atlas.features import mean_magnitude
from mnemoscope.errors import NotFinite
from mnemoscope.foundation.budget import BUDGET, rows_within
from mnemoscope.foundation.memory_names import ABLATED_PARTS, EXIT_THRESHOLDS
from mnemoscope.foundation.reading import Reading
from mnemoscope.mining.passes.prefix_pass import plan_rows, run_blocks
from mnemoscope.mining.passes.text_tables import columns_of
from mnemoscope.mining.steps import Answers, empty_answers
from mnemoscope.mining.text.batches import Ints
from mnemoscope.mining.text.trigger_table import NamedSentences, sentences_of
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.batches import pad, texts_in
from mnemoscope.models.forward.hooks import Block, overwrite_coefficients, read_final
from mnemoscope.models.forward.partial_forward import PartialForward
from mnemoscope.runs.workers.worker import Worker
from mnemoscope.tracing import top

DRAWS = 4
"""Random orders in which memories are taken out."""

SAME = 0.9
"""Cosine above which two values, or two keys, count as the same."""

MOST_TOKENS = 16_384
"""Held-out tokens whose loss is measured, about."""


@dataclass(frozen=True)
class HeldOut:
    """The sentences read, their documents and prefixes' ends, `[sentence]`; `predicted` counts tokens with a loss."""

    sentence: Ints
    document: Ints
    position: Ints
    lengths: Ints
    predicted: Ints

    @classmethod
    def choose(cls, prefixes: pl.DataFrame, sentences: NamedSentences, *, seed: int, reading: Reading) -> "HeldOut":
        """At most `MOST_TOKENS` by the seed, at least one sentence."""
        of = prefixes.unique("sentence", maintain_order=True)
        places = [of[name].cast(pl.Int64).to_numpy() for name in ("sentence", "document", "position")]
        lengths = np.array([len(sentences.of(sentence)) for sentence in places[0].tolist()], np.int64)
        predicted = np.maximum(lengths - 1 - reading.first, 0) if reading.causal else np.ones_like(lengths)
        order = np.random.default_rng((seed, 14)).permutation(len(lengths))
        before = np.cumsum(predicted[order]) - predicted[order]
        drawn = np.sort(order[before < MOST_TOKENS])
        return cls(*(each[drawn] for each in (*places, lengths, predicted)))


@dataclass(frozen=True)
class LossForward:
    """Sentences of one forward: their `rows` in the text, the places predicted, and the tokens there."""

    rows: Ints
    ids: Tensor
    places: tuple[Tensor, ...]
    following: Tensor

    @classmethod
    def of(cls, model: LanguageModel, text: HeldOut, rows: Ints, sentences: NamedSentences) -> "LossForward":
        named, reading = text.sentence[rows].tolist(), model.reading
        own = [sentences.of(sentence) for sentence in named]
        if reading.causal:
            ids = pad(own, model, sentences.sources(named))
            read = texts_in(ids, reading).cpu()
            row, column = np.nonzero(reading.inside(text.lengths[rows] - 1, read.shape[1], first=reading.first))
            following = read[row, reading.target(column)]
        else:
            places = list(zip(own, text.position[rows].tolist(), strict=True))
            ids = pad([reading.context(tokens, position) for tokens, position in places], model)
            row, column = np.arange(len(rows)), reading.column(text.position[rows])
            following = torch.tensor([int(tokens[reading.target(position)]) for tokens, position in places])
        return cls(rows, ids, (torch.from_numpy(row), torch.from_numpy(column)), following)

    def at_places(self, stream: Tensor) -> Tensor:
        """A stream `[batch, position, hidden]` at the predictions: `[prediction, hidden]`."""
        return stream[tuple(place.to(stream.device) for place in self.places)]

    def total(self, numbers: NDArray[Any]) -> NDArray[np.float64]:
        """Sums `[row]` of numbers `[prediction]`."""
        weights = np.asarray(numbers, np.float64)
        sums = np.bincount(self.places[0].numpy(), weights=weights, minlength=len(self.rows))
        return np.asarray(sums, np.float64)

    def count(self, marks: NDArray[np.bool_]) -> Ints:
        return self.total(marks).astype(np.int64)


@dataclass(frozen=True)
class WidthForwards:
    """Forwards without `memories` of a layer: the least useful (`draw` -1) or those of a random draw."""

    layer: int
    draw: int
    memories: int


def ablation_counts(memories: int) -> list[int]:
    """How many of a layer's memories are taken out: `ABLATED_PARTS`, rounded down, each once."""
    return sorted({int(part * memories) for part in ABLATED_PARTS} - {0})


class WidthPass:
    """The forwards that measure widths; the folder must be a finished atlas. Items of its steps are sentences by
    ascending length: once whole, for the loss and early exits, then once per mined layer, with all of its runs.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker, model, plan = worker, worker.model, worker.plan
        self._model, self._layers, self._sentences = model, plan.layers, sentences_of(worker)
        prefixes = pl.read_parquet(worker.path("prefixes"), glob=False)
        self._rows = rows_within(BUDGET.scores, model.sizes.vocabulary)
        self.text = HeldOut.choose(prefixes, self._sentences, seed=plan.seed, reading=model.reading)
        self._mean: dict[int, Tensor] = {}
        self._orders: dict[int, dict[int, Ints]] = {}
        self.runs: list[WidthForwards] = []
        for layer in plan.layers:
            self._order_memories(layer)
            memories = model.sizes.memories[layer]
            for count in ablation_counts(memories):
                draws = self._orders[layer] if count < memories else [-1]  # all are all, in any order
                self.runs += [WidthForwards(layer, draw, count) for draw in draws]
        count, shape = len(self.text.sentence), (len(self.text.sentence), len(plan.layers), len(EXIT_THRESHOLDS))
        self.answers: Answers = {
            "whole": empty_answers(count, np.float64),
            "loss": empty_answers((count, len(self.runs)), np.float64),
            "stopped": empty_answers(shape, np.int32),
            "wrong": empty_answers(shape, np.int32),
        }
        sources = self._sentences.source_lengths_of(self.text.sentence)
        self._by_length = np.lexsort((sources, self.text.lengths))
        stages = np.repeat(np.arange(1 + len(plan.layers)), count)
        lengths = np.tile(model.reading.columns(self.text.lengths[self._by_length]), 1 + len(plan.layers))
        of_layers = [sum(one.layer == layer for one in self.runs) for layer in plan.layers]
        self.partial = PartialForward(model)
        self.steps = plan_rows(
            worker,
            self.take,
            lengths,
            self.answers,
            stage="width",
            unit="sentences; layer by layer",
            parts=stages * (1 + sources.max(initial=0)) + np.tile(sources[self._by_length], 1 + len(plan.layers)),
            forwards=np.array([1, *of_layers])[stages],
            area=min(plan.batch_tokens, BUDGET.width_tokens),
            around=self.partial.install,
        )

    def _order_memories(self, layer: int) -> None:
        """Reads the means of a layer's memories, and sets the orders in which they go, by draw."""
        activity = pl.read_parquet(self._worker.path("activity", layer), glob=False)
        values = pl.read_parquet(self._worker.path("values", layer), columns=["value_norm"], glob=False)
        useful = usefulness(activity, values["value_norm"].cast(pl.Float64).to_numpy(), layer=layer)
        device = self._model.devices[layer]
        self._mean[layer] = activity["mean"].to_torch().to(device=device, dtype=self._model.dtype)
        self._orders[layer] = {-1: np.argsort(useful, kind="stable")}
        for draw in range(DRAWS):
            generator = np.random.default_rng((self._worker.plan.seed, 14, layer, draw))
            self._orders[layer][draw] = generator.permutation(len(useful))

    def take(self, items: slice) -> None:
        stage, first = divmod(items.start, len(self.text.sentence))
        rows = self._by_length[first : first + items.stop - items.start]
        asked = LossForward.of(self._model, self.text, rows, self._sentences)
        with torch.inference_mode():
            if stage == 0:
                self._take_whole(asked)
            else:
                self._take_layer(self._layers[stage - 1], asked)

    def _take_whole(self, asked: LossForward) -> None:
        residuals: dict[int, Tensor] = {}

        def keep(layer: int, block: Block) -> None:
            residuals[layer] = asked.at_places(block.residual)

        stream = asked.at_places(run_blocks(self._model, asked.ids, keep, self._layers))
        self.answers["whole"][asked.rows] = self._losses(stream, asked, "the whole model")
        last, _ = self._tops(stream)
        for place, layer in enumerate(self._layers):
            token, probability = self._tops(residuals.pop(layer))
            for number, threshold in enumerate(EXIT_THRESHOLDS):
                stops = probability > threshold
                self.answers["stopped"][asked.rows, place, number] = asked.count(stops)
                self.answers["wrong"][asked.rows, place, number] = asked.count(stops & (token != last))

    def _take_layer(self, layer: int, asked: LossForward) -> None:
        mean = self._mean[layer]
        gone = torch.zeros(len(mean), dtype=torch.bool, device=mean.device)
        final: list[Tensor] = []
        reading, width = self._model.reading, asked.ids.shape[1]
        frame = [*range(reading.offset + reading.first), *range(width - len(reading.after), width)]

        def ablate(coefficients: Tensor) -> Tensor:
            changed = torch.where(gone, mean.to(coefficients.dtype), coefficients)
            changed[:, frame] = coefficients[:, frame]
            return changed

        stream = self.partial.stream_into(layer, asked.ids) if self.partial.possible else None
        with (
            overwrite_coefficients(self._model, {layer: ablate}, own_thread=True),
            read_final(self._model, final.append, own_thread=True),
        ):
            for number, run in enumerate(self.runs):
                if run.layer == layer:
                    gone.zero_()
                    gone[torch.from_numpy(self._orders[layer][run.draw][: run.memories]).to(gone.device)] = True
                    self.partial.run(asked.ids, layer=layer, stream=stream)
                    losses = self._losses(asked.at_places(final.pop()), asked, f"layer {layer} narrowed")
                    self.answers["loss"][asked.rows, number] = losses

    def _losses(self, stream: Tensor, asked: LossForward, of: str) -> NDArray[np.float64]:
        """Sums `[row]` of -log p of the following tokens, in nats."""
        parts, following = [], asked.following.to(stream.device)
        for rows, tokens in zip(torch.split(stream, self._rows), torch.split(following, self._rows), strict=True):
            scores = self._model.scores(rows, projection="lens")
            parts.append(scores.logsumexp(1) - scores.gather(1, tokens.to(scores.device)[:, None])[:, 0])
        loss = torch.cat(parts).double().cpu().numpy()
        if not np.isfinite(loss).all():
            row = int(asked.places[0][int(np.flatnonzero(~np.isfinite(loss))[0])])
            sentence = int(self.text.sentence[asked.rows[row]])
            raise NotFinite(f"{of} has a loss that is not finite on sentence {sentence}; try --dtype float32")
        return asked.total(loss)

    def _tops(self, stream: Tensor) -> tuple[Ints, NDArray[np.float64]]:
        """The top token of streams `[row, hidden]` under the model's own readout, and its probability."""
        tokens, probabilities = [], []
        for rows in torch.split(stream, self._rows):
            scores = self._model.scores(rows, projection="lens")
            token, best = top(scores, 1)
            tokens.append(token[:, 0].cpu())
            probabilities.append((1 / (scores - best).exp().sum(1)).double().cpu())
        return torch.cat(tokens).numpy(), torch.cat(probabilities).numpy()

    def write(self) -> None:
        duplicates = {layer: int(find_duplicates(self._model, layer).sum()) for layer in self._layers}
        self._worker.write("width", self.columns(duplicates))

    def columns(self, duplicates: Mapping[int, int]) -> dict[str, Any]:
        documents, code = np.unique(self.text.document, return_inverse=True)
        every: dict[str, Any] = {"document": documents, "tokens": _by_document(self.text.predicted, code)}
        losses, stopped, wrong = (_by_document(self.answers[name], code) for name in ("loss", "stopped", "wrong"))
        parts: list[dict[str, Any]] = [{"kind": "whole", **every, "loss": _by_document(self.answers["whole"], code)}]
        for number, run in enumerate(self.runs):
            narrowed = {"layer": run.layer, "memories": run.memories, **every, "loss": losses[:, number]}
            whole_layer = run.memories == self._model.sizes.memories[run.layer]
            for draw in range(-1, DRAWS) if whole_layer else [run.draw]:
                kinds = {"kind": "least"} if draw < 0 else {"kind": "random", "draw": draw}
                parts.append(kinds | narrowed)
        for place, layer in enumerate(self._layers):
            for number, threshold in enumerate(EXIT_THRESHOLDS):
                exits = {"stopped": stopped[:, place, number], "wrong": wrong[:, place, number]}
                parts.append({"layer": layer, "kind": "exit", "threshold": threshold, **every, **exits})
        parts += [{"layer": layer, "kind": "duplicate", "memories": count} for layer, count in duplicates.items()]
        frames = [pl.DataFrame(rows, schema_overrides=_TYPES) for rows in parts]
        rows = pl.concat(frames, how="diagonal").select(*_TYPES)
        return columns_of(rows.to_arrow()) | {"kind": rows["kind"].to_list()}


_TYPES: dict[str, Any] = {
    "layer": pl.Int16,
    "kind": pl.String,
    "memories": pl.Int32,
    "draw": pl.Int8,
    "threshold": pl.Float32,
    "document": pl.Int64,
    "tokens": pl.Int64,
    "loss": pl.Float64,
    "stopped": pl.Int64,
    "wrong": pl.Int64,
}


def _by_document(numbers: NDArray[Any], code: Ints) -> NDArray[Any]:
    """Sums `[document, ...]` of numbers `[sentence, ...]`, in order of sentence."""
    sums = np.zeros((int(code.max(initial=-1)) + 1, *numbers.shape[1:]), np.result_type(numbers, np.int64))
    np.add.at(sums, code, numbers)
    return sums


def usefulness(activity: pl.DataFrame, value_norm: NDArray[np.float64], *, layer: int) -> NDArray[np.float64]:
    """The mean of |m| over the mined text times the norm of the value, `[memory]`."""
    useful = mean_magnitude(activity) * value_norm
    if not np.isfinite(useful).all():
        raise NotFinite(f"layer {layer} has coefficients or values that are not finite; check the model's weights")
    return useful


def find_duplicates(model: LanguageModel, layer: int) -> NDArray[np.bool_]:
    """The memories `[memory]` with a twin: cosines of value and key (gated: both keys) above `SAME`."""
    tiny, twins = torch.finfo(torch.float32).tiny, []
    with torch.inference_mode():
        every = [model.values(layer), model.keys(layer), model.up_keys(layer)]
        units = [normalize(rows.float(), dim=1, eps=tiny) for rows in every if rows is not None]
        for part in torch.split(torch.arange(len(units[0])), rows_within(BUDGET.cosines, len(units[0]))):
            alike = torch.ones(len(part), len(units[0]), dtype=torch.bool)
            for unit in units:
                alike &= (unit[part.to(unit.device)] @ unit.T > SAME).cpu()
            alike[torch.arange(len(part)), part] = False
            twins.append(alike.any(1).numpy())
    return np.concatenate(twins)
