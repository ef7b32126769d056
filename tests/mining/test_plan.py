"""What a plan settles by itself: the size of a batch, the order of the batches."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mnemoscope.mining.plan import batch_order, default_batch_tokens


def sizes_of(*widths: int, device: str, parameters: int = 0, **more: Any) -> Any:
    """As much of a model with layers of these widths as decides the size of a batch."""
    return SimpleNamespace(
        sizes=SimpleNamespace(layers=len(widths), parameters=parameters), memories_at_once=widths.__getitem__,
        device=torch.device(device), numberings=more.get("numberings", {}), dtype=more.get("dtype", torch.float32),
    )  # fmt: skip


def test_on_a_cpu_a_layers_coefficients_fill_16_mebibytes() -> None:
    assert default_batch_tokens(sizes_of(256, 1024, 768, device="cpu")) * 1024 * 4 == 16 << 20
    assert default_batch_tokens(sizes_of(1 << 20, device="cpu")) == 256
    assert default_batch_tokens(sizes_of(2, device="cpu")) == 8192


def test_experts_read_twice_as_many_tokens_at_a_time() -> None:
    assert default_batch_tokens(sizes_of(1024, device="cpu", numberings={0: "experts"})) == 8192
    assert default_batch_tokens(sizes_of(2048, device="cpu", numberings={0: "experts"})) == 4096


@pytest.mark.parametrize(
    ("width", "parameters", "dtype", "expected"),
    [
        # 8 GiB where nobody says how much; an eighth of what two copies of the weights leave, 16 bytes a coefficient.
        (8192, 0, torch.float32, 8192),
        (8192, 1, torch.float32, 4096),  # the next power of two below
        (8192, 1 << 29, torch.float32, 4096),
        (8192, 1 << 30, torch.bfloat16, 4096),
        (8192, 1 << 40, torch.float32, 1024),
        (64, 0, torch.float32, 65_536),
    ],
)
def test_elsewhere_a_batch_fills_a_part_of_the_memory(
    width: int, parameters: int, dtype: torch.dtype, expected: int
) -> None:
    assert default_batch_tokens(sizes_of(width, device="mps", parameters=parameters, dtype=dtype)) == expected


def test_batches_are_shuffled_within_runs_of_512() -> None:
    order = batch_order(1_100, seed=3)
    for start, end in ((0, 512), (512, 1_024), (1_024, 1_100)):
        assert sorted(order[start:end]) == list(range(start, end))
        assert not np.array_equal(order[start:end], np.arange(start, end))
    assert np.array_equal(batch_order(1_100, seed=3), order)
    assert not np.array_equal(batch_order(1_100, seed=4), order)
    assert batch_order(0, seed=3).tolist() == []
