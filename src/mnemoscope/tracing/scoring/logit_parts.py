"""A token's logit as a sum: the parts of the embedding, of each attention and feed-forward layer, and of the biases.

Every norm's scale is frozen, so the map from any place in the stream to the logit is linear, and each addition to the
stream has a part of its own (definitions.md section 9, attention_share). The parts add up to the logit. Serves mining,
for the validation prefixes, and tracing, for the positions of a prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.attention import BlockAttention, Part
from mnemoscope.models.forward.hooks import Block
from mnemoscope.models.readout.token_logits import FrozenNorm, LogitDirections


@dataclass(frozen=True)
class LayerStreams:
    """The stream around one block, each `[row, hidden]`: `before` the block, `summed` with the attention's output,
    `residual` (what the feed-forward layer reads: `summed`, or its norm), `output` behind it. `added` is the update, or
    in a post-norm block its output before the norm. `attended [row]` is the effective number of attended positions.
    """

    before: Tensor
    summed: Tensor
    residual: Tensor
    added: Tensor
    output: Tensor
    attended: Tensor | None = None

    @property
    def attention(self) -> Tensor:
        """The attention's addition to the stream, in a block where that is separable."""
        return self.summed - self.before

    @classmethod
    def of(cls, parts: Mapping[Part, Tensor], ffn: Sequence[Tensor], attended: Tensor | None) -> Self:
        """From the parts of `read_attention`, and `ffn_streams`, all taken at the same places."""
        residual, added, output = ffn
        return cls(parts["input"].to(residual.device), parts.get("sum", residual), residual, added, output, attended)

    def on(self, device: torch.device) -> Self:
        parts = (None if one is None else one.to(device) for one in vars(self).values())
        return type(self)(*parts)  # type: ignore[arg-type]


def ffn_streams(model: LanguageModel, layer: int, block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """Residual, the feed-forward layer's addition, and output of a block, in the form of `LayerStreams.of`."""
    post_norm = model.layer(layer).output_norm is not None
    return block.residual, block.ffn_output if post_norm else block.ffn_update, block.layer_output


def attended_positions(weights: Tensor) -> Tensor:
    """The effective number `[row]` of attended positions: exp of the mean entropy over heads of `weights [row, head,
    position]`, which are normalised first.
    """
    shares = weights.double()
    shares = shares / shares.sum(-1, keepdim=True).clamp_min(1e-30)
    effective: Tensor = torch.special.entr(shares).sum(-1).exp().mean(-1)
    return effective


@dataclass(frozen=True)
class LogitParts:
    """The parts of logits, each `[..., row]`, float64. `other` is the addition of blocks without such a layer, or with
    inseparable attention; `attention` is 0 there.
    """

    embedding: Tensor
    attention: Tensor
    ffn: Tensor
    other: Tensor
    bias: Tensor
    logit: Tensor


@final
class LogitSplitter:
    """Splits logits into parts; `attention` is the result of `find_attention`."""

    def __init__(self, model: LanguageModel, attention: Sequence[BlockAttention]) -> None:
        self._attention = attention
        layers = model.anatomy.layers
        self._after_attention = [FrozenNorm(model, each.norm) for each in attention]
        self._scales = [layer.output_scale for layer in layers]
        self._after_block = [FrozenNorm(model, layer.output_norm) for layer in layers]

    def split(
        self, directions: LogitDirections, embedding: Tensor, layers: Mapping[int, LayerStreams], final: Tensor
    ) -> LogitParts:
        """The parts of the logits of `directions [..., row, hidden]`. `embedding` enters the first block, `final`
        leaves the last; changes between the given `layers` are `other`.
        """
        direction, bias = directions.direction, directions.bias
        other = torch.zeros_like(bias)
        attention, ffn = [], []
        later = final

        def part(vectors: Tensor) -> Tensor:
            return (direction * vectors.double()).sum(-1)

        for layer, streams in sorted(layers.items(), reverse=True):
            scale = self._scales[layer]  # the block's factor on its stream
            other = other + part(later.double() - scale * streams.output.double())
            direction = direction * scale
            direction, added = self._after_block[layer].step_back(direction, streams.residual + streams.added)
            ffn.append(part(streams.added))
            bias = bias + added
            direction, added = self._after_attention[layer].step_back(direction, streams.summed)
            bias = bias + added
            of_attention = part(streams.summed.double() - streams.before.double())
            if self._attention[layer].separable:
                attention.append(of_attention)
            else:
                attention.append(torch.zeros_like(of_attention))
                other = other + of_attention
            later = streams.before
        other = other + part(later.double() - embedding.double())
        return LogitParts(
            part(embedding), torch.stack(attention[::-1]), torch.stack(ffn[::-1]), other, bias, directions.logit
        )
