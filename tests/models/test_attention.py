"""Where attention is in blocks of known families, and what is read of it."""

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from mnemoscope.models import load_model
from mnemoscope.models.forward.attention import BlockAttention, eager_attention, find_attention, read_attention
from models.conftest import LAYERS, build

IDS = torch.tensor([[5, 1, 9, 30], [7, 2, 2, 200]])


@pytest.mark.parametrize(
    ("name", "path", "norm"),
    [
        ("gpt2", "transformer.h.{}.attn", None),
        ("llama", "model.layers.{}.self_attn", None),
        ("gpt_neox", "gpt_neox.layers.{}.attention", None),
        ("gemma2", "model.layers.{}.self_attn", None),
        ("granite", "model.layers.{}.self_attn", None),  # whose residual multiplier comes after
        ("opt-350m", "model.decoder.layers.{}.self_attn", "model.decoder.layers.{}.self_attn_layer_norm"),
    ],
)
def test_attention_is_the_module_that_gives_weights(name: str, path: str, norm: str | None, tokenizer: Any) -> None:
    hf = build(name)
    model = load_model(hf, tokenizer=tokenizer)
    assert find_attention(model) == tuple(
        BlockAttention(True, hf.get_submodule(path.format(layer)), norm and hf.get_submodule(norm.format(layer)))
        for layer in range(LAYERS)
    )


def test_attention_beside_which_something_else_is_added_is_not_separable(tokenizer: Any) -> None:
    class Adding(GPT2Block):
        def forward(self, hidden_states: Tensor, *given: Any, **named: Any) -> Any:
            return super().forward(hidden_states + torch.linspace(1, 2, 16), *given, **named)

    hf = build("gpt2")
    hf.transformer.h[1].__class__ = Adding
    found = find_attention(load_model(hf, tokenizer=tokenizer))
    assert found == (BlockAttention(True, hf.transformer.h[0].attn), BlockAttention(False, hf.transformer.h[1].attn))


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
    assert found == tuple(BlockAttention(True, block.attn) for block in hf.transformer.h)


def test_a_block_whose_weights_nobody_gives_has_none(tokenizer: Any) -> None:
    hf = build("gpt2")
    hf.transformer.h[0].attn.register_forward_hook(lambda module, given, output: (output[0], None))
    found = find_attention(load_model(hf, tokenizer=tokenizer))
    assert found == (BlockAttention(), BlockAttention(True, hf.transformer.h[1].attn))


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
