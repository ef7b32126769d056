"""Values, keys and streams at validation prefixes under every lens, and under the plain readout.

Like the value pass and predictions under other readouts (definitions.md section 9, lenses). Every number has a baseline
under the same readout: another memory's target or triggers, another prefix's final token. Makes `readings`,
`key_readings` and `readouts`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.atlas.schema import TABLES
from mnemoscope.errors import NotFinite
from mnemoscope.foundation.budget import BUDGET, rows_within
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.passes.prefix_pass import PrefixRows, plan_prefixes, read_prefixes
from mnemoscope.mining.passes.vectors.projector import Columns, Share, join_columns
from mnemoscope.mining.passes.vectors.roles import RolePass, last_tokens
from mnemoscope.mining.passes.vectors.values import TOKENS_KEPT, ValuePass
from mnemoscope.mining.steps import Answers, empty_answers
from mnemoscope.mining.text.batches import Ints
from mnemoscope.mining.text.circle import deal, next_in_circle
from mnemoscope.models.forward.hooks import Block, read_blocks
from mnemoscope.models.readout.translators import Lens, Translator, translated_scores, translated_values
from mnemoscope.tracing import read_scores, top

PLAIN = "plain"
"""The readout that every atlas has: `gain` for values, `lens` for streams."""
_INTEGERS = ("residual_top", "residual_final_rank", "residual_control_rank", "ffn_top", "output_top")
_NUMBERS = ("residual_final_probability", "residual_loss")

Lenses = Mapping[str, Lens]
"""By name; the plain readout has an empty one."""


def reading_columns(values: ValuePass, layer: int, targets: Ints, lenses: Lenses, *, seed: int) -> dict[str, Any]:
    """The columns of `readings` for one layer; `targets [memory]` are -1 where there is none."""
    model, projector = values.model, values.projector
    control = deal(targets, seed, 13, layer)
    columns: dict[str, list[Any]] = {name: [] for name in TABLES["readings"].columns.names}
    memories = model.sizes.memories[layer]
    for name, lens in lenses.items():
        translator = lens.get(layer) or Translator.identity(model.sizes.hidden)
        with torch.inference_mode():
            folded = translated_values(model, layer, translator)
        readings = join_columns(projector.read_all(folded, partial(_read_values, (targets, control))))
        if not np.isfinite(readings["max_probability"]).all():
            raise NotFinite(f"the values of layer {layer} are not finite under the lens {name}")
        columns["memory"].append(np.arange(memories, dtype=np.int32))
        columns["lens"] += [name] * memories
        columns["top_tokens"] += readings["top_tokens"].tolist()
        columns["max_probability"].append(readings["max_probability"])
        for column, wanted in (("target_rank", targets), ("control_rank", control)):
            columns[column].append(np.ma.array(readings[column], mask=wanted < 0))
    joined: dict[str, Any] = {name: np.concatenate(columns[name]) for name in ("memory", "max_probability")}
    return columns | joined | {name: _join(columns[name]) for name in ("target_rank", "control_rank")}


def _read_values(wanted: tuple[Ints, Ints], share: Share) -> Columns:
    """The columns of some memories, without nulls."""
    with torch.inference_mode():
        tokens = [torch.from_numpy(each[share.vectors]).clamp(min=0).to(share.scores.device) for each in wanted]
        ranking, shape = read_scores(share.scores, best=TOKENS_KEPT, of=tokens)
        target, control = ranking.ranks.int()
        names = {
            "top_tokens": ranking.best[0].int(),
            "max_probability": shape.max_probability,
            "target_rank": target,
            "control_rank": control,
        }
    return {name: tensor.cpu().numpy() for name, tensor in names.items()}


def key_reading_columns(run: MiningRun, roles: Mapping[str, RolePass], layer: int) -> dict[str, Any]:
    """The columns of `key_readings` for one layer; `roles` compare keys with the embeddings under each lens."""
    model, last = run.model, last_tokens(run, layer)
    tables = [each.columns(layer, *last) for each in roles.values()]
    numbers = ("trigger_rank", "triggers_found", "control_rank", "controls_found", "text_rank", "shuffled_rank")
    return {
        "memory": np.concatenate([columns["memory"] for columns in tables]),
        "lens": [lens for lens in roles for _ in range(model.sizes.memories[layer])],
        "key_top_tokens": [tokens for columns in tables for tokens in columns["key_top_tokens"]],
        **{name: _join([columns[name] for columns in tables]) for name in numbers},
    }


def _join(parts: Sequence[Any]) -> Any:
    return np.ma.array(np.concatenate([one.data for one in parts]), mask=np.concatenate([one.mask for one in parts]))


def targets_of(run: MiningRun, layer: int) -> Ints:
    """The targets `[memory]` of a layer's values in a finished atlas; -1 where there is none."""
    return np.array(run.read("values", ("memory", "target"), layer).sort("memory")["target"].fill_null(-1), np.int64)


