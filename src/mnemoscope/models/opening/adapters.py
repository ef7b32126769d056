"""PEFT adapters: put on a model from their folder or the hub, or found on a model in memory.

Their effect on the layers is not computed here: linear_maps.py probes the layers, and the proof checks it. An adapter
of another model is refused if a module or a weight of it has no place, or another shape; the base model's name is
ignored, since models are copied and renamed.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import snapshot_download
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mnemoscope.errors import ModelError, ModelNotFound, ModelUnsupported
from mnemoscope.foundation.files import read_object
from mnemoscope.models.loaded_parts import first_line
from mnemoscope.models.modules.linear_maps import is_of_adapters
from mnemoscope.models.modules.quiet import suppress_output
from mnemoscope.models.modules.wrappers import unwrap
from mnemoscope.models.opening.file_words import check_adapter
from mnemoscope.models.opening.hub import one_line_errors, where

ADAPTER_CONFIG = "adapter_config.json"
"""The file that marks a folder as an adapter's."""
_WEIGHTS = "adapter_model.*"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.jinja")
_PART = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_NAME = "default"
"""Peft's default name of an adapter; part of the fingerprint."""


def base_of(source: Any) -> tuple[Any, str]:
    """The model inside a PEFT model or torch's wrappers, and the active adapters' names."""
    source = unwrap(source)
    if not is_of_adapters(source):
        return source, ""
    _check_in_layers(source.active_peft_config)
    inside = unwrap(source.get_base_model())
    if not isinstance(inside, PreTrainedModel):
        raise ModelUnsupported(f"the {type(inside).__name__} that is adapted is not a transformers model")
    return inside, "".join(f"+{name}" for name in source.active_adapters)


