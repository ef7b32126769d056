"""Attention beside the feed-forward layer, on the validation prefixes: who writes the final token's logit.

For the prefixes that `prefixes` lists: what embedding, attention, feed-forward layers and biases add to the logit of
the model's final token, to the mean logit, and to that of another prefix's final token; to those of the text's next
token and of another prefix's next token; how much attention adds, what it says alone, how many positions it
looks at (definitions.md section 9, attention_share). Needs `prefixes` and makes
`attention`, one row for each prefix and layer; the parts that have no layer are repeated in the rows of a prefix.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.atlas.schema import TABLES
from mnemoscope.errors import NotFinite
from mnemoscope.mining.passes.predictions import ROWS
from mnemoscope.mining.passes.stream_readings import StreamReader
from mnemoscope.mining.passes.writing import is_made, write_columns
from mnemoscope.mining.pieces import join_pieces, run_piece
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.steps import PlannedSteps, RunContext, digest, empty_answers, run_checkpointed
from mnemoscope.mining.text.batches import even_parts, pack, pad
from mnemoscope.mining.text.circle import next_in_circle
from mnemoscope.mining.text.thread_team import ThreadTeam
from mnemoscope.mining.text.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.attention import BlockAttention, Part, eager_attention, find_attention, read_attention
from mnemoscope.models.forward.hooks import Block, read_blocks, read_final
from mnemoscope.models.proof.company import sides
from mnemoscope.models.readout.token_logits import LogitDirections, TokenLogits
from mnemoscope.tracing.logit_parts import LayerStreams, LogitSplitter, attended_positions, ffn_streams

_WEIGHTS = 1 << 22
"""Attention weights of one head that exist at one time: they grow with the square of a prefix's length."""
SPLIT_LOGITS = ("", "_mean", "_other")
"""The logits that are split: the final token's, the mean over the vocabulary, and another prefix's final token's."""
_OF_PREFIX = tuple(f"{part}_logit{kind}" for kind in SPLIT_LOGITS for part in ("embedding", "rest", "bias", "final"))
_OF_TEXT = ("_next", "_other_next")
"""Those of the text's next token, and of another prefix's: which no model has chosen to be the greatest."""
_OF_LAYER = tuple(f"{part}_logit{kind}" for kind in (*SPLIT_LOGITS, *_OF_TEXT) for part in ("attention", "ffn"))
_OF_ATTENTION = tuple(name for name in ("attention_top", "attention_norm", "attended", *_OF_LAYER) if name[0] == "a")
"""Columns that are null in a block whose attention cannot be told."""


