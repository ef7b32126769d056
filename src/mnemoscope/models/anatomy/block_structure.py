"""The parts of the blocks of a model of an unknown family, inferred from what their modules did in one small forward.

The down-projection is the last linear map of a block back to the hidden size whose input the keys explain; a layer of
experts is the module around them; norms and stream follow from which tensors are equal. structure.py finds the blocks
and describes the limits of this inference.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.foundation.cache import Cache
from mnemoscope.models.anatomy.anatomy import Layer, resolve_dense, resolve_layer
from mnemoscope.models.anatomy.block_sums import NO_ROW, Sums, Unclear, own_numbers, row_of, with_norms
from mnemoscope.models.anatomy.families import Family
from mnemoscope.models.anatomy.key_structure import find_keys, find_maps
from mnemoscope.models.memories.experts import MixtureFeedForward, SharedExpert
from mnemoscope.models.memories.feed_forward import Branch
from mnemoscope.models.memories.routed_experts import Narrowing, RoutedExperts, find_routed
from mnemoscope.models.modules.linear_maps import LinearMap
from mnemoscope.models.modules.observed import ModuleCall, Observation, factor_between, mixes_positions, same


@dataclass(frozen=True)
class Blocks:
    """`without` are the contents of blocks without a layer; `first` and `last` are the first and the last block that
    run.
    """

    layers: tuple[Layer, ...]
    without: Mapping[int, str]
    activation: str
    first: int
    last: int


def read_structure(model: nn.Module, seen: Observation, path: str, blocks: list[nn.Module]) -> Blocks:
    """Every block's layer, if it has one; blocks of the same modules share a result."""
    layers: list[Layer] = []
    rows: dict[tuple[Any, ...], Sums | str] = {}
    without: dict[int, str] = {}
    name, latest = "", Cache(1)
    calls = [seen.calls.get(f"{path}.{number}") for number in range(len(blocks))]
    running = {call.path: number for number, call in enumerate(calls) if call is not None}
    if any(call.path in running for call in seen.again):
        raise Unclear("its blocks run more than once in a forward, and their calls cannot be told apart yet")
    for number, (block, call) in enumerate(zip(blocks, calls, strict=True)):
        if call is None:  # such as cross-attention to an image
            without[number] = f"{type(block).__name__}, which text alone does not run"
            continue
        kind = (*((inside, type(module)) for inside, module in block.named_modules()), *own_numbers(block))
        routed = find_routed(block, latest)
        if kind not in rows and routed is None:
            try:
                rows[kind] = sums = _row(seen, call)
                name = name or str(sums.row.activation_name)
            except Unclear:
                mixer = _lone_mixer(model, seen, call)
                if mixer is None:
                    raise
                rows[kind] = mixer
        if routed is not None:
            layers.append(find_mixture(seen, call, block, *routed))
        elif isinstance(row := rows[kind], str):
            without[number] = row
        else:
            layers.append(resolve_layer(block, *row))
    stream = next(call.given for call in calls if call is not None)
    ending = {type(norm): norm for layer in layers for norm in (layer.post_norm, layer.output_norm) if norm is not None}
    if several := [kind for kind, norm in ending.items() if not isinstance(norm(stream[None]), Tensor)]:
        raise Unclear(f"the norm behind its layers ({several[0].__name__}) gives more than one tensor")
    if not layers:
        adding = ", ".join(dict.fromkeys(without.values()))
        raise Unclear(f"what its blocks add is the output of {adding}, not of a feed-forward layer")
    return Blocks(tuple(layers), without, name, min(running.values()), max(running.values()))


def _lone_mixer(model: nn.Module, seen: Observation, block: ModuleCall) -> str | None:
    """The class of the module that alone makes a block's update and mixes positions; else None."""
    for call in sorted(seen.within(block.path), key=lambda call: call.path.count(".")):
        if call.given.shape == block.given.shape:
            scale = factor_between(call.given, block.given - block.taken)
            alone = same(block.taken + call.given * scale, block.given)
            if alone and call.changes and mixes_positions(model, f"{block.path}.{call.path}", len(seen.logits.T)):
                return type(call.module).__name__
    return None