def base_name(folder: Path) -> str:
    stated = read_object(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    return repr(stated) if isinstance(stated, str) and stated else "its base model"


def put_adapter(network: Any, read: "Adapter", base: str) -> tuple[Any, str | None]:
    """The network with the adapter in its layers. An adapter trained with added tokens stores rows of the embeddings:
    the network gets as many, and the second value is the folder of its tokenizer, if there is one. Raises
    ModelNotFound, ModelUnsupported, ModelDamaged.
    """
    adapter, folder, config, stored = read
    import peft

    with one_line_errors(adapter, what="adapter"):
        config.inference_mode = True
        try:
            resized, lacking = _take_rows(network, stored)
            adapted = peft.PeftModel(network, config, _NAME)
            renamed = getattr(network, "_checkpoint_conversion_mapping", {})
            notes = adapted.load_adapter(str(folder), _NAME, torch_device=str(network.device), key_mapping=renamed)
        except (ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
            raise _misfit(adapter, base, first_line(error)) from None
    if unknown := [name for name in notes.unexpected_keys if not _is_stored_twice(name, stored, notes.unexpected_keys)]:
        raise _misfit(adapter, base, f"the model has no place for its {unknown[0]!r}")
    if missing := [*notes.missing_keys, *lacking]:
        raise _misfit(adapter, base, f"it has nothing for the model's {missing[0]!r}")
    return adapted.get_base_model(), str(folder) if resized and (folder / _TOKENIZER_CONFIG).is_file() else None


class Adapter(NamedTuple):
    """The name, the folder, the configuration and the weights."""

    name: str
    folder: Path
    config: Any
    stored: dict[str, Any]


def check_fits(read: Adapter, base: str, kind: Any, config: Any, *, trust_remote_code: bool) -> None:
    """Compares an adapter with an empty network of the class `kind`, before the weights are read, which may take
    minutes.
    """
    with suppress_output(), torch.device("meta"):
        empty = kind.from_config(config, trust_remote_code=trust_remote_code)
    if getattr(empty, "_checkpoint_conversion_mapping", {}):  # whose names are others
        return
    modules, made_for = dict(empty.named_modules()), f"; it is made for {base_name(read.folder)}"
    ends = (empty.get_input_embeddings(), empty.get_output_embeddings())  # may get rows
    for name, weight in read.stored.items():
        if (part := _PART.fullmatch(name)) is None:
            continue
        if (module := modules.get(part[1].replace(".base_layer", ""))) is None:  # so peft names experts inside
            raise _misfit(read.name, base, f"the model has no place for its {name!r}{made_for}")
        if any(module is end for end in ends) or not isinstance(module, torch.nn.Linear | Conv1D):
            continue
        outputs, inputs = module.weight.shape if isinstance(module, torch.nn.Linear) else module.weight.shape[::-1]
        width, wide = (weight.shape[-1], inputs) if part[2] == "A" else (weight.shape[0], outputs)
        if width != wide:
            raise _misfit(read.name, base, f"its {part[1]!r} is {width:,} wide, the model's {wide:,}{made_for}")


def read_adapter(adapter: str) -> Adapter:
    """An adapter of a folder or the hub."""
    import peft

    folder = _folder_of(adapter)
    with one_line_errors(adapter, what="adapter"):
        config = peft.PeftConfig.from_pretrained(str(folder))
        _check_in_layers(config)
        check_adapter(config, read_object(folder / ADAPTER_CONFIG), adapter, peft.__version__)
        return Adapter(adapter, folder, config, peft.load_peft_weights(str(folder), device="cpu"))


def _take_rows(network: Any, stored: dict[str, Any]) -> tuple[bool, list[str]]:
    """Resizes the embeddings to the adapter's rows; returns whether, and the resized weights that it lacks."""
    # Peft's names: modules that it wraps have an additional name inside.
    around = re.compile(r"^base_model\.model\.|token_adapter\.|base_layer\.")
    weights = {around.sub("", name): weight for name, weight in stored.items()}
    ends = (network.get_input_embeddings(), network.get_output_embeddings())
    names = [name for name, part in network.named_modules() if any(part is end for end in ends)]
    rows = {len(weights[f"{name}.weight"]) for name in names if f"{name}.weight" in weights}
    if len(rows) != 1 or rows == {len(network.get_input_embeddings().weight)}:
        return False, []
    network.resize_token_embeddings(rows.pop(), mean_resizing=False)
    network.tie_weights()
    kept = {id(weight) for name, weight in network.named_parameters(remove_duplicate=False) if name in weights}
    return True, [
        f"{name}.{inner}"
        for name in names
        for inner, weight in network.get_submodule(name).named_parameters()
        if id(weight) not in kept
    ]


def _is_stored_twice(name: str, stored: dict[str, Any], unexpected: list[str]) -> bool:
    """Whether an unexpected weight is one that peft, when it stores embeddings, stores under another name, too."""
    inner = re.sub(r"\.(modules_to_save|original_module)\.", ".", name)
    tied = "trainable_tokens_delta"
    rows = [weight for other, weight in stored.items() if other.endswith(tied) and other not in unexpected]
    return (inner != name and inner in stored) or (
        name.endswith(tied) and any(torch.equal(weight, stored[name]) for weight in rows)
    )


def _check_in_layers(config: Any) -> None:
    if bool(getattr(config, "is_prompt_learning", False)):
        raise ModelUnsupported("a learned prompt is not part of the layers, so it cannot be read; give the model alone")


def _folder_of(adapter: str) -> Path:
    folder = Path(adapter).expanduser()
    if not adapter.strip() or not folder.is_dir():
        if not adapter.strip() or folder.exists() or adapter.startswith((".", "/", "~")) or adapter.count("/") != 1:
            raise ModelNotFound(f"no folder {adapter!r}; give the folder of a saved adapter, or its hub id")
        cached = where(adapter, None, False)["local_files_only"]
        with one_line_errors(adapter, what="adapter"):
            patterns = [ADAPTER_CONFIG, _WEIGHTS, *_TOKENIZER]
            folder = Path(snapshot_download(adapter, allow_patterns=patterns, local_files_only=cached))
    if not (folder / ADAPTER_CONFIG).is_file():
        raise ModelNotFound(f"{adapter!r} holds no {ADAPTER_CONFIG}; give the folder of a saved adapter, or its hub id")
    if not any(folder.glob(_WEIGHTS)):
        raise ModelNotFound(f"{adapter!r} holds no weights ({_WEIGHTS}); save the adapter there first")
    return folder


def _misfit(adapter: str, base: str, reason: str) -> ModelError:
    return ModelUnsupported(f"adapter {adapter!r} does not fit {base!r}: {reason}")
