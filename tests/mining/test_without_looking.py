"""The pass over a text where the host may not look at numbers, as on a graphics card, run on the CPU.

The same bytes come out, and no operation is asked for whose answer the host would have to wait for.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from mining.conftest import odd_text, spoil, tables_of, tiny_model
from mining.test_accumulators import MEMORIES, ids_of, oracle, rows, streams
from mnemoscope.errors import NotFinite
from mnemoscope.kernels import reference as observer
from mnemoscope.mining import mine
from mnemoscope.mining.text import batch_reader, triggers
from mnemoscope.mining.text.batches import Batch
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.mining.text.thread_team import ThreadTeam
from mnemoscope.mining.text.triggers import Triggers
from support.mined import mined_text

OPTIONS: dict[str, Any] = {"split": "line", "triggers": 5, "batch_tokens": 60}
WAITS = ("item", "_local_scalar_dense", "nonzero", "masked_select", "bincount", "unique", "equal", "is_nonzero")
"""Operations whose result, or whose size, the host must know."""


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    look_away(monkeypatch)


def look_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device whose numbers the host may not look at."""
    for module in (batch_reader, observer, triggers):
        monkeypatch.setattr(module, "may_look", lambda device: False)
    monkeypatch.setattr(observer, "WAITING_DEVICE_BYTES", 1 << 16)


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


@given(streams(), st.integers(0, 5), st.sampled_from([1, -1]))
def test_best_of_batches_are_what_sorting_everything_gives(stream: Any, seed: int, sign: int) -> None:
    keep, batches = stream
    ids, found = ids_of(batches, seed), Triggers(MEMORIES, keep)
    for block, sentences in zip(batches, ids, strict=True):
        signed = block * sign
        found.add(found.best_of_batch(signed.amax(1), signed.argmax(1), sentences, first=0))
    assert rows(found) == oracle(keep, batches, ids, sign, all_=False)


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt2-relu", "llama"])
def test_the_same_bytes(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "text.txt").write_text(odd_text())
    seen = tables_of(mine(tiny_model(name), tmp_path / "text.txt", out=tmp_path / "seen", **OPTIONS))
    request.getfixturevalue("unseen")
    unseen = tables_of(mine(tiny_model(name), tmp_path / "text.txt", out=tmp_path / "unseen", **OPTIONS))
    assert seen == unseen
    assert any(path.startswith("triggers") for path in seen)


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.usefixtures("unseen")
def test_nothing_is_waited_for(sampled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadTeam, "of", classmethod(lambda cls, model: cls(1)))  # the watch sees one thread alone
    model = tiny_model("gpt2")
    state = MiningState(StateShape.of(model, keep=3))
    reader = batch_reader.BatchReader(model, state)
    watch, alone = Watch(), Watch()
    for number in range(12):  # long enough for queues to be merged
        ids = torch.randint(1, 200, (6, 9), generator=torch.Generator().manual_seed(number))
        lengths = torch.tensor([3, 3, 5, 5, 5, 8]).numpy()
        batch = Batch(ids, lengths, torch.arange(6) + 6 * number, sampled)
        with watch:
            reader.read(batch)
        with alone:
            model.backbone(ids, stop_after=reader.layers[-1])
    assert watch.waited == alone.waited  # for what transformers' own forward asks
    assert state.triggers[0, 1].magnitude.any()


@pytest.mark.usefixtures("unseen")
def test_a_number_that_is_not_finite_is_found_and_nothing_of_it_is_saved(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    spoil(model)
    with pytest.raises(NotFinite, match=r"layer 1 .* sentence"):
        mined_text(model, tmp_path, odd_text(), checkpoint_every=0.0, **OPTIONS)
    assert not (tmp_path / "atlas" / "work" / "state.safetensors").exists()