def _row(seen: Observation, block: ModuleCall) -> Sums:
    inside = seen.within(block.path)
    maps = find_maps(inside)
    for down in maps:
        keys = find_keys(inside, list(maps), down) if down.given.shape == block.given.shape else None
        if keys is None:
            continue
        row = row_of(keys, down, maps)
        sums = with_norms(row, block, inside, down, keys.gate.taken)
        if sums := sums or _with_output_gate(row, block, inside, maps, down):
            return sums
    raise Unclear("no linear map of its blocks can be read as the values of a feed-forward layer")


def _with_output_gate(
    row: Family, block: ModuleCall, inside: list[ModuleCall], maps: Mapping[ModuleCall, bool], down: ModuleCall
) -> Sums | None:
    """The row with the map whose sigmoid multiplies the feed-forward output. The keys may read something other than the
    norm's output: RWKV mixes it with the position before.
    """
    for gate in maps:
        if gate is not down and gate.given.shape == down.given.shape:
            update = Layer.through_gate(down.given, gate.given)
            for norm in inside:
                if norm.changes and norm.taken.shape == update.shape and same(norm.taken + update, block.given):
                    return Sums(replace(row, output_gate=gate.path, ffn_norm=norm.path))
    return None


def find_mixture(seen: Observation, outer: ModuleCall, block: nn.Module, place: str, experts: RoutedExperts) -> Layer:
    inside = seen.within(outer.path)
    of = {call.path: call for call in inside}
    entry = of.get(place.rpartition(".")[0])
    if place not in of:
        raise Unclear("its experts do not run as a module of their own")
    if entry is None:
        return _layer_of_branches(outer, inside, block, of[place], experts)
    if entry.given.shape[-1] != outer.given.shape[-1]:
        raise Unclear("its blocks pass on several streams of hidden states side by side")
    leaving = of[place]
    if leaving.given.shape[-1] != entry.given.shape[-1]:
        # They work in a narrower stream, between two maps, the second of which gives the layer's output.
        linear = find_maps(inside)
        into = [call for call in linear if same(call.given, leaving.taken) and same(call.taken, entry.taken)]
        out = [call for call in linear if same(call.taken, leaving.given) and call.given.shape == entry.given.shape]
        if not into or not out:
            raise Unclear(
                "its experts work in a narrower stream, which is not joined to the model's by linear maps alone"
            )
        around = (LinearMap.whole(call.module, transposed=linear[call]) for call in (into[0], out[0]))
        leaving, experts = out[0], replace(experts, narrow=Narrowing(*around))
    beside = [call for call in inside if not f"{call.path}.".startswith(f"{entry.path}.")]
    twins = [call for call in beside if same(call.taken, entry.taken) and call.given.shape == entry.given.shape]
    for others in [(), *((twin,) for twin in twins)]:
        exits = (entry, *others)
        whole = replace(entry, given=entry.given + sum(call.given for call in others))
        sums = with_norms(NO_ROW, outer, inside, whole, entry.taken)
        if sums is not None:
            break
    else:
        raise Unclear("the outputs of its experts do not add up to the outputs of its blocks")
    places = tuple(f"{call.path}." for call in exits)
    shared = _find_shared([c for c in inside if f"{c.path}.".startswith(places)], place, block)
    routed_factor, *each = _factors(of, leaving.given, experts, shared, whole.given)
    ended = tuple(call.module for call in reversed(inside) if call in exits)
    scaled = tuple(replace(expert, scale=factor) for (_, expert), factor in zip(shared, each, strict=True))
    ffn = MixtureFeedForward(entry.module, ended, replace(experts, scale=routed_factor), scaled)
    return resolve_layer(block, *sums, ffn=ffn)


