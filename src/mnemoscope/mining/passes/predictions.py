"""What every layer predicts for prefixes of the validation text: residual, feed-forward layer, output, and votes.

The questions of the paper's section 5 (Figures 7-11) are asked about these rows. The prefixes follow from the text and
the plan before any model runs. One forward per sentence; of every block only the chosen position is kept and projected.
A memory's vote is known from the value pass (its top token, or its bottom token where the coefficient is negative).
Makes `prefixes` and `predictions`, and what the norms before the head divide the values of each layer by; answers no
question.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import Tensor

from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.errors import AtlasDamaged, NotFinite
from mnemoscope.foundation.files import write_bytes
from mnemoscope.mining.passes.stream_readings import StreamReader, Streams
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.steps import PlannedSteps, digest, empty_answers
from mnemoscope.mining.text.batches import pack, pad
from mnemoscope.mining.text.thread_team import ThreadTeam
from mnemoscope.mining.text.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.hooks import Block, read_blocks, read_final
from mnemoscope.models.proof.company import sides
from mnemoscope.tracing.scores import activity_of, own_norm_scales, votes_in

PREFIXES = "prefixes.safetensors"
"""The prefixes to ask: of a finished part in its `state/`, of a run with workers in its work folder."""
ROWS = 128
"""Prefixes in one forward: bounds the rows of scores that exist at one time."""
SCORES = 1 << 24
"""Scores of one stream that exist at one time, of whoever reads streams one by one."""
_INTEGERS = (
    *("residual_top", "ffn_top", "ffn_vote_top", "output_top", "residual_final_rank", "ffn_final_rank"),
    *("output_top_residual_rank", "residual_top_ffn_rank", "active", "major"),
    *("votes_ffn", "votes_ffn_major", "votes_output"),
)
_NUMBERS = ("residual_final_probability", "effective", "top_share")
ROUTED = "routed_memories"
"""Only of a model of experts: how many memories the prefix could fire, those of its experts and of the shared ones."""
_SCALE = "scale"
"""The answer that is no column: what the norms before the head divide a layer's values by."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Prefixes:
    """`tokens[0..position]` of each sentence, in order of sentence id; all `[prefix]`."""

    sentence: Ints
    document: Ints
    position: Ints
    next_token: Ints

    def save(self, path: Path, *, plan: str | None = None) -> None:
        """Writes the list whole or not at all, with the hash of its plan if that is given; raises StoreFailed."""
        write_bytes(path, save(vars(self), None if plan is None else {"inputs": plan}))

    @classmethod
    def load(cls, path: Path) -> "Prefixes":
        """The list saved at `path`; raises AtlasDamaged."""
        try:
            return cls(**load_file(path))
        except (OSError, SafetensorError, TypeError) as error:
            raise AtlasDamaged(f"{path} does not hold a part's prefixes ({error}); mine that part again") from error


def choose_prefixes(copy: TokenizedCorpus, *, count: int, seed: int, first: int) -> Prefixes:
    """At most `count` prefixes, one per sentence: a random sentence, a random position with a token after it.

    `first` is the first position that counts (1 where position 0 is an attention sink). Fewer where the validation
    text has fewer sentences that are long enough. A validation text of its own is numbered after the mined text: its
    sentence i has the id `sentences of the mined corpus + i`, its documents likewise.
    """
    validation = copy.validation
    if isinstance(validation, TokenizedCorpus):
        text, ids = validation, np.arange(validation.sentences)
        sentences, documents = copy.sentences, int(copy.counts["documents"])
    else:
        text, ids, sentences, documents = copy, np.array(validation, np.int64), 0, 0
    lengths = np.array(text.lengths[ids], np.int64)
    usable = np.flatnonzero(lengths >= first + 2)
    generator = np.random.default_rng((seed, 4))
    chosen = np.sort(generator.permutation(usable)[:count])
    position = generator.integers(first, lengths[chosen] - 1) if len(chosen) else np.empty(0, np.int64)
    pairs = zip(ids[chosen].tolist(), position.tolist(), strict=True)
    following = np.array([int(text.tokens(sentence)[place + 1]) for sentence, place in pairs], np.int64)
    return Prefixes(ids[chosen] + sentences, text.documents(ids[chosen]) + documents, position, following)


