"""On a trace: what embedding, attention and memories give the prediction, layer by layer, and what attention looked at.

One forward of its own, in which attention is computed so that it tells its weights. Parts are those of logit_parts.py,
of the prediction's logit and of the same above the mean logit of the vocabulary, which no shift of all logits changes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.models import Block, LanguageModel, read_blocks, read_final
from mnemoscope.models.forward.attention import Part, eager_attention, find_attention, read_attention
from mnemoscope.models.readout.token_logits import LogitDirections, TokenLogits
from mnemoscope.tracing.logit_parts import LayerStreams, LogitSplitter, attended_positions, ffn_streams
from mnemoscope.tracing.predictions import ids_of
from mnemoscope.tracing.records import Record, Token

SHOWN = 5
"""Attended tokens that are kept for each layer and position."""


@dataclass(frozen=True, slots=True)
class AttendedToken(Record):
    """A token that attention looked at from some position: where it stands (None: the beginning token), and its weight.

    The weight is the mean over the heads.
    """

    spread = "token"

    token: Token
    position: int | None
    weight: float


@dataclass(frozen=True, slots=True)
class LayerPart(Record):
    """What one layer gives to a logit, and to the same above the mean logit; None where attention cannot be told.

    `attended_positions` is the effective number of them; `attended` are the most attended tokens, best first.
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
    """The logit of the prediction after one position as a sum, before any soft-cap, and the same above the mean logit.

    `rest` is what blocks add that are no layer, or whose attention cannot be told.
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


def logit_sums(model: LanguageModel, tokens: list[int], predicted: list[int]) -> tuple[LogitSum, ...]:
    """Of every position of a prompt the sum behind the logit of the token that is predicted after it.

    Changes that are in place (`intervene`) hold for it, too.
    """
    own = slice(model.beginning.length, model.beginning.length + len(tokens))
    attention = find_attention(model)
    parts: dict[int, dict[Part, Tensor]] = {layer: {} for layer in range(-1, model.sizes.layers)}
    streams: dict[int, LayerStreams] = {}
    weights: dict[int, Tensor] = {}
    final: list[Tensor] = []

    def note(layer: int, part: Part, tensor: Tensor) -> None:
        if part == "weights":
            weights[layer] = tensor[0, :, own].transpose(0, 1).float().to(model.device)
        else:
            parts[layer][part] = tensor[0, own].clone()

    def keep(layer: int, block: Block) -> None:
        ffn = [tensor[0, own].clone() for tensor in ffn_streams(model, layer, block)]
        attended = None if layer not in weights else attended_positions(weights[layer])
        streams[layer] = LayerStreams.of(parts[layer], ffn, attended).on(model.device)

    with (
        torch.inference_mode(),
        eager_attention(model),
        read_attention(model, attention, note),
        read_blocks(model, keep),
        read_final(model, lambda stream: final.append(stream[0, own].clone().to(model.device))),
    ):
        model.backbone(ids_of(model, tokens))
    logits = TokenLogits(model)
    kinds = [logits.of_tokens(final[0], torch.tensor(predicted)), logits.of_mean(final[0])]
    embedding = parts[-1]["input"].to(model.device)
    found = LogitSplitter(model, attention).split(LogitDirections.stack(kinds), embedding, streams, final[0])
    looked = {layer: most_attended(model, tokens, rows) for layer, rows in weights.items()}
    counted = {layer: one.attended.tolist() for layer, one in streams.items() if one.attended is not None}
    ffn, above = found.ffn[:, 0].tolist(), (found.ffn[:, 0] - found.ffn[:, 1]).tolist()
    mixed, mixed_above = found.attention[:, 0].tolist(), (found.attention[:, 0] - found.attention[:, 1]).tolist()

    def layer_part(layer: int, j: int) -> LayerPart:
        known = attention[layer].separable
        return LayerPart(
            layer, mixed[layer][j] if known else None, ffn[layer][j], mixed_above[layer][j] if known else None,
            above[layer][j], counted[layer][j] if layer in counted else None,
            looked[layer][j] if layer in looked else (),
        )  # fmt: skip

    whole = torch.stack([found.logit, found.embedding, found.bias, found.other])
    sums = torch.cat([whole[:, 0], whole[:, 0] - whole[:, 1]]).T.tolist()
    each = range(model.sizes.layers)
    return tuple(
        LogitSum(j, *numbers, tuple(layer_part(layer, j) for layer in each))  # type: ignore[call-arg]
        for j, numbers in enumerate(sums)
    )


def most_attended(model: LanguageModel, tokens: list[int], weights: Tensor) -> list[tuple[AttendedToken, ...]]:
    """For each position the tokens that get most of `weights [position, head, position]`, of equal ones the earlier."""
    first, texts = model.beginning.length, model.vocabulary()[0]
    read = [*model.beginning.tokens, *tokens]
    shares, places = weights.mean(1).sort(dim=1, descending=True, stable=True)
    found = []
    for own, where in zip(shares[:, :SHOWN].tolist(), places[:, :SHOWN].tolist(), strict=True):
        found.append(tuple(
            AttendedToken(Token(read[at], texts[read[at]]), at - first if at >= first else None, share)
            for share, at in zip(own, where, strict=True)
            if share > 0
        ))  # fmt: skip
    return found
