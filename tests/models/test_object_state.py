"""A model in memory that its owner changes: its use is refused in one line until it is loaded again."""

import copy
import gc
import importlib
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch import nn

from mining.conftest import odd_text
from mnemoscope.errors import ModelChanged, PartsDiffer
from mnemoscope.mining import merge, mine
from mnemoscope.models import LanguageModel, language_model, load_model, read_coefficients
from mnemoscope.models.object_state import NetworkGuard, at_rest
from mnemoscope.tracing import intervene, trace
from mnemoscope.tracing.predictions import generate
from mnemoscope.tracing.scoring.scores import value_norms
from models.conftest import build
from models.test_probed import adapted, load, peft

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

IDS = torch.tensor([[1, 2, 3, 4]])
PROMPT = "the cat sat"
MINING: dict[str, Any] = {"split": "line", "triggers": 3, "prefixes": 10, "batch_tokens": 60}


@pytest.fixture
def network() -> Any:
    return build("gpt2-relu")


def add_in_place(network: Any) -> None:
    with torch.no_grad():
        for block in network.transformer.h:
            block.mlp.c_proj.weight += 0.3


def put_others(network: Any) -> None:
    last = network.transformer.h[1].mlp.c_proj
    last.weight = nn.Parameter(torch.randn_like(last.weight))


def put_others_twice(network: Any) -> None:
    """The second may lie where the first one of all lay."""
    for _ in range(2):
        put_others(network)


def put_another_module(network: Any) -> None:
    network.transformer.h[1].mlp = copy.deepcopy(network.transformer.h[0].mlp)


def activate_otherwise(network: Any) -> None:
    for block in network.transformer.h:
        block.mlp.act = nn.GELU()
    network.config.activation_function = "gelu"


def embed_otherwise(network: Any) -> None:
    embed = network.transformer.wte.forward
    network.transformer.wte.forward = lambda ids: 2 * embed(ids)


def train_a_step(network: Any) -> None:
    network.requires_grad_(True)
    network(IDS, labels=IDS).loss.backward()
    torch.optim.SGD(network.parameters(), lr=0.1).step()


CHANGES: dict[Callable[[Any], object], str] = {
    add_in_place: "weights",
    train_a_step: "weights",
    put_others: "weights",
    put_others_twice: "weights",
    put_another_module: "weights",
    nn.Module.double: "weights",
    activate_otherwise: "modules or configuration",
    embed_otherwise: "modules or configuration",
}


def set_to_zero(model: LanguageModel) -> None:
    with intervene(model, ["L0.M1=0"]):
        pass


USES: dict[str, Callable[[LanguageModel], object]] = {
    "trace": lambda model: trace(model, PROMPT),
    "logits": lambda model: model.logits(IDS),
    "values": lambda model: model.values(1),
    "scores": lambda model: model.scores(torch.ones(1, model.sizes.hidden), projection="gain"),
    "intervene": set_to_zero,
    "coefficients": lambda model: model.coefficients(PROMPT),
}


@pytest.mark.fast(3)
@pytest.mark.parametrize("change", CHANGES)
def test_after_a_change_every_use_is_refused_and_the_network_can_be_loaded_again(
    change: Callable[[Any], object], network: Any
) -> None:
    model = load(network)
    for use in USES.values():
        use(load(build("gpt2-relu")))  # none of them fails by itself
    trace(model, PROMPT)
    torch.manual_seed(0)
    change(network)
    for use in USES.values():
        with pytest.raises(ModelChanged) as caught:
            use(model)
        assert str(caught.value).startswith(f"the {CHANGES[change]} of memory:GPT2LMHeadModel were changed after it")
        assert "\n" not in str(caught.value)
    assert load(network).fingerprint != model.fingerprint or change is embed_otherwise
    assert trace(load(network), PROMPT).fingerprint == load(network).fingerprint


def test_what_is_not_changed_stays_in_use(network: Any, tmp_path: Path) -> None:
    model = load(network)
    norms = value_norms(model, 1)
    network.transformer.h[0].mlp.c_fc.weight.requires_grad_(True)
    network.train().eval()
    with torch.no_grad():
        network(IDS)
    network.requires_grad_(True)
    network(IDS, labels=IDS).loss.backward()
    network.save_pretrained(tmp_path)  # which notes its class and dtype in the configuration
    trace(model, PROMPT)
    assert value_norms(model, 1) is norms


