"""A model's name, folder or object -> LanguageModel: opened, checked, converted, placed on a device, proved.

huggingface.py and fairseq/ open it; from there all formats are treated alike.
"""

import copy
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mnemoscope.errors import ModelUnsupported, OptionError, ProofFailed, TokenizerNotFound
from mnemoscope.foundation.options.mining_options import AUTO, DTYPES
from mnemoscope.foundation.options.model_options import ModelOptions, display_name
from mnemoscope.foundation.progress import Progress, report_loading, report_to, reporting_late
from mnemoscope.models.forward.text_readings import capture_streams, read_text_coefficients
from mnemoscope.models.language_model import LanguageModel, Readings
from mnemoscope.models.loaded_parts import LoadedParts, first_line, raised_by_package
from mnemoscope.models.modules.fingerprint import check_finite, content_fingerprint
from mnemoscope.models.modules.offloading import check_reachable, device_of_module, is_placed, is_spread
from mnemoscope.models.modules.spreading import Room, refuse
from mnemoscope.models.modules.switches import refuse_coarse_products, steady
from mnemoscope.models.object_state import NetworkGuard, at_rest, foreign_hooks
from mnemoscope.models.opening.dequantization import keep_as_stored
from mnemoscope.models.opening.encoders import ENCODER, EncoderAlone, check_side
from mnemoscope.models.opening.fairseq import open_checkpoint
from mnemoscope.models.opening.huggingface import open_model
from mnemoscope.models.proof.proof import prove
from mnemoscope.models.tokens.id_tokens import IDS


def load_model(
    source: Any,
    *,
    tokenizer: Any = None,
    adapter: str | os.PathLike[str] | None = None,
    beginning: str | None = None,
    side: str | None = None,
    dequantize: bool = False,
    dict: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = AUTO,
    trust_remote_code: bool = False,
    max_memory: str | Mapping[int | str, int | str] | None = None,
    progress: bool | Progress = True,
) -> LanguageModel:
    """The LanguageModel of a hub id, a folder, `builtin:NAME`, `handmade:NAME`, `fairseq:PATH.pt` or a loaded model.

    A model in memory is in evaluation mode only during a use; after a change of it (object_state.py says which are
    seen) it must be given here once more. Another dtype or device, and `dequantize`, work on a copy of its present
    state. A model that does not fit into `max_memory`, or into the free memory of `auto`, `cpu` or `cuda`, is spread:
    cards, CPU, disk. With `beginning` `"none"` position 0 of a sentence is never a trigger.

    Raises ModelNotFound, TokenizerNotFound, ModelUnsupported, ModelDamaged, ProofFailed, OptionError.

    Args:
        source: The name, or a model in memory.
        tokenizer: The tokenizer, if the model has none or needs another; ids: texts are token ids, as `12 5 7`.
        adapter: A PEFT adapter (LoRA and others) to put on the model: its folder or hub id.
        beginning: The token before every sentence, if not the model's own; none: nothing.
        side: The half of an encoder-decoder that is read; of an encoder the keys alone: decoder (None) or encoder.
        dequantize: Widen quantised weights at load.
        dict: A fairseq model's dict.txt, if it is elsewhere.
        revision: The hub model's revision: a branch, tag or commit.
        dtype: Number format: float32 (None), bfloat16 or float16; a model in memory keeps its own.
        device: Such as cpu, cuda or cuda:1; auto: a graphics card if there is one; a model in memory stays where it is.
        trust_remote_code: Run code that comes with the model.
        max_memory: Memory for weights: 2GiB, or 0=20GiB,cpu=60GiB; the rest of the model goes to disk.
        progress: True: a bar in a terminal or notebook; or a function of stage, done, total (or None) and note.
    """
    refuse_coarse_products()
    kind = None if dtype is None else dtype_of(dtype)
    place = None if device == AUTO else device_of(device)
    named = str(tokenizer) if isinstance(tokenizer, str | Path) else None
    opening = ModelOptions.of({**locals(), "tokenizer": named})
    room = Room(kind or torch.float32, place, opening.max_memory)
    if room.is_bounded:
        room.budgets()
    name = display_name(str(source)) if isinstance(source, str | Path) else type(source).__name__

    def report(stage: str, done: float, total: float | None, note: str) -> None:
        given(stage, done, total, f"{name}: {note}" if total is None else note)

    with report_to(progress) as given, reporting_late(report):
        report_loading("its files")
        with steady():
            opened = _open(source, tokenizer, opening, room)
            check_side(opened.network, side, opened.spec)
            alone = isinstance(opened.network, EncoderAlone)
            opened = replace(opened, opening=replace(opened.opening, side=ENCODER if alone else None))
            return _read(opened, kind, place, revision)


