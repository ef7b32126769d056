"""How a block's sums come out: under which norms what its feed-forward layer gives joins the stream.

Told from the numbers of one small forward; block_structure.py says what a guess this is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor, nn

from mnemoscope.models.anatomy.families import Family
from mnemoscope.models.anatomy.key_structure import Keys
from mnemoscope.models.modules.observed import ModuleCall, distance, factor_between, same
from mnemoscope.models.modules.offloading import weight_of


class Unclear(Exception):
    """Says what of the model cannot be told."""


class Sums(NamedTuple):
    """A row under which a block's sums come out; the factor by which the feed-forward output enters the stream, and
    that by which the block multiplies the stream as it ends.
    """

    row: Family
    scale: float = 1.0
    output_scale: float = 1.0


def no_row(path: str) -> Family:
    """A row to be filled with norms."""
    return Family("structural", blocks=path, keys="", down="", activation="", in_place=True)


def row_of(keys: Keys, down: ModuleCall, maps: Mapping[ModuleCall, bool], path: str) -> Family:
    """The row of a block whose down-projection has these keys."""
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


def with_norms(
    row: Family, block: ModuleCall, inside: list[ModuleCall], down: ModuleCall, ffn_input: Tensor
) -> Sums | None:
    """The row with the norms (or the attention of a parallel block) under which the block's sums come out."""
    output = down.given
    others = [call for call in inside if not f"{down.path}.".startswith(f"{call.path}.")]
    changing = [call for call in others if call.changes and call.taken.shape == call.given.shape]
    after = [call for call in changing if same(call.taken, output)]
    update = after[-1].given if after else output
    post_norm = after[-1].path if after else None
    factors = [1.0, *(number for _, number in own_numbers(block.module))]
    streams = [(call.taken, call.path) for call in changing if same(call.given, ffn_input)]
    for residual, ffn_norm in [*streams, (ffn_input, None)]:
        normed = replace(row, ffn_norm=ffn_norm, post_norm=post_norm)
        whole = residual + update
        # In half precision several may seem right.
        factor = min(factors, key=lambda each: distance(whole * each, block.given))
        if same(whole * factor, block.given):
            return Sums(normed, 1.0, factor)
        scale = factor_between(update, block.given - residual)
        if same(residual + update * scale, block.given):
            return Sums(normed, scale)
        for call in changing:
            if same(call.given, block.given) and same(call.taken, residual + output):
                return Sums(replace(row, ffn_norm=ffn_norm, output_norm=call.path))
    for residual, ffn_norm in streams:
        normed = replace(row, ffn_norm=ffn_norm, post_norm=post_norm)
        if (found := _with_more_behind(normed, block, inside, residual + update, factors)) is not None:
            return found
    for call in sorted(others, key=lambda call: call.path.count(".")):
        weighted = any(True for _ in call.module.parameters())
        if weighted and call.given.shape == output.shape and same(block.taken + call.given + update, block.given):
            return Sums(replace(row, attention=call.path, post_norm=post_norm))
    return None


def _with_more_behind(
    row: Family, block: ModuleCall, inside: list[ModuleCall], whole: Tensor, factors: list[float]
) -> Sums | None:
    """The row of a block that adds what one more of its modules makes of r + u, the `whole` (small Gemma 4)."""
    readers = [call for call in inside if same(call.taken, whole)]
    for call in inside if readers else ():
        for factor in factors:
            if call.given.shape == whole.shape and same((whole + call.given) * factor, block.given):
                return Sums(replace(row, onward=readers[-1].path), 1.0, factor)
    return None


def own_numbers(block: nn.Module) -> Iterator[tuple[str, float]]:
    """The single numbers that a block holds itself: blocks with others are not made alike."""
    for name, tensor in (*block.named_parameters(recurse=False), *block.named_buffers(recurse=False)):
        if tensor.numel() == 1:
            yield name, float(weight_of(block, name))
