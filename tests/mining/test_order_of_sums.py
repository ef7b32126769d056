"""Every sum of a run is made in an order that the plan fixes, on a GPU, too, since its bytes are promised.

There need be no GPU: what is watched is which operations are asked for. PyTorch's device `meta`, which computes
nothing, stands for one.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mining.conftest import odd_text, tiny_model
from mnemoscope.mining import mine
from mnemoscope.tracing.scoring.scores import activity_of

ADDING = ("index_add", "scatter_add", "scatter_reduce", "index_reduce", "put", "histc", "index_put", "bincount")
"""Operations that on a GPU add in the order in which its threads arrive; the last two with some arguments only."""


class Watched(TorchDispatchMode):
    """Notes every operation whose sum has no order of its own: ADDING anywhere, running sums off the processor."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__.strip("_").removesuffix("_impl")
        if name == "cumsum":
            adds = args[0].is_floating_point() and args[0].device.type == "meta"
        elif name == "index_put":
            adds = bool(args[3] if len(args) > 3 else kwargs.get("accumulate", False))
        elif name == "bincount":
            adds = len(args) > 1 and args[1] is not None
        else:
            adds = name in ADDING
        if adds:
            self.found.append(name)
        if name == "to_copy" and args[0].device.type == "meta" and kwargs.get("device") == torch.device("cpu"):
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        return func(*args, **kwargs)


def test_the_watch_notices() -> None:
    places, ones = torch.tensor([0, 0]), torch.ones(2)
    with Watched() as watched:
        torch.zeros(2).index_add_(0, places, ones)
        torch.zeros(3).index_put_((places,), ones, accumulate=True)
        torch.bincount(places, ones)
        torch.zeros(3)[places] = 1.0
        torch.bincount(places)
        ones.cumsum(0)
    assert watched.found == ["index_add", "index_put", "bincount"]
    with Watched() as watched:
        torch.ones(2, device="meta").cumsum(0)
        torch.ones(2, device="meta", dtype=torch.int64).cumsum(0)
    assert watched.found == ["cumsum"]


@pytest.mark.full
def test_mining_adds_nothing_in_the_order_of_arrival(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(odd_text(30))
    for name in ("gpt2", "gpt2-relu"):
        model = tiny_model(name)
        with Watched() as watched:
            mine(model, tmp_path / "text.txt", out=tmp_path / name, split="line", prefixes=20, removals=5)
        assert watched.found == []


def test_the_major_memories_do_not_depend_on_the_order_of_a_running_sum() -> None:
    with Watched() as watched:
        found = activity_of(torch.ones(3, 5, device="meta"), torch.ones(5, device="meta"))
    assert (watched.found, {tensor.device.type for tensor in found.values()}) == ([], {"meta"})
