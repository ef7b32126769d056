"""The value pass: threads that read rows of their own say, to the bit, what one thread says."""

from collections.abc import Iterator
from threading import Barrier, get_ident
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from mining.conftest import byte_tokenizer
from mnemoscope.errors import NotFinite
from mnemoscope.foundation.budget import Budget
from mnemoscope.mining.passes.vectors import projector, values
from mnemoscope.models import load_model
from models.conftest import build


@pytest.fixture
def three_threads() -> Iterator[None]:
    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(usual)


def wanted(memories: int) -> values.Targets:
    """A target for every third memory, and up to four next tokens of each."""
    draw = np.random.default_rng(5)
    target = np.where(np.arange(memories) % 3 == 0, draw.integers(1024, size=memories), -1)
    owner = np.repeat(np.arange(memories), draw.integers(5, size=memories))
    return values.Targets(target, target, owner, draw.integers(1024, size=len(owner)))


@pytest.mark.usefixtures("three_threads")
def test_rows_shared_out_among_threads_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, layer = load_model("builtin:pydocs", device="cpu"), 5
    targets = wanted(model.sizes.memories[layer])
    firing = pl.DataFrame({"memory": [0, 1, 1, 511], "sign": [1, 1, -1, 1], "coefficient": [1.0, 2.0, 9.0, 0.5]})
    factor = values.work_factors(model, layer, firing, 2.0)
    alone = values.ValuePass(model).columns(layer, targets, factor)

    took: list[tuple[int, slice]] = []
    read_all = projector.Projector.read_all
    monkeypatch.setattr(projector, "BUDGET", Budget(shared_scores=1))

    all_there = Barrier(3)

    def noting(self: projector.Projector, vectors: torch.Tensor, read: Any, **more: bool) -> list[Any]:
        def note(share: projector.Share) -> Any:
            all_there.wait(timeout=60)  # or one thread may take what is for the next
            took.append((get_ident(), share.vectors))
            return read(share)

        return read_all(self, vectors, note, **more)

    monkeypatch.setattr(projector.Projector, "read_all", noting)
    shared = values.ValuePass(model).columns(layer, targets, factor)
    assert {name: shared[name].tolist() for name in shared} == {name: alone[name].tolist() for name in alone}
    parts = {(0, 170), (170, 341), (341, 512)}, {(0, 333), (333, 666), (666, 1000)}  # of values, of random directions
    assert {(rows.start, rows.stop) for _, rows in took} == parts[0] | parts[1]
    assert len({thread for thread, _ in took}) == 3
    for names, there in zip(values.AT_WORK, ([0, 1, 511], [1]), strict=True):
        for name in names:
            assert [place for place, one in enumerate(shared[name].tolist()) if one is not None] == there
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("weight", ["up_proj", "gate_proj", "down_proj"])
def test_a_norm_that_overflows_is_refused(weight: str) -> None:
    """Finite weights, the squares of which are not: no reader would take the table."""
    network = build("llama")
    with torch.no_grad():
        getattr(network.model.layers[1].mlp, weight).weight[3] = 1e37
    model = load_model(network, tokenizer=byte_tokenizer())
    unknown, none_follow = np.full(model.sizes.memories[0], -1), np.empty(0, np.int64)
    none = values.Targets(unknown, unknown, none_follow, none_follow)
    found = values.ValuePass(model).columns(0, none)
    assert np.isfinite(found["value_norm"]).all()
    named = "L1.M0" if weight == "down_proj" else "L1.M3"  # a row of the down-projection has an entry of every value
    with pytest.raises(NotFinite, match=f"{named} has"):
        values.ValuePass(model).columns(1, none)
