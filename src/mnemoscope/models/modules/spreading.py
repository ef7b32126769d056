"""Which parts of a model that is larger than its device go where: graphics cards first, then main memory, then disk.

The device map is accelerate's, made before any weight is read, from the model's shape and the dtype that it is to run
in. What goes to disk is read from the model's own files while it runs, or, where transformers rearranges weights as it
loads them (experts), from copies in a folder for temporary files. Where weights lie changes no number.
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
from torch import nn

from mnemoscope.errors import ModelUnsupported, OptionError
from mnemoscope.foundation.model_options import parse_max_memory
from mnemoscope.models.modules.offloading import share_modules

_USABLE = 0.9
"""Share of a device's free memory that weights may take where nobody said how much: the rest is for what runs."""
_WIDENED = 4
"""How many times the bytes of its files a model may take: numbers of 8 bits as float32."""

DeviceMap = dict[str, Any]


@dataclass(frozen=True)
class Room:
    """The dtype that a model is to run in, the device asked for (None: whichever), and `--max-memory`.

    A device without a number, such as `cuda`, is a kind: a run that was begun with `auto` goes on with that.
    """

    dtype: torch.dtype
    device: torch.device | None = None
    max_memory: str | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether the user said how much memory there is."""
        return self.max_memory is not None

    def budgets(self) -> dict[int | str, int]:
        """Bytes for weights by device: the cards that may be used, and `cpu`; raises OptionError."""
        asked = {} if self.max_memory is None else parse_max_memory(self.max_memory)
        if self.is_bounded and self.device is not None and self.device.type not in ("cpu", "cuda"):
            raise OptionError(f"--max-memory is of graphics cards of CUDA and of the CPU, not of {self.device}")
        cards = self._cards()
        named = [device for device in asked if isinstance(device, int)]
        if wrong := [device for device in named if device not in cards]:
            there = f"{self.device} was asked for" if self.device is not None else f"there are {len(cards)} cards here"
            raise OptionError(f"--max-memory names card {wrong[0]}, but {there}; name a card that can be used")
        lone, used = asked.get(None), named or cards
        found: dict[int | str, int] = {card: _usable(card) if lone is None else lone for card in used}
        found["cpu"] = _usable("cpu") if used or lone is None else lone
        return found | {device: size for device, size in asked.items() if device is not None}

    def _cards(self) -> list[int]:
        if self.device is not None and self.device.index is not None:
            return [self.device.index] if self.device.type == "cuda" else []
        if not torch.cuda.is_available() or (self.device is not None and self.device.type != "cuda"):
            return []
        return list(range(torch.cuda.device_count()))

    @property
    def _may_spread(self) -> bool:
        """Whether the device is a kind of device that can be spread over, or whichever."""
        return self.device is None or (self.device.type in ("cpu", "cuda") and self.device.index is None)

    def device_map(self, kind: Any, config: Any, *, stored: int | None, trust: bool) -> DeviceMap | None:
        """Where each part of the model goes that the class `kind` makes of a configuration; None where it fits whole.

        `stored`: the bytes of its files, where they are known; `trust`: whether the model's own code may run.
        """
        if not self.is_bounded and not self._may_spread:
            return None
        # Without asking every card, which would take some of its memory.
        first = next(iter(self._cards()), "cpu")
        if not self.is_bounded and stored is not None and _WIDENED * stored <= _usable(first):
            return None
        budgets = self.budgets()
        from accelerate import infer_auto_device_map

        with torch.device("meta"):
            shape = kind.from_config(copy.deepcopy(config), dtype=self.dtype, trust_remote_code=trust)
        shape.tie_weights()
        if _bytes_of(shape) <= next(iter(budgets.values())):
            return None
        whole = getattr(shape, "_no_split_modules", None)
        found: DeviceMap = infer_auto_device_map(
            shape, max_memory=budgets, no_split_module_classes=None if whole is None else list(whole), dtype=self.dtype
        )
        return found


def load_spread(load: Callable[..., Any], place: str, device_map: DeviceMap, **arguments: Any) -> Any:
    """What `load`, transformers' `from_pretrained`, gives for `place`, spread so.

    The folder for temporary files is removed when nobody has the model any more, at the latest when Python ends.
    """
    folder = tempfile.mkdtemp(prefix="mnemoscope-")
    warner = logging.getLogger("accelerate.big_modeling")
    level = warner.level
    warner.setLevel(logging.ERROR)  # it warns that something was spread
    try:
        model, notes = load(place, device_map=device_map, offload_folder=folder, **arguments)
        share_modules(model)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        warner.setLevel(level)
    finalize(model, shutil.rmtree, folder, ignore_errors=True)
    return model, notes


def refuse(max_memory: str | None, what: str) -> None:
    """Raises where the memory is bounded for a kind of model that cannot be spread."""
    if max_memory is not None:
        raise ModelUnsupported(f"{what} cannot be spread over devices; leave out --max-memory")


def _usable(device: int | str) -> int:
    """Bytes of a device's free memory that weights may take."""
    if isinstance(device, int):
        return int(_USABLE * torch.cuda.mem_get_info(device)[0])
    import psutil

    return int(_USABLE * psutil.virtual_memory().available)


def _bytes_of(model: nn.Module) -> int:
    return sum(weight.numel() * weight.itemsize for weight in (*model.parameters(), *model.buffers()))
