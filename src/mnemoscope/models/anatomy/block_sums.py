"""The form of a block's sums: the norms between its feed-forward layer and the stream.

Inferred from the numbers of one small forward; structure.py describes the limits of this inference.
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
    """States what of the model cannot be determined."""


class Sums(NamedTuple):
    """A row that reproduces a block's sums, the factor on its feed-forward output, and that on the whole stream."""

    row: Family
    scale: float = 1.0
    output_scale: float = 1.0


NO_ROW = Family("structural", blocks="", keys="", down="", activation="")


def row_of(keys: Keys, down: ModuleCall, maps: Mapping[ModuleCall, bool]) -> Family:
    return replace(
        NO_ROW,
        keys=keys.gate.path,
        up=None if keys.up is None else keys.up.path,
        fused=keys.fused,
        inner_norm=keys.inner_norm,
        down=down.path,
        activation=keys.activation,
        activation_name=keys.name,
        transposed=tuple(call.path for call, transposed in maps.items() if transposed),
    )


def with_norms(
    row: Family, block: ModuleCall, inside: list[ModuleCall], down: ModuleCall, ffn_input: Tensor
) -> Sums | None:
    """The row with the norms (or the attention of a parallel block) that reproduce the block's sums."""
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
        # In half precision several may fit.
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
        if (onward := _with_more_behind(normed, block, inside, residual + update, factors)) is not None:
            return onward
    for call in sorted(others, key=lambda call: call.path.count(".")):
        weighted = any(True for _ in call.module.parameters())
        if weighted and call.given.shape == output.shape and same(block.taken + call.given + update, block.given):
            return Sums(replace(row, attention=call.path, post_norm=post_norm))
    return None


def _with_more_behind(
    row: Family, block: ModuleCall, inside: list[ModuleCall], whole: Tensor, factors: list[float]
) -> Sums | None:
    """The row of a block in which one more module reads r + u, the `whole`, and adds its output (small Gemma 4)."""
    readers = [call for call in inside if same(call.taken, whole)]
    for call in inside if readers else ():
        for factor in factors:
            if call.given.shape == whole.shape and same((whole + call.given) * factor, block.given):
                return Sums(replace(row, onward=readers[-1].path), 1.0, factor)
    return None


def own_numbers(block: nn.Module) -> Iterator[tuple[str, float]]:
    """The scalars that a block holds itself, which distinguish blocks of equal modules."""
    for name, tensor in (*block.named_parameters(recurse=False), *block.named_buffers(recurse=False)):
        if tensor.numel() == 1:
            yield name, float(weight_of(block, name))
