"""A token's logit as a sum: the parts of the embedding, of each attention and feed-forward layer, and of the biases.

Every norm's scale is frozen, so the map from any place in the stream to the logit is linear, and each addition to the
stream has a part of its own (definitions.md section 9, attention_share). The parts add up to the logit. Serves mining,
for the validation prefixes, and tracing, for the positions of a prompt.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, final

import torch
from torch import Tensor

from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.attention import BlockAttention, Part, streams_around
from mnemoscope.models.forward.hooks import Block
from mnemoscope.models.readout.token_logits import FrozenNorm, LogitDirections

T = TypeVar("T")


@dataclass(frozen=True)
class LayerStreams:
    """The stream around one block, each `[row, hidden]`: `before` the block, `mixed` with self-attention's output,
    `between` (what cross-attention is added to: `mixed`, or its norm), `summed` with the attention's output, `residual`
    (what the feed-forward layer reads: `summed`, or its norm), `output` behind it. `added` is the update, or in a
    post-norm block its output before the norm. Where attentions are not told apart, `mixed` and `between` are `summed`.
    """

    before: Tensor
    mixed: Tensor
    between: Tensor
    summed: Tensor
    residual: Tensor
    added: Tensor
    output: Tensor

    @property
    def attention(self) -> Tensor:
        """The attention's addition to the stream, in a block where that is separable: without cross-attention's, if
        that is told apart.
        """
        return self.mixed - self.before

    @property
    def cross_attention(self) -> Tensor:
        return self.summed - self.between


def attended_positions(weights: Tensor) -> Tensor:
    """The effective number `[row]` of attended positions: exp of the mean entropy over heads of `weights [row, head,
    position]`, which are normalised first.
    """
    shares = weights.double()
    shares = shares / shares.sum(-1, keepdim=True).clamp_min(1e-30)
    effective: Tensor = torch.special.entr(shares).sum(-1).exp().mean(-1)
    return effective


@final
class StreamParts(Generic[T]):
    """Keeps of one forward what `LogitSplitter` needs at some rows: `note` and `keep` are the callbacks of
    `read_attention` and `read_blocks`, `at` takes the rows `[row, ...]` of a tensor `[batch, position, ...]`. `weighed`
    are the results of `weigh` for the attention weights `[row, head, position]`, `written` of `watch` for each block.
    """

    def __init__(
        self,
        model: LanguageModel,
        at: Callable[[Tensor], Tensor],
        *,
        weigh: Callable[[Tensor], Tensor] = attended_positions,
        watch: Callable[[Block, Callable[[Tensor], Tensor]], T] | None = None,
    ) -> None:
        self._model, self._at, self._weigh, self._watch = model, at, weigh, watch
        self._parts: dict[int, dict[Part, Tensor]] = {layer: {} for layer in range(-1, model.sizes.layers)}
        self.layers: dict[int, LayerStreams] = {}
        self.weighed: dict[int, Tensor] = {}
        self.written: dict[int, T] = {}

    @property
    def embedding(self) -> Tensor:
        return self._parts[-1]["input"].to(self._model.device)

    def note(self, layer: int, part: Part, tensor: Tensor) -> None:
        if part == "weights":
            self.weighed[layer] = self._weigh(self._at(tensor.transpose(1, 2))).to(self._model.device)
        else:
            self._parts[layer][part] = self._at(tensor).clone()

    def keep(self, layer: int, block: Block) -> None:
        post_norm = self._model.layer(layer).output_norm is not None
        streams = (block.residual, block.ffn_output if post_norm else block.ffn_update, block.layer_output)
        residual, added, output = (self._at(stream).clone() for stream in streams)
        around = (*streams_around(self._parts[layer], residual), residual, added, output)
        self.layers[layer] = LayerStreams(*(stream.to(self._model.device) for stream in around))
        if self._watch is not None:
            self.written[layer] = self._watch(block, lambda tensor: self._at(tensor).clone())


@dataclass(frozen=True)
class LogitParts:
    """The parts of logits, each `[..., row]`, float64; `attention`, `ffn` and `other` have a first axis of layers.
    `other` is what is added between the block before and this one, by blocks without such a layer, and by inseparable
    attention; `attention` is 0 there. `cross_attention` is what of `attention` is cross-attention's, 0 where that is
    not told apart. `head` is what the function inside a head's transform changes.
    """

    embedding: Tensor
    attention: Tensor
    cross_attention: Tensor
    ffn: Tensor
    other: Tensor
    bias: Tensor
    head: Tensor
    logit: Tensor


See = Callable[[int, Literal["attention", "ffn"], Tensor], None]


@final
class LogitSplitter:
    """Splits logits into parts; `attention` is the result of `find_attention`."""

    def __init__(self, model: LanguageModel, attention: Sequence[BlockAttention]) -> None:
        self._attention = attention
        layers = model.anatomy.layers
        self._after_attention = [FrozenNorm(model, each.norm) for each in attention]
        self._after_self = [FrozenNorm(model, None if each.cross is None else each.cross.norm) for each in attention]
        self._scales = [layer.output_scale for layer in layers]
        self._after_block = [FrozenNorm(model, layer.output_norm) for layer in layers]

    def split(
        self,
        directions: LogitDirections,
        embedding: Tensor,
        layers: Mapping[int, LayerStreams],
        final: Tensor,
        *,
        see: See = lambda *_: None,
    ) -> LogitParts:
        """The parts of the logits of `directions [..., row, hidden]`. `embedding` enters the first block, `final`
        leaves the last; changes between the given `layers` are `other`, those behind the last one its own. `see` gets
        the directions `[..., row, hidden]` before which a layer's two additions stand, the last layer first.
        """
        direction, bias = directions.direction, directions.bias
        attention, crossing, ffn, other = [], [], [], []
        later = final

        def part(vectors: Tensor) -> Tensor:
            return (direction * vectors.double()).sum(-1)

        for layer, streams in sorted(layers.items(), reverse=True):
            scale = self._scales[layer]  # the block's factor on its stream
            other.append(part(later.double() - scale * streams.output.double()))
            direction = direction * scale
            direction, added = self._after_block[layer].step_back(direction, streams.residual + streams.added)
            see(layer, "ffn", direction)
            ffn.append(part(streams.added))
            bias = bias + added
            direction, added = self._after_attention[layer].step_back(direction, streams.summed)
            bias = bias + added
            crossing.append(part(streams.summed.double() - streams.between.double()))
            direction, added = self._after_self[layer].step_back(direction, streams.mixed)
            bias = bias + added
            see(layer, "attention", direction)
            of_attention = part(streams.mixed.double() - streams.before.double()) + crossing[-1]
            attention.append(of_attention if self._attention[layer].separable else torch.zeros_like(of_attention))
            if not self._attention[layer].separable:
                other[-1] = other[-1] + of_attention
            later = streams.before
        other[-1] = other[-1] + part(later.double() - embedding.double())
        mixed, crossed, fed, rest = (torch.stack(parts[::-1]) for parts in (attention, crossing, ffn, other))
        return LogitParts(part(embedding), mixed, crossed, fed, rest, bias, directions.head, directions.logit)