def test_adapters_that_are_switched_off_merged_or_others_are_refused() -> None:
    network = adapted("llama")
    torch.manual_seed(2)
    network.add_adapter("second", peft.LoraConfig(r=2, target_modules=["down_proj"], init_lora_weights=False))
    model = load(network)
    values = model.values(0).clone()
    with network.disable_adapter(), pytest.raises(ModelChanged, match=r"^the adapters of .* were changed"):
        model.values(0)
    assert torch.equal(model.values(0), values)  # it is what was loaded again
    network.set_adapter("second")
    with pytest.raises(ModelChanged, match=r"^the adapters of"):
        trace(model, PROMPT)
    second = load(network)
    assert second.fingerprint != model.fingerprint
    assert second.spec.endswith("+second")
    network.merge_adapter()
    with pytest.raises(ModelChanged, match=r"^the adapters of"):
        second.values(0)
    assert torch.allclose(load(network).values(0), second.anatomy.layers[0].ffn.values(), atol=1e-5)


IN_PLACE: dict[str, Callable[[Any], object]] = {
    "set strength": lambda module: module.set_scale("default", 3.0),
    "scaled up": lambda module: module.scale_layer(2.0),
    "scaled down": lambda module: module.unscale_layer(2.0),
    "filled": lambda module: module.scaling["default"].fill_(3.0),  # as peft swaps adapters under compiled code
    "one more": lambda module: module.active_adapters.append("second"),
}


@pytest.mark.parametrize("change", IN_PLACE)
def test_what_peft_changes_in_place_is_refused_and_is_another_model(change: str) -> None:
    network = adapted("llama")
    torch.manual_seed(2)
    network.add_adapter("second", peft.LoraConfig(r=2, target_modules=["down_proj"], init_lora_weights=False))
    maps = [layer.mlp.down_proj for layer in network.get_base_model().model.layers]
    for down in maps:
        down.set_adapter(["default"])
        if change == "filled":
            down.scaling["default"] = torch.tensor(down.scaling["default"])
    model = load(network)
    values = model.values(1).clone()
    for down in maps:
        IN_PLACE[change](down)
    with pytest.raises(ModelChanged, match=r"^the adapters of"):
        model.values(1)
    now = load(network)
    assert now.fingerprint != model.fingerprint
    assert not torch.equal(now.values(1), values)
    [active] = {tuple(down.active_adapters) for down in maps}
    by_hand = maps[1].base_layer.weight + sum(
        float(maps[1].scaling[name]) * maps[1].lora_B[name].weight @ maps[1].lora_A[name].weight for name in active
    )
    torch.testing.assert_close(now.values(1), by_hand.T.detach(), atol=1e-5, rtol=1e-4)


def test_the_strength_of_an_adapter_of_another_name_is_part_of_the_model() -> None:
    config = peft.FourierFTConfig(n_frequency=9, scaling=150.0, target_modules=["down_proj"], init_weights=False)
    network = peft.get_peft_model(build("llama"), config).eval()
    model = load(network)
    values = model.values(1).clone()
    network.get_base_model().model.layers[1].mlp.down_proj.fourierft_scaling["default"] = 300.0
    with pytest.raises(ModelChanged, match=r"^the adapters of"):
        model.values(1)
    now = load(network)
    assert now.fingerprint != model.fingerprint
    assert not torch.equal(now.values(1), values)


def test_the_state_of_a_network_shares_nothing_with_it(network: Any) -> None:
    """What is kept is what was: each part of the state, changed in place, differs from itself before."""
    network.transformer.config = copy.deepcopy(network.config)  # some families give their parts copies
    network.generation_config.eos_token_id = [0]
    guard = NetworkGuard(network, spec="it", rows=280)
    guard.check()
    for change, undo in (
        (lambda: network.transformer.config.update({"n_positions": 9}), {"n_positions": network.config.n_positions}),
        (lambda: network.generation_config.eos_token_id.append(1), None),
    ):
        change()
        with pytest.raises(ModelChanged, match=r"^the modules or configuration of it were changed"):
            guard.check()
        if undo is not None:
            network.transformer.config.update(undo)


