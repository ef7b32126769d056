"""What every layer predicts for the validation prefixes: residual, feed-forward layer, output, and votes.

The questions of the paper's section 5 (Figures 7-11) read these tables, `prefixes` and `predictions`. A memory votes
for the top token of its value, or the bottom token where its coefficient is negative.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.mining.passes.literal_readings import LiteralReader
from mnemoscope.mining.passes.prefix_pass import Prefixes, PrefixRows, check_finite, plan_prefixes
from mnemoscope.mining.passes.stream_readings import StreamReader, Streams
from mnemoscope.mining.steps import Answers, empty_answers
from mnemoscope.models.forward.hooks import Block
from mnemoscope.runs.workers.worker import Worker
from mnemoscope.tracing.scoring.scores import activity_of, tops_of_folded, value_norms, votes_in

_INTEGERS = (
    *("residual_top", "ffn_top", "ffn_vote_top", "output_top", "residual_final_rank", "ffn_final_rank"),
    *("output_top_residual_rank", "residual_top_ffn_rank", "active", "major"),
    *("votes_ffn", "votes_ffn_major", "votes_output"),
    *("literal_residual_top", "literal_ffn_top", "literal_output_top", "literal_votes"),
)
_NUMBERS = (
    *("residual_final_probability", "effective", "top_share"),
    *("literal_residual_final_probability", "literal_residual_bare_probability"),
)
_OF_PREFIXES = ("final_top", "literal_final_top")
_LINEARISED = "linearised_top"
"""The top of the final stream under the linear part of a head with a transform; counted, not written."""
ROUTED = "routed_memories"
"""In a model of experts: the number of memories that the prefix was routed to, shared experts included."""
_OF_COEFFICIENTS = ("active", "effective", "top_share", "major", ROUTED)


@dataclass(frozen=True)
class Votes:
    """The vote of each memory of a layer by the sign of its coefficient, and the length of its value."""

    positive: Tensor
    negative: Tensor
    norm: Tensor

    @classmethod
    def of(cls, path: Path, *, device: torch.device) -> "Votes":
        values = pl.read_parquet(path, columns=["value_norm", "top_tokens", "bottom_tokens"], glob=False)
        norm = values["value_norm"].cast(pl.Float64).to_torch()
        return cls(*(column.to(device) for column in (*votes_in(values), norm)))

    def count(self, coefficients: Tensor, ffn_vote_top: Tensor, output_top: Tensor) -> dict[str, Tensor]:
        columns = activity_of(coefficients, self.norm)
        is_major = columns.pop("is_major")
        vote = torch.where(coefficients > 0, self.positive, self.negative)
        voting = coefficients != 0
        ffn_top, all_top = (tops.to(vote.device)[:, None] for tops in (ffn_vote_top, output_top))
        for_ffn = voting & (vote == ffn_top)
        return columns | {
            "votes_ffn": for_ffn.sum(1),
            "votes_ffn_major": (for_ffn & is_major).sum(1),
            "votes_output": (voting & (vote == all_top)).sum(1),
        }


class PredictionPass:
    """Reads every block's streams and votes at every prefix; needs `values` of all mined layers."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._model, self._layers = worker, worker.model, worker.plan.layers
        self._prefixes = prefixes = Prefixes.of(worker)
        self._votes, self._reader, self._literal = dict[int, Votes](), None, None
        if worker.model.keys_only:
            self._norms = {layer: value_norms(worker.model, layer) for layer in self._layers}
        else:
            self._reader = StreamReader(worker.model)
            self._votes = {
                layer: Votes.of(worker.path("values", layer), device=worker.model.devices[layer])
                for layer in self._layers
            }
        if self._reader is not None and worker.model.anatomy.transform is None:
            tops = {at: worker.read("values", ("literal_top",), at)["literal_top"].to_torch() for at in self._layers}
            self._literal = LiteralReader(worker.model, tops)
        shape = (len(prefixes.position), len(worker.plan.layers))
        integers = (*_INTEGERS, ROUTED) if worker.model.numberings else _INTEGERS
        every = {
            **{name: empty_answers(shape, np.int32) for name in integers},
            **{name: empty_answers(shape, np.float32) for name in _NUMBERS},
            **{name: empty_answers(shape[0], np.int32) for name in _OF_PREFIXES},
        }
        self._null = {name: array for name, array in every.items() if not self._tells(name)}
        self._answers = {name: array for name, array in every.items() if name not in self._null}
        if self._reader is not None and self._literal is None:
            self._answers[_LINEARISED] = empty_answers(shape[0], np.int32)
        self.steps = plan_prefixes(
            worker,
            prefixes.sentence,
            prefixes.position,
            self._read,
            self._answers,
            stage="predictions",
            readouts=0 if self._reader is None else 4 * len(self._layers),
        )

    def _tells(self, name: str) -> bool:
        """Whether the column can be told: those of the paper's formula and those of a head need one."""
        if self._reader is None:
            return name in _OF_COEFFICIENTS
        return self._literal is not None or not name.startswith("literal_")

    def _read(self, batch: PrefixRows) -> Answers:
        model = self._model
        streams: dict[int, Streams] = {}
        coefficients: dict[int, Tensor] = {}
        routed: dict[int, Tensor] = {}

        def keep(layer: int, block: Block) -> None:
            of_block = block.residual, block.ffn_update, block.layer_output, block.ffn_output
            streams[layer] = Streams(*map(batch.at, of_block))
            coefficients[layer] = batch.at(block.coefficients)
            widths = torch.tensor(model.numbering(layer).widths, device=block.residual.device)
            if block.weights is None:  # all of them
                reachable = widths.sum().expand(block.residual.shape[:2])
            else:
                reachable = ((block.weights != 0) * widths).sum(-1)
            routed[layer] = batch.at(reachable)

        final = batch.run(model, keep, self._layers)
        columns: dict[str, list[NDArray[Any]]] = {name: [] for name in self._answers}
        finals: dict[str, Tensor] = {}
        readings: dict[int, dict[str, Tensor]] = {layer: {} for layer in self._layers}
        if self._reader is not None:
            finals["final_top"] = self._reader.lens_tops(final)
            readings = self._reader.read(streams, finals["final_top"])
        if self._reader is not None and self._literal is None:
            finals[_LINEARISED] = tops_of_folded(model, [model.fold(final)])
        elif self._literal is not None:
            finals["literal_final_top"] = self._literal.tops(final)
            literal = self._literal.read(streams, *finals.values())
            readings = {layer: reading | literal[layer] for layer, reading in readings.items()}
        for layer in self._layers:
            reading = readings[layer]
            if self._reader is None:
                reading |= activity_of(coefficients[layer], self._norms[layer])
            else:
                tops = reading["ffn_vote_top"], reading["output_top"]
                reading |= self._votes[layer].count(coefficients[layer], *tops)
            reading[ROUTED] = routed[layer]
            for name in columns.keys() & reading.keys():
                columns[name].append(reading[name].cpu().numpy())
        of_layers = {name: np.stack(each, 1) for name, each in columns.items() if each}
        for name in _NUMBERS:
            if name in of_layers:
                check_finite(of_layers[name], self._prefixes.sentence[batch.prefixes], "predictions", self._layers)
        return of_layers | {name: tokens.cpu().numpy() for name, tokens in finals.items()}

    def write(self) -> Mapping[str, Any]:
        prefixes, layers = self._prefixes, self._layers
        answers = self._answers | {name: np.ma.array(array, mask=True) for name, array in self._null.items()}
        facts = {"prefixes_asked": self._worker.plan.prefixes, "prefixes": len(prefixes.position)}
        if (tops := answers.pop(_LINEARISED, None)) is not None:
            facts["linearised_agrees"] = int((tops == answers["final_top"]).sum())
        numbers = np.arange(len(prefixes.position), dtype=np.int32)
        listed = {
            "prefix": numbers,
            "sentence": prefixes.sentence,
            "document": prefixes.document,
            "position": prefixes.position.astype(np.int32),
            "next_token": prefixes.next_token.astype(np.int32),
            **{name: answers.pop(name) for name in _OF_PREFIXES},
        }
        predictions = {
            "prefix": np.repeat(numbers, len(layers)),
            "layer": np.tile(np.array(layers, np.int16), len(numbers)),
            **{name: array.reshape(-1) for name, array in answers.items()},
        }
        self._worker.write("predictions", predictions)
        self._worker.write("prefixes", listed)
        return facts
