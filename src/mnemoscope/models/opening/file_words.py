"""What the files of a model say and the libraries do not read: `config.json`, an adapter's file, weights' names.

transformers and peft pass over what they have no place for. Here it is taken (declared by the class, or named in the
code of its family), known to be harmless, or named in a refusal. Configurations of the hub hold many leftovers; so
of `config.json` only entries that name arithmetic are refused, unless they are off, neutral, or say what the loaded
configuration says. A repository's own code reads its own configuration. gguf_words.py does the same for `.gguf` files.
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import transformers

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.modules.weight_layouts import find_file

_ARITHMETIC = re.compile(
    r"rope|rotary|alibi|position_embedding|scal|multiplier|soft_?cap|clip_|window|norm|activation|(^|_)act(_|$)|head_dim"
    r"|bias|theta|residual|parallel_(attn|attention|residual)"
)
_HARMLESS = re.compile(
    r"^_|drop|init|grad|loss|coef"  # of the library itself; of training alone
    r"|fp32|fusion|skip_bias_add|parallel_size|^offset_alibi$"  # how it is computed, to rounding
    r"|^scale_attn_weights$|^(use_)?(rope|rotary(_emb\w*)?)$|^norm_type$"  # where the class knows nothing else
    r"|^max_window_layers$|^rope_scaling\.(finetuned|rope_theta)$"  # goes with an entry of its own; history
)
_FACTOR = re.compile(r"scal|multiplier|factor|ratio|pct|percent|residual")
"""Of these 1 is neutral."""
_TABLES = re.compile(r"inv_freq$|rotary_emb\.|masked_bias$|\.(attn|attention)\.bias$|position_ids$|_float_tensor$")
"""Tables of angles and masks that older versions stored: the class makes them."""
_LATER = {"peft_version", "qalora_group_size"}
"""Entries that newer versions of peft write, and that change nothing by themselves."""


def check_config(config: Any, place: str, source: str, arguments: dict[str, Any]) -> None:
    """Raises ModelUnsupported for an entry of `config.json` that would change numbers and is not read."""
    path = find_file(place, "config.json", arguments)
    for name, value in _strange(config, None if path is None else json.loads(path.read_text(encoding="utf-8"))):
        raise ModelUnsupported(
            f"model {source!r} states {name} = {str(value)[:60]!r} in its config.json, which transformers"
            f" {transformers.__version__} does not read: its numbers would be another model's; take the entry out if it"
            " changes nothing, or load the model yourself and give it to load_model(model, tokenizer=...)"
        )


def _strange(config: Any, stated: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(stated, dict) or not type(config).__module__.startswith("transformers."):
        return
    rotary: Any = next((stated[name] for name in ("rope_scaling", "rope_parameters") if stated.get(name)), {})
    groups = [rotary, *rotary.values()] if isinstance(rotary, dict) else []
    pairs = [pair for group in groups if isinstance(group, dict) for pair in group.items()]
    scaling = {f"rope_scaling.{name}": value for name, value in pairs if not isinstance(value, dict)}
    kinds = {scaling.get("rope_scaling.rope_type"), scaling.get("rope_scaling.type")} - {None}
    scaling |= {f"rope_scaling.{kind}": f"the kind {kind}" for kind in kinds}
    # An entry is taken if the class declares it, or the code of its family (or of rotary positions) names it.
    declared = {each.name for each in fields(type(config))}.union(*config.attribute_map.items())
    modules = [kind.__module__ for kind in type(config).__mro__ if ".models." in kind.__module__]
    modules += ["transformers.modeling_rope_utils"] * ("rope_parameters" in declared)
    for name, value in (stated | scaling).items():
        last = re.escape(name.rpartition(".")[2])
        named = re.compile(rf"""["']{last}["']|(config|self)\.{last}\b""")
        taken = name.rpartition(".")[2] in declared or any(named.search(_code(module)) for module in modules)
        if not taken and not _is_harmless(name, value, config, stated):
            yield name, value
    for name in config.sub_configs:
        yield from _strange(getattr(config, name, None), stated.get(name))


@cache
def _code(module: str) -> str:
    """The code of a module, or of all that stand beside a configuration."""
    file = Path(str(sys.modules[module].__file__))
    files = sorted(file.parent.glob("*.py")) if ".models." in module else [file]
    return "\n".join(each.read_text(encoding="utf-8") for each in files)


def _is_harmless(name: str, value: Any, config: Any, stated: dict[str, Any]) -> bool:
    if not value or not _ARITHMETIC.search(name) or _HARMLESS.search(name):
        return True
    wide = isinstance(value, int) and value >= getattr(config, "max_position_embeddings", math.inf)
    if "window" in name and (wide or stated.get("use_sliding_window") is False):
        return True
    entries = config.to_dict() | (getattr(config, "rope_parameters", None) or {})
    last = name.rpartition(".")[2]
    loaded = [loaded_value for entry, loaded_value in entries.items() if entry != last and _parts(entry) & _parts(name)]
    neutral = [1] * bool(_FACTOR.search(name))
    if name == "head_dim":
        neutral = [config.hidden_size // config.num_attention_heads]
    return not isinstance(value, bool) and value in [*loaded, *neutral]


def _parts(name: str) -> set[str]:
    return {part[:3] for part in name.replace("rotary", "rope").split("_")}


def check_weights(network: Any, unread: Iterable[str], source: str) -> None:
    """Raises ModelUnsupported for a stored weight that was left though the network has its part: a bias of a map, a
    matrix of a block. Towers, further heads and layers for guessing ahead are no parts of it.
    """
    parts = {name for name, _ in network.named_modules() if name}
    for name in unread:
        around = re.match(r"(.*?\.[0-9]+)\.", name) or re.match(r"(.*)\.", name)
        if around and around[1] in parts and not _TABLES.search(name):
            raise ModelUnsupported(
                f"model {source!r} holds {name!r}, for which transformers {transformers.__version__} has no place in"
                f" {around[1]!r}: without it another model would be read; load the model yourself, or take it out"
            )


def check_adapter(config: Any, stated: dict[str, Any], adapter: str, version: str) -> None:
    """Raises ModelUnsupported for an entry of `adapter_config.json` that is on and that peft does not know."""
    for name in stated.keys() - {each.name for each in fields(config)} - _LATER:
        if stated[name]:
            raise ModelUnsupported(
                f"adapter {adapter!r} states {name} = {str(stated[name])[:60]!r}, which peft {version} does not read;"
                " install a newer peft"
            )
