"""A watch on operations whose result the host must wait for, where a graphics card computes."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITS = ("item", "_local_scalar_dense", "nonzero", "masked_select", "bincount", "unique", "equal", "is_nonzero")
"""Operations whose result, or whose size, the host must know."""


class Watch(TorchDispatchMode):
    """Notes every operation that the host would wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split("::")[1].split(".")[0]
        by_mask = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if by_mask or name.startswith(WAITS):
            self.waited.append(name)
        return func(*args, **(kwargs or {}))
