"""Attention beside the feed-forward layers, on the validation prefixes: which parts write the final token's logit.

Makes `attention`, one row per prefix and layer, from the prefixes in `prefixes`: what embedding, attention,
feed-forward layers and biases add to the logits of the model's final token, the text's next token and those of another
prefix, and to the mean logit; how much attention adds, its own top token, and how many positions it attends to
(definitions.md section 9, attention_share). Parts without a layer are repeated in the rows of a prefix. Of an
encoder-decoder cross-attention is a part of its own, where it is told from self-attention.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemoscope.foundation.budget import BUDGET
from mnemoscope.mining.passes.prefix_pass import PrefixRows, check_finite, plan_prefixes, read_prefixes
from mnemoscope.mining.passes.stream_readings import StreamReader
from mnemoscope.mining.steps import Answers, empty_answers
from mnemoscope.mining.text.batches import Ints
from mnemoscope.mining.text.circle import next_in_circle
from mnemoscope.models.forward.attention import BlockAttention, eager_attention, find_attention, read_attention
from mnemoscope.models.readout.token_logits import LogitDirections, TokenLogits
from mnemoscope.runs.workers.worker import Worker
from mnemoscope.tracing.scoring.logit_parts import LayerStreams, LogitSplitter, StreamParts

SPLIT_LOGITS = ("", "_mean", "_other")
"""The logits split: the final token's, the mean, and another prefix's final token's."""
_OF_PREFIX = tuple(f"{part}_logit{kind}" for kind in SPLIT_LOGITS for part in ("embedding", "rest", "bias", "final"))
_OF_TEXT = ("_next", "_other_next")
"""The text's next token and another prefix's, which no model has chosen to be the greatest."""
_PARTS = ("attention", "cross_attention", "ffn")
_OF_LAYER = tuple(f"{part}_logit{kind}" for kind in (*SPLIT_LOGITS, *_OF_TEXT) for part in _PARTS)
_OF_ATTENTION = tuple(name for name in ("attention_top", "attention_norm", "attended", *_OF_LAYER) if name[0] == "a")
"""Columns that are null in a block whose attention cannot be separated."""
_TOPS = ("input_top", "attention_top", "cross_input_top", "cross_attention_top", "ffn_alone_top")


