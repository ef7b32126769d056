"""A checkpoint file of fairseq -> its options and its weights, without running anything that the file holds.

Both containers of PyTorch (zip and legacy) are read with `weights_only`: beside tensors and plain values only
`argparse.Namespace` and three classes of training meters may occur, and the meters become empty shells. Any other
class or function is refused by name. What options and weights mean is opening.py's business.
"""

import argparse
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemoscope.errors import ModelDamaged, ModelNotFound, ModelUnsupported
from mnemoscope.models.noise import suppress_output

_METERS = ("AverageMeter", "TimeMeter", "StopwatchMeter")
_NAMED = re.compile(r"GLOBAL (\S{1,100})")


class _Shell:
    """Stands in for a training meter: takes its fields, does nothing."""


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The options (`args`) and the weights (`model`) of a checkpoint, the weights as stored, on the CPU.

    Raises ModelNotFound, ModelDamaged (no checkpoint, or not a whole one), ModelUnsupported (something that runs).
    """
    if path.is_dir():
        raise ModelNotFound(f"{str(path)!r} is a folder; give the checkpoint file in it, as in fairseq:PATH.pt")
    if not path.is_file():
        raise ModelNotFound(f"no checkpoint file {str(path)!r}; give fairseq:PATH.pt")
    if path.stat().st_size == 0:
        raise ModelDamaged(f"checkpoint {str(path)!r} is empty; take an undamaged copy")
    whole = _unpickled(path)
    if not isinstance(whole, Mapping):
        raise ModelDamaged(f"{str(path)!r} holds a {type(whole).__name__}, not a checkpoint of fairseq")
    for name in ("args", "model"):
        if whole.get(name) is None:
            raise ModelUnsupported(
                f"checkpoint {str(path)!r} holds no {name!r}; only checkpoints of fairseq up to 0.10 can be read"
            )
    options, weights = whole["args"], whole["model"]
    if not isinstance(options, argparse.Namespace) or not isinstance(weights, Mapping):
        kinds = f"{type(options).__name__} and {type(weights).__name__}"
        raise ModelDamaged(f"checkpoint {str(path)!r}: 'args' and 'model' are {kinds}, not options and weights")
    for name, weight in weights.items():
        if not isinstance(name, str) or not isinstance(weight, Tensor) or weight.layout != torch.strided:
            raise ModelDamaged(f"checkpoint {str(path)!r}: its weight {name!r} is not a plain tensor")
    return dict(vars(options)), dict(weights)


def _unpickled(path: Path) -> Any:
    allowed: list[Any] = [argparse.Namespace, *((_Shell, f"fairseq.meters.{name}") for name in _METERS)]
    try:
        # Mapped, not read: the optimiser's state, twice as large as the weights, is never looked at.
        mapped = zipfile.is_zipfile(path)
        with suppress_output(), torch.serialization.safe_globals(allowed):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as problem:
        text = str(problem)
        if named := _NAMED.search(text):
            raise ModelUnsupported(
                f"checkpoint {str(path)!r} holds {named[1]!r}, which is neither options nor weights; nothing was run, "
                "and only plain fairseq checkpoints can be read"
            ) from None
        if "Weights only load failed" in text and "Trying to" in text:
            raise ModelUnsupported(
                f"checkpoint {str(path)!r} is a pickle that wants to run something; nothing was run"
            ) from None
        # PyTorch's own advice, to load it unsafely, is left out.
        lines = [line.strip() for line in text.splitlines() if line.strip() and "weights_only" not in line]
        reason = f"{type(problem).__name__}: {lines[0][:160].split('. ')[0]}" if lines else type(problem).__name__
        raise ModelDamaged(
            f"{str(path)!r} is not a whole checkpoint of PyTorch ({reason}); take an undamaged copy"
        ) from None
