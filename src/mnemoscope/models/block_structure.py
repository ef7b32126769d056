"""What the blocks of a model of an unknown family are made of, told from what their modules did in one small forward.

The down-projection is the last linear map of a block back to the hidden size whose input the keys explain; a layer of
experts is the module around them; norms and stream are found by which tensors equal which. structure.py, which finds
the blocks, says what a guess this is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mnemoscope.cache import Cache
from mnemoscope.models.anatomy import Layer, resolve_dense, resolve_layer
from mnemoscope.models.experts import MixtureFeedForward, RoutedExperts, SharedExpert, find_routed
from mnemoscope.models.families import Family
from mnemoscope.models.key_structure import Keys, find_keys, find_maps
from mnemoscope.models.observed import ModuleCall, Observation, factor_between, mixes_positions, same


class Unclear(Exception):
    """Says what of the model cannot be told."""


@dataclass(frozen=True)
class Blocks:
    """The layers of the blocks that have one, what the others hold by their number, the first function's name, and the
    numbers of the first and the last block that run.
    """

    layers: tuple[Layer, ...]
    without: Mapping[int, str]
    activation: str
    first: int
    last: int


def read_structure(model: nn.Module, seen: Observation, path: str, blocks: list[nn.Module]) -> Blocks:
    """Every block's layer, where it has one.

    What is found in a block goes for all that are made of the same modules. Raises Unclear for a block whose
    feed-forward layer cannot be read, and where no block has one.
    """
    layers: list[Layer] = []
    rows: dict[tuple[tuple[str, type], ...], tuple[Family, float] | str] = {}
    without: dict[int, str] = {}
    name, latest = "", Cache(1)
    running = [number for number in range(len(blocks)) if f"{path}.{number}" in seen.calls]
    if any(call.path == f"{path}.{number}" for call in seen.again for number in running):
        raise Unclear("its blocks run more than once in a forward, where one call cannot be told from another yet")
    for number, block in enumerate(blocks):
        if number not in running:  # such as cross-attention to a picture
            without[number] = f"{type(block).__name__}, which text alone does not run"
            continue
        kind = tuple((inside, type(module)) for inside, module in block.named_modules())
        routed = find_routed(block, latest)
        if kind not in rows and routed is None:
            try:
                row, scale = _row(seen, path, number)
                name = name or str(row.activation_name)
                rows[kind] = row, scale
            except Unclear:
                mixer = _lone_mixer(model, seen, f"{path}.{number}")
                if mixer is None:
                    raise
                rows[kind] = mixer
        if routed is not None:
            layers.append(_mixture(seen, f"{path}.{number}", block, *routed))
        elif isinstance(found := rows[kind], str):
            without[number] = found
        else:
            layers.append(resolve_layer(block, *found))
    if not layers:
        raise Unclear(f"what its blocks add is made by {', '.join(dict.fromkeys(without.values()))}, not by memories")
    return Blocks(tuple(layers), without, name, running[0], running[-1])


def _lone_mixer(model: nn.Module, seen: Observation, path: str) -> str | None:
    """The class of the module that alone makes a block's update, if it mixes positions, as no feed-forward layer does;
    None where the block may have a feed-forward layer.
    """
    block = seen.calls[path]
    for call in sorted(seen.within(path), key=lambda call: call.path.count(".")):
        if call.given.shape == block.given.shape:
            scale = factor_between(call.given, block.given - block.taken)
            alone = same(block.taken + call.given * scale, block.given)
            if alone and call.changes and mixes_positions(model, f"{path}.{call.path}", len(seen.logits.T)):
                return type(call.module).__name__
    return None


def _mixture(seen: Observation, path: str, block: nn.Module, place: str, experts: RoutedExperts) -> Layer:
    """The layer of a block that has experts at this place in it."""
    inside = seen.within(path)
    of = {call.path: call for call in inside}
    entry = of.get(place.rpartition(".")[0])
    if entry is None or place not in of:
        raise Unclear("its experts are no part of a module of their own")
    if of[place].given.shape[-1] != entry.given.shape[-1]:
        raise Unclear("its experts work in a narrower stream of their own, which cannot be read yet")
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
    own, *each = _factors(of, place, experts, shared, whole.given)
    row, scale = found
    ended = sorted((call.path for call in exits), key=[call.path for call in inside].index, reverse=True)
    ffn = MixtureFeedForward(
        block.get_submodule(entry.path), tuple(map(block.get_submodule, ended)), replace(experts, scale=own),
        tuple(replace(expert, scale=factor) for (_, expert), factor in zip(shared, each, strict=True)),
    )  # fmt: skip
    return resolve_layer(block, row, scale, ffn)


def _factors(
    of: Mapping[str, ModuleCall],
    place: str,
    experts: RoutedExperts,
    shared: list[tuple[tuple[str, str], SharedExpert]],
    whole: Tensor,
) -> list[float]:
    """The constants with which the experts at `place`, and each shared one, enter the whole layer; mostly 1.

    Raises Unclear where they do not add up to it.
    """
    given = of[place].given
    parts = [given.view(experts.count, -1, given.shape[-1]).sum(0) if experts.weighs_input else given]
    for (down, keys), expert in shared:
        weight = expert.weigh(of[keys].taken)
        parts.append(of[down].given * (1.0 if weight is None else weight))
    if same(torch.stack(parts).sum(0), whole):
        return [1.0] * len(parts)
    table = torch.stack([part.flatten() for part in parts], dim=1).double()
    factors = torch.linalg.lstsq(table, whole.flatten().double()).solution
    if experts.weighs_input or not same((table @ factors).view_as(whole).to(whole.dtype), whole):
        raise Unclear("what its experts give, routed and shared, is not what their layer gives")
    found: list[float] = factors.to(whole.dtype).tolist()
    return found


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
    maps = find_maps(own)
    # A router of one expert gives one number, too, but is of a class of its own.
    switches = [call for call in maps if call.given.shape[1] == 1 and type(call.module).__name__.startswith("Linear")]
    found = []
    for down in maps:
        keys = None if down in switches else find_keys(own, list(maps), down)
        if keys is not None:
            dense = resolve_dense(block, _row_of(keys, down, maps, ""))
            found.append(((down.path, keys.gate.path), dense))
    if len(switches) > 1 or (switches and len(found) != 1):
        raise Unclear("it has several shared experts with gates of their own")
    switch = block.get_submodule(switches[0].path) if switches else None
    return [(paths, SharedExpert(dense, switch)) for paths, dense in reversed(found)]


def _row(seen: Observation, path: str, number: int) -> tuple[Family, float]:
    """The row that describes a block, and the factor by which its feed-forward output enters the stream."""
    block = seen.calls[f"{path}.{number}"]
    inside = seen.within(block.path)
    maps = find_maps(inside)
    for down in maps:
        keys = find_keys(inside, list(maps), down) if down.given.shape == block.given.shape else None
        if keys is None:
            continue
        row = _row_of(keys, down, maps, path)
        found = _with_norms(row, block, inside, down, keys.gate.taken)
        found = found or _with_output_gate(row, block, inside, maps, down)
        if found is not None:
            return found
    raise Unclear("no linear map of its blocks can be read as the values of a feed-forward layer")


def _with_output_gate(
    row: Family, block: ModuleCall, inside: list[ModuleCall], maps: Mapping[ModuleCall, bool], down: ModuleCall
) -> tuple[Family, float] | None:
    """The row with the map whose sigmoid multiplies the feed-forward output, and with the norm that reads the residual.

    What the keys read need not be what that norm gives: RWKV mixes it with the position before.
    """
    for gate in maps:
        if gate is not down and gate.given.shape == down.given.shape:
            update = Layer.through_gate(down.given, gate.given)
            for norm in inside:
                if norm.changes and norm.taken.shape == update.shape and same(norm.taken + update, block.given):
                    return replace(row, output_gate=gate.path, ffn_norm=norm.path), 1.0
    return None


def _row_of(keys: Keys, down: ModuleCall, maps: Mapping[ModuleCall, bool], path: str) -> Family:
    return Family(
        "structural",
        blocks=path,
        keys=keys.gate.path,
        up=None if keys.up is None else keys.up.path,
        fused=keys.fused,
        inner_norm=keys.inner_norm,
        down=down.path,
        activation=keys.activation,
        activation_name=keys.name,
        in_place=True,
        transposed=tuple(call.path for call, transposed in maps.items() if transposed),
    )


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
        scale = factor_between(update, block.given - residual)
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
