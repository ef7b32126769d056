"""A model's name, folder or object -> LanguageModel: opened, checked, put in a number format on a device, proved.

Opening is the job of huggingface.py and fairseq/; what they give is treated alike here.
"""

import copy
import os
from pathlib import Path
from typing import Any

import torch

from mnemoscope.errors import ModelUnsupported, OptionError
from mnemoscope.mining_options import AUTO, DTYPES
from mnemoscope.models.fairseq import open_checkpoint
from mnemoscope.models.fingerprint import check_finite, content_fingerprint
from mnemoscope.models.huggingface import open_model
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.loaded_parts import LoadedParts, first_line
from mnemoscope.models.proof import prove


def load_model(
    source: Any,
    *,
    tokenizer: Any = None,
    dict: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = AUTO,
    trust_remote_code: bool = False,
) -> LanguageModel:
    """The LanguageModel of a hub id, a folder, `builtin:NAME`, `handmade:NAME`, `fairseq:PATH.pt` or a loaded model.

    `dict` names the `dict.txt` of a fairseq checkpoint where it does not lie beside it. `dtype` None means float32; a
    model already in memory keeps its own (and is put into evaluation mode, its weights untouched; another dtype or
    device works on a copy). `device` auto means a CUDA card where there is one, else the CPU; a model already in memory
    stays where it is. Raises ModelNotFound, ModelUnsupported, ModelDamaged, ProofFailed, OptionError.
    """
    kind = None if dtype is None else dtype_of(dtype)
    place = None if device == AUTO else device_of(device)
    opened = _open(source, tokenizer, None if dict is None else Path(dict), revision, trust_remote_code)
    if place is None:
        place = next(opened.network.parameters()).device if opened.own else device_of(AUTO)
    kind = torch.float32 if kind is None and not opened.own else kind
    check_finite(opened.network)
    content = content_fingerprint(opened.network, opened.config, opened.tokens.description)
    try:
        network = _place(opened.network, kind, place, copied=opened.own)
        model = LanguageModel(opened, opened.anatomy(network), revision=revision, content=content)
        model.proof = prove(model)
        return model
    except RuntimeError as error:
        raise ModelUnsupported(f"model {opened.spec!r} cannot be run: {first_line(error)}") from error


def _open(source: Any, tokenizer: Any, dictionary: Path | None, revision: str | None, trust: bool) -> LoadedParts:
    if not (isinstance(source, str | Path) and str(source).startswith("fairseq:")):
        if dictionary is not None:
            raise OptionError("a dict.txt (--dict) goes with fairseq:PATH.pt only; leave it out")
        return open_model(source, tokenizer=tokenizer, revision=revision, trust_remote_code=trust)
    if tokenizer is not None:
        raise OptionError("a fairseq checkpoint reads text with its dict.txt; give dict instead of tokenizer")
    return open_checkpoint(str(source), dictionary=dictionary)


def dtype_of(dtype: str | torch.dtype) -> torch.dtype:
    """The torch dtype of a name; raises OptionError for one that models are not run in."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise OptionError(f"dtype {str(dtype)!r} is not supported; choose {', '.join(DTYPES)}")
    found: torch.dtype = getattr(torch, name)
    return found


def device_of(device: str | torch.device) -> torch.device:
    """The torch device of a name, or of `auto`; raises OptionError for one that this machine does not have."""
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == AUTO else device
    try:
        found = torch.device(name)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"device {str(name)!r} cannot be used here: {first_line(error)}") from None
    return found


def _place(model: Any, dtype: torch.dtype | None, device: torch.device, *, copied: bool) -> Any:
    """The model in a dtype on a device, ready for reading; a user's own object is copied before it changes."""
    if getattr(getattr(model, "config", None), "quantization_config", None) is not None and not copied:
        return _widen_around(model, dtype).eval()
    weight = next(model.parameters())
    if (dtype is not None and weight.dtype != dtype) or weight.device != device:
        model = copy.deepcopy(model) if copied else model
        model = model.to(device=device, dtype=dtype)
    return model.eval()


def _widen_around(model: Any, dtype: torch.dtype | None) -> Any:
    """A quantised model, which cannot be converted as a whole, with all that is not packed in this dtype."""
    for parameter in model.parameters():
        if dtype is not None and type(parameter) is torch.nn.Parameter and parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return model
