"""On a trace: the parts of the prediction's logit from embedding, attention and memories; and the attended tokens.

Runs one extra forward, with attention computed so that its weights are visible. The parts are those of logit_parts.py,
of the prediction's logit and of its excess over the mean logit of the vocabulary, which no shift of all logits changes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.models import LanguageModel, read_blocks, read_final
from mnemoscope.models.forward.attention import eager_attention, find_attention, read_attention
from mnemoscope.models.readout.token_logits import LogitDirections, TokenLogits
from mnemoscope.tracing.predictions import ids_of
from mnemoscope.tracing.records import Record, Token
from mnemoscope.tracing.scoring.logit_parts import LogitSplitter, StreamParts, attended_positions

SHOWN = 5


@dataclass(frozen=True, slots=True)
class AttendedToken(Record):
    """A token read by attention: its position (None: one of the frame), and its weight, the mean over heads."""

    spread = "token"

    token: Token
    position: int | None
    weight: float


@dataclass(frozen=True, slots=True)
class LayerPart(Record):
    """One layer's parts of a logit, and of its excess over the mean logit; None where attention is inseparable.

    `attended_positions` is their effective number; `attended` are the most attended tokens, best first.
    """

    layer: int
    attention: float | None
    ffn: float
    attention_above_mean: float | None
    ffn_above_mean: float
    attended_positions: float | None
    attended: tuple[AttendedToken, ...]


@dataclass(frozen=True, slots=True)
class LogitSum(Record):
    """The logit of the prediction after one position as a sum, before any soft-cap, and its excess over the mean logit.

    `rest` is the addition of blocks without a layer, or with inseparable attention, and of the function in a head's
    transform.
    """

    position: int
    logit: float
    embedding: float
    bias: float
    rest: float
    logit_above_mean: float
    embedding_above_mean: float
    bias_above_mean: float
    rest_above_mean: float
    layers: tuple[LayerPart, ...]


def logit_sums(model: LanguageModel, tokens: list[int], predicted: list[int], first: int = 0) -> tuple[LogitSum, ...]:
    """For each position (the first token's is `first`), the sum behind the predicted token's logit; active changes
    (`intervene`) apply.
    """
    columns = model.reading.own(len(tokens))
    attention = find_attention(model)
    parts = StreamParts[None](model, lambda tensor: tensor[0, columns], weigh=Tensor.float)
    final: list[Tensor] = []
    with (
        torch.inference_mode(),
        eager_attention(model),
        read_attention(model, attention, parts.note),
        read_blocks(model, parts.keep),
        read_final(model, lambda stream: final.append(stream[0, columns].clone().to(model.device))),
    ):
        model.backbone(ids_of(model, tokens))
    logits = TokenLogits(model)
    kinds = [logits.of_tokens(final[0], torch.tensor(predicted)), logits.of_mean(final[0])]
    split = LogitSplitter(model, attention).split(LogitDirections.stack(kinds), parts.embedding, parts.layers, final[0])
    looked = {layer: most_attended(model, tokens, rows, first) for layer, rows in parts.weighed.items()}
    counted = {layer: attended_positions(rows).tolist() for layer, rows in parts.weighed.items()}
    ffn, above = split.ffn[:, 0].tolist(), (split.ffn[:, 0] - split.ffn[:, 1]).tolist()
    mixed, mixed_above = split.attention[:, 0].tolist(), (split.attention[:, 0] - split.attention[:, 1]).tolist()

    def layer_part(layer: int, j: int) -> LayerPart:
        separable = attention[layer].separable
        return LayerPart(
            layer,
            mixed[layer][j] if separable else None,
            ffn[layer][j],
            mixed_above[layer][j] if separable else None,
            above[layer][j],
            counted[layer][j] if layer in counted else None,
            looked[layer][j] if layer in looked else (),
        )

    whole = torch.stack([split.logit, split.embedding, split.bias, split.other.sum(0) + split.head])
    sums = torch.cat([whole[:, 0], whole[:, 0] - whole[:, 1]]).T.tolist()
    each = range(model.sizes.layers)
    return tuple(
        LogitSum(j + first, *numbers, tuple(layer_part(layer, j) for layer in each))  # type: ignore[call-arg]
        for j, numbers in enumerate(sums)
    )


def most_attended(
    model: LanguageModel, tokens: list[int], weights: Tensor, at_first: int = 0
) -> list[tuple[AttendedToken, ...]]:
    """Per position the tokens with most of `weights [position, head, position]`; ties go to the earlier one."""
    first, texts, read = model.reading.offset, model.vocabulary()[0], model.reading.frame(tokens)
    own = range(first, first + len(tokens))
    shares, places = weights.mean(1).sort(dim=1, descending=True, stable=True)
    return [
        tuple(
            AttendedToken(Token(read[at], texts[read[at]]), at - first + at_first if at in own else None, share)
            for share, at in zip(weighed, where, strict=True)
            if share > 0
        )
        for weighed, where in zip(shares[:, :SHOWN].tolist(), places[:, :SHOWN].tolist(), strict=True)
    ]
