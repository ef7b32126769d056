"""Weights put back: keys and values of some memories of a model become another's, and the result is saved.

A plain matrix gets the other's rows. In a LoRA's layer the adapter's part of these rows becomes zero, so that the
adapter can be saved; that it then has the other's rows is checked. Attention, norms and biases behind values stay.
"""

import copy
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from torch import Tensor

from mnemoscope.attribution.diff import second_model
from mnemoscope.errors import ModelDiffers, ModelUnsupported, OptionError
from mnemoscope.foundation.files import make_folder, storing
from mnemoscope.foundation.memory_names import MemoryId, NamedMemories
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.loaded_parts import first_line
from mnemoscope.models.memories.feed_forward import DenseFeedForward
from mnemoscope.models.modules.linear_maps import LinearMap, is_of_adapters
from mnemoscope.models.modules.offloading import is_spread
from mnemoscope.models.modules.quiet import suppress_output
from mnemoscope.models.object_state import hold_model
from mnemoscope.models.opening.tokenizer_files import open_tokenizer, reader_of
from mnemoscope.models.tokens.id_tokens import IDS, IdTokens


def restore(
    second: LanguageModel | str,
    first: LanguageModel | str,
    memories: str | Iterable[str | MemoryId],
    *,
    save: str | os.PathLike[str] | None = None,
) -> LanguageModel:
    """A copy of the `second` model in which the keys and values of these memories are the `first` one's. Experts and
    packed weights are refused.

    Raises MemoryIdError, ModelDiffers, ModelUnsupported, OptionError, StoreFailed.

    Args:
        second: The model that is copied, or its name.
        first: The model whose keys and values are put back, or its name.
        memories: By name: ["L3.M17"], "L5.M0-19,L6", or "@FILE", a saved list.
        save: A new folder for the model, or for its LoRA alone; None: it is not saved.
    """
    if save is not None:
        check_free(Path(save))
    first = first if isinstance(first, LanguageModel) else load_model(first)
    second = second_model(first, second, None)
    if save is not None:
        check_savable(second)
    named = [memories] if isinstance(memories, str) else list(map(str, memories))
    wanted = {one for each in named for one in NamedMemories.parse(each).of(second)}
    with hold_model(first), hold_model(second), first.lock, second.lock:
        network = second.anatomy.model
        if is_spread(network) or is_spread(first.anatomy.model):
            raise ModelUnsupported("a model that is spread over devices cannot be restored; load it on one")
        paths = {module: path for path, module in network.named_modules()}
        network = copy.deepcopy(network)
        for layer in sorted({one.layer for one in wanted}):
            ours, its = second.layer(layer).ffn, first.layer(layer).ffn
            if not (isinstance(ours, DenseFeedForward) and isinstance(its, DenseFeedForward)):
                raise ModelUnsupported(f"layer {layer} has experts, whose weights cannot be restored memory by memory")
            if [one.shape for one in ours.maps] != [one.shape for one in its.maps]:
                raise ModelDiffers(f"{second.spec} differs from {first.spec} in the matrices of layer {layer}")
            numbers = torch.tensor(sorted(one.memory for one in wanted if one.layer == layer))
            for one, source in zip(ours.maps, its.maps, strict=True):
                copied = replace(one, module=network.get_submodule(paths[one.module]))
                _put_back(copied, source, numbers, values=one is ours.down, of=f"layer {layer} of {second.spec}")
    tokenizer = IDS if isinstance(second.reader, IdTokens) else getattr(second.reader, "tokenizer", None)
    restored = load_model(network, tokenizer=tokenizer, beginning=second.opening.beginning)
    if save is not None:
        _save(network, None if tokenizer == IDS else tokenizer, Path(save))
    return restored