class AttentionPass:
    """The forwards that answer for all prefixes, planned beforehand; `take` makes one, in `eager_attention`."""

    def __init__(self, context: RunContext, model: LanguageModel, plan: MiningPlan) -> None:
        """Reads `prefixes` and `sentences` in the context's folder."""
        self._model, self._plan = model, plan
        self._sentences = NamedSentences(context.directory)
        names = ["prefix", "sentence", "position", "final_top", "next_token"]
        path = context.directory / TABLES["prefixes"].path()
        listed = pl.read_parquet(path, columns=names, glob=False).sort("prefix").cast(pl.Int64)
        self._sentence, self._position, self._final, self._next = (listed[name].to_numpy() for name in names[1:])
        dealt = next_in_circle(len(listed), plan.seed, 10)
        self._other, self._other_next = self._final[dealt], self._next[dealt]
        found = find_attention(model)
        self._attention = [one if layer in plan.layers else BlockAttention() for layer, one in enumerate(found)]
        self._logits, self._splitter = TokenLogits(model), LogitSplitter(model, self._attention)
        self._reader = StreamReader(model)
        self._parallel = [model.layer(layer).attention is not None for layer in plan.layers]
        lengths = self._position + 1 + model.beginning.length
        self._order = np.argsort(lengths, kind="stable")
        cuts = cut_prefixes(lengths[self._order], area=plan.batch_tokens, apart=sides(model, lengths[self._order]))
        shape = (len(listed), len(plan.layers))
        self.answers: dict[str, NDArray[Any]] = {
            **{name: empty_answers(shape, np.int32) for name in ("input_top", "attention_top", "ffn_alone_top")},
            **{name: empty_answers(shape, np.float32) for name in ("attention_norm", "ffn_norm", "attended")},
            **{name: empty_answers(shape, np.float32) for name in _OF_LAYER},
            **{name: empty_answers(len(listed), np.float32) for name in _OF_PREFIX},
        }
        inputs = digest(plan.hash(), *(listed[name].to_numpy() for name in names), *self._sentences.arrays())
        self.steps = PlannedSteps(
            self.take, cuts, self.answers, stage="attention", unit="prefixes", plan=plan.hash(), inputs=inputs,
            team=ThreadTeam.of(model),
        )  # fmt: skip

    def take(self, items: slice) -> None:
        """One forward over some prefixes, in order of length, and all that is read off it; raises NotFinite."""
        chosen, model = self._order[items], self._model
        positions = self._position[chosen]
        places = zip(self._sentence[chosen].tolist(), positions.tolist(), strict=True)
        ids = pad([self._sentences.of(sentence)[: position + 1] for sentence, position in places], model)
        each, column = torch.arange(len(chosen)), torch.from_numpy(positions + model.beginning.length)
        parts: dict[int, dict[Part, Tensor]] = {layer: {} for layer in range(-1, model.sizes.layers)}
        attended: dict[int, Tensor] = {}
        streams: dict[int, LayerStreams] = {}
        final: list[Tensor] = []

        def place(tensor: Tensor) -> tuple[Tensor, Tensor]:
            return each.to(tensor.device), column.to(tensor.device)

        def note(layer: int, part: Part, tensor: Tensor) -> None:
            if part == "weights":
                rows, at = place(tensor)
                attended[layer] = attended_positions(tensor[rows, :, at])
            else:
                parts[layer][part] = tensor[place(tensor)]

        def keep(layer: int, block: Block) -> None:
            ffn = [tensor[place(tensor)] for tensor in ffn_streams(model, layer, block)]
            found = LayerStreams.of(parts[layer], ffn, attended.get(layer))
            streams[layer] = found.on(model.device)

        with torch.inference_mode():
            with (
                read_attention(model, self._attention, note, own_thread=True),
                read_blocks(model, keep, layers=self._plan.layers, own_thread=True),
                read_final(model, lambda stream: final.append(stream[place(stream)]), own_thread=True),
            ):
                model.backbone(ids)
            last, embedding = final[0].to(model.device), parts[-1]["input"].to(model.device)
            self._split(chosen, embedding, streams, last)
            self._project(chosen, [streams[layer] for layer in self._plan.layers])
        self._check(chosen)

    def _split(
        self, chosen: NDArray[np.int64], embedding: Tensor, streams: Mapping[int, LayerStreams], last: Tensor
    ) -> None:
        """Notes the parts of the logits, norms, and how many positions were attended."""
        token, other, following, elsewhere = (
            self._logits.of_tokens(last, torch.from_numpy(tokens[chosen]))
            for tokens in (self._final, self._other, self._next, self._other_next)
        )
        directions = [token, self._logits.of_mean(last), other, following, elsewhere]
        parts = self._splitter.split(LogitDirections.stack(directions), embedding, streams, last)
        for index, kind in enumerate(SPLIT_LOGITS):
            own = (parts.embedding, parts.other, parts.bias, parts.logit)
            for name, values in zip(("embedding", "rest", "bias", "final"), own, strict=True):
                self.answers[f"{name}_logit{kind}"][chosen] = values[index].cpu().numpy()
        for index, kind in enumerate((*SPLIT_LOGITS, *_OF_TEXT)):
            for name, layers in (("attention", parts.attention), ("ffn", parts.ffn)):
                self.answers[f"{name}_logit{kind}"][chosen] = layers[:, index].T.cpu().numpy()
        for at, layer in enumerate(self._plan.layers):
            found = streams[layer]
            attended = torch.zeros(len(chosen)) if found.attended is None else found.attended
            numbers = {"attention_norm": _length(found.attention), "ffn_norm": _length(found.added)}
            for name, values in {**numbers, "attended": attended}.items():
                self.answers[name][chosen, at] = values.cpu().numpy()

    def _project(self, chosen: NDArray[np.int64], streams: Sequence[LayerStreams]) -> None:
        """Notes the top tokens of every layer: of the stream that enters, of attention alone, and in a parallel block
        of that stream with what the feed-forward layer adds.
        """
        every, parallel = list(range(len(streams))), np.flatnonzero(self._parallel).tolist()
        self.answers["ffn_alone_top"][chosen] = 0
        for name, places, vectors in (
            ("input_top", every, [own.before for own in streams]),
            ("attention_top", every, [own.attention for own in streams]),
            ("ffn_alone_top", parallel, [streams[at].before + streams[at].added for at in parallel]),
        ):
            if places:
                tops = self._reader.lens_tops(torch.cat(vectors)).view(len(places), -1)
                self.answers[name][chosen[:, None], places] = tops.T.cpu().numpy()

    def _check(self, chosen: NDArray[np.int64]) -> None:
        for name, array in self.answers.items():
            finite = np.isfinite(array[chosen]).reshape(len(chosen), -1)
            if not finite.all():
                row, at = np.argwhere(~finite)[0]
                where = "the final stream" if array.ndim == 1 else f"layer {self._plan.layers[at]}"
                raise NotFinite(
                    f"{where} has NaN or infinite {name} on sentence {self._sentence[chosen[row]]}; "
                    "try --dtype float32, or check the model's weights"
                )

    def columns(self) -> dict[str, Any]:
        """The columns of `attention`, once every forward was made."""
        count, layers = len(self._position), self._plan.layers
        columns: dict[str, Any] = {
            "prefix": np.repeat(np.arange(count, dtype=np.int32), len(layers)),
            "layer": np.tile(np.array(layers, np.int16), count),
            "other_top": np.repeat(self._other.astype(np.int32), len(layers)),
            "other_next_token": np.repeat(self._other_next.astype(np.int32), len(layers)),
        }
        separable = np.array([self._attention[layer].separable for layer in layers])
        weights = np.array([self._attention[layer].weights is not None for layer in layers])
        known = dict.fromkeys(_OF_ATTENTION, separable) | {"ffn_alone_top": np.array(self._parallel)}
        known["attended"] = weights
        for name, array in self.answers.items():
            if array.ndim == 1:
                columns[name] = np.repeat(array, len(layers))
            elif name in known:
                columns[name] = np.ma.array(array.reshape(-1), mask=np.tile(~known[name], count))
            else:
                columns[name] = array.reshape(-1)
        return columns


