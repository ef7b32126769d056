"""What the blocks of a model of an unknown family are made of, told from what their modules did in one small forward.

The down-projection is the last linear map of a block back to the hidden size whose input the keys explain; a layer of
experts is the module around them; norms and stream are found by which tensors equal which. structure.py, which finds
the blocks, says what a guess this is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from mnemoscope.cache import Cache
from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.anatomy import Layer, resolve_dense, resolve_layer
from mnemoscope.models.experts import MixtureFeedForward, RoutedExperts, SharedExpert, find_routed
from mnemoscope.models.families import Family
from mnemoscope.models.feed_forward import Activation
from mnemoscope.models.linear_maps import LinearMap, is_plain, stated_sizes
from mnemoscope.models.observed import HALF_TOLERANCE, ModuleCall, Observation, distance, same

_FUNCTIONS = ("relu", "gelu", "gelu_pytorch_tanh", "silu", "relu2", "tanh", "sigmoid", "quick_gelu", "mish")


class Unclear(Exception):
    """Says what of the model cannot be told."""


@dataclass(frozen=True)
class _Keys:
    """How the coefficients may come about: f (a path or a function), and its error against what was seen."""

    error: float
    gate: ModuleCall
    activation: str | Activation
    name: str
    up: ModuleCall | None = None
    fused: tuple[str, str] | None = None


def layers_of(seen: Observation, path: str, blocks: list[nn.Module], hidden: int) -> tuple[tuple[Layer, ...], str]:
    """Every block's layer, and the name of the function that the first block's keys pass.

    What is found in a block goes for all that are made of the same modules.
    """
    layers, rows, name, latest = [], {}, "", Cache(1)
    for number, block in enumerate(blocks):
        kind = tuple((inside, type(module)) for inside, module in block.named_modules())
        routed = find_routed(block, latest)
        if kind not in rows and routed is None:
            rows[kind] = _row(seen, path, number, hidden)
            name = name or str(rows[kind][0].activation_name)
        if routed is None:
            layers.append(resolve_layer(block, *rows[kind]))
        else:
            layers.append(_mixture(seen, f"{path}.{number}", block, *routed))
    return tuple(layers), name


def _mixture(seen: Observation, path: str, block: nn.Module, place: str, experts: RoutedExperts) -> Layer:
    """The layer of a block that has experts at this place in it."""
    inside = seen.within(path)
    of = {call.path: call for call in inside}
    entry = of.get(place.rpartition(".")[0])
    if entry is None or place not in of:
        raise Unclear("its experts are no part of a module of their own")
    beside = [call for call in inside if not f"{call.path}.".startswith(f"{entry.path}.")]
    twins = [call for call in beside if same(call.taken, entry.taken) and call.given.shape == entry.given.shape]
    for others in [(), *((twin,) for twin in twins)]:
        exits = (entry, *others)
        whole = replace(entry, given=entry.given + sum(call.given for call in others))
        found = _with_norms(_no_row(path), seen.calls[path], inside, whole, entry.taken)
        if found is not None:
            break
    else:
        raise Unclear("what its experts give does not add up to what its blocks give")
    shared = _find_shared(inside, [call.path for call in exits], place, block)
    _check_sum(of, place, experts, shared, whole.given)
    row, scale = found
    ended = sorted((call.path for call in exits), key=[call.path for call in inside].index, reverse=True)
    ffn = MixtureFeedForward(
        block.get_submodule(entry.path), tuple(map(block.get_submodule, ended)), experts,
        tuple(expert for _, expert in shared),
    )  # fmt: skip
    return resolve_layer(block, row, scale, ffn)


def _check_sum(
    of: Mapping[str, ModuleCall],
    place: str,
    experts: RoutedExperts,
    shared: list[tuple[tuple[str, str], SharedExpert]],
    whole: Tensor,
) -> None:
    """Raises Unclear where the experts, those at `place` and the shared ones, do not add up to the whole layer."""
    given = of[place].given
    total = given.view(experts.count, -1, given.shape[-1]).sum(0) if experts.weighs_input else given
    for (down, keys), expert in shared:
        weight = expert.weigh(of[keys].taken)
        total = total + of[down].given * (1.0 if weight is None else weight)
    if not same(total, whole):
        raise Unclear("what its experts give, routed and shared, is not what their layer gives")


def _no_row(path: str) -> Family:
    """A row to be filled with norms."""
    return Family("structural", blocks=path, keys="", down="", activation="", in_place=True)


def _find_shared(
    inside: list[ModuleCall], exits: list[str], routed: str, block: nn.Module
) -> list[tuple[tuple[str, str], SharedExpert]]:
    """The shared experts inside these modules, each with the paths of its down-projection and of its keys."""
    own = [
        call
        for call in inside
        if any(f"{call.path}.".startswith(f"{path}.") for path in exits)
        and not f"{call.path}.".startswith(f"{routed}.")
    ]
    maps = _maps(own)
    # A router of one expert gives one number, too, but is of a class of its own.
    switches = [call for call in maps if call.given.shape[1] == 1 and type(call.module).__name__.startswith("Linear")]
    found = []
    for down in maps:
        keys = None if down in switches else _keys(own, list(maps), down)
        if keys is not None:
            dense = resolve_dense(block, _row_of(keys, down, maps, ""))
            found.append(((down.path, keys.gate.path), dense))
    if len(switches) > 1 or (switches and len(found) != 1):
        raise Unclear("it has several shared experts with gates of their own")
    switch = block.get_submodule(switches[0].path) if switches else None
    return [(paths, SharedExpert(dense, switch)) for paths, dense in reversed(found)]


def _row(seen: Observation, path: str, number: int, hidden: int) -> tuple[Family, float]:
    """The row that describes a block, and the factor by which its feed-forward output enters the stream."""
    block = seen.calls[f"{path}.{number}"]
    inside = seen.within(block.path)
    maps = _maps(inside)
    for down in maps:
        keys = _keys(inside, list(maps), down) if down.given.shape[1] == hidden else None
        if keys is None:
            continue
        row = _row_of(keys, down, maps, path)
        found = _with_norms(row, block, inside, down, keys.gate.taken)
        if found is not None:
            return found
    raise Unclear("no linear map of its blocks can be read as the values of a feed-forward layer")


def _row_of(keys: _Keys, down: ModuleCall, maps: Mapping[ModuleCall, bool], path: str) -> Family:
    return Family(
        "structural",
        blocks=path,
        keys=keys.gate.path,
        up=None if keys.up is None else keys.up.path,
        fused=keys.fused,
        down=down.path,
        activation=keys.activation,
        activation_name=keys.name,
        in_place=True,
        transposed=tuple(call.path for call, transposed in maps.items() if transposed),
    )


def _maps(inside: list[ModuleCall]) -> dict[ModuleCall, bool]:
    """The calls of linear maps, and whether each stores its matrix as [in, out]; not of what is inside such a map."""
    found = {call: transposed for call in inside if (transposed := _is_transposed(call)) is not None}
    paths = [f"{call.path}." for call in found]
    return {call: turned for call, turned in found.items() if not call.path.startswith(tuple(paths))}


def _is_transposed(call: ModuleCall) -> bool | None:
    """Whether a linear map stores its matrix as [in, out]; None for what is no such map, told by its numbers."""
    if not is_plain(call.module):
        return False if _is_probed_map(call) else None
    weight, bias = getattr(call.module, "weight", None), getattr(call.module, "bias", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    rest: Tensor | float = bias if isinstance(bias, Tensor) else 0.0
    for transposed, matrix in ((False, weight.T), (True, weight)):
        if matrix.shape[0] == call.taken.shape[1] and same(call.taken @ matrix + rest, call.given):
            return transposed
    return None


def _is_probed_map(call: ModuleCall) -> bool:
    """Whether a module without a plain matrix is a linear map from what it took to what it gave."""
    if stated_sizes(call.module) != (call.given.shape[1], call.taken.shape[1]):
        return False
    try:
        return same(LinearMap.whole(call.module)(call.taken), call.given)
    except (ModelUnsupported, RuntimeError):
        if isinstance(call.module, nn.Linear):  # it ought to be one, and the reason says what to do
            raise
        return False


def _keys(inside: list[ModuleCall], maps: list[ModuleCall], down: ModuleCall) -> _Keys | None:
    """The keys and f that explain the down-projection's input best, or None where nothing does."""
    wanted = down.taken
    found = []
    for function, name, f in _activations(inside, wanted.shape):
        for gate in maps:
            if gate.given.shape == wanted.shape and gate is not down:
                raw = f(gate.given)
                found.append(_Keys(distance(raw, wanted), gate, function, name))
                for up in maps:
                    if up.given.shape == wanted.shape and same(up.taken, gate.taken):
                        found.append(_Keys(distance(raw * up.given, wanted), gate, function, name, up=up))
            elif gate.given.shape == (wanted.shape[0], 2 * wanted.shape[1]):
                one, two = gate.given.chunk(2, dim=1)
                for raw, other, fused in ((one, two, ("gate", "up")), (two, one, ("up", "gate"))):
                    found.append(_Keys(distance(f(raw) * other, wanted), gate, function, name, fused=fused))
    best = min(found, key=lambda keys: keys.error, default=None)
    limit = 1e-4 if wanted.dtype == torch.float32 else HALF_TOLERANCE
    return best if best is not None and best.error < limit else None


