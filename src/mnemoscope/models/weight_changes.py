"""How far two models' weights lie apart, by layer and module: what a fine-tune or an adapter changed. Reads no text.

What a module multiplies by is compared, so an adapter counts as what it adds. Says nothing of what a change does.
"""

from collections.abc import Iterator, Mapping
from math import hypot, inf
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.modules.linear_maps import LinearMap, is_of_adapters, is_plain, stated_sizes
from mnemoscope.models.modules.offloading import weight_of

_Row = tuple[int | None, str, float | None, float | None]


@torch.inference_mode()
def weight_changes(first: LanguageModel, second: LanguageModel) -> pl.DataFrame:
    """Layer (null outside of the blocks), module (its path there), change (Frobenius norm of the difference, bias
    included), relative (to the first's norm), share (of the sum of all squares), the largest first; without rows where
    nothing changed, and for networks of other modules. Null where a module cannot be read as a matrix.
    """
    blocks = {id(layer.block): number for number, layer in reversed([*enumerate(first.anatomy.layers)])}
    try:
        rows = [row for row in _walk(first.anatomy.model, second.anatomy.model, blocks, None, "", set()) if row[2] != 0]
    except (AttributeError, ValueError):  # the second lacks a module, or has one of another size
        rows = []
    schema = {"layer": pl.Int64, "module": pl.String, "change": pl.Float64, "relative": pl.Float64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    frame = frame.with_columns(share=pl.col("change") ** 2 / (pl.col("change") ** 2).sum())
    return frame.sort("change", descending=True, nulls_last=True, maintain_order=True)


def _walk(
    one: nn.Module, other: nn.Module, blocks: Mapping[int, int], layer: int | None, path: str, seen: set[int]
) -> Iterator[_Row]:
    layer, path = (blocks[id(one)], "") if id(one) in blocks else (layer, path)
    tied = id(getattr(one, "weight", one))
    if tied in seen:
        return
    seen.add(tied)
    pair = (one, other)
    if any(is_plain(each) or is_of_adapters(each) or stated_sizes(each) is not None for each in pair):
        try:
            weights = [_read(each) for each in pair]
        except ModelUnsupported:
            yield layer, path, None, None
            return
    else:
        for name, child in one.named_children():
            yield from _walk(child, other.get_submodule(name), blocks, layer, f"{path}.{name}".strip("."), seen)
        names = [name for name, weight in one._parameters.items() if weight is not None]
        weights = [[(weight_of(each, name), torch.zeros(())) for name in names] for each in pair]
    size = change = 0.0
    for (before, had), (after, has) in zip(*weights, strict=True):
        if before is not None and after is not None and before.shape != after.shape:
            raise ValueError("networks of other sizes")
        first, second = (torch.zeros(()) if each is None else each.float() for each in (before, after))
        apart = (second.to(first.device) - first).add_((has - had).to(first.device))
        size = hypot(size, float((first + had if had.dim() else first).norm()))
        change = hypot(change, float(apart.norm()))
    yield layer, path, change, change / size if size else inf


def _read(module: Any) -> list[tuple[Tensor | None, Tensor]]:
    """Matrix and bias, each with what is added; a plain LoRA's are multiplied out, since probing takes far longer."""
    added = nothing = torch.zeros(())
    if is_of_adapters(module):
        from peft.tuners.lora.layer import Linear

        off = type(module) is not Linear or module.merged or module.disable_adapters
        on = [] if off else [name for name in module.active_adapters if name in module.lora_A]
        if type(module) is Linear and all(n not in module.lora_variant and module.lora_B[n].bias is None for n in on):
            for name in on:
                b, a = (weight_of(each[name], "weight").float() for each in (module.lora_B, module.lora_A))
                added = added + module.scaling[name] * (b @ a)
            module = module.base_layer
    read = LinearMap.whole(module)
    return [(read.weight(), added), (read.bias(), nothing)]
