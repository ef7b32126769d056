"""Readings of streams by the paper's own formulas: products with the head's matrix alone (definitions.md section 4b).

No norm, gain, bias or soft-cap. Beside the model's own prediction w stands the token that the paper's formula takes for
it, the top of the final stream's products, which differs where a final norm stands.
"""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from mnemoscope.foundation.budget import BUDGET, rows_within
from mnemoscope.mining.passes.stream_readings import Readings, Streams
from mnemoscope.models import LanguageModel
from mnemoscope.models.modules.projections import room_for_scores
from mnemoscope.tracing import max_probability, top


@final
class LiteralReader:
    """Reads streams of one model. `tops`, per layer: the `literal_top [memory]` of its values, which are its votes."""

    def __init__(self, model: LanguageModel, tops: Mapping[int, Tensor]) -> None:
        self._model, self._head, vocabulary = model, model.scorer(), model.sizes.vocabulary
        self._votes = {layer: torch.bincount(own.long(), minlength=vocabulary) for layer, own in tops.items()}
        self._rows = rows_within(BUDGET.stream_scores, vocabulary)

    def tops(self, streams: Tensor) -> Tensor:
        """The token `[row]` with the largest product with streams `[row, hidden]`."""
        return self._tops(streams, self._room())

    def read(self, streams: Mapping[int, Streams], finals: Tensor, bare_finals: Tensor) -> dict[int, Readings]:
        """The literal columns of every layer; `finals` and `bare_finals [row]` are the two final tokens."""
        room = self._room()
        both = torch.stack([finals, bare_finals], 1).to(room.device)
        return {layer: self._read_layer(layer, of_layer, both, room) for layer, of_layer in streams.items()}

    def _room(self) -> Tensor:
        """A buffer for one call: threads read batches beside each other."""
        return room_for_scores(self._rows, self._model.sizes.vocabulary, device=self._model.device)

    def _scores(self, streams: Tensor, room: Tensor) -> Tensor:
        return self._head.scores(self._model.bare(streams), out=room[: len(streams)])

    def _tops(self, streams: Tensor, room: Tensor) -> Tensor:
        return torch.cat([top(self._scores(rows, room), 1)[0][:, 0] for rows in torch.split(streams, self._rows)])

    def _read_layer(self, layer: int, streams: Streams, both: Tensor, room: Tensor) -> Readings:
        """`both [row, 2]` are the two final tokens."""
        tops, probabilities = [], []
        for rows, wanted in zip(torch.split(streams.residual, self._rows), torch.split(both, self._rows), strict=True):
            scores = self._scores(rows, room)
            tokens, best = top(scores, 1)
            tops.append(tokens[:, 0])
            most = max_probability(scores, best[:, 0], torch.ones_like(best[:, 0]))
            probabilities.append((scores.gather(1, wanted) - best).exp() * most[:, None])
        of_finals = torch.cat(probabilities)
        ffn_top = self._tops(streams.ffn_output, room)
        return {
            "literal_residual_top": torch.cat(tops),
            "literal_residual_final_probability": of_finals[:, 0],
            "literal_residual_bare_probability": of_finals[:, 1],
            "literal_ffn_top": ffn_top,
            "literal_output_top": self._tops(streams.output, room),
            "literal_votes": self._votes[layer].to(ffn_top.device)[ffn_top],
        }
