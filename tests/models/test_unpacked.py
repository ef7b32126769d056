"""What transformers looks at in a forward, for which a graphics card would have to be waited for."""

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from transformers import masking_utils

from mining.conftest import tiny_model
from mnemoscope.models.modules.wrappers import run_unpacked
from support.waits import Watch

IDS = torch.arange(12).view(2, 6)
PACKED = torch.tensor([[0, 1, 2, 0, 1, 0]])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_nothing_is_looked_at_in_a_forward(name: str) -> None:
    backbone = tiny_model(name).anatomy.backbone
    with torch.inference_mode():
        with Watch() as before:
            plain = backbone(IDS, use_cache=False).last_hidden_state
        with Watch() as watch, run_unpacked():
            found = backbone(IDS, use_cache=False).last_hidden_state
    assert (before.waited, watch.waited) == (["is_nonzero"], [])
    assert torch.equal(plain, found)


def test_other_threads_and_later_forwards_are_looked_at() -> None:
    library = masking_utils.find_packed_sequence_indices

    def asked() -> Any:
        return masking_utils.find_packed_sequence_indices(PACKED)

    def of_another(call: Callable[[], Any]) -> Any:
        found: list[Any] = []
        thread = Thread(target=lambda: found.append(call()))
        thread.start()
        thread.join()
        return found[0]

    with run_unpacked():
        assert (asked(), of_another(asked).tolist()) == (None, [[0, 0, 0, 1, 1, 2]])
        with run_unpacked():
            assert asked() is None
        assert asked() is None
    assert masking_utils.find_packed_sequence_indices is library
    assert asked().tolist() == [[0, 0, 0, 1, 1, 2]]


def test_a_version_without_that_look_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(masking_utils, "find_packed_sequence_indices")
    with run_unpacked():
        assert not [name for name in vars(masking_utils) if name == "find_packed_sequence_indices"]