def test_a_forward_in_the_place_of_a_freed_one_is_another(network: Any) -> None:
    """Python gives a new function the number (`id`) of one that is gone."""
    embed = network.transformer.wte

    def times(factor: float) -> Any:
        return lambda ids: factor * type(embed).forward(embed, ids)

    embed.forward = times(2.0)
    model = load(network)
    number = id(embed.forward)
    del embed.forward
    gc.collect()
    others = [times(3.0) for _ in range(9_999)]
    embed.forward = next((one for one in others if id(one) == number), others[0])
    with pytest.raises(ModelChanged, match=r"^the modules or configuration of"):
        model.logits(IDS)


def test_a_model_stays_one_when_its_class_is_imported_anew(network: Any) -> None:
    model, kept = load(network), dict(vars(language_model))
    try:
        anew = importlib.reload(language_model).LanguageModel
    finally:
        vars(language_model).update(kept)
    assert anew is not LanguageModel
    for one in (model, load(network)):
        assert isinstance(one, anew)
        assert isinstance(one, LanguageModel)
    assert not isinstance(network, anew)
    assert not isinstance("handmade:planted", anew)


def test_parts_of_an_edited_and_an_unedited_model_are_not_merged(network: Any, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(odd_text(20))
    model = load(network)
    parts = [tmp_path / "1", tmp_path / "2"]
    mine(model, tmp_path / "text.txt", out=parts[0], part="1/2", **MINING)
    add_in_place(network)
    model = load(network)
    mine(model, tmp_path / "text.txt", out=parts[1], part="2/2", **MINING)
    with pytest.raises(PartsDiffer, match="model fingerprint differ"):
        merge(tmp_path / "whole", parts, model=model)


def test_a_change_while_it_is_mined_ends_in_no_atlas(network: Any, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(odd_text(20))

    def change_late(stage: str, *_: Any) -> None:
        if stage == "values":
            add_in_place(network)

    with pytest.raises(ModelChanged, match=r"^the weights of memory:GPT2LMHeadModel were changed after it was loaded"):
        mine(load(network), tmp_path / "text.txt", out=tmp_path / "atlas", progress=change_late, **MINING)
    assert not (tmp_path / "atlas" / "manifest.json").exists()


def test_a_change_within_a_block_is_refused_where_the_block_ends(network: Any) -> None:
    model = load(network)

    def change_inside() -> None:
        with intervene(model, ["L0.M1=0"]):
            trace(model, PROMPT)
            add_in_place(network)

    with pytest.raises(ModelChanged, match="were changed after it was loaded"):
        change_inside()
    with pytest.raises(ModelChanged), model.in_use():
        pass


def test_a_continuation_of_a_changed_model_is_refused(network: Any) -> None:
    steps = generate(load(network), PROMPT, tokens=2)
    next(steps)
    put_others(network)
    with pytest.raises(ModelChanged):
        next(steps)


@contextmanager
def in_training(network: Any) -> Iterator[list[bool]]:
    """A network whose every other module is training; afterwards all flags must be as they were."""
    for number, module in enumerate(network.modules()):
        module.training = number % 2 == 0
    flags = [module.training for module in network.modules()]
    yield flags
    assert [module.training for module in network.modules()] == flags


def test_a_model_in_training_is_read_at_rest_and_goes_on_training(network: Any) -> None:
    for dropout in (module for module in network.modules() if isinstance(module, nn.Dropout)):
        dropout.p = 0.5
    rested = str(trace(load(network.eval()), PROMPT))
    with in_training(network):
        model = load(network)
        assert str(trace(model, PROMPT)) == rested
        assert torch.equal(model.logits(IDS), model.logits(IDS))
        with intervene(model, ["L0.M1=0"]):
            changed = model.logits(IDS)
        network.transformer.drop.training = True
    with in_training(network), intervene(model, ["L0.M1=0"]):
        assert torch.equal(model.logits(IDS), changed)
        assert not network.training


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError])
def test_flags_are_put_back_after_an_exception(stop: type[BaseException], network: Any) -> None:
    model = load(network)

    def raise_stop(*_: Any) -> None:
        raise stop

    with in_training(network), pytest.raises(stop), read_coefficients(model, raise_stop):
        model.backbone(IDS)
    with in_training(network):
        trace(model, PROMPT)


