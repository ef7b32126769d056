"""What the files of a model say and the libraries do not read: `config.json`, an adapter's file, weights' names.

transformers and peft pass over entries and weights that they have no place for. Here each is taken (declared by the
class, or named in the code of its family), known to be harmless, or named in a refusal. Configurations of the hub hold
many leftovers; so of `config.json` only entries that name arithmetic are refused, unless they are off, neutral, or say
what the loaded configuration says. A repository's own code reads its own configuration. gguf_words.py: `.gguf` files.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.modules.weight_layouts import find_file

_ARITHMETIC = re.compile(
    r"rope|rotary|alibi|position_embedding|scal|multiplier|soft_?cap|clip_|window|norm|activation|(^|_)act(_|$)|head_dim"
    r"|bias|theta|residual|parallel_(attn|attention|residual)"
)
_HARMLESS = re.compile(
    r"drop|init|grad|loss|coef"  # of training alone
    r"|fp32|fusion|skip_bias_add|parallel_size"  # how it is computed, to rounding
    r"|^scale_attn_weights$|^(use_)?(rope|rotary(_emb\w*)?)$"  # on, where a class knows nothing else
    r"|^max_window_layers$|^norm_type$|^finetuned$"  # goes with an entry of its own; the class has one norm; history
)
_FACTOR = re.compile(r"scal|multiplier|factor|ratio|pct|percent|residual")
"""Of these 1 is neutral."""
_ROTARY = ("rope_scaling", "rope_parameters")
_LEFT_WEIGHTS = re.compile(
    r"inv_freq$|rotary_emb\.|masked_bias$|\.(attn|attention)\.bias$|position_ids$|\.version$|_float_tensor$"
)
"""Tables of angles and masks that older versions stored: the class makes them."""
_LATER_DEFAULTS = {"peft_version", "qalora_group_size"}
"""Entries that newer versions of peft write with a value that changes nothing by itself."""


def check_config(config: Any, place: str, source: str, arguments: dict[str, Any]) -> None:
    """Raises ModelUnsupported for an entry of `config.json` that would change numbers and is not read."""
    found = find_file(place, "config.json", **{name: arguments[name] for name in ("revision", "local_files_only")})
    stated = None if found is None else json.loads(found.read_text(encoding="utf-8"))
    for part, entries in _parts(config, stated):
        for name, value in [*entries.items(), *_of_rotary(part, entries)]:
            if not _is_taken(part, name) and not _is_harmless(name, value, part, entries):
                raise ModelUnsupported(
                    f"model {source!r} states {name!r} as {str(value)[:60]} in its config.json, which transformers"
                    f" {transformers.__version__} does not read for a {part.model_type!r}: its numbers would be another"
                    " model's; take the entry out if it changes nothing, or load the model yourself"
                )


def _parts(config: Any, stated: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    if isinstance(stated, dict) and type(config).__module__.startswith("transformers."):
        yield config, stated
        for name in config.sub_configs:
            yield from _parts(getattr(config, name, None), stated.get(name))


def _of_rotary(config: Any, entries: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is said of rotary positions, one entry each; a kind that is unknown is one by its name."""
    stated = next((entries[name] for name in _ROTARY if isinstance(entries.get(name), dict)), {})
    for group in (stated, *(each for each in stated.values() if isinstance(each, dict))):
        kind = group.get("rope_type", group.get("type", "default"))
        if kind != "default" and kind not in ROPE_INIT_FUNCTIONS and not _is_taken(config, str(kind)):
            yield f"rope type {kind}", kind
        named = {f"rope_{name}": value for name, value in group.items() if not isinstance(value, dict)}
        yield from ((name, value) for name, value in named.items() if not _is_taken(config, name.removeprefix("rope_")))


def _is_taken(config: Any, name: str) -> bool:
    """Whether the class declares an entry, or the code of its family (or of rotary positions) names it."""
    declared = {each.name for each in fields(type(config))}.union(*config.attribute_map.items())
    named = rf"""["']{re.escape(name)}["']|(config|self)\.{re.escape(name)}\b"""
    rotary = "rope_parameters" in declared and re.search(named, _code("transformers.modeling_rope_utils"))
    modules = [kind.__module__ for kind in type(config).__mro__ if kind.__module__.startswith("transformers.models.")]
    return name in declared or bool(rotary) or any(re.search(named, _code(module)) for module in modules)


@cache
def _code(module: str) -> str:
    """The code of a module, or of all that stand beside a configuration."""
    file = Path(str(sys.modules[module].__file__))
    files = sorted(file.parent.glob("*.py")) if ".models." in module else [file]
    return "\n".join(each.read_text(encoding="utf-8") for each in files)


def _is_harmless(name: str, value: Any, config: Any, entries: dict[str, Any]) -> bool:
    if not _ARITHMETIC.search(name) or _HARMLESS.search(name) or not value or name.startswith("_"):
        return True
    if _FACTOR.search(name) and not isinstance(value, bool) and value == 1:
        return True
    if "window" in name and (entries.get("use_sliding_window") is False or value == config.to_dict().get(name, value)):
        context = getattr(config, "max_position_embeddings", 0)
        return entries.get("use_sliding_window") is False or (isinstance(value, int) and value >= context)
    loaded = (own for entry, own in config.to_dict().items() if entry != name and _ARITHMETIC.search(entry))
    return not isinstance(value, bool) and value in [*loaded, _width(config)]


def _width(config: Any) -> int:
    hidden, heads = (getattr(config, name, None) or 0 for name in ("hidden_size", "num_attention_heads"))
    return hidden // heads if heads else 0


def check_weights(network: Any, unread: Iterable[str], source: str) -> None:
    """Raises ModelUnsupported for a stored weight that was left though the network has its part: a bias of a map, a
    matrix of a block. Towers, further heads and layers for guessing ahead are no parts of it.
    """
    parts = {name for name, _ in network.named_modules() if name}
    for name in unread:
        place = name.rpartition(".")[0]
        while place and place not in parts and not place.rpartition(".")[2].isdecimal():
            place = place.rpartition(".")[0]
        inside = place == name.rpartition(".")[0] or re.search(r"\.\d+$", place)
        if place in parts and inside and not _LEFT_WEIGHTS.search(name):
            raise ModelUnsupported(
                f"model {source!r} holds {name!r}, for which transformers {transformers.__version__} has no place in"
                f" {place!r}: without it another model would be read; load the model yourself, or take it out"
            )


def check_adapter(config: Any, stated: dict[str, Any], adapter: str, version: str) -> None:
    """Raises ModelUnsupported for an entry of `adapter_config.json` that is on and that peft does not know."""
    for name in stated.keys() - {each.name for each in fields(config)} - _LATER_DEFAULTS:
        if stated[name]:
            raise ModelUnsupported(
                f"adapter {adapter!r} states {name!r} as {str(stated[name])[:60]}, which peft {version} does not read;"
                " install a newer peft"
            )
