"""The best tokens of the streams of all blocks of one prompt, and the votes of the updates.

For most models two products with the head serve all streams of a block (shared_readout.py), as in mining; other models
project each stream by itself. The streams of all layers and positions are projected together.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.foundation.budget import BUDGET, rows_within
from mnemoscope.models import LanguageModel
from mnemoscope.models.modules.projections import room_for_scores
from mnemoscope.models.readout.shared_readout import SharedReadout
from mnemoscope.tracing.predictions import best_predictions, read_predictions
from mnemoscope.tracing.records import Prediction
from mnemoscope.tracing.scoring.ranking import top
from mnemoscope.tracing.scoring.scores import folded_updates, tops_of_folded

STREAMS = ("residual", "ffn", "output")

Predictions = tuple[Prediction, ...]


@dataclass(frozen=True)
class PromptStreams:
    """One layer at the prompt's own positions, each `[position, ...]`."""

    residual: Tensor
    ffn: Tensor
    output: Tensor
    coefficients: Tensor


@dataclass(frozen=True)
class BlockPredictions:
    """The best predictions by `(stream, layer, position)`, and the vote `[position]` of each layer's update."""

    predicted: dict[tuple[str, int, int], Predictions]
    votes: list[Tensor]


def predict_blocks(model: LanguageModel, blocks: list[PromptStreams], count: int, *, changed: bool) -> BlockPredictions:
    """The `count` best predictions of all streams; raises InterventionError (if `changed`) or NotFinite."""
    length, readout = len(blocks[0].residual), SharedReadout.of(model)
    residual, update, output = (torch.cat([getattr(b, name).to(model.device) for b in blocks]) for name in STREAMS)
    predictions: dict[str, list[Predictions]]
    if readout is None:
        best = list(best_predictions(model, torch.cat([residual, update, output]), count, changed=changed))
        predictions = {name: best[n * len(output) : (n + 1) * len(output)] for n, name in enumerate(STREAMS)}
        votes = tops_of_folded(model, [folded_updates(model, layer, block.ffn) for layer, block in enumerate(blocks)])
    else:
        predictions = {name: [] for name in STREAMS}
        voted = list[Tensor]()
        for scores, vote in _shared_scores(model, readout, residual, update, output):
            for name, of_stream in zip(STREAMS, scores, strict=True):
                predictions[name] += read_predictions(of_stream, count, model.vocabulary()[0], changed=changed)
            voted.append(vote)
        votes = torch.cat(voted)
        # The model's own readout of its last block, as in `generate`.
        predictions["output"][-length:] = best_predictions(model, output[-length:], count, changed=changed)
    keys = [(layer, j) for layer in range(len(blocks)) for j in range(length)]
    predicted = {(name, *key): one for name, best in predictions.items() for key, one in zip(keys, best, strict=True)}
    return BlockPredictions(predicted, list(torch.split(votes, length)))


def _shared_scores(
    model: LanguageModel, readout: SharedReadout, residual: Tensor, update: Tensor, output: Tensor
) -> Iterator[tuple[Iterator[Tensor], Tensor]]:
    """Yields some rows' scores of the three streams, valid until the next ones, and the updates' votes."""
    vocabulary = model.sizes.vocabulary
    step = rows_within(BUDGET.prompt_scores, vocabulary)
    room, scratch = (room_for_scores(count * step, vocabulary, device=model.device) for count in (2, 1))
    for three in zip(*(torch.split(rows, step) for rows in (residual, update, output)), strict=True):
        of_residual, of_update, weights = readout.multiply(*three, out=room)
        vote = top(of_update, 1)[0][:, 0]
        of_output = readout.add_up(of_residual, of_update, weights, three[2], out=scratch[: len(vote)])
        yield (readout.finish(readout.add_offset(scores)) for scores in (of_residual, of_update, of_output)), vote