def check_free(folder: Path) -> None:
    """Raises OptionError for a folder that holds something."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionError(f"{folder} holds something; choose another folder with --save")


def check_savable(model: LanguageModel) -> None:
    """Raises ModelUnsupported for a model that cannot be saved, whichever memories are restored."""
    network, adapters = model.anatomy.model, _active_adapters(model.anatomy.model)
    dense = [one for layer in model.anatomy.layers if isinstance(one := layer.ffn, DenseFeedForward)]
    refusals = {
        "it is spread over devices; load it on one": is_spread(network),
        "its weights are those of experts": not dense,
        "its weights are packed; widen them (--dequantize)": all(
            one.is_probed and not is_of_adapters(one.module) for ffn in dense for one in ffn.maps
        ),
        f"{len(adapters)} adapters are active; merge them first": len(adapters) > 1,
        f"a {type(network).__name__} is no model of transformers": getattr(network, "save_pretrained", None) is None,
    }
    if why := next((why for why, holds in refusals.items() if holds), None):
        raise ModelUnsupported(f"{model.spec} cannot be saved with weights restored: {why}")


def _active_adapters(network: Any) -> set[str]:
    return {name for one in network.modules() if is_of_adapters(one) for name in getattr(one, "active_adapters", ())}


@torch.no_grad()
def _put_back(linear: LinearMap, source: LinearMap, numbers: Tensor, *, values: bool, of: str) -> None:
    """Rows of keys, or with `values` columns, become the source's."""
    module: Any = linear.module
    part, wanted = ((slice(None), numbers) if values else (numbers,)), source.weight()
    if not linear.is_probed:
        matrix, bias, its_bias = linear.weight(), linear.bias(), source.bias()
        matrix[part] = wanted[part].to(matrix)
        if not values and bias is not None and its_bias is not None:
            bias[numbers] = its_bias[numbers].to(bias)
        return
    if is_of_adapters(module):
        from peft.tuners.lora import LoraLayer

        for name in module.active_adapters if isinstance(module, LoraLayer) else ():
            if values:
                module.lora_A[name].weight[:, numbers] = 0
            else:
                module.lora_B[name].weight[linear.first + numbers] = 0
    if not torch.allclose(linear.weight()[part].float(), wanted[part].float(), rtol=1e-4, atol=1e-6):
        kind = type(module).__name__
        raise ModelUnsupported(
            f"memories of {of} cannot be restored: its {kind} is packed, or an adapter that is no plain LoRA of the"
            " first model; widen it (--dequantize), or merge the adapter, and give that model"
        )


def _save(network: Any, tokenizer: Any, folder: Path) -> None:
    """Writes the model, or the adapter that is active in it, under a temporary name first."""
    import peft
    from safetensors.torch import save_file

    temporary = folder.parent / f".{folder.name}.{os.getpid()}.mnemoscope-tmp"
    adapters = _active_adapters(network)
    make_folder(folder.parent)
    try:
        with storing(folder), suppress_output():
            for name in adapters:
                weights = peft.get_peft_model_state_dict(network, adapter_name=name, save_embedding_layers=False)
                stored = {f"base_model.model.{key}": weight.contiguous().cpu() for key, weight in weights.items()}
                network.peft_config[name].save_pretrained(str(temporary))
                save_file(stored, temporary / "adapter_model.safetensors", metadata={"format": "pt"})
            for one in (None if adapters else network, tokenizer):
                if one is not None:
                    one.save_pretrained(temporary)
            if type(tokenizer).__module__.startswith("transformers."):
                _keep_words(tokenizer, temporary)
            if folder.exists():
                folder.rmdir()
            temporary.rename(folder)
    except (ValueError, RuntimeError, TypeError, AttributeError) as error:
        raise ModelUnsupported(f"the model cannot be saved: {first_line(error)}") from None
    finally:
        rmtree(temporary, ignore_errors=True)


def _keep_words(tokenizer: Any, folder: Path) -> None:
    """States a class that reads tokenizer.json as it is, where the own one builds its family's rules, not a GGUF's."""
    if reader_of(open_tokenizer(str(folder), {})).description != reader_of(tokenizer).description:
        stated = folder / "tokenizer_config.json"
        plain = json.loads(stated.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
        stated.write_text(json.dumps(plain, indent=2), encoding="utf-8")
