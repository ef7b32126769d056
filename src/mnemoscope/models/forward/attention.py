"""Attention beside the feed-forward layer: each block's attention output and its weights.

No family's row names the attention. One small forward finds it: the only module of a block that outputs attention
weights, and how its output enters the stream (added; or added and normed, in a post-norm block). Where a block also
attends to a source, what is added before it reads the source is self-attention's, the rest cross-attention's. Other
modules that mix positions (recurrent blocks, linear attention) do not count as attention. Weights exist only while the
network computes attention as plain matrix products (`eager_attention`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from mnemoscope.models.forward.hooks import Block, read_blocks
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.modules.fairseq_decoder import Attention
from mnemoscope.models.modules.observed import HALF_TOLERANCE, flat, ids_for, same, takes_source, watch_calls
from mnemoscope.models.modules.quiet import suppress_warnings
from mnemoscope.models.modules.taps import Taps

Part = Literal["input", "self", "between", "sum", "weights"]
"""What is read of a block: the stream that enters it; where its attentions are told apart, the input of the norm behind
self-attention (post-norm blocks) and the stream that cross-attention is added to; the input of the norm after attention
(post-norm blocks); and the attention weights `[batch, head, position, attended position]`."""
Callback = Callable[[int, Part, Tensor], None]
REFUSALS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError)


@dataclass(frozen=True)
class HeadOutput:
    """How `count` heads enter the stream: side by side into the linear map `out`, whose output passes the norm `behind`
    (None: no norm) and is multiplied by `factor`.
    """

    count: int
    out: nn.Module
    behind: nn.Module | None
    factor: float


@dataclass(frozen=True)
class CrossAttention:
    """Where cross-attention begins: `reader` takes the stream that it is added to, which in a post-norm block is the
    output of the `norm` behind self-attention.
    """

    reader: nn.Module
    norm: nn.Module | None


@dataclass(frozen=True)
class BlockAttention:
    """The attention of one block; all defaults for a block without. `weights` is the module that outputs the weights;
    in a post-norm block `norm` reads the sum. If not `separable`, the attention's addition is unknown. `heads` is None
    where they cannot be told apart, `cross` where attention to a source cannot, or is not there.
    """

    separable: bool = False
    weights: nn.Module | None = None
    norm: nn.Module | None = None
    heads: HeadOutput | None = None
    cross: CrossAttention | None = None


@contextmanager
def eager_attention(model: LanguageModel) -> Iterator[None]:
    """Makes the network attend by plain matrix products, which expose weights; does nothing if not `model.eager`. Holds
    the model's lock, since the switch affects every thread.
    """
    with model.in_use(), model.lock, switch_to_eager(model.anatomy.model) if model.eager else nullcontext():
        yield


@contextmanager
def switch_to_eager(network: nn.Module) -> Iterator[None]:
    """Makes all parts of a network attend by plain matrix products; not for several threads."""
    with suppress_warnings(), ExitStack() as kept:
        every = [one for module in network.modules() for one in _with_parts(getattr(module, "config", None))]
        for config in {id(config): config for config in every}.values():
            # A private name of transformers: its public `set_attn_implementation` skips models of foreign code, and
            # cannot restore parts that differ.
            kept.callback(setattr, config, "_attn_implementation_internal", config._attn_implementation_internal)
            config._attn_implementation_internal = "eager"
        yield


def _with_parts(config: Any) -> list[Any]:
    if not isinstance(config, PretrainedConfig):
        return []
    return [config, *(one for name in config.sub_configs for one in _with_parts(getattr(config, name, None)))]


@contextmanager
def read_attention(
    model: LanguageModel, attentions: Sequence[BlockAttention], callback: Callback, *, own_thread: bool = False
) -> Iterator[None]:
    """Calls `callback(layer, part, tensor)` for all layers; `attentions` are from `find_attention`. Copy what is kept.
    The stream that enters the first block is the input of layer -1.
    """

    def tap(layer: int, part: Part) -> Callable[[Tensor], None]:
        return lambda tensor: callback(layer, part, model.split_batch(tensor))

    with model.in_use(), Taps(own_thread=own_thread) as taps:
        taps.begins(model.anatomy.first_block, tap(-1, "input"))
        for layer, attention in enumerate(attentions):
            taps.begins(model.layer(layer).block, tap(layer, "input"))
            if attention.cross is not None:
                taps.begins(attention.cross.reader, tap(layer, "between"))
                if attention.cross.norm is not None:
                    taps.enters(attention.cross.norm, tap(layer, "self"))
            if attention.norm is not None:
                taps.enters(attention.norm, tap(layer, "sum"))
            if attention.weights is not None:
                _watch_weights(layer, attention.weights, callback, taps)
        yield


def streams_around(parts: Mapping[Part, Tensor], residual: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The streams before and behind self-attention, then before and behind cross-attention; of a block whose attentions
    are not told apart the last two are the second. `residual` is what the feed-forward layer reads.
    """
    behind = parts.get("sum", residual)
    between = parts.get("between", behind)
    return parts["input"], parts.get("self", between), between, behind


