"""The parts of the blocks of a model of an unknown family, inferred from what their modules did in one small forward.

The down-projection is the last linear map of a block back to the hidden size whose input the keys explain; a layer of
experts is the module around them; norms and stream follow from which tensors are equal. structure.py finds the blocks
and describes the limits of this inference.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from mnemoscope.foundation.cache import Cache
from mnemoscope.models.anatomy.anatomy import Layer, resolve_layer
from mnemoscope.models.anatomy.block_sums import Sums, Unclear, own_numbers, row_of, with_norms
from mnemoscope.models.anatomy.families import Family
from mnemoscope.models.anatomy.key_structure import find_keys, find_maps
from mnemoscope.models.anatomy.mixture_structure import find_mixture
from mnemoscope.models.memories.routed_experts import find_routed
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
    """Every block's layer, if it has one; blocks of the same modules share a result. Raises Unclear."""
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
        elif isinstance(found := rows[kind], str):
            without[number] = found
        else:
            layers.append(resolve_layer(block, *found))
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
