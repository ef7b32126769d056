"""Direct effects of one forward on logits at some positions: of the embedding, of every attention layer and head, of
every memory, and of the biases; they add up to the logit (definitions.md section 9, attribute).

One forward with plain attention, and every norm between a part and the logit linear at its own scale.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models import LanguageModel, read_blocks, read_final
from mnemoscope.models.forward.attention import HeadOutput, eager_attention, find_attention, read_attention
from mnemoscope.models.modules.taps import Taps
from mnemoscope.models.readout.token_logits import FrozenNorm, LogitDirections
from mnemoscope.tracing.predictions import ids_of
from mnemoscope.tracing.scoring.logit_parts import LogitParts, LogitSplitter, StreamParts
from mnemoscope.tracing.scoring.memory_effects import MemoryEffects, WrittenValues

_LIMIT = 1e-5
"""What the parts of a float32 run may miss the logit by, of the sum of the sizes of logits and parts."""


@dataclass(frozen=True)
class DirectEffects:
    """Effects on one logit a row, float64. `parts` are those of whole layers; `memories [row, memory]`, whose m_i are
    `coefficients`, and `biases [row]`, which hold the feed-forward layers' own, stand in place of its `ffn` and `bias`.
    `behind [row]` are the biases that the final norm's `scale [row]` does not divide. `heads [row, head]` are None
    where they cannot be told apart, or are not asked for.
    """

    parts: LogitParts
    memories: tuple[Tensor, ...]
    coefficients: tuple[Tensor, ...]
    biases: Tensor
    behind: Tensor
    scale: Tensor
    heads: tuple[Tensor | None, ...]
    final: Tensor
    """The final stream `[row, hidden]`."""

    @property
    def by_layer(self) -> Tensor:
        """The memories' sums `[layer, row]`."""
        return torch.stack([effects.sum(1) for effects in self.memories])

    @property
    def total(self) -> Tensor:
        """All parts added up, `[row]`."""
        parts = self.parts
        layers = parts.attention.sum(0) + self.by_layer.sum(0) + parts.other.sum(0)
        return parts.embedding + layers + self.biases + parts.head

    @property
    def sizes(self) -> Tensor:
        """The sum of the parts' absolute values, `[row]`; without `parts.head`, which no scale divides."""
        parts = self.parts
        layers = sum(each.abs().sum(0) for each in (parts.attention, self.by_layer, parts.other))
        return parts.embedding.abs() + self.biases.abs() + layers


def direct_effects(
    model: LanguageModel,
    tokens: Sequence[int],
    columns: slice,
    directions: Callable[[Tensor], LogitDirections],
    *,
    heads: bool = False,
) -> DirectEffects:
    """The effects at some columns of a framed text of `tokens`, on the logits that `directions` makes of the final
    stream `[row, hidden]`.
    """
    check_head(model)
    attention = find_attention(model)
    parts = StreamParts(model, lambda tensor: tensor[0, columns], watch=WrittenValues.of)
    mixed: dict[int, tuple[Tensor, Tensor]] = {}
    final: list[Tensor] = []

    def watch_heads(taps: Taps) -> None:
        for layer, output in enumerate(one.heads for one in attention):
            if output is not None:
                entered: list[Tensor] = []
                taps.enters(output.out, lambda tensor, kept=entered: kept.append(tensor))  # type: ignore[misc]

                def leave(given: Tensor, layer: int = layer, kept: list[Tensor] = entered) -> None:
                    both = (model.split_batch(one)[0, columns].clone() for one in (kept.pop(), given))
                    mixed[layer] = tuple(both)  # type: ignore[assignment]

                taps.leaves(output.out, leave)

    with model.lock, torch.inference_mode():
        with (
            eager_attention(model),
            read_attention(model, attention, parts.note),
            read_blocks(model, parts.keep),
            read_final(model, lambda stream: final.append(stream[0, columns].clone().to(model.device))),
            Taps() as taps,
        ):
            if heads:
                watch_heads(taps)
            model.backbone(ids_of(model, list(tokens)))
        wanted = directions(final[0])
        memories: dict[int, Tensor] = {}
        biases: list[Tensor] = []
        by_head: dict[int, Tensor] = {}
        effects = MemoryEffects(model)

        def see(layer: int, part: str, direction: Tensor) -> None:
            if part == "ffn":
                each, bias = effects.of_layer(layer, direction, parts.written[layer])
                memories[layer] = each.cpu()
                biases.append(bias)
            elif layer in mixed:
                by_head[layer] = _head_effects(model, attention[layer].heads, direction, *mixed[layer]).cpu()

        split = LogitSplitter(model, attention).split(wanted, parts.embedding, parts.layers, final[0], see=see)
        scale = model.norm_scale(final[0], layer=None).double()
    layers = range(model.sizes.layers)
    return DirectEffects(
        LogitParts(*(each.cpu() for each in vars(split).values())),
        tuple(memories[layer] for layer in layers),
        tuple(parts.written[layer].coefficients.cpu() for layer in layers),
        (split.bias + sum(biases)).cpu(),
        wanted.bias.cpu(),
        scale.cpu(),
        tuple(by_head.get(layer) for layer in layers),
        final[0],
    )


def limit_of(model: LanguageModel, sizes: Tensor | float) -> float:
    """What the parts may miss the logit by, for the sum of the sizes of logits and parts. In half precision a part is
    rounded when it is made and once more as it joins the stream, each time by half of the dtype's eps.
    """
    return max(_LIMIT, torch.finfo(model.dtype).eps) * float(sizes)


def check_head(model: LanguageModel) -> None:
    if not model.linear_head:
        raise ModelUnsupported(
            f"the head of {model.spec} is an adaptive softmax, so a memory has no effect of its own on a logit;"
            " choose another model"
        )


def _head_effects(
    model: LanguageModel, heads: HeadOutput | None, direction: Tensor, entered: Tensor, given: Tensor
) -> Tensor:
    """`[row, head]`: the map's output for each head alone, without its bias, along the direction `[row, hidden]`."""
    assert heads is not None
    before, _ = FrozenNorm(model, heads.behind).step_back(direction * heads.factor, given)
    width = entered.shape[-1] // heads.count
    alone = torch.zeros(heads.count, *entered.shape, dtype=entered.dtype, device=entered.device)
    for head in range(heads.count):
        columns = slice(head * width, (head + 1) * width)
        alone[head, :, columns] = entered[:, columns]
    nothing = heads.out(torch.zeros_like(entered[:1]))
    written = torch.stack([heads.out(one) - nothing for one in alone]).to(direction.device)
    return (written.double() * before).sum(-1).T
