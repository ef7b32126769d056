"""A foreign checkpoint's file -> a network of transformers. Which training code wrote it is told from what it states.

Read with `torch.load(weights_only=True)`, or as plain numbers; nothing in a file runs.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.layouts.llama2c import as_llama, read_bin
from mnemoscope.models.layouts.nanogpt import as_gpt2
from mnemoscope.models.modules.weight_layouts import without_wrappers


def read_foreign(path: Path) -> Any:
    """The network of a checkpoint of nanoGPT or llama2.c (`.pt`), or of a llama2.c `.bin`. Raises ModelDamaged and
    ModelUnsupported, and whatever torch says of a file that it cannot read.
    """
    if path.suffix == ".bin":
        config, weights = read_bin(path)
    else:
        where = f"{str(path)!r}"
        stored = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        entries = stored if isinstance(stored, Mapping) else {}
        stated, own = entries.get("model_args"), entries.get("model")
        if not isinstance(stated, Mapping) or not isinstance(own, Mapping):
            holds = f"the entries {', '.join(map(repr, list(entries)[:6]))}" if entries else "no entries"
            raise ModelUnsupported(
                f"{where} is no checkpoint of nanoGPT or llama2.c, which have 'model' and 'model_args': it has {holds};"
                " give the folder of a model that was saved for transformers"
            )
        named = {without_wrappers(str(name)): value for name, value in own.items() if isinstance(value, Tensor)}
        config, weights = (as_llama if "dim" in stated else as_gpt2)(stated, named, where)
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        empty = auto.from_config(config)
    load: Any = type(empty).from_pretrained
    return load(None, config=config, state_dict=weights, dtype="auto")