def _watch_weights(layer: int, module: nn.Module, callback: Callback, taps: Taps) -> None:
    def ending(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if taps.act():
            callback(layer, "weights", module.weights(inputs[0]) if isinstance(module, Attention) else output[1])

    taps.enter_context(module.register_forward_hook(ending))


@dataclass(frozen=True)
class _Call:
    path: str
    module: nn.Module
    taken: Tensor
    given: Tensor
    heads: int
    """Those of the attention weights that it also outputs; 0 without."""


def find_attention(model: LanguageModel) -> tuple[BlockAttention, ...]:
    """The attention of every layer's block, found in one small forward; without `weights` if not `model.eager`."""
    network = model.anatomy.model
    calls: dict[int, list[_Call]] = {layer: [] for layer in range(model.sizes.layers)}
    inputs: dict[int, Tensor] = {}
    blocks: dict[int, Block] = {}
    ids = ids_for(network, model.sizes.vocabulary, columns=model.sizes.context)
    if (mask := model.reading.mask) is not None:  # a change around this that acts at the mask needs one
        ids = ids.masked_fill(ids == mask, (mask + 1) % model.sizes.vocabulary)
        ids[:, -1] = mask
    nothing = tuple(BlockAttention() for _ in model.anatomy.layers)

    def note_input(layer: int, _: Part, tensor: Tensor) -> None:
        inputs[layer] = flat(tensor).clone()

    def note_call(layer: int, path: str, module: nn.Module, taken: Tensor, given: Tensor, output: Any) -> None:
        heads = module.heads if isinstance(module, Attention) else _heads_of(output, model.shape, model.reading.causal)
        calls[layer].append(_Call(path, module, taken, given, heads))

    with model.in_use(), model.lock, switch_to_eager(network), ExitStack() as hooks:
        for layer, parts in enumerate(model.anatomy.layers):
            watch_calls(parts.block, partial(note_call, layer), hooks)
        hooks.enter_context(read_attention(model, nothing, note_input))
        hooks.enter_context(read_blocks(model, blocks.__setitem__))
        try:
            model.backbone(ids)
        except REFUSALS:  # a network without such attention
            return nothing
    tell = _tell_both if takes_source(network) else _tell
    results = [tell(calls[layer], inputs[layer], flat(block.residual)) for layer, block in sorted(blocks.items())]
    return tuple(results if model.eager else (replace(one, weights=None) for one in results))


def _heads_of(output: Any, shape: tuple[int, ...], causal: bool) -> int:
    """The heads of the attention weights that a module also outputs: rows that sum to 1, or to less with a sink, and
    that see no later position if `causal`; 0 without.
    """
    weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
    if not isinstance(weights, Tensor) or weights.dim() != 4:
        return 0
    rows = weights.float().sum(-1)
    fits = (weights.shape[0], *weights.shape[2:]) == (shape[0], shape[1], shape[1])
    told = fits and (weights >= 0).all() and (rows < 1.01).all() and not (causal and weights.triu(1).any())
    return weights.shape[1] if told else 0


def _tell_both(calls: Sequence[_Call], before: Tensor, residual: Tensor) -> BlockAttention:
    """The two attentions of a block that also attends to a source; where they cannot be told apart, separable together
    if they alone are added.
    """
    weights = next((call.module for call in calls if call.heads), None)
    # A source has another length, so its rows are others.
    sources = [at for at, call in enumerate(calls) if 0 < len(call.taken) != len(before)]
    earlier = calls[: sources[0]] if sources else ()
    around = _around([calls[at].path for at in sources], calls)
    crossing = [call for call in around if not same(call.given, residual)]  # some give the whole stream
    # Backwards: where self-attention adds next to nothing, an earlier module reads nearly the same stream. Without a
    # norm first: a stream that is large beside what is added to it fits many sums, and is no norm's output.
    readers = [call for call in reversed(earlier) if call.taken.shape == before.shape]
    firsts = [(one, first) for one in readers if (first := _enter(earlier, calls, before, one.taken))]
    for reader, (_, norm, _) in sorted(firsts, key=lambda first: first[1][1] is not None):
        if second := _enter(crossing, calls, reader.taken, residual):
            return BlockAttention(True, weights, second[1], cross=CrossAttention(reader.module, norm))
    alike = [call.given for call in calls if call.given.shape == before.shape]
    separable = any(same(one + other, residual - before) for one, other in combinations(alike, 2))
    return BlockAttention(separable, weights)


def _tell(calls: Sequence[_Call], before: Tensor, residual: Tensor) -> BlockAttention:
    """How the attention of a block enters the stream, which is `before` it and `residual` after it."""
    givers = [call for call in calls if call.heads]
    # An outer module may return the weights of an inner one.
    inner = [call for call in givers if not any(other.path.startswith(f"{call.path}.") for other in givers)]
    if len(inner) != 1:
        return BlockAttention()
    weights, entering = inner[0].module, _enter(_around([inner[0].path], calls), calls, before, residual)
    if entering is None:
        return BlockAttention(False, weights)
    added, norm, factor = entering
    return BlockAttention(True, weights, norm, _heads(calls, inner[0], added, factor))


def _around(paths: Sequence[str], calls: Sequence[_Call]) -> list[_Call]:
    """The modules that hold one of these, or lie in it, and those that take what one of them gives."""
    inside = [f"{path}." for path in paths]
    around = [one for one in calls if any(p.startswith(f"{one.path}.") or one.path.startswith(p) for p in inside)]
    return around + [call for call in calls if any(same(call.taken, one.given) for one in around)]


def _enter(
    givers: Sequence[_Call], calls: Sequence[_Call], before: Tensor, after: Tensor
) -> tuple[_Call, nn.Module | None, float] | None:
    """Which of the givers makes the stream `after` of the one `before`, the norm of their sum (None: no norm), and the
    factor on what it gives; None if none does.
    """
    sums = [call for call in calls if call.taken.shape == before.shape and same(call.given, after)]
    for norm, whole in [(None, after), *((call.module, call.taken) for call in sums)]:
        for giver in givers:
            factor = _factor_added(giver.given, before, whole)
            # Where nothing is added, 0 times anything fits.
            if factor is not None and (abs(factor) > 1e-6 or not giver.given.any()):
                return giver, norm, factor
    return None


def _heads(calls: Sequence[_Call], attention: _Call, added: _Call, factor: float) -> HeadOutput | None:
    """The heads of an attention whose output, or the `added` norm of it, enters the stream times the factor."""
    behind = None if same(added.given, attention.given) else added
    if behind is not None and not same(behind.taken, attention.given):
        return None
    for call in calls:
        inside = call.path.startswith(f"{attention.path}.") and same(call.given, attention.given)
        if inside and not same(call.taken, call.given) and call.taken.shape[-1] % attention.heads == 0:
            return HeadOutput(attention.heads, call.module, None if behind is None else behind.module, factor)
    return None


def _factor_added(given: Tensor, before: Tensor, after: Tensor) -> float | None:
    """The factor on `given` in `after - before`, apart from the stream's rounding, which may be larger; else None."""
    if given.shape != after.shape:
        return None
    added, given = (after - before).float(), given.float()
    factor = float((given * added).sum() / given.square().sum().clamp_min(1e-30))
    rounding = 4 * torch.finfo(after.dtype).eps * float(after.abs().max())
    size = float(added.square().mean().sqrt())
    limit = 1e-4 if after.dtype == torch.float32 else HALF_TOLERANCE
    if float((given * factor - added).abs().max()) > limit * size + rounding:
        return None
    return 1.0 if abs(factor - 1.0) < limit else factor