class ReadoutPass:
    def __init__(self, run: MiningRun, lenses: Lenses) -> None:
        self._run, self._model, self._layers, self._lenses = run, run.model, run.plan.layers, lenses
        names = ("sentence", "position", "next_token", "final_top")
        sentence, position, self._following, self._final = read_prefixes(run, *names)
        self._control = self._final[next_in_circle(len(sentence), run.plan.seed, 13)]
        shape = (len(sentence), len(self._layers), len(lenses))
        self.answers: Answers = {
            **{name: empty_answers(shape, np.int32) for name in _INTEGERS},
            **{name: empty_answers(shape, np.float32) for name in _NUMBERS},
        }
        self.steps = plan_prefixes(
            run,
            sentence,
            position,
            self.read,
            self.answers,
            stage="readouts",
            readouts=3 * len(self._layers) * len(lenses),
        )

    def read(self, batch: PrefixRows) -> Answers:
        kept: dict[int, list[Tensor]] = {}

        def keep(layer: int, block: Block) -> None:
            kept[layer] = [batch.at(stream) for stream in (block.residual, block.ffn_update, block.layer_output)]

        with read_blocks(self._model, keep, layers=self._layers, own_thread=True):
            self._model.backbone(batch.ids)
        answers = {
            name: np.empty((len(batch.prefixes), *array.shape[1:]), array.dtype) for name, array in self.answers.items()
        }
        rows = rows_within(BUDGET.scores, self._model.sizes.vocabulary)
        for start in range(0, len(batch.prefixes), rows):
            part = slice(start, start + rows)
            for place, layer in enumerate(self._layers):
                streams = [each[part] for each in kept[layer]]
                for number, readings in enumerate(self._read(layer, streams, batch.prefixes[part])):
                    for column, values in readings.items():
                        answers[column][part, place, number] = values.cpu().numpy()
        return answers

    def _read(self, layer: int, streams: list[Tensor], prefixes: Ints) -> Iterator[dict[str, Tensor]]:
        """One layer's answers for some prefixes, under each lens."""
        model = self._model
        wanted = [torch.from_numpy(ids[prefixes]) for ids in (self._final, self._control, self._following)]
        for name, lens in self._lenses.items():
            translator = lens.get(layer)
            scores = translated_scores(model, streams[0], translator)
            final, control, following = (ids.to(scores.device) for ids in wanted)
            ranking, shape = read_scores(scores, best=1, of=[final, control])
            loss = shape.log_normaliser - scores.gather(1, following[:, None])[:, 0]
            if not loss.isfinite().all():
                raise NotFinite(f"layer {layer} has NaN or infinite readouts under the lens {name}")
            update = streams[1] if translator is None else translator.linear(streams[1])
            yield {
                "residual_top": ranking.best[0][:, 0],
                "residual_final_rank": ranking.ranks[0],
                "residual_control_rank": ranking.ranks[1],
                "residual_final_probability": (scores.gather(1, final[:, None])[:, 0] - shape.log_normaliser).exp(),
                "residual_loss": loss,
                "ffn_top": top(model.scores(update, projection="lens"), 1)[0][:, 0],
                "output_top": top(translated_scores(model, streams[2], translator), 1)[0][:, 0],
            }

    def write(self) -> None:
        count, layers, lenses = self.answers["residual_top"].shape
        columns = {
            "prefix": np.repeat(np.arange(count, dtype=np.int32), layers * lenses),
            "layer": np.tile(np.repeat(np.array(self._layers, np.int16), lenses), count),
            "lens": list(self._lenses) * (count * layers),
            **{name: array.reshape(-1) for name, array in self.answers.items()},
        }
        self._run.write("readouts", columns)

    def fall_back(self) -> dict[str, tuple[int, ...]]:
        """By lens the layers at which it is no better than the plain readout; their answers become the plain ones."""
        means, plain_layers = self.losses(), {}
        for number, name in enumerate(self._lenses):
            worse = np.flatnonzero(means[name] > means[PLAIN]) if name != PLAIN else np.empty(0, np.int64)
            for array in self.answers.values():
                array[:, worse, number] = array[:, worse, 0]
            plain_layers[name] = tuple(self._layers[place] for place in worse.tolist())
        return plain_layers

    def losses(self) -> dict[str, NDArray[np.float64]]:
        """The mean loss `[layer]` of every lens over the prefixes' next tokens, in nats."""
        means = self.answers["residual_loss"].astype(np.float64).mean(0)
        return {name: means[:, number] for number, name in enumerate(self._lenses)}
