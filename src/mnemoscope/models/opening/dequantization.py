"""Makes quantised weights plain: for formats that quantise a layer's input, too, and for users who want a plain model.

Each packed matrix is widened by its own library to its nominal dtype, in a plain layer that replaces the packed one.
Some formats can only be widened while transformers reads them, by an option.
"""

import inspect
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from mnemoscope.errors import ModelUnsupported, OptionError
from mnemoscope.models.model_facts import is_packed_in_buffers
from mnemoscope.models.modules.linear_maps import is_of_adapters, is_plain, probe, probe_bias
from mnemoscope.models.modules.quiet import suppress_output


def format_of(config: Any) -> str | None:
    """The stored configuration's name for its packed format; None for plain weights."""
    stated = getattr(config, "quantization_config", None)
    return str(stated.get("quant_method")) if isinstance(stated, dict) else None


def widen_at_load(config: Any, name: str) -> None:
    """Sets the option that widens formats while they are read, if they have it; OptionError without any."""
    if (method := format_of(config)) is None:
        raise _not_quantised(name)
    kind = AUTO_QUANTIZATION_CONFIG_MAPPING.get(method)
    if kind is not None and "dequantize" in inspect.signature(kind).parameters:
        config.quantization_config |= {"dequantize": True}


def keep_as_stored(model: nn.Module) -> None:
    """Makes four-bit layers of bitsandbytes multiply as on most processors: with AVX-512 BF16 they would pack their
    weights anew in place, and round to bfloat16. Unpacks weights packed so.
    """
    for module in model.modules():
        if getattr(module, "support_avx512bf16_for_cpu", False):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]
            weight: Any = module.weight
            if getattr(getattr(weight, "quant_state", None), "packing_format_for_cpu", False):
                from bitsandbytes.functional import _convert_weight_packed_for_cpu_inverse as unpack

                weight.data, weight.quant_state = unpack(weight.data, weight.quant_state)


def check_quantised(model: nn.Module, name: str) -> None:
    if not any(_is_packed(module) for module in model.modules()):
        raise _not_quantised(name)


@torch.no_grad()
def dequantize(model: Any, name: str) -> Any:
    keep_as_stored(model)
    for path, module in list(model.named_modules()):
        if _is_packed(module):
            _widen(model, path, module)
    if getattr(model, "hf_quantizer", None) is not None:
        if _first_packed(model) is not None:
            with suppress(NotImplementedError), suppress_output():
                model = model.dequantize(dtype=torch.float32)
        if getattr(model, "hf_quantizer", None) is not None:
            model.hf_quantizer.remove_quantization_config(model)
    left = _first_packed(model)
    if left is not None:
        raise ModelUnsupported(
            f"the weights of {name!r} cannot be widened: nothing here knows how to unpack a {type(left).__name__}; use"
            " the original model, before it was quantised"
        )
    return model


def _not_quantised(name: str) -> OptionError:
    return OptionError(f"model {name!r} has no quantised weights, so there is nothing to widen; leave out --dequantize")


def _is_packed(module: nn.Module) -> bool:
    """Whether it is a layer with a packed matrix, and no adapter of another layer."""
    weight = getattr(module, "weight", None)
    if weight is None:
        return is_packed_in_buffers(module)
    has_matrix = isinstance(getattr(module, "in_features", None), int) or isinstance(module, nn.Embedding)
    return isinstance(weight, Tensor) and not is_plain(module) and not is_of_adapters(module) and has_matrix


def _first_packed(model: nn.Module) -> nn.Module | None:
    return next((module for module in model.modules() if _is_packed(module)), None)


def _widen(model: nn.Module, path: str, module: Any) -> None:
    weight = getattr(module, "weight", None)
    if weight is None:  # GPTQ, AWQ: probed
        matrix, bias = probe(module), probe_bias(module)
    elif type(module).__module__.partition(".")[0] == "bitsandbytes":
        from transformers.integrations.bitsandbytes import dequantize_bnb_weight

        matrix, bias = dequantize_bnb_weight(weight, getattr(module, "state", None)), module.bias
    else:
        if getattr(weight, "__tensor_flatten__", None) is not None:
            module.weight = nn.Parameter(weight.dequantize(), requires_grad=False)
        return
    outside, inside = matrix.shape
    plain = nn.Linear(inside, outside, bias=bias is not None, device="meta")
    plain.weight = nn.Parameter(matrix.clone(), requires_grad=False)
    if bias is not None:
        plain.bias = nn.Parameter(bias.clone(), requires_grad=False)
    model.set_submodule(path, plain)
