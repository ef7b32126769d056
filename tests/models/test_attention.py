"""Where attention is in blocks of known families, and what is read of it."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.t5.modeling_t5 import T5Block

from mnemoscope.models import load_model
from mnemoscope.models.forward.attention import BlockAttention, eager_attention, find_attention, read_attention
from models.conftest import LAYERS, build
from models.pair_models import PAIR_MODELS, build_pair_model, pair_tokenizer

IDS = torch.tensor([[5, 1, 9, 30], [7, 2, 2, 200]])


def places(found: Sequence[BlockAttention]) -> list[tuple[bool, nn.Module | None, nn.Module | None]]:
    return [(one.separable, one.weights, one.norm) for one in found]


@pytest.mark.parametrize(
    ("name", "path", "norm", "out", "behind", "factor"),
    [
        ("gpt2", "transformer.h.{}.attn", None, "c_proj", None, 1.0),
        ("llama", "model.layers.{}.self_attn", None, "o_proj", None, 1.0),
        ("gpt_neox", "gpt_neox.layers.{}.attention", None, "dense", None, 1.0),
        ("gemma2", "model.layers.{}.self_attn", None, "o_proj", "post_attention_layernorm", 1.0),
        ("granite", "model.layers.{}.self_attn", None, "o_proj", None, None),  # a residual multiplier comes after
        ("opt-350m", "model.decoder.layers.{}.self_attn", "self_attn_layer_norm", "out_proj", None, 1.0),
    ],
)
def test_attention_is_the_module_that_gives_weights(
    name: str, path: str, norm: str | None, out: str, behind: str | None, factor: float | None, tokenizer: Any
) -> None:
    hf = build(name)
    for layer, found in enumerate(find_attention(load_model(hf, tokenizer=tokenizer))):
        module = hf.get_submodule(path.format(layer))
        block = hf.get_submodule(path.format(layer).rpartition(".")[0])
        assert places([found]) == [(True, module, norm and block.get_submodule(norm))]
        assert found.heads.out is module.get_submodule(out)
        assert found.heads.behind is (None if behind is None else block.get_submodule(behind))
        wanted = hf.config.residual_multiplier if factor is None else factor
        assert found.heads.factor == pytest.approx(wanted, rel=1e-4)
        assert found.heads.count == hf.config.num_attention_heads


def test_attention_beside_which_something_else_is_added_is_not_separable(tokenizer: Any) -> None:
    class Adding(GPT2Block):
        def forward(self, hidden_states: Tensor, *given: Any, **named: Any) -> Any:
            return super().forward(hidden_states + torch.linspace(1, 2, 16), *given, **named)

    hf = build("gpt2")
    hf.transformer.h[1].__class__ = Adding
    found = find_attention(load_model(hf, tokenizer=tokenizer))
    first, second = (block.attn for block in hf.transformer.h)
    assert places(found) == [(True, first, None), (False, second, None)]


def test_a_network_that_knows_no_plain_attention_shows_none(tokenizer: Any) -> None:
    class Fussy(GPT2Block):
        def forward(self, *given: Any, **named: Any) -> Any:
            if self.attn.config._attn_implementation == "eager":
                raise ValueError("not that one")
            return super().forward(*given, **named)

    hf = build("gpt2")
    hf.transformer.h[1].__class__ = Fussy
    assert find_attention(load_model(hf, tokenizer=tokenizer)) == (BlockAttention(),) * LAYERS


def test_what_gives_a_single_tensor_in_a_tuple_gives_no_weights(tokenizer: Any) -> None:
    class Lone(nn.Module):
        def __init__(self, inside: nn.Module) -> None:
            super().__init__()
            self.inside = inside

        def forward(self, stream: Tensor) -> tuple[Tensor]:
            return (self.inside(stream),)

    class Taking(nn.Module):
        def __init__(self, inside: nn.Module) -> None:
            super().__init__()
            self.lone = Lone(inside)

        def forward(self, stream: Tensor) -> Tensor:
            return self.lone(stream)[0]

    hf = build("gpt2")
    hf.transformer.h[0].mlp.act = Taking(hf.transformer.h[0].mlp.act)
    found = find_attention(load_model(hf, tokenizer=tokenizer))
    assert places(found) == [(True, block.attn, None) for block in hf.transformer.h]


def test_a_block_whose_weights_nobody_gives_has_none(tokenizer: Any) -> None:
    hf = build("gpt2")
    hf.transformer.h[0].attn.register_forward_hook(lambda module, given, output: (output[0], None))
    found = find_attention(load_model(hf, tokenizer=tokenizer))
    assert places(found) == [(False, None, None), (True, hf.transformer.h[1].attn, None)]


def test_streams_and_weights_are_read_as_blocks_run(tokenizer: Any) -> None:
    hf = build("opt-350m")
    model = load_model(hf, tokenizer=tokenizer)
    found, seen = find_attention(model), dict[tuple[int, str], Tensor]()
    inputs: list[Tensor] = []
    blocks = hf.model.decoder.layers
    blocks[0].register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    reading = read_attention(model, found, lambda layer, part, tensor: seen.update({(layer, part): tensor.clone()}))
    with eager_attention(model), reading, torch.inference_mode():
        model.backbone(IDS)
    parts = {(layer, part) for layer in range(LAYERS) for part in ("input", "sum", "weights")}
    assert seen.keys() == parts | {(-1, "input")}
    assert torch.equal(seen[0, "input"], inputs[0])
    assert torch.equal(seen[-1, "input"], seen[0, "input"])
    for layer, block in enumerate(blocks):
        weights = seen[layer, "weights"]
        assert weights.shape == (2, 2, 4, 4)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 4))
        assert not weights.triu(1).any()
        added = seen[layer, "sum"] - seen[layer, "input"]
        attended = block.self_attn.v_proj(seen[layer, "input"]).view(2, 4, 2, 8).transpose(1, 2)
        wanted = block.self_attn.out_proj((weights @ attended).transpose(1, 2).reshape(2, 4, 16))
        torch.testing.assert_close(added, wanted, atol=1e-4, rtol=1e-4)


def test_the_kernel_of_attention_is_changed_for_a_while(tokenizer: Any) -> None:
    model = load_model(build("gpt2"), tokenizer=tokenizer)
    before = model.attention
    assert before != "eager"
    with suppress(ZeroDivisionError), eager_attention(model):
        assert model.attention == "eager"
        raise ZeroDivisionError
    assert model.attention == before


@pytest.mark.parametrize(
    ("kind", "reader", "norm", "behind"),
    [
        ("t5", "layer.1.layer_norm", None, None),
        ("m2m_100", "encoder_attn_layer_norm", None, None),
        ("bart", "encoder_attn.q_proj", "self_attn_layer_norm", "encoder_attn_layer_norm"),
    ],
)
def test_cross_attention_begins_where_the_source_is_read(
    kind: str, reader: str, norm: str | None, behind: str | None
) -> None:
    hf = build_pair_model(kind)
    blocks = hf.get_submodule(PAIR_MODELS[kind].blocks)
    for block, found in zip(blocks, find_attention(load_model(hf, tokenizer=pair_tokenizer(kind))), strict=True):
        assert found.separable
        assert (found.cross.reader, found.cross.norm, found.norm) == tuple(
            path and block.get_submodule(path) for path in (reader, norm, behind)
        )


def test_a_stream_that_is_large_beside_its_attention_is_no_output_of_a_norm() -> None:
    hf = build_pair_model("t5")
    hf.decoder.embed_tokens.weight = nn.Parameter(100 * hf.shared.weight)
    hf = hf.bfloat16()
    for block, found in zip(
        hf.decoder.block, find_attention(load_model(hf, tokenizer=pair_tokenizer("t5"))), strict=True
    ):
        assert (found.cross.reader, found.cross.norm) == (block.layer[1].layer_norm, None)


def test_two_attentions_that_are_added_at_once_are_not_told_apart() -> None:
    class AtOnce(T5Block):
        def forward(
            self,
            hidden_states: Tensor,
            attention_mask: Any = None,
            position_bias: Any = None,
            encoder_hidden_states: Any = None,
            *_: Any,
            **__: Any,
        ) -> Any:
            alone, bias, _ = self.layer[0](hidden_states, attention_mask, position_bias)
            crossing, other_bias, _ = self.layer[1](hidden_states, encoder_hidden_states)
            return self.layer[2](alone + crossing - hidden_states), bias, other_bias

    hf = build_pair_model("t5")
    for block in hf.decoder.block:
        block.__class__ = AtOnce
    for found in find_attention(load_model(hf, tokenizer=pair_tokenizer("t5"))):
        assert (found.separable, found.cross) == (True, None)