def _activations(inside: list[ModuleCall], shape: torch.Size) -> Iterator[tuple[str | Activation, str, Activation]]:
    """Candidates for f: the block's own modules without weights, then the well-known functions."""
    for call in inside:
        plain = not list(call.module.parameters()) and not list(call.module.children())
        if plain and call.taken.shape == call.given.shape == shape and call.changes:
            yield call.path, type(call.module).__name__.lower(), call.module
    for name in _FUNCTIONS:
        yield ACT2FN[name], name, ACT2FN[name]


def _with_norms(
    row: Family, block: ModuleCall, inside: list[ModuleCall], down: ModuleCall, ffn_input: Tensor
) -> tuple[Family, float] | None:
    """The row with the norms (or the attention of a parallel block) under which the block's sums come out; and the
    factor by which the feed-forward output enters the stream.
    """
    output = down.given
    others = [call for call in inside if not f"{down.path}.".startswith(f"{call.path}.")]
    changing = [call for call in others if call.changes and call.taken.shape == call.given.shape]
    after = [call for call in changing if same(call.taken, output)]
    update = after[-1].given if after else output
    post_norm = after[-1].path if after else None
    streams = [(call.taken, call.path) for call in changing if same(call.given, ffn_input)]
    for residual, ffn_norm in [*streams, (ffn_input, None)]:
        normed = replace(row, ffn_norm=ffn_norm, post_norm=post_norm)
        if same(residual + update, block.given):
            return normed, 1.0
        scale = float(((block.given - residual) * update).sum() / update.square().sum().clamp_min(1e-30))
        if same(residual + update * scale, block.given):
            return normed, scale
        for call in changing:
            if same(call.given, block.given) and same(call.taken, residual + output):
                return replace(row, ffn_norm=ffn_norm, output_norm=call.path), 1.0
    for call in sorted(others, key=lambda call: call.path.count(".")):
        weighted = any(True for _ in call.module.parameters())
        if weighted and call.given.shape == output.shape and same(block.taken + call.given + update, block.given):
            return replace(row, attention=call.path, post_norm=post_norm), 1.0
    return None
