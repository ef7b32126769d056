"""Places the parts of a model larger than its device: graphics cards first, then main memory, then disk.

The device map is accelerate's, made before any weight is read, from the model's shape and its target dtype. Parts on
disk are read from the model's own files while it runs, or, if transformers rearranges weights as it loads them
(experts), from copies in a temporary folder. The placement changes no number.
"""

import copy
import logging
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import finalize

import torch

from mnemoscope.errors import ModelUnsupported, OptionError
from mnemoscope.foundation.options.model_options import parse_max_memory
from mnemoscope.models.modules.offloading import share_modules
from mnemoscope.models.modules.quiet import silence

_USABLE = 0.9
"""Default share of a device's free memory for weights; the rest is for computation."""
_WIDENED = 4
"""Largest factor from the bytes of a model's files to its memory: numbers of 8 bits as float32."""

DeviceMap = dict[str, Any]


@dataclass(frozen=True)
class Room:
    """The dtype and device of a model (None: any; `cuda`: any card), and `--max-memory`."""

    dtype: torch.dtype
    device: torch.device | None = None
    max_memory: str | None = None

    @property
    def is_bounded(self) -> bool:
        return self.max_memory is not None

    def budgets(self) -> dict[int | str, int]:
        """Bytes for weights by device: the usable cards, and `cpu`."""
        limits = {} if self.max_memory is None else parse_max_memory(self.max_memory)
        if self.is_bounded and self.device is not None and self.device.type not in ("cpu", "cuda"):
            raise OptionError(f"--max-memory is for CUDA cards and the CPU, not for {self.device}; leave it out")
        cards = self._cards()
        named = [device for device in limits if isinstance(device, int)]
        if wrong := [device for device in named if device not in cards]:
            there = f"{self.device} was asked for" if self.device is not None else f"there are {len(cards)} cards here"
            raise OptionError(f"--max-memory names card {wrong[0]}, but {there}; name a card that can be used")
        lone, used = limits.get(None), named or cards
        budgets: dict[int | str, int] = {card: _usable(card) if lone is None else lone for card in used}
        budgets["cpu"] = _usable("cpu") if used or lone is None else lone
        return budgets | {device: size for device, size in limits.items() if device is not None}

    def _cards(self) -> list[int]:
        if self.device is not None and self.device.index is not None:
            return [self.device.index] if self.device.type == "cuda" else []
        if not torch.cuda.is_available() or (self.device is not None and self.device.type != "cuda"):
            return []
        return list(range(torch.cuda.device_count()))

    def device_map(self, kind: Any, config: Any, *, stored: int | None, trust: bool) -> DeviceMap | None:
        """Where each part of a model of class `kind` goes; None if it fits whole. `stored`: the bytes of its files;
        `trust`: whether its own code may run.
        """
        fixed = self.device is not None and (self.device.type not in ("cpu", "cuda") or self.device.index is not None)
        if not self.is_bounded and fixed:
            return None
        # Querying every card would take some of its memory.
        first = next(iter(self._cards()), "cpu")
        if not self.is_bounded and stored is not None and _WIDENED * stored <= _usable(first):
            return None
        budgets = self.budgets()
        from accelerate import infer_auto_device_map

        with torch.device("meta"):
            shape = kind.from_config(copy.deepcopy(config), dtype=self.dtype, trust_remote_code=trust)
        shape.tie_weights()
        if shape.get_memory_footprint() <= next(iter(budgets.values())):
            return None
        whole = getattr(shape, "_no_split_modules", None)
        spread: DeviceMap = infer_auto_device_map(
            shape, max_memory=budgets, no_split_module_classes=None if whole is None else list(whole), dtype=self.dtype
        )
        return spread


def load_spread(load: Callable[..., Any], place: str, device_map: DeviceMap, **arguments: Any) -> Any:
    """`load`, transformers' `from_pretrained`, spread by the map; the temporary folder goes with the model."""
    folder = tempfile.mkdtemp(prefix="mnemoscope-")
    try:
        with silence(logging.getLogger("accelerate.big_modeling")):  # warns of every spread model
            model, notes = load(place, device_map=device_map, offload_folder=folder, **arguments)
        share_modules(model)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finalize(model, shutil.rmtree, folder, ignore_errors=True)
    return model, notes


def refuse(max_memory: str | None, what: str) -> None:
    if max_memory is not None:
        raise ModelUnsupported(f"{what} cannot be spread over devices; leave out --max-memory")


def _usable(device: int | str) -> int:
    if isinstance(device, int):
        return int(_USABLE * torch.cuda.mem_get_info(device)[0])
    import psutil

    return int(_USABLE * psutil.virtual_memory().available)
