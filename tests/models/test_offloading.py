"""Which modules threads may run side by side, and where weights are said to lie."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import nn

from mnemoscope.errors import ModelDamaged
from mnemoscope.models.modules.offloading import (
    check_reachable,
    device_of_module,
    hold_all_weights,
    hold_weights,
    is_placed,
    is_spread,
    may_be_shared,
    places_of,
    share_modules,
    weight_of,
)


def spread(**where: object) -> nn.Sequential:
    """Two maps, the second of which is fetched for as long as it runs from what `where` says."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, bias=False)).requires_grad_(False)
    stored = {"weight": model[1].weight.clone()}
    hook = AlignDevicesHook(execution_device="cpu", offload=True, weights_map=where.get("weights_map", stored))
    add_hook_to_module(model[1], hook)
    return model


def test_a_module_computes_where_its_weights_or_its_hook_say() -> None:
    assert device_of_module(nn.ReLU()) == torch.device("cpu")
    assert device_of_module(nn.Sequential(nn.ReLU(), nn.Linear(2, 2, device="meta"))) == torch.device("cpu")
    elsewhere = nn.Linear(2, 2)
    add_hook_to_module(elsewhere, AlignDevicesHook(execution_device="meta", offload=True, weights_map={}))
    assert device_of_module(nn.Sequential(nn.ReLU(), elsewhere)) == torch.device("meta")


def test_a_module_with_a_hook_may_be_shared_once_its_hook_can_be() -> None:
    model = spread()
    assert [may_be_shared(module) for module in model] == [True, False]
    assert is_spread(model)
    share_modules(model)
    assert all(map(may_be_shared, model.modules()))
    assert is_placed(model)


def test_a_weight_that_is_fetched_is_there_for_as_long_as_it_is_held() -> None:
    model = spread()
    lone, stored = model[1], model[1]._hf_hook.weights_map["weight"]
    assert lone.weight.is_meta
    assert places_of(model) == ("cpu",)
    with hold_weights(lone), hold_weights(lone):
        assert torch.equal(lone.weight, stored)
    assert lone.weight.is_meta
    wide = spread(weights_map={"weight": stored.double()})[1]
    with torch.inference_mode(), hold_weights(wide):
        assert torch.equal(wide.weight, stored)
        assert not wide.weight.is_inference(), "whoever wants gradients beside would be refused"
    with hold_all_weights(model):
        assert torch.equal(lone.weight, stored)
    assert lone.weight.is_meta
    assert torch.equal(weight_of(lone, "weight"), stored)
    assert device_of_module(lone) == torch.device("cpu")
    inputs = torch.randn(2, 3)
    share_modules(model)
    torch.testing.assert_close(lone(inputs), inputs @ stored.T)
    assert lone.weight.is_meta
    check_reachable(model)


class Away(dict):
    """Files that are gone: whoever asks for a weight is told by an error of this kind."""

    def __init__(self, error: Exception) -> None:
        super().__init__(weight=None)
        self.error = error

    def __getitem__(self, name: str) -> object:
        raise self.error


@pytest.mark.parametrize("error", [KeyError("w"), FileNotFoundError("gone"), RuntimeError("torn"), TypeError("none")])
def test_a_weight_that_cannot_be_fetched_is_named(error: Exception) -> None:
    model = spread()
    model[1]._hf_hook.weights_map = Away(error)
    with pytest.raises(ModelDamaged, match="the weight 'weight' of a Linear cannot be read from where it was put"):
        weight_of(model[1], "weight")
    assert model[1].weight.is_meta


def test_cards_come_first_then_memory_then_disk() -> None:
    """Of whatever make the cards are."""
    devices = ("cpu", "mps:0", "cuda:1", "cuda:0")
    weights = {name: SimpleNamespace(is_meta=False, device=torch.device(name)) for name in devices}
    hook = AlignDevicesHook(execution_device="cpu", offload=True, weights_map={})
    stored = SimpleNamespace(_parameters={"weight": SimpleNamespace(is_meta=True), "bias": None}, _hf_hook=hook)
    model: Any = SimpleNamespace(modules=lambda: [SimpleNamespace(_parameters=weights), stored])
    assert places_of(model) == ("cuda:0", "cuda:1", "mps:0", "cpu", "disk")
