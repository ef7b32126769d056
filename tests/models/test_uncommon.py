"""Uncommon structures of real models: gates and norms inside, blocks without a layer, the text halves of others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn.functional import linear
from transformers import AutoConfig, AutoModelForCausalLM

from mnemoscope.cli import main
from mnemoscope.errors import ModelDamaged, ModelUnsupported, ProofFailed
from mnemoscope.models import load_model, read_blocks, read_final
from mnemoscope.models.proof.proof import prove
from models.expert_models import build_mixture, fill_randomly
from models.uncommon_models import (
    HEARING,
    MEMORIES,
    SEEING,
    UNCOMMON,
    build_hearing,
    build_needing_pictures,
    build_seeing,
    build_uncommon,
)

IDS = torch.tensor([[3, 17, 200, 45, 9, 120, 33]])


@pytest.fixture(params=list(UNCOMMON))
def uncommon(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.fast(5)
def test_coefficients_and_values_are_those_by_hand(uncommon: str, tokenizer: Any) -> None:
    hf, case = build_uncommon(uncommon), UNCOMMON[uncommon]
    model, taken, blocks = load_model(hf, tokenizer=tokenizer), {}, {}
    own = list(hf.get_submodule(case.blocks))
    hooks = []
    for layer, block in enumerate(own):
        note = lambda _, inputs, layer=layer: taken.__setitem__(layer, inputs[0])  # noqa: E731
        hooks.append(block.get_submodule(case.keys).register_forward_pre_hook(note))
    final: list[torch.Tensor] = []
    with read_blocks(model, blocks.__setitem__), read_final(model, final.append):
        model.backbone(IDS)
    for hook in hooks:
        hook.remove()
    assert (model.signs, model.sizes.memories) == (case.signs, (case.memories,) * len(own))
    for layer, block in enumerate(own):
        by_hand = case.coefficients(block, taken[layer])
        torch.testing.assert_close(blocks[layer].coefficients, by_hand, atol=2e-5, rtol=2e-5)
        assert torch.equal(model.values(layer), block.get_submodule(case.down).weight.T)
        streams = blocks[layer].residual + blocks[layer].ffn_update
        torch.testing.assert_close(streams, blocks[layer].layer_output, atol=1e-5, rtol=1e-5)
    scores = model.scores(final[0], projection="lens")
    torch.testing.assert_close(scores, hf(input_ids=IDS).logits, atol=1e-4, rtol=1e-4)


def test_the_output_gate_of_rwkv_is_no_part_of_the_coefficients(tokenizer: Any) -> None:
    hf = build_uncommon("rwkv")
    model, blocks, opened = load_model(hf, tokenizer=tokenizer), {}, {}
    layer = hf.rwkv.blocks[1].feed_forward
    hook = layer.receptance.register_forward_hook(lambda *given: opened.setdefault("map", given[2]))
    with read_blocks(model, blocks.__setitem__, layers=[1]):
        model.backbone(IDS)
    hook.remove()
    written = linear(blocks[1].coefficients, layer.value.weight)
    torch.testing.assert_close(blocks[1].ffn_output, written, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(blocks[1].ffn_update, written / (1 + (-opened["map"]).exp()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "check"), [("bitnet", "keys"), ("rwkv", "residual")])
def test_the_proof_notices_a_forgotten_norm_or_gate(name: str, check: str, tokenizer: Any) -> None:
    model = load_model(build_uncommon(name), tokenizer=tokenizer)
    first, *others = model.anatomy.layers
    if name == "bitnet":
        first = replace(first, ffn=replace(first.ffn, inner_norm=None))
    else:
        first = replace(first, output_gate=None)
    model.anatomy = replace(model.anatomy, layers=(first, *others))
    with pytest.raises(ProofFailed, match=f"layer 0, check '{check}'"):
        prove(model)


def test_a_hybrid_is_read_where_it_has_memories_and_the_rest_is_named(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hf = build_mixture("nemotron_h")
    model = load_model(hf, tokenizer=tokenizer)
    assert (model.anatomy.blocks, model.activation) == ((1, 2), "relu2")
    assert model.anatomy.without == {0: "NemotronHAttention", 3: "NemotronHMamba2Mixer"}
    final = []
    with read_final(model, final.append):
        model.backbone(IDS)
    torch.testing.assert_close(model.scores(final[0], projection="lens"), hf(input_ids=IDS).logits)
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert main(["inspect", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "layers 0-1 are those of blocks 1-2; without one: NemotronHAttention in block 0, " in printed


@pytest.mark.parametrize(("kind", "mixer"), [("mamba", "MambaMixer"), ("falcon_mamba", "FalconMambaMixer")])
def test_a_model_without_memories_is_refused(kind: str, mixer: str, tokenizer: Any) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 280, "state_size": 4}
    hf = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, bos_token_id=None, eos_token_id=None))
    with pytest.raises(ModelUnsupported, match=f"add is the output of {mixer}, not of a feed-forward layer$"):
        load_model(hf, tokenizer=tokenizer)


@pytest.mark.fast(2)
@pytest.mark.parametrize("kind", list(SEEING))
def test_the_text_half_of_a_model_that_reads_pictures(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    hf = build_seeing(kind)
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = load_model(str(tmp_path))
    assert model.sizes.memories == (MEMORIES, MEMORIES)
    text = getattr(hf.model, "text_model", None) or getattr(hf.model, "language_model", hf.model)
    blocks = {}
    with read_blocks(model, blocks.__setitem__):
        states = model.backbone(IDS)
    torch.testing.assert_close(states, text(input_ids=IDS).last_hidden_state, atol=1e-5, rtol=1e-5)
    for layer, number in enumerate(model.anatomy.blocks):
        assert torch.equal(model.values(layer), text.layers[number].mlp.down_proj.weight.T)
    if kind == "mllama":
        assert model.anatomy.blocks == (0, 2)
        assert "which text alone does not run" in model.anatomy.without[1]


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", list(HEARING))
def test_of_a_model_that_hears_only_what_text_runs_is_read(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    hf = build_hearing(kind)
    tower = "encoder" if "granite" in kind else "audio_tower"
    ear = hf.model.get_submodule(tower)
    next(ear.parameters()).data.fill_(float("nan"))  # of no consequence for text
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, text = load_model(str(tmp_path)), hf.model.language_model
    torch.testing.assert_close(model.logits(IDS), hf(input_ids=IDS).logits, atol=1e-5, rtol=1e-5)
    for layer in range(2):
        assert torch.equal(model.values(layer), text.layers[layer].mlp.down_proj.weight.T)
    assert not list(model.anatomy.model.model.get_submodule(tower).parameters())
    assert len(model.unread) >= len(list(ear.parameters()))
    assert all(tower in name or "projector.qformer" in name for name in model.unread)
    assert model.fingerprint == load_model(hf, tokenizer=tokenizer).fingerprint
    text.layers[1].mlp.down_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(ModelDamaged, match=r"layers\.1\.mlp\.down_proj\.weight' holds 1 NaN"):
        load_model(hf, tokenizer=tokenizer)


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", ["blip-2", "kosmos-2"])
def test_a_language_model_inside_of_one_that_needs_pictures(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    hf = build_needing_pictures(kind)
    inside = hf.language_model if kind == "blip-2" else hf.text_model
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for model in (load_model(str(tmp_path)), load_model(hf, tokenizer=tokenizer)):
        torch.testing.assert_close(model.logits(IDS), inside(input_ids=IDS).logits, atol=1e-5, rtol=1e-5)
        assert model.sizes.memories == (MEMORIES, MEMORIES)


@pytest.mark.parametrize("kind", ["emu3", "mllama"])
def test_a_text_half_that_was_saved_alone(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    config = build_seeing(kind).config.get_text_config()
    hf = fill_randomly(lambda: getattr(transformers, f"{kind.capitalize()}ForCausalLM")(config))
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = load_model(str(tmp_path))
    torch.testing.assert_close(model.logits(IDS), hf(input_ids=IDS).logits, atol=1e-5, rtol=1e-5)
    assert model.sizes.memories == (MEMORIES, MEMORIES)


def test_the_text_half_is_spread_like_a_text_model(tokenizer: Any, tmp_path: Path) -> None:
    build_seeing("llava").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    whole, spread = load_model(str(tmp_path)), load_model(str(tmp_path), max_memory="40kB")
    assert (whole.lies_on, spread.lies_on, whole.fingerprint) == (("cpu",), ("cpu", "disk"), spread.fingerprint)
    assert torch.equal(whole.logits(IDS), spread.logits(IDS))