class AttentionPass:
    """Reads what every part adds to the logits at every prefix; needs `prefixes` and `sentences`."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._model, self._plan = worker, worker.model, worker.plan
        names = ("sentence", "position", "final_top", "next_token")
        self._sentence, self._position, self._final, self._next = read_prefixes(worker, *names)
        count = len(self._position)
        dealt = next_in_circle(count, worker.plan.seed, 10)
        self._other, self._other_next = self._final[dealt], self._next[dealt]
        every = find_attention(worker.model)
        self._attention = [one if layer in worker.plan.layers else BlockAttention() for layer, one in enumerate(every)]
        self._logits, self._splitter = TokenLogits(worker.model), LogitSplitter(worker.model, self._attention)
        self._reader = StreamReader(worker.model)
        self._parallel = [worker.model.layer(layer).attention is not None for layer in worker.plan.layers]
        self._cross = [self._attention[layer].cross is not None for layer in worker.plan.layers]
        shape = (count, len(worker.plan.layers))
        numbers = (*(f"{part}_norm" for part in _PARTS), "attended", *_OF_LAYER)
        self.answers: Answers = {
            **{name: empty_answers(shape, np.int32) for name in _TOPS},
            **{name: empty_answers(shape, np.float32) for name in numbers},
            **{name: empty_answers(count, np.float32) for name in _OF_PREFIX},
        }
        if not any(self._cross):
            self.answers = {name: array for name, array in self.answers.items() if not name.startswith("cross_")}
        self.steps = plan_prefixes(
            worker,
            self._sentence,
            self._position,
            self.read,
            self.answers,
            stage="attention",
            weights=BUDGET.weights,
            readouts=2 * (len(worker.plan.layers) + sum(self._cross)),
            around=lambda: eager_attention(worker.model),
        )

    def read(self, batch: PrefixRows) -> Answers:
        """Runs one forward in `eager_attention`."""
        model = self._model
        parts = StreamParts[None](model, batch.at)
        with read_attention(model, self._attention, parts.note, own_thread=True):
            last = batch.run(model, parts.keep, self._plan.layers).to(model.device)
        columns = self._split(batch.prefixes, parts, last)
        columns |= self._project([parts.layers[layer] for layer in self._plan.layers])
        columns = {name: columns[name] for name in self.answers}
        for name, values in columns.items():
            check_finite(values, self._sentence[batch.prefixes], name, self._plan.layers)
        return columns

    def _split(self, prefixes: Ints, kept: StreamParts[None], last: Tensor) -> Answers:
        token, other, following, elsewhere = (
            self._logits.of_tokens(last, torch.from_numpy(tokens[prefixes]))
            for tokens in (self._final, self._other, self._next, self._other_next)
        )
        directions = [token, self._logits.of_mean(last), other, following, elsewhere]
        parts = self._splitter.split(LogitDirections.stack(directions), kept.embedding, kept.layers, last)
        columns: dict[str, Tensor] = {}
        for index, kind in enumerate(SPLIT_LOGITS):
            terms = (parts.embedding, parts.other.sum(0) + parts.head, parts.bias, parts.logit)
            for name, values in zip(("embedding", "rest", "bias", "final"), terms, strict=True):
                columns[f"{name}_logit{kind}"] = values[index]
        of_layers = (parts.attention - parts.cross_attention, parts.cross_attention, parts.ffn)
        for index, kind in enumerate((*SPLIT_LOGITS, *_OF_TEXT)):
            for name, layers in zip(_PARTS, of_layers, strict=True):
                columns[f"{name}_logit{kind}"] = layers[:, index].T
        streams = [kept.layers[layer] for layer in self._plan.layers]
        none = torch.zeros(len(prefixes), dtype=torch.float64)
        of_streams = zip(*((each.attention, each.cross_attention, each.added) for each in streams), strict=True)
        for name, added in zip(_PARTS, of_streams, strict=True):
            norms = [torch.linalg.vector_norm(each.double(), dim=-1) for each in added]
            columns[f"{name}_norm"] = torch.stack(norms, 1)
        columns["attended"] = torch.stack([kept.weighed.get(layer, none).cpu() for layer in self._plan.layers], 1)
        return {name: values.cpu().numpy() for name, values in columns.items()}

    def _project(self, streams: Sequence[LayerStreams]) -> Answers:
        """The top tokens of every layer: of the stream that enters, of attention alone, in a parallel block of that
        stream plus the feed-forward update, and of what cross-attention is added to and of it alone (0 in others).
        """
        every, parallel = list(range(len(streams))), np.flatnonzero(self._parallel).tolist()
        crossing = np.flatnonzero(self._cross).tolist()
        columns: Answers = {}
        for name, places, vectors in (
            ("input_top", every, [each.before for each in streams]),
            ("attention_top", every, [each.attention for each in streams]),
            ("ffn_alone_top", parallel, [streams[at].before + streams[at].added for at in parallel]),
            ("cross_input_top", crossing, [streams[at].between for at in crossing]),
            ("cross_attention_top", crossing, [streams[at].cross_attention for at in crossing]),
        ):
            columns[name] = np.zeros((len(streams[0].before), len(streams)), np.int32)
            if places:
                tops = self._reader.lens_tops(torch.cat(vectors)).view(len(places), -1)
                columns[name][:, places] = tops.T.cpu().numpy()
        return columns

    def write(self) -> None:
        self._worker.write("attention", self.columns())

    def columns(self) -> dict[str, Any]:
        count, layers = len(self._position), self._plan.layers
        columns: dict[str, Any] = {
            "prefix": np.repeat(np.arange(count, dtype=np.int32), len(layers)),
            "layer": np.tile(np.array(layers, np.int16), count),
            "other_top": np.repeat(self._other.astype(np.int32), len(layers)),
            "other_next_token": np.repeat(self._other_next.astype(np.int32), len(layers)),
        }
        separable = np.array([self._attention[layer].separable for layer in layers])
        weights = np.array([self._attention[layer].weights is not None for layer in layers])
        present = dict.fromkeys(_OF_ATTENTION, separable) | {"ffn_alone_top": np.array(self._parallel)}
        present["attended"] = weights
        present |= {name: np.array(self._cross) for name in self.answers if name.startswith("cross_")}
        for name, array in self.answers.items():
            columns[name] = np.repeat(array, len(layers)) if array.ndim == 1 else array.reshape(-1)
            if name in present:
                columns[name] = np.ma.array(columns[name], mask=np.tile(~present[name], count))
        return columns