def write_attention(context: RunContext, model: LanguageModel, plan: MiningPlan) -> None:
    """Writes `attention`, if it is not there; goes on from what was saved. Raises what `run_checkpointed` raises."""
    if is_made(context.directory / TABLES["attention"].path(), plan, "attention"):
        return
    asked = AttentionPass(context, model, plan)
    with eager_attention(model):
        run_checkpointed(context, asked.steps)
    write_columns(context.directory, plan, "attention", asked.columns(), {})


def run_attention_piece(context: RunContext, model: LanguageModel, plan: MiningPlan, piece: int, *, of: int) -> None:
    """Answers for one of so many pieces of the prefixes, as a task of many workers; `prefixes` must be there."""
    asked = AttentionPass(context, model, plan)
    with eager_attention(model):
        run_piece(context, asked.steps, piece, of=of)


def join_attention(context: RunContext, model: LanguageModel, plan: MiningPlan, *, of: int) -> None:
    """Writes `attention` of the answers of all pieces; raises MiningError where one is missing."""
    asked = AttentionPass(context, model, plan)
    join_pieces(context, asked.steps, of=of)
    write_columns(context.directory, plan, "attention", asked.columns(), {})


def cut_prefixes(lengths: NDArray[np.int64], *, area: int, apart: NDArray[np.int64] | None = None) -> list[slice]:
    """The prefixes, in order of length, in batches that also bound the attention weights."""
    cuts = []
    for items in pack(lengths, area=area, rows=ROWS, apart=apart):
        weights = (items.stop - items.start) * int(lengths[items.stop - 1]) ** 2
        cuts += even_parts(items, min(items.stop - items.start, -(-weights // _WEIGHTS)))
    return cuts


def _length(vectors: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(vectors.double(), dim=-1)
    return length
