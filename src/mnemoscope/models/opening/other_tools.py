"""Models that other tools hold: the transformers network and the tokenizer inside TransformerLens's bridge or nnsight's
model. Imports neither tool.

A bridge puts modules of its own into the network, and a bias of zeros on its head. What is read here is a second tree
of the network's own modules, with the same weights: the bridge goes on as it is, and hooks in one are none in the
other.
"""

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from mnemoscope.errors import ModelUnsupported


def held_by_tool(source: Any, tokenizer: Any) -> tuple[Any, Any]:
    """The network and, if none is given, the tokenizer that a tool's object holds; anything else as it is. Raises
    ModelUnsupported for one that holds no such network, or a changed one.
    """
    kinds = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(source).__mro__}
    bridged, name = "transformer_lens.TransformerBridge" in kinds, type(source).__name__
    if not bridged and "nnsight.Envoy" not in kinds:
        return source, tokenizer
    if not getattr(source, "dispatched", True):  # nnsight loads weights when they are first needed
        source.dispatch()
    network = getattr(source, "original_model", None) if bridged else getattr(source, "_module", None)
    if not isinstance(network, PreTrainedModel):
        raise ModelUnsupported(f"the {name} holds a {type(network).__name__}, not a language model of transformers")
    if bridged and source.compatibility_mode:
        raise ModelUnsupported(f"the {name} has folded its weights; give it before enable_compatibility_mode()")
    tokenizer = getattr(source, "tokenizer", None) if tokenizer is None else tokenizer
    return _without_bridge(network, {}) if bridged else network, tokenizer


def _without_bridge(module: Any, made: dict[int, Any]) -> Any:
    """The tree of a module without the bridge's; `made` has the modules that were copied, by their ids."""
    while isinstance(inner := getattr(module, "original_component", None), nn.Module):
        module = inner
    if id(module) not in made:
        made[id(module)] = bare = copy.copy(module)
        vars(bare).update({name: value.copy() for name, value in vars(module).items() if isinstance(value, dict)})
        for name, child in module._modules.items():
            bare._modules[name] = None if child is None else _without_bridge(child, made)
        bias = bare._buffers.get("bias")
        if isinstance(module, nn.Linear) and bias is not None and not bias.any():
            del bare._buffers["bias"]
            bare._parameters["bias"] = None
    return made[id(module)]
