"""What a foreign checkpoint says of its sizes, held against the weights that it holds."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from mnemoscope.errors import ModelDamaged, ModelUnsupported

Shapes = dict[str, tuple[int, ...]]


def whole_numbers(stated: Mapping[str, Any], names: Iterable[str], where: str) -> list[int]:
    """The numbers of these names, each above 0; raises ModelDamaged."""
    for name in names:
        value = stated.get(name)
        if type(value) is not int or value < 1:
            raise ModelDamaged(f"{where}: its {name} is {str(value)[:40]}, not a whole number above 0")
    return [stated[name] for name in names]


def refuse_others(stated: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raises ModelUnsupported for an entry that is on and that the training code itself does not have."""
    if strange := [name for name in stated.keys() - set(known) if stated[name]]:
        raise ModelUnsupported(
            f"{where} states {min(strange)} = {str(stated[min(strange)])[:40]}, which is of a changed training code and"
            " cannot be read; save the model for transformers, and give its folder"
        )


def check_heads(width: int, heads: int, key_heads: int, where: str) -> None:
    if width % heads or heads % key_heads:
        keys = "" if key_heads == heads else f" and {key_heads:,} of keys"
        raise ModelDamaged(f"{where}: a width of {width:,} does not go with {heads:,} heads{keys}")


def check_depth(layers: int, weights: Mapping[str, Tensor], where: str) -> None:
    """Before shapes are listed layer by layer."""
    if layers > len(weights):
        raise ModelDamaged(f"{where}: it states {layers:,} layers, but holds only {len(weights):,} weights")


def check_shapes(weights: Mapping[str, Tensor], shapes: Shapes, where: str) -> None:
    """Raises ModelDamaged for a weight that is missing, that has no place, or of another shape than stated."""
    for name, shape in shapes.items():
        if name not in weights:
            raise ModelDamaged(f"{where}: it lacks {name!r}, which its sizes ask for; take a complete copy")
        if (own := tuple(weights[name].shape)) != shape:
            raise ModelDamaged(f"{where}: its {name!r} has the shape {own}, but its sizes say {shape}")
    if others := sorted(weights.keys() - shapes.keys()):
        raise ModelDamaged(f"{where}: its sizes have no place for its {others[0]!r}")