def test_the_last_of_several_threads_puts_flags_back(network: Any) -> None:
    entered, leave, seen = Event(), Event(), []

    def hold() -> None:
        with at_rest(network):
            entered.set()
            leave.wait(60)
            seen.append(network.training)

    network.train()
    thread = Thread(target=hold)
    thread.start()
    assert entered.wait(60)
    with at_rest(network):
        assert not network.training
    assert not network.training
    leave.set()
    thread.join()
    assert (seen, network.training) == ([False], True)


def test_threads_share_a_model(network: Any) -> None:
    model, found = load(network), []

    def use() -> None:
        try:
            found.append(str(trace(model, PROMPT)))
        except ModelChanged:
            found.append("changed")

    def in_threads() -> list[str]:
        found.clear()
        threads = [Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return found

    assert in_threads() == [str(trace(model, PROMPT))] * 4
    add_in_place(network)
    assert in_threads() == ["changed"] * 4


def test_models_of_one_network_take_turns(network: Any) -> None:
    """A hook of either is one of both."""
    first, second, other = load(network), load(network), load(build("gpt2-relu"))
    assert first.lock is second.lock
    assert first.lock is not other.lock


def steer(module: nn.Module, given: Any, output: Any) -> Any:
    return output + 1.0


@pytest.mark.parametrize("where", ["transformer.wte", "transformer.h.1.mlp"])
def test_a_hook_that_changes_numbers_is_refused_and_one_that_watches_is_not(where: str, network: Any) -> None:
    model, seen = load(network), []
    before = str(trace(model, PROMPT))
    watching = network.get_submodule(where).register_forward_hook(lambda *given: seen.append(given))
    assert str(trace(model, PROMPT)) == before
    assert seen
    watching.remove()
    hook = network.get_submodule(where).register_forward_hook(steer)
    for _ in range(2):
        with pytest.raises(
            ModelChanged, match=rf"^hooks that were set or removed after loading \(on '{where}'\) change"
        ):
            trace(model, PROMPT)
    with pytest.raises(ModelChanged), intervene(model, ["L0.M1=0"]):
        pass
    hook.remove()
    assert str(trace(model, PROMPT)) == before
    everywhere = nn.modules.module.register_module_forward_pre_hook(
        lambda _, given: (given[0] * 1, *given[1:]) if given else None
    )
    try:
        assert str(trace(model, PROMPT)) == before  # it is made anew, and equal
    finally:
        everywhere.remove()


def test_a_hook_that_was_there_when_the_model_was_loaded_must_stay(network: Any) -> None:
    hook = network.transformer.wte.register_forward_hook(steer)
    model = load(network)
    trace(model, PROMPT)
    hook.remove()
    with pytest.raises(ModelChanged, match=r"^hooks that were set or removed"):
        trace(model, PROMPT)


def test_the_network_of_a_model_by_name_or_a_copy_must_stay_as_it_is(network: Any) -> None:
    for model in (load_model("handmade:planted"), load_model(network, tokenizer="ids", dtype="bfloat16")):
        inside = model.anatomy.model
        model.values(0)
        with torch.no_grad():
            next(inside.parameters()).add_(1)
        with pytest.raises(ModelChanged, match=r"^the weights of .* were changed after it was loaded"):
            model.values(0)
    assert load(network).fingerprint == load(build("gpt2-relu")).fingerprint  # a copy is no part of it


def test_weights_of_inference_mode_can_be_used(network: Any) -> None:
    """They have no version, but a place."""
    with torch.inference_mode():
        held = copy.deepcopy(network)
        for module in held.modules():
            for name, weight in list(module._parameters.items()):
                if weight is not None and not name.startswith("wte"):
                    module._parameters[name] = nn.Parameter(weight.clone(), requires_grad=False)
    assert held.transformer.h[0].ln_1.weight.is_inference()
    model = load(held)
    assert torch.equal(model.values(1), model.values(1))
    put_others(held)
    with pytest.raises(ModelChanged):
        model.values(1)


def test_no_cycle_keeps_a_model_that_nobody_has(network: Any) -> None:
    gc.disable()
    try:
        model = load(network)
        trace(model, PROMPT)
        gone = weakref.ref(model)
        del model
        assert gone() is None
    finally:
        gc.enable()
