"""What memories do to what they read, from weights: cosines and thresholds against loops, and what was planted."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from mining.conftest import byte_tokenizer
from mnemoscope.atlas import open_atlas
from mnemoscope.foundation.intervals import share
from mnemoscope.mining import mine
from mnemoscope.mining.passes.vectors.roles import input_output
from mnemoscope.models import load_model
from mnemoscope.questions import answer
from models.conftest import build
from models.expert_models import EXPERTS, build_mixture
from models.uncommon_models import build_uncommon

END = "<|endoftext|>"
Rows = tuple[list[Any], Any]
"""The keys that a memory has, one or (gate, up), and its value: as directions of the stream."""


def _tokenizer() -> Any:
    return byte_tokenizer(bos_token=END, eos_token=END)


def _centred(vector: Any) -> Any:
    return vector - vector.mean()


def _gpt2(hf: Any, layer: int) -> list[Rows]:
    block = hf.transformer.h[layer]
    keys, gain, values = block.mlp.c_fc.weight.T, block.ln_2.weight, block.mlp.c_proj.weight
    return [([_centred(key * gain)], value) for key, value in zip(keys, values, strict=True)]


def _llama(hf: Any, layer: int, *, before: Any = None, behind: Any = 1) -> list[Rows]:
    block = hf.model.layers[layer]
    gain = block.post_attention_layernorm.weight if before is None else before
    rows = zip(block.mlp.gate_proj.weight, block.mlp.up_proj.weight, block.mlp.down_proj.weight.T, strict=True)
    return [([gate * gain, up * gain], value * behind) for gate, up, value in rows]


def _gemma2(hf: Any, layer: int) -> list[Rows]:
    block = hf.model.layers[layer]
    before, behind = block.pre_feedforward_layernorm.weight, block.post_feedforward_layernorm.weight
    return _llama(hf, layer, before=1 + before, behind=1 + behind)


def _olmo2(hf: Any, layer: int) -> list[Rows]:
    return _llama(hf, layer, before=1, behind=hf.model.layers[layer].post_feedforward_layernorm.weight)


def _post_norm(hf: Any, layer: int) -> list[Rows]:
    block = hf.model.decoder.layers[layer]
    gain, values = block.final_layer_norm.weight, block.fc2.weight.T
    return [([key], _centred(value) * gain) for key, value in zip(block.fc1.weight, values, strict=True)]


def _bloom(hf: Any, layer: int) -> list[Rows]:
    """Its stream goes on from what the norm gives: none stands between it and the keys."""
    block = hf.transformer.h[layer]
    keys, values = block.mlp.dense_h_to_4h.weight, block.mlp.dense_4h_to_h.weight.T
    return [([key], value) for key, value in zip(keys, values, strict=True)]


def _neox(hf: Any, layer: int) -> list[Rows]:
    block = hf.gpt_neox.layers[layer]
    gain, values = block.post_attention_layernorm.weight, block.mlp.dense_4h_to_h.weight.T
    return [([_centred(key * gain)], value) for key, value in zip(block.mlp.dense_h_to_4h.weight, values, strict=True)]


def _rwkv(hf: Any, layer: int) -> list[Rows]:
    block = hf.rwkv.blocks[layer]
    own = block.ln2.weight * block.feed_forward.time_mix_key[0, 0]
    values = block.feed_forward.value.weight.T
    return [([_centred(key * own)], value) for key, value in zip(block.feed_forward.key.weight, values, strict=True)]


def _gemma4(hf: Any, layer: int) -> list[Rows]:
    """Experts beside a dense layer, each with norms of its own; a norm behind both."""
    block, rows = hf.model.layers[layer], []
    behind = block.post_feedforward_layernorm.weight
    before, own = block.pre_feedforward_layernorm_2.weight, block.post_feedforward_layernorm_2.weight * behind
    for expert in range(EXPERTS):
        gates, ups = block.experts.gate_up_proj[expert].chunk(2)
        values = block.experts.down_proj[expert].T
        rows += [([g * before, u * before], v * own) for g, u, v in zip(gates, ups, values, strict=True)]
    before, own = block.pre_feedforward_layernorm.weight, block.post_feedforward_layernorm_1.weight * behind
    shared = zip(block.mlp.gate_proj.weight, block.mlp.up_proj.weight, block.mlp.down_proj.weight.T, strict=True)
    return rows + [([g * before, u * before], v * own) for g, u, v in shared]


def _mixtral(hf: Any, layer: int) -> list[Rows]:
    block, rows = hf.model.layers[layer], []
    gain = block.post_attention_layernorm.weight
    for expert in range(EXPERTS):
        gates, ups = block.mlp.experts.gate_up_proj[expert].chunk(2)
        values = block.mlp.experts.down_proj[expert].T
        rows += [([g * gain, u * gain], v) for g, u, v in zip(gates, ups, values, strict=True)]
    return rows


MODELS: dict[str, tuple[Callable[[], Any], Callable[[Any, int], list[Rows]]]] = {
    "llama": (lambda: build("llama"), _llama),
    "gpt2": (lambda: build("gpt2"), _gpt2),
    "post-norm": (lambda: build("opt-350m"), _post_norm),
    "sandwich": (lambda: build("gemma2"), _gemma2),
    "norms behind alone": (lambda: build("olmo2"), _olmo2),
    "normed stream": (lambda: build("bloom-normed-stream"), _bloom),
    "parallel": (lambda: build("gpt_neox"), _neox),
    "two positions": (lambda: build_uncommon("rwkv"), _rwkv),
    "experts": (lambda: build_mixture("mixtral"), _mixtral),
    "experts beside a dense layer": (lambda: build_mixture("gemma4"), _gemma4),
}


def cosine(one: Any, other: Any) -> float:
    one, other = (vector.detach().double().numpy() for vector in (one, other))
    return float(sum(one * other) / (sum(one * one) * sum(other * other)) ** 0.5)


def thresholds(rows: Sequence[Rows], *seed: int) -> tuple[float, float]:
    """Of 10,000 pairs the value between the 25th and 26th from either end, at the unbiased place for 0.25 %."""
    random, count, made = np.random.default_rng(seed), len(rows), {}
    one = random.integers(count, size=10_000)
    other = (one + random.integers(1, count, size=10_000)) % count
    for pair in zip(one.tolist(), other.tolist(), strict=True):
        if pair not in made:
            assert pair[0] != pair[1]
            made[pair] = cosine(rows[pair[0]][0][-1], rows[pair[1]][1])
    ordered = sorted(made[pair] for pair in zip(one.tolist(), other.tolist(), strict=True))
    part = 0.0025 * 10_001 - 25
    low, high = ordered[24] + part * (ordered[25] - ordered[24]), ordered[-25] + part * (ordered[-26] - ordered[-25])
    return low, high


@pytest.mark.fast(4)
@pytest.mark.parametrize("name", MODELS)
def test_cosines_and_thresholds_are_those_of_a_loop(name: str) -> None:
    make, directions = MODELS[name]
    hf = make()
    model = load_model(hf, tokenizer=_tokenizer())
    for layer in (0, 1):
        found, rows = input_output(model, layer, seed=3), directions(hf, layer)
        gated = len(rows[0][0]) == 2
        for memory, (keys, value) in enumerate(rows):
            wanted = {"key_value": cosine(keys[0], value)}
            if gated:
                wanted = {"up_value": cosine(keys[1], value), "gate_value": cosine(keys[0], value)}
                wanted["gate_up"] = cosine(keys[0], keys[1])
            for column in ("key_value", "up_value", "gate_value", "gate_up"):
                if column in wanted:
                    assert found[column][memory] == pytest.approx(wanted[column], abs=2e-6)
                else:
                    assert np.ma.is_masked(found[column][memory])
        numbering = model.numbering(layer)
        for expert, (first, width) in enumerate(zip(numbering.firsts, numbering.widths, strict=True)):
            low, high = thresholds(rows[first : first + width], 3, 18, layer, expert)
            for column, bound in (("removes_below", low), ("adds_above", high)):
                np.testing.assert_allclose(found[column][first : first + width], bound, atol=2e-6)


def test_words_of_another_width_leave_the_cosines_and_odd_keys_are_null(text: Path, tmp_path: Path) -> None:
    hf = build("opt-350m")
    with torch.no_grad():
        hf.model.decoder.layers[1].fc1.weight[5] = 0
    model = load_model(hf, tokenizer=_tokenizer())
    out = mine(model, text, out=tmp_path / "atlas", split="line", triggers=5, prefixes=5, removals=0, seed=4)
    table = open_atlas(out).table("roles", layer=1)
    assert table["key_top_tokens"].list.len().sum() == 0
    for name, column in input_output(model, 1, seed=4).items():
        assert table[name].to_list() == column.tolist()
    assert [memory for memory, one in enumerate(table["key_value"]) if one is None] == [5]
    found = answer(open_atlas(out), "input_output").filter(name="adds", layer=1)
    assert found["count"].item() == table.height - 1


def test_keys_behind_what_is_no_norm_have_no_cosine() -> None:
    hf = build("gpt2")
    hf.transformer.h[0].ln_2 = nn.Tanh()
    model = load_model(hf, tokenizer=_tokenizer())
    assert all(column.mask.all() for column in input_output(model, 0, seed=0).values())
    assert not input_output(model, 1, seed=0)["key_value"].mask.any()


SIZES: dict[str, Any] = {"vocab_size": 270, "bos_token_id": 0, "eos_token_id": 0}
HIDDEN, MEMORIES = 64, 600
LLAMA = SIZES | {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": MEMORIES,
    "max_position_embeddings": 64,
}
GPT2 = SIZES | {"n_embd": HIDDEN, "n_layer": 2, "n_head": 4, "n_inner": MEMORIES, "n_positions": 64}


def _effects(model: Any, layer: int) -> tuple[Any, Any]:
    found = input_output(model, layer, seed=0)
    own = found["key_value"] if found["up_value"].mask.all() else found["up_value"]
    return own > found["adds_above"], own < found["removes_below"]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "experts"])
def test_planted_adders_and_removers_are_found(kind: str) -> None:
    """One in twenty adds and one in twenty removes; a planted value is the key's direction and as much of noise."""
    torch.manual_seed(5)
    if kind == "llama":
        hf: Any = LlamaForCausalLM(LlamaConfig(**LLAMA))
        pairs = [[(block.mlp.up_proj.weight, block.mlp.down_proj.weight.T)] for block in hf.model.layers]
    elif kind == "gpt2":
        hf = GPT2LMHeadModel(GPT2Config(**GPT2))
        pairs = [[(block.mlp.c_fc.weight.T, block.mlp.c_proj.weight)] for block in hf.transformer.h]
    else:
        hf = MixtralForCausalLM(MixtralConfig(**LLAMA, num_key_value_heads=4, num_local_experts=3))
        stacks = [block.mlp.experts for block in hf.model.layers]
        pairs = [
            [(each.gate_up_proj[e, MEMORIES:], each.down_proj[e].T) for e in range(each.num_experts)] for each in stacks
        ]
    with torch.no_grad():
        for layer in pairs:
            for keys, values in layer:
                for first, sign in ((0, 1), (1, -1)):
                    directions = keys[first::20] / keys[first::20].norm(dim=1, keepdim=True)
                    noise = torch.randn_like(directions) / HIDDEN**0.5
                    values[first::20] = 0.02 * (sign * directions + noise)
    model = load_model(hf.eval(), tokenizer=_tokenizer())
    for layer in (0, 1):
        adds, removes = _effects(model, layer)
        place = np.arange(len(adds)) % MEMORIES % 20
        assert adds[place == 0].mean() >= 0.95
        assert removes[place == 1].mean() >= 0.95
        others = place > 1
        assert adds[others].mean() < 0.01
        assert removes[others].mean() < 0.01
        assert not removes[place == 0].any()
        assert not adds[place == 1].any()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_untrained_memories_add_and_remove_by_chance(kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    if kind == "llama":
        hf: Any = LlamaForCausalLM(LlamaConfig(**LLAMA | {"num_hidden_layers": 6, "intermediate_size": 1024}))
    else:
        hf = GPT2LMHeadModel(GPT2Config(**GPT2 | {"n_layer": 6, "n_inner": 1024}))
    model = load_model(hf.eval(), tokenizer=_tokenizer())
    for one in zip(*(_effects(model, layer) for layer in range(6)), strict=True):
        each = np.concatenate(one)
        found = share(int(each.sum()), len(each))
        assert found.low is not None
        assert found.high is not None
        assert found.low <= 0.0025 <= found.high, found
