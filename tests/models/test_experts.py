"""Mixtures of experts: found, proved, and read as a loop over tokens reads them; planted faults are noticed."""

from collections.abc import Callable
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mnemoscope.errors import ModelUnsupported, ProofFailed
from mnemoscope.models import load_model, overwrite_coefficients, read_blocks, read_coefficients
from mnemoscope.models.anatomy import block_structure
from mnemoscope.models.memories import expert_taps, routed_experts
from mnemoscope.models.memories.expert_taps import Group, tap_experts
from mnemoscope.models.memories.routed_experts import RoutedExperts
from models.conftest import build
from models.expert_models import EXPERTS, MIXTURES, WIDTH, HandRead, blocks_of, build_mixture, fill_randomly

IDS = [3, 17, 200, 45, 9, 120, 33]


@pytest.fixture(params=list(MIXTURES))
def mixture(request: pytest.FixtureRequest) -> str:
    return request.param


def read(model: Any, ids: list[int]) -> dict[int, torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    with read_coefficients(model, lambda layer, own: found.__setitem__(layer, own[0].clone())):
        model.backbone(torch.tensor([ids]))
    return found


@pytest.mark.fast(6)
def test_coefficients_and_values_are_those_of_the_loop(mixture: str, tokenizer: Any) -> None:
    hf, case = build_mixture(mixture), MIXTURES[mixture]
    hand = HandRead(hf, mixture)
    expected, weights = hand.read(IDS)
    model = load_model(hf, tokenizer=tokenizer)
    assert model.block == case.block
    blocks = {}
    with read_blocks(model, lambda layer, block: blocks.__setitem__(layer, block)):
        model.backbone(torch.tensor([IDS]))
    found = read(model, IDS)
    for layer in range(model.sizes.layers):
        numbering = model.numbering(layer)
        assert (list(numbering.widths), numbering.routed is None) == (hand.widths(layer), layer in case.dense)
        torch.testing.assert_close(found[layer], expected[layer], atol=1e-5, rtol=1e-5)
        assert torch.equal(blocks[layer].coefficients[0], found[layer])
        assert torch.equal(model.values(layer), hand.values(layer))
        assert (model.up_keys(layer) is None) is not case.gated
        if numbering.routed is None:
            assert (blocks[layer].weights, model.anatomy.memories_at_once(layer)) == (None, numbering.count)
        else:
            chosen = int((weights[layer][:, :EXPERTS] != 0).sum(1).max())
            assert model.anatomy.memories_at_once(layer) == chosen * WIDTH + sum(hand.widths(layer)[EXPERTS:])
            torch.testing.assert_close(blocks[layer].weights[0], weights[layer].float(), atol=1e-6, rtol=1e-5)


@pytest.mark.fast(8)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_proof_holds_in_half_precision(mixture: str, dtype: str, tokenizer: Any) -> None:
    if mixture in ("jamba", "qwen3_next") and dtype == "float16":
        pytest.skip("overflows in random models of the kind")
    load_model(build_mixture(mixture), tokenizer=tokenizer, dtype=dtype)


@pytest.mark.fast(8)
def test_the_users_model_is_left_as_it_was(mixture: str, tokenizer: Any) -> None:
    hf = build_mixture(mixture)
    before = hf(input_ids=torch.tensor([IDS])).logits
    implementation = hf.config._experts_implementation
    model = load_model(hf, tokenizer=tokenizer)
    read(model, IDS)
    assert not any("forward" in vars(module) for module in hf.modules())
    assert hf.config._experts_implementation == implementation
    assert torch.equal(hf(input_ids=torch.tensor([IDS])).logits, before)


def test_a_forward_of_the_modules_own_is_put_back(tokenizer: Any) -> None:
    hf = build_mixture("mixtral")
    module = blocks_of(hf)[0].mlp.experts
    calls, right = [], module.forward
    module.forward = wrapped = lambda *given: calls.append(1) or right(*given)
    model = load_model(hf, tokenizer=tokenizer)
    assert module.forward is wrapped
    seen = len(calls)
    read(model, IDS)
    assert len(calls) == seen, "while somebody reads, the module computes with the package's forward"
    model.logits(torch.tensor([IDS]))
    assert len(calls) == seen + 1


@pytest.mark.fast(2)
def test_overwriting_with_the_same_numbers_changes_next_to_nothing(mixture: str, tokenizer: Any) -> None:
    model = load_model(build_mixture(mixture), tokenizer=tokenizer)
    ids = torch.tensor([IDS])
    plain = model.logits(ids)
    changes = dict.fromkeys(range(model.sizes.layers), torch.clone)
    with overwrite_coefficients(model, changes):
        torch.testing.assert_close(model.logits(ids), plain, atol=2e-4, rtol=1e-4)


def test_only_what_is_routed_is_set(tokenizer: Any) -> None:
    """The coefficient is that of one memory: the stream moves by its value where the token is routed, else not."""
    hf = build_mixture("qwen2_moe")
    model, last = load_model(hf, tokenizer=tokenizer), 1
    before, after, ids = {}, {}, torch.tensor([IDS])
    with read_blocks(model, before.__setitem__):
        model.backbone(ids)
    chosen = (before[last].weights[0] != 0).sum(0)
    some = next(e for e in range(EXPERTS) if 0 < chosen[e] < len(IDS))
    for number in (some * WIDTH + 5, EXPERTS * WIDTH + 3):
        old = before[last].coefficients[0, :, number]

        def change(own: torch.Tensor, number: int = number) -> torch.Tensor:
            out = own.clone()
            out[:, :, number] = 7.0
            return out

        with overwrite_coefficients(model, {last: change}), read_blocks(model, after.__setitem__):
            model.backbone(ids)
        routed = before[last].weights[0, :, min(number // WIDTH, EXPERTS)] != 0
        expected = torch.where(routed, 7.0 - old, 0)[:, None] * model.values(last)[number]
        moved = (after[last].ffn_output - before[last].ffn_output)[0]
        torch.testing.assert_close(moved, expected, atol=1e-4, rtol=1e-4)
        assert torch.equal(after[last].coefficients[0, :, number] != 0, routed)


def test_an_expert_named_twice_counts_once_with_its_weights_added(tokenizer: Any) -> None:
    hf = build_mixture("mixtral")
    model = load_model(hf, tokenizer=tokenizer)
    routed = model.layer(0).ffn.routed
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    index, weights = torch.tensor([[1, 1], [1, 2], [0, 4]]), torch.tensor([[0.3, 0.2], [0.0, 0.6], [0.5, 0.7]])
    seen = []
    with tap_experts(routed, lambda group: seen.append(group) or group, looks=lambda: True):
        out = routed.module(x, index, weights)
    (group,) = seen
    assert (group.experts.tolist(), group.tokens.tolist()) == ([0, 1, 2], [2, 0, 1])
    assert group.weights.tolist() == pytest.approx([0.5, 0.5, 0.6])
    torch.testing.assert_close(out[0], routed.module(x[:1], torch.tensor([[1, 1]]), torch.tensor([[0.3, 0.2]]))[0])


FAULTS: dict[str, dict[str, Callable[..., Any]]] = {
    "gate and up swapped": {
        "keys": RoutedExperts.up_keys,
        "up_keys": RoutedExperts.keys,
        "maps": lambda self, inputs, e, right=RoutedExperts.maps: right(self, inputs, e)[::-1],
    },
    "expert index off by one": {
        "second_map": lambda self, e, right=RoutedExperts.second_map: right(self, (e + 1) % self.count)
    },
}


@pytest.mark.fast(12)
@pytest.mark.parametrize("planted", FAULTS)
def test_the_proof_notices(planted: str, mixture: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if planted == "gate and up swapped" and not MIXTURES[mixture].gated:
        pytest.skip("has no gate")
    for name, wrong in FAULTS[planted].items():
        monkeypatch.setattr(RoutedExperts, name, wrong)
    with pytest.raises((ProofFailed, ModelUnsupported)):
        load_model(build_mixture(mixture), tokenizer=tokenizer)
    if mixture == "gpt_oss":  # whose halves are interleaved
        monkeypatch.undo()
        right = routed_experts.gating_of
        monkeypatch.setattr(routed_experts, "gating_of", lambda module: ("halves", right(module)[1]))
        with pytest.raises(ProofFailed, match="'keys'"):
            load_model(build_mixture(mixture), tokenizer=tokenizer)


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v2", "gpt_oss"])
def test_the_proof_notices_that_the_routers_weight_or_its_scaling_is_left_out(
    name: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*given: Any, weights: torch.Tensor | None = None, **more: Any) -> Group:
        if weights is not None:
            weights = weights / 2.5 if name == "deepseek_v2" else torch.ones_like(weights)
        return Group(*given, weights=weights, **more)

    monkeypatch.setattr(expert_taps, "Group", without)
    with pytest.raises(ProofFailed, match="'ablation'"):
        load_model(build_mixture(name), tokenizer=tokenizer)


def change_shared(monkeypatch: pytest.MonkeyPatch, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
    """Layers of experts are made with other shared experts than were found."""
    right = block_structure.MixtureFeedForward
    wrong = lambda entry, exits, routed, shared: right(entry, exits, routed, change(shared))  # noqa: E731
    monkeypatch.setattr(block_structure, "MixtureFeedForward", wrong)


@pytest.mark.fast(3)
@pytest.mark.parametrize("name", [name for name, case in MIXTURES.items() if case.shared])
def test_the_proof_notices_that_a_shared_expert_or_its_gate_is_left_out(
    name: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if MIXTURES[name].switch:
        with monkeypatch.context() as patched:
            change_shared(patched, lambda shared: tuple(replace(one, switch=None) for one in shared))
            with pytest.raises(ProofFailed, match="'ablation'"):
                load_model(build_mixture(name), tokenizer=tokenizer)
    if MIXTURES[name].behind:  # branches that do not add up are not even taken for a layer
        monkeypatch.setattr(block_structure, "find_keys", lambda *given: None)
        refusal, told = ModelUnsupported, "do not add up"
    else:
        change_shared(monkeypatch, lambda shared: ())
        refusal, told = ProofFailed, "'ablation'"
    with pytest.raises(refusal, match=told):
        load_model(build_mixture(name), tokenizer=tokenizer)


def test_experts_that_drop_tokens_are_refused(tokenizer: Any) -> None:
    """A capacity: the third token and on of every expert are dropped by the model's own forward."""
    hf = build_mixture("mixtral")
    experts = blocks_of(hf)[1].mlp.experts
    own = type(experts).forward

    class Capped(type(experts)):
        def forward(self, hidden, index, weights):
            kept = torch.zeros_like(weights)
            for e in range(EXPERTS):
                kept += torch.where((index == e) & ((index == e).any(1).cumsum(0)[:, None] <= 3), weights, 0)
            return own(self, hidden, index, kept)

    experts.__class__ = Capped
    with pytest.raises((ProofFailed, ModelUnsupported)):
        load_model(hf, tokenizer=tokenizer)


_TINY = {"hidden_size": 16, "vocab_size": 64}
_JETMOE = {"num_hidden_layers": 2, "num_key_value_heads": 1, "kv_channels": 8, "intermediate_size": WIDTH}
_LONGCAT = {"num_layers": 3, "num_attention_heads": 2, "head_dim": 4, "ffn_hidden_size": WIDTH, "n_routed_experts": 4}
_LONGCAT |= {"expert_ffn_hidden_size": WIDTH, "moe_topk": 2, "q_lora_rank": 8, "kv_lora_rank": 8, "zero_expert_num": 1}
_LONGCAT |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}


@pytest.mark.parametrize(
    ("kind", "settings", "told"),
    [
        ("jetmoe", _JETMOE | {"num_local_experts": 4}, r"\(JetMoeParallelExperts at 'mlp.input_linear'\)"),
        ("longcat_flash", _LONGCAT, r"\(LongcatFlashExperts at 'mlp.experts'\)"),
    ],
)
def test_experts_outside_the_common_interface_are_refused_by_name(
    kind: str, settings: dict[str, Any], told: str, tokenizer: Any
) -> None:
    config = AutoConfig.for_model(kind, **_TINY, **settings)
    with pytest.raises(ModelUnsupported, match=f"its experts {told} cannot be read"):
        load_model(fill_randomly(lambda: AutoModelForCausalLM.from_config(config)), tokenizer=tokenizer)


def test_blocks_with_several_streams_are_refused_in_words(tokenizer: Any) -> None:
    settings = {"num_hidden_layers": 2, "moe_intermediate_size": WIDTH, "shared_expert_intermediate_size": WIDTH}
    settings |= {"num_experts": 4, "num_experts_per_tok": 2, "hc_lowrank": 8, "layer_types": ["linear_attention"] * 2}
    settings |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "ple_layer_ids": [], "use_cache": False}
    settings |= {"linear_num_key_heads": 2, "linear_num_value_heads": 2}
    config = AutoConfig.for_model("qwen4_exp_text", **_TINY, **settings)
    with pytest.raises(ModelUnsupported, match="its blocks pass on several streams of hidden states side by side"):
        load_model(fill_randomly(lambda: AutoModelForCausalLM.from_config(config)), tokenizer=tokenizer)


def list_experts(block: Any) -> None:
    block.mlp.experts = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(EXPERTS))
    block.mlp.forward = lambda x, own=block.mlp.experts: sum(each(x) for each in own)


def norm_each(block: Any) -> None:
    block.mlp.experts.has_post_expert_norm, block.mlp.experts.post_expert_norm = True, torch.nn.Identity()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (list_experts, r"its experts \(ModuleList at 'mlp.experts'\) cannot be read yet"),
        (norm_each, r"its experts \(MixtralExperts\) have a norm of their own each"),
        (lambda block: stretch(block.mlp), "its routed and shared experts do not add up to their layer"),
        (lambda block: stretch(block), "the outputs of its experts do not add up to the outputs of its blocks"),
    ],
)
def test_experts_in_an_unusual_layer_are_refused(change: Callable[[Any], None], said: str, tokenizer: Any) -> None:
    hf = build_mixture("mixtral")
    for block in blocks_of(hf):
        change(block)
    with pytest.raises(ModelUnsupported, match=said):
        load_model(hf, tokenizer=tokenizer)


def stretch(module: Any) -> None:
    """Multiplies the entries of what it gives, each by a factor of its own."""

    class Stretching(type(module)):
        def forward(self, *given, **named):
            return super().forward(*given, **named) * torch.linspace(1, 2, 16)

    module.__class__ = Stretching


@pytest.mark.parametrize("name", ["gpt2-relu", "qwen2_moe", "nemotron_h"])
def test_taps_see_the_forwards_of_their_own_thread_alone(name: str, tokenizer: Any) -> None:
    hf = build("gpt2-relu") if name == "gpt2-relu" else build_mixture(name)
    model = load_model(hf, tokenizer=tokenizer)
    ids = torch.tensor([IDS])
    plain, elsewhere, seen = model.backbone(ids), [], []

    def change(group: Any) -> Any:
        seen.append(group)
        return torch.zeros_like(group if isinstance(group, torch.Tensor) else group.coefficients)

    changes = dict.fromkeys(range(model.sizes.layers), change)
    reading = read_coefficients(model, lambda layer, found: seen.append(found), own_thread=True)
    with overwrite_coefficients(model, changes, own_thread=True), reading:
        thread = Thread(target=lambda: elsewhere.append(model.backbone(ids)))
        thread.start()
        thread.join()
        assert not seen
        changed = model.backbone(ids)
    assert seen
    assert torch.equal(elsewhere[0], plain)
    assert not torch.equal(changed, plain)


def test_how_far_coefficients_move_with_their_maps_is_the_derivative(tokenizer: Any) -> None:
    """Of silu(gate) * up with respect to one part of gate and of up each, times the router's weight."""
    hf = build_mixture("mixtral")
    ffn, experts = load_model(hf, tokenizer=tokenizer).layer(0).ffn, blocks_of(hf)[0].mlp.experts
    inputs = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([[1.0, 0.0, 0.5, 0.0], [0.0, 0.25, 0.0, 2.0], [1.0, 1.0, 1.0, 1.0]])
    found = ffn.rounding(inputs, weights).view(3, EXPERTS, WIDTH)
    for expert in range(EXPERTS):
        gate, up = (inputs @ experts.gate_up_proj[expert].T).chunk(2, dim=-1)
        on = torch.sigmoid(gate)
        wanted = (on * (1 + gate * (1 - on)) * gate * up).abs() + (gate * on * up).abs()
        torch.testing.assert_close(found[:, expert], wanted * weights[:, expert, None], rtol=5e-3, atol=2e-3)