@dataclass(frozen=True)
class Votes:
    """What each memory of a layer votes for, by the sign of its coefficient, and the length of its value."""

    positive: Tensor
    negative: Tensor
    norm: Tensor


@dataclass(frozen=True)
class _BlockRows:
    """What is kept of one layer's block: of every prefix one row."""

    streams: Streams
    ffn_output: Tensor
    coefficients: Tensor
    routed: Tensor
    branches: list[Tensor]


def votes_of(path: Path, *, device: torch.device) -> Votes:
    """The votes `[memory]` of one layer, from its table `values` at `path`."""
    values = pl.read_parquet(path, columns=["value_norm", "top_tokens", "bottom_tokens"], glob=False)
    norm = values["value_norm"].cast(pl.Float64).to_torch()
    return Votes(*(column.to(device) for column in (*votes_in(values), norm)))


class PredictionPass:
    """The forwards that answer for all prefixes, planned beforehand; `take` makes one.

    `values` are the tables of that name, by layer; those of all mined layers must be there.
    """

    def __init__(
        self,
        model: LanguageModel,
        plan: MiningPlan,
        prefixes: Prefixes,
        sentences: NamedSentences,
        values: Mapping[int, Path],
    ) -> None:
        self._model, self._plan, self._prefixes, self._sentences = model, plan, prefixes, sentences
        self._votes = {layer: votes_of(values[layer], device=model.devices[layer]) for layer in plan.layers}
        self._reader = StreamReader(model)
        self._extra = model.beginning.length
        lengths = prefixes.position + 1 + self._extra
        self._order = np.argsort(lengths, kind="stable")
        lengths = lengths[self._order]
        cuts = pack(lengths, area=plan.batch_tokens, rows=ROWS, apart=sides(model, lengths))
        shape = (len(lengths), len(plan.layers))
        ways = max(max(1, len(model.layer(layer).ffn.branches)) for layer in plan.layers)
        integers = (*_INTEGERS, ROUTED) if model.numberings else _INTEGERS
        self.answers: dict[str, NDArray[Any]] = {
            **{name: empty_answers(shape, np.int32) for name in integers},
            **{name: empty_answers(shape, np.float32) for name in _NUMBERS},
            _SCALE: empty_answers((*shape, ways), np.float32),
            "final_top": empty_answers(len(lengths), np.int32),
        }
        voted = (tensor.cpu() for votes in self._votes.values() for tensor in vars(votes).values())
        inputs = digest(plan.hash(), *vars(prefixes).values(), *sentences.arrays(), *voted)
        self.steps = PlannedSteps(
            self.take, cuts, self.answers, stage="predictions", unit="prefixes", plan=plan.hash(), inputs=inputs,
            team=ThreadTeam.of(model),
        )  # fmt: skip

    def take(self, items: slice) -> None:
        """One forward over some prefixes, in order of length, and all that is read off it; raises NotFinite."""
        chosen = self._order[items]
        positions = self._prefixes.position[chosen]
        places = zip(self._prefixes.sentence[chosen].tolist(), positions.tolist(), strict=True)
        ids = pad([self._sentences.of(sentence)[: position + 1] for sentence, position in places], self._model)
        each, column = torch.arange(len(chosen)), torch.from_numpy(positions + self._extra)
        kept: dict[int, _BlockRows] = {}
        final: list[Tensor] = []

        def keep(layer: int, block: Block) -> None:
            place = each.to(block.residual.device), column.to(block.residual.device)
            streams = Streams(*(s[place] for s in (block.residual, block.ffn_update, block.layer_output)))
            outputs, coefficients, routed = block.ffn_output, block.coefficients, self._reachable(layer, block)
            branches = [tensor[place] for tensor in block.branches]
            kept[layer] = _BlockRows(streams, outputs[place], coefficients[place], routed[place], branches)

        with torch.inference_mode():
            with (
                read_blocks(self._model, keep, layers=self._plan.layers, own_thread=True),
                read_final(self._model, lambda stream: final.append(stream[each, column]), own_thread=True),
            ):
                self._model.backbone(ids)
            self._read(kept, final[0], chosen)

    def _reachable(self, layer: int, block: Block) -> Tensor:
        """How many memories each token `[batch, position]` is routed to."""
        widths = torch.tensor(self._model.numbering(layer).widths, device=block.residual.device)
        if block.weights is None:
            return widths.sum().expand(block.residual.shape[:2])
        return ((block.weights != 0) * widths).sum(-1)

    def _read(self, kept: Mapping[int, _BlockRows], last: Tensor, chosen: NDArray[np.int64]) -> None:
        """Reads the answers of some prefixes off what was kept of every layer, and off the final stream."""
        model = self._model
        final = self._reader.lens_tops(last)
        self.answers["final_top"][chosen] = final.cpu().numpy()
        final_scale = model.norm_scale(last, layer=None)
        streams = {layer: own.streams for layer, own in kept.items()}
        for layer, found in self._reader.read(streams, final).items():
            own, place = kept[layer], self._plan.layers.index(layer)
            found |= self._count_votes(layer, own.coefficients, found["ffn_vote_top"], found["output_top"])
            if ROUTED in self.answers:
                found[ROUTED] = own.routed
            own_scales = own_norm_scales(model, layer, own.streams.residual, own.ffn_output, own.branches)
            found[_SCALE] = (final_scale[:, None] * own_scales).expand(-1, self.answers[_SCALE].shape[2])
            for name, values in found.items():
                self.answers[name][chosen, place] = values.cpu().numpy()
            self._check(layer, chosen, place)

    def _count_votes(
        self, layer: int, coefficients: Tensor, ffn_vote_top: Tensor, output_top: Tensor
    ) -> dict[str, Tensor]:
        """What one layer's memories do at some places, each `[row]`."""
        votes = self._votes[layer]
        found = activity_of(coefficients, votes.norm)
        is_major = found.pop("is_major")
        vote = torch.where(coefficients > 0, votes.positive, votes.negative)
        voting = coefficients != 0
        ffn_top, all_top = (tops.to(vote.device)[:, None] for tops in (ffn_vote_top, output_top))
        for_ffn = voting & (vote == ffn_top)
        return found | {
            "votes_ffn": for_ffn.sum(1),
            "votes_ffn_major": (for_ffn & is_major).sum(1),
            "votes_output": (voting & (vote == all_top)).sum(1),
        }

    def _check(self, layer: int, chosen: NDArray[np.int64], place: int) -> None:
        for name in (*_NUMBERS, _SCALE):
            wrong = np.flatnonzero(~np.isfinite(self.answers[name][chosen, place]))
            if len(wrong):
                sentence = int(self._prefixes.sentence[chosen[wrong[0]]])
                raise NotFinite(
                    f"layer {layer} has NaN or infinite predictions on sentence {sentence}; "
                    "try --dtype float32, or check the model's weights"
                )

    def columns(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The columns of `prefixes` and of `predictions`, once every forward was made."""
        prefixes, answers = self._prefixes, dict(self.answers)
        count, layers = len(prefixes.position), len(self._plan.layers)
        del answers[_SCALE]
        listed = {
            "prefix": np.arange(count, dtype=np.int32),
            "sentence": prefixes.sentence,
            "document": prefixes.document,
            "position": prefixes.position.astype(np.int32),
            "next_token": prefixes.next_token.astype(np.int32),
            "final_top": answers.pop("final_top"),
        }
        predictions = {
            "prefix": np.repeat(np.arange(count, dtype=np.int32), layers),
            "layer": np.tile(np.array(self._plan.layers, np.int16), count),
            **{name: array.reshape(-1) for name, array in answers.items()},
        }
        return listed, predictions

    def scales(self) -> list[float | list[float] | None]:
        """Per mined layer what the norms before the head divide its values by: the median over the prefixes, of each
        branch of a layer that has several.
        """
        scale = self.answers[_SCALE].astype(np.float64)
        if not len(scale):
            return [None] * len(self._plan.layers)
        branches = (len(self._model.layer(layer).ffn.branches) for layer in self._plan.layers)
        medians = np.median(scale, axis=0).tolist()
        return [own[:count] if count else own[0] for own, count in zip(medians, branches, strict=True)]
