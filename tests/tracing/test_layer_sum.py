"""The numbers of Figure 1 against sums over memories in plain loops, on gated, ungated and mixed tiny models."""

import math
from typing import Any

import pytest
import torch

import mnemoscope as ms
from mining.conftest import byte_tokenizer
from mnemoscope.errors import OptionError, PromptError
from mnemoscope.models import load_model
from mnemoscope.tracing.layer_sum import layer_sum
from models.expert_models import HandRead, blocks_of, build_mixture
from tracing.test_trace import END, PROMPT, tiny

LISTED = 4


def check_sum(found: dict[str, Any], m: list[float], values: list[list[float]], y: list[float]) -> None:
    """`y` is what the model's own feed-forward layer put out."""
    weighted = [[m_i * x for x in value] for m_i, value in zip(m, values, strict=True)]

    def length(vector: list[float]) -> float:
        return math.sqrt(sum(x * x for x in vector))

    def along(vector: list[float]) -> float:
        return sum(a * b for a, b in zip(vector, y, strict=True)) / length(y)

    def add(vectors: list[list[float]]) -> list[float]:
        return [sum(column) for column in zip(*vectors, strict=True)] if vectors else [0.0] * len(y)

    order = sorted(range(len(m)), key=lambda i: -length(weighted[i]))
    listed = [i for i in order[:LISTED] if m[i] != 0]
    rest = [i for i in range(len(m)) if i not in listed]
    others = add([weighted[i] for i in rest])
    bias = [a - b for a, b in zip(y, add(weighted), strict=True)]
    assert len(found["memories"]) == len(listed)
    near = {"rel": 1e-4, "abs": 1e-5}
    for one, i in zip(found["memories"], listed, strict=True):
        row = [one[name] for name in ("coefficient", "contribution", "along")]
        assert row == pytest.approx([m[i], length(weighted[i]), along(weighted[i])], **near)
    for name, vector in (("others", others), ("bias", bias), ("total", y)):
        row = [found[name]["length"], found[name]["along"]]
        assert row == pytest.approx([length(vector), along(vector)], **near), name
    assert found["others"]["memories"] == sum(m[i] != 0 for i in rest)
    assert found["total"]["memories"] == sum(m_i != 0 for m_i in m)
    parts = [*found["memories"], found["others"], found["bias"]]
    assert abs(sum(one["along"] for one in parts) - found["total"]["length"]) <= 1e-5 * max(1.0, length(y))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt2-relu", "gptj", "gemma2", "olmo2", "opt-350m"])
def test_dense_layers_are_the_sums_of_a_plain_loop(name: str) -> None:
    model, slow = tiny(name)
    tokens = model.encode([PROMPT])[0]
    negative = 0
    for position in (1, len(tokens) - 1):
        places, _ = slow.read(tokens[: position + 1])
        for layer, place in enumerate(places):
            found = layer_sum(model, PROMPT, layer, position=position, memories=LISTED)
            down, m = slow.downs[layer], place.coefficients
            y = m @ slow.values(layer) + (0 if down.bias is None else down.bias)
            check_sum(found, m.tolist(), slow.values(layer).tolist(), y.tolist())
            assert found["normed"] == (name in ("gemma2", "olmo2"))
            assert found["normed"] or y.tolist() == pytest.approx(place.update.tolist(), abs=1e-6)
            traced = ms.trace(model, PROMPT, top=5).to_dict()["layers"][layer]["positions"][position]
            assert [one["id"] for one in found["ffn"]] == [one["id"] for one in traced["ffn"]]
            assert [one["id"] for one in found["output"]] == [one["id"] for one in traced["output"]]
            votes = [one["vote"]["id"] for one in traced["memories"][:LISTED]]
            assert [one["top"][0]["id"] for one in found["memories"]] == votes
            assert [token["id"] for token in found["tokens"]] == tokens[: position + 1]
            negative += sum(one["coefficient"] < 0 for one in found["memories"])
    assert (negative > 0) == (name in ("llama", "gemma2", "olmo2"))  # GELU's are small


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "gpt_oss"])
def test_a_mixture_s_layer_is_the_sum_over_the_experts_of_the_token(name: str) -> None:
    hf = build_mixture(name)
    model = load_model(hf, tokenizer=byte_tokenizer(bos_token=END))
    ids = model.reading.frame(model.encode(["the cat sat"])[0])
    hand = HandRead(hf, name)
    coefficients, _ = hand.read(list(ids))
    for layer in hand.moe:
        written: list[torch.Tensor] = []
        module = blocks_of(hf)[layer].get_submodule(hand.case.experts.rpartition(".")[0])
        hook = module.register_forward_hook(lambda *given, kept=written: kept.append(given[-1]))
        hf(input_ids=torch.tensor([ids]))
        hook.remove()
        y = written[0][0] if isinstance(written[0], tuple) else written[0]
        found = layer_sum(model, "the cat sat", layer, memories=LISTED)
        check_sum(
            found,
            coefficients[layer][-1].tolist(),
            hand.values(layer).tolist(),
            y.reshape(-1, y.shape[-1])[-1].tolist(),
        )
        assert ".E" in found["memories"][0]["memory"]


def test_changes_are_in_the_sum_and_nothing_may_fire() -> None:
    model = load_model("handmade:planted")
    one = layer_sum(model, "the cat sat on the", 1)
    assert [row["memory"] for row in one["memories"]] == ["L1.M4"]
    assert one["ffn"][0]["text"] == " mat"
    double = layer_sum(model, "the cat sat on the", 1, interventions=["L1.M4*2"])
    assert double["memories"][0]["contribution"] == pytest.approx(2 * one["memories"][0]["contribution"])
    silent = layer_sum(model, "the cat sat on the", 0)
    assert silent["memories"] == []
    assert silent["total"] == {"memories": 0, "length": 0.0, "along": 0.0}


def test_what_is_not_there_is_refused() -> None:
    model = load_model("handmade:planted")
    for layer in (3, -1):
        with pytest.raises(OptionError, match="there is no layer"):
            layer_sum(model, "the", layer)
    with pytest.raises(OptionError, match="memories=0"):
        layer_sum(model, "the", 0, memories=0)
    with pytest.raises(PromptError, match="position 1"):
        layer_sum(model, "the", 0, position=1)