def _layer_of_branches(
    outer: ModuleCall, inside: list[ModuleCall], block: nn.Module, routed: ModuleCall, experts: RoutedExperts
) -> Layer:
    """The layer of a block that adds experts and dense layers, each with a norm of its own after it."""
    shared = _find_shared(inside, routed.path, block)
    of = {call.path: call for call in inside}
    ways = [(routed.taken, routed.given), *((of[keys].taken, of[down].given) for (down, keys), _ in shared)]
    norms = [call for call in inside if call.changes and call.taken.shape == call.given.shape]
    pairs = []
    for entering, leaving in ways:
        before = next((call for call in norms if same(call.given, entering)), None)
        behind = next((call for call in norms if same(call.taken, leaving)), None)
        if before is None or behind is None:
            raise Unclear("its experts are neither part of a module of their own nor between norms of their own")
        pairs.append((before, behind))
    stream = pairs[0][0].taken
    whole = replace(routed, given=sum((behind.given for _, behind in pairs[1:]), start=pairs[0][1].given))
    biased = any(each.dense.down.bias() is not None for _, each in shared) or experts.second_map(0)[1] is not None
    sums = with_norms(NO_ROW, outer, inside, whole, stream)
    if sums is None or biased or any(not same(before.taken, stream) for before, _ in pairs):
        raise Unclear("the outputs of its experts do not add up to the outputs of its blocks")
    exits = [behind for _, behind in pairs]
    ended = tuple(call.module for call in reversed(inside) if call in exits)
    branches = tuple(Branch(before.module, behind.module) for before, behind in pairs)
    ffn = MixtureFeedForward(pairs[0][0].module, ended, experts, tuple(expert for _, expert in shared), branches)
    return resolve_layer(block, *sums, ffn=ffn)


def _factors(
    of: Mapping[str, ModuleCall],
    given: Tensor,
    experts: RoutedExperts,
    shared: list[tuple[tuple[str, str], SharedExpert]],
    whole: Tensor,
) -> list[float]:
    """The factors, mostly 1, of the routed sum and of each shared expert in the whole layer."""
    parts = [given.view(experts.count, -1, given.shape[-1]).sum(0) if experts.weighs_input else given]
    for (down, keys), expert in shared:
        weight = expert.weigh(of[keys].taken)
        parts.append(of[down].given * (1.0 if weight is None else weight))
    if same(torch.stack(parts).sum(0), whole):
        return [1.0] * len(parts)
    table = torch.stack([part.flatten() for part in parts], dim=1).double()
    factors = torch.linalg.lstsq(table, whole.flatten().double()).solution
    if experts.weighs_input or not same((table @ factors).view_as(whole).to(whole.dtype), whole):
        raise Unclear("its routed and shared experts do not add up to their layer, which also does something else")
    solved: list[float] = factors.to(whole.dtype).tolist()
    return solved


def _find_shared(inside: list[ModuleCall], routed: str, block: nn.Module) -> list[tuple[tuple[str, str], SharedExpert]]:
    """The shared experts among these calls, each with the paths of its down-projection and of its keys."""
    beside = [call for call in inside if not f"{call.path}.".startswith(f"{routed}.")]
    maps = find_maps(beside)
    # A router of one expert also outputs one number, but has a class of its own.
    switches = [call for call in maps if call.given.shape[1] == 1 and type(call.module).__name__.startswith("Linear")]
    experts = []
    for down in maps:
        keys = None if down in switches else find_keys(beside, list(maps), down)
        if keys is not None:
            dense = resolve_dense(block, row_of(keys, down, maps))
            experts.append(((down.path, keys.gate.path), dense))
    if len(switches) > 1 or (switches and len(experts) != 1):
        raise Unclear("it has several shared experts with gates of their own")
    switch = switches[0].module if switches else None
    return [(paths, SharedExpert(dense, switch)) for paths, dense in reversed(experts)]
