"""Readings of streams at many places: top tokens, ranks, a probability, the same for every layer.

For most models two products with the head serve all streams of a block (shared_readout.py), and all layers share them,
since a product of few rows fetches the whole head from memory. On a CPU scores are read a few rows at a time, while
they are in its cache.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from mnemoscope.foundation.budget import BUDGET, rows_within
from mnemoscope.models import LanguageModel
from mnemoscope.models.modules.projections import room_for_scores
from mnemoscope.models.readout.shared_readout import SharedReadout
from mnemoscope.tracing import rank_tokens, read_scores, top
from mnemoscope.tracing.scoring.scores import folded_updates

Readings = dict[str, Tensor]
"""Columns of `predictions`, each `[row]`."""


@dataclass(frozen=True)
class Streams:
    """The streams of one block at some places, and the output of its feed-forward layer; all `[row, hidden]`."""

    residual: Tensor
    update: Tensor
    output: Tensor
    ffn_output: Tensor


@final
class StreamReader:
    """Reads streams of one model. `shared`: whether the streams of a block share their products."""

    def __init__(self, model: LanguageModel) -> None:
        self._model, self._readout = model, SharedReadout.of(model)
        self.shared = self._readout is not None
        self._rows = rows_within(BUDGET.stream_scores, model.sizes.vocabulary)

    def lens_tops(self, streams: Tensor) -> Tensor:
        """The top token `[row]` that the model itself reads off streams `[row, hidden]`."""
        tops = []
        for rows in torch.split(streams, self._rows):
            if self._readout is None:
                scores = self._model.scores(rows, projection="lens")
            else:
                prepared = self._readout.prepare(rows)[0]
                scores = self._readout.add_offset(self._readout.products(prepared, out=self._room()[: len(rows)]))
            tops.append(top(scores, 1)[0][:, 0])
        return torch.cat(tops)

    def read(self, streams: Mapping[int, Streams], finals: Tensor) -> dict[int, Readings]:
        """The readings of every layer's streams at the same places; `finals [row]` are the final `lens_tops`."""
        if self._readout is not None:
            return self._read_together(self._readout, streams, finals)
        readings: dict[int, Readings] = {}
        for layer, of_layer in streams.items():
            parts = []
            for part in _slices(len(finals), self._rows):
                whole = (of_layer.residual, of_layer.update, of_layer.output, of_layer.ffn_output)
                one = Streams(*(each[part] for each in whole))
                parts.append(_read_one_by_one(self._model, layer, one, finals[part]))
            readings[layer] = _join(parts)
        return readings

    def _room(self) -> Tensor:
        """A buffer that the products of one call share."""
        return room_for_scores(max(2, self._rows), self._model.sizes.vocabulary, device=self._model.device)

    def _read_together(
        self, readout: SharedReadout, streams: Mapping[int, Streams], finals: Tensor
    ) -> dict[int, Readings]:
        """The readings of all layers, from products that their places share."""
        model, count = self._model, len(finals)
        kinds = zip(*((each.residual, each.update, each.output) for each in streams.values()), strict=True)
        residual, update, output = map(torch.cat, kinds)
        # The last block's output is what the model's own logits are read off.
        ends = len(model.anatomy.layers) - 1 if model.anatomy.last is None else -1
        is_final = torch.tensor([layer == ends for layer in streams], device=finals.device).repeat_interleave(count)
        finals, room = finals.repeat(len(streams)), self._room()
        at_once = len(room) // 2
        if model.device.type == "cpu":
            at_once = min(at_once, rows_within(BUDGET.in_cache, model.sizes.vocabulary)) or 1
        scratch = room_for_scores(at_once, model.sizes.vocabulary, device=model.device)
        parts = []
        for part in _slices(len(residual), len(room) // 2):
            *both, weights = readout.multiply(residual[part], update[part], output[part], out=room)
            for rows in _slices(len(both[0]), at_once):
                two = both[0][rows], both[1][rows]
                place = slice(part.start + rows.start, part.start + rows.start + len(two[0]))
                parts.append(
                    _read_rows(readout, two, weights[:, rows], output[place], finals[place], is_final[place], scratch)
                )
        whole = _join(parts)
        places = {layer: slice(n * count, (n + 1) * count) for n, layer in enumerate(streams)}
        return {layer: {name: column[place] for name, column in whole.items()} for layer, place in places.items()}


def _read_one_by_one(model: LanguageModel, layer: int, streams: Streams, finals: Tensor) -> Readings:
    """The readings of one layer, with a product for each stream."""
    scores = model.scores(streams.output, projection="lens")
    output_top = top(scores, 1)[0][:, 0]
    scores = model.scores(streams.residual, projection="lens")
    residual, shape = read_scores(scores, best=1, of=[output_top, finals])
    residual_top, highest = (each[:, 0] for each in residual.best)
    final_score = scores.gather(1, finals[:, None])[:, 0]
    readings = {
        "output_top": output_top,
        "output_top_residual_rank": residual.ranks[0],
        "residual_top": residual_top,
        "residual_final_rank": residual.ranks[1],
        "residual_final_probability": (final_score - highest).exp() * shape.max_probability,
    }
    scores = model.scores(streams.update, projection="lens")
    update = rank_tokens(scores, best=1, of=[finals, residual_top])
    voted = model.scorer().scores(folded_updates(model, layer, streams.update))
    return readings | {
        "ffn_top": update.best[0][:, 0],
        "ffn_final_rank": update.ranks[0],
        "residual_top_ffn_rank": update.ranks[1],
        "ffn_vote_top": top(voted, 1)[0][:, 0],
    }


def _read_rows(
    readout: SharedReadout,
    products: tuple[Tensor, Tensor],
    weights: Tensor,
    outputs: Tensor,
    finals: Tensor,
    is_final: Tensor,
    scratch: Tensor,
) -> Readings:
    """The readings of a few rows, from the products of their residuals and updates, which are overwritten. `weights [2,
    row, 1]` are the shares of the two in the normed `outputs [row, hidden]`. Where `is_final`, the output's top token
    is the final one.
    """
    residual, update = products
    scratch = scratch[: len(finals)]
    vote_top = None if readout.offset is None else top(update, 1)[0][:, 0]
    output = readout.add_up(residual, update, weights, outputs, out=scratch)
    output_top = torch.where(is_final, finals, top(readout.add_offset(output), 1)[0][:, 0])
    residual, update = readout.add_offset(residual), readout.add_offset(update)
    of_residual = rank_tokens(residual, best=1, of=[output_top, finals])
    residual_top = of_residual.best[0][:, 0]
    of_update = rank_tokens(update, best=1, of=[finals, residual_top])
    ffn_top = of_update.best[0][:, 0]
    readings = {
        "output_top": output_top,
        "output_top_residual_rank": of_residual.ranks[0],
        "residual_top": residual_top,
        "residual_final_rank": of_residual.ranks[1],
        "ffn_top": ffn_top,
        "ffn_final_rank": of_update.ranks[0],
        "residual_top_ffn_rank": of_update.ranks[1],
        "ffn_vote_top": ffn_top if vote_top is None else vote_top,
    }
    score, highest = readout.finish(residual.gather(1, finals[:, None])), readout.finish(of_residual.best[1])
    total = torch.sub(readout.finish(residual), highest, out=scratch).exp_().sum(1)
    return readings | {"residual_final_probability": (score - highest)[:, 0].exp() / total}


def _slices(rows: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, rows, step))


def _join(parts: list[Readings]) -> Readings:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