def _read(
    opened: LoadedParts, kind: torch.dtype | None, place: torch.device | None, revision: str | None
) -> LanguageModel:
    check_reachable(opened.network)
    keep_as_stored(opened.network)
    if is_placed(opened.network) or (place is None and opened.in_memory):
        place = device_of_module(opened.network)
    elif place is None:
        place = device_of(AUTO)
    elif opened.in_memory and is_spread(opened.network):
        raise OptionError("a model that accelerate has spread stays where it is; leave out device")
    kind = torch.float32 if kind is None and not opened.in_memory else kind
    report_loading("its fingerprint")
    check_finite(opened.network)
    content = content_fingerprint(opened.network, opened.config, opened.tokens.description)
    try:
        with at_rest(opened.network):
            network = _place(opened.network, kind, place, copied=opened.in_memory)
            if not opened.in_memory:
                network.eval()
            anatomy = opened.anatomy(network)
            if not anatomy.layers:
                raise ModelUnsupported(f"model {opened.spec!r} has no layers; see what its configuration says of them")
            model = LanguageModel(opened, anatomy, revision=revision, content=content)
            model.proof, model.readings = prove(model), Readings(read_text_coefficients, capture_streams)
            model.usage = NetworkGuard(network, spec=model.spec, rows=model.sizes.vocabulary)
        return model
    except (ModelUnsupported, ProofFailed) as error:
        if where := next(iter(foreign_hooks(opened.network).values()), ""):
            raise type(error)(f"{error}; hooks of others (on {where}) may be why: remove them") from error
        raise
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
        if raised_by_package(error) and not isinstance(error, RuntimeError | IndexError):
            raise
        raise ModelUnsupported(f"model {opened.spec!r} cannot be run: {first_line(error)}") from error


def load_for_ids(source: str, *, tokenizer: str | None = None, **options: Any) -> LanguageModel:
    """Like `load_model`, for texts of token ids: a model without a tokenizer opens without one (`"ids"`)."""
    try:
        return load_model(source, tokenizer=tokenizer, **options)
    except TokenizerNotFound:
        if tokenizer is not None:
            raise
        return load_model(source, tokenizer=IDS, **options)


def _open(source: Any, tokenizer: Any, opening: ModelOptions, room: Room) -> LoadedParts:
    if not (isinstance(source, str | Path) and str(source).startswith("fairseq:")):
        if opening.dictionary is not None:
            raise OptionError("a dict.txt (--dict) goes with fairseq:PATH.pt only; leave it out")
        return open_model(source, tokenizer=tokenizer, opening=opening, room=room)
    if tokenizer is not None:
        raise OptionError("a fairseq checkpoint reads text with its dict.txt; give dict instead of tokenizer")
    if opening.adapter is not None or opening.dequantize:
        left = "an adapter (--adapter)" if opening.adapter is not None else "--dequantize"
        raise OptionError(f"{left} does not go with a fairseq checkpoint; leave it out")
    refuse(opening.max_memory, "a fairseq checkpoint")
    dictionary = None if opening.dictionary is None else Path(opening.dictionary)
    return replace(open_checkpoint(str(source), dictionary=dictionary), opening=opening)


def dtype_of(dtype: str | torch.dtype) -> torch.dtype:
    """The torch dtype of a name."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise OptionError(f"dtype {str(dtype)!r} is not supported; choose {', '.join(DTYPES)}")
    torch_dtype: torch.dtype = getattr(torch, name)
    return torch_dtype


def device_of(device: str | torch.device) -> torch.device:
    """The torch device of a name, or of `auto`."""
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == AUTO else device
    try:
        torch_device = torch.device(name)
        torch.empty(0, device=torch_device)
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"device {str(name)!r} cannot be used here: {first_line(error)}") from None
    return torch_device


def _place(model: Any, dtype: torch.dtype | None, device: torch.device, *, copied: bool) -> Any:
    """The model in a dtype on a device; a user's own object is copied before it changes."""
    if getattr(getattr(model, "config", None), "quantization_config", None) is not None and not copied:
        for parameter in model.parameters():  # all that is not packed; the model cannot be converted as a whole
            if dtype is not None and type(parameter) is nn.Parameter and parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        return model
    # All weights: an adapter, or a widened weight, may have another dtype than the rest.
    weights = [weight for weight in model.parameters() if weight.is_floating_point()]
    if is_spread(model):
        if dtype is not None and any(weight.dtype != dtype for weight in weights):
            if copied:
                raise OptionError("a model that accelerate has spread keeps its dtype; leave out dtype, or load it so")
            nn.Module.to(model, dtype=dtype)  # its own `to` refuses
        return model
    if any((dtype is not None and weight.dtype != dtype) or weight.device != device for weight in weights):
        model = copy.deepcopy(model) if copied else model
        model = model.to(device=device, dtype=dtype)
    return model
