"""Activations made piece by piece: the same numbers to the last bit, and a caller's own model left as it is."""

import copy

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.activations import ACT2FN, NewGELUActivation

import mnemoscope as ms
from mnemoscope.models import activation_pieces
from mnemoscope.models.activation_pieces import PIECE, use_pieces

NAMES = ("gelu_new", "gelu_fast", "gelu_accurate", "quick_gelu")


def in_pieces(plain: nn.Module) -> nn.Module:
    module = copy.deepcopy(plain)
    use_pieces(module)
    assert type(module) is not type(plain)
    assert type(module).__name__ == type(plain).__name__
    return module


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(3, 64), (7, 83, 768), (129, 3072), (1, PIECE + 64), (2048, 100), (300_001,), ()])
def test_the_same_bits(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    plain = ACT2FN[name]
    given = (8 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)
    given.view(-1)[:1] = torch.nan
    with torch.inference_mode():
        wanted, made = plain(given), in_pieces(plain)(given)
    assert made.dtype == wanted.dtype
    assert torch.equal(made.view(-1).nan_to_num(7.5), wanted.view(-1).nan_to_num(7.5))


def test_pieces_are_of_some_rows_and_other_inputs_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    forward = NewGELUActivation.forward

    def note(self: nn.Module, input: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(input.shape))
        return forward(self, input)

    monkeypatch.setattr(NewGELUActivation, "forward", note)
    module = in_pieces(ACT2FN["gelu_new"])
    with torch.inference_mode():
        module(torch.zeros(2, 50, 3072))
        assert seen == [(42, 3072), (42, 3072), (16, 3072)]
        del seen[:]
        module(torch.zeros(3072, 100).T)
        module(torch.zeros(42, 3072))
    module(torch.zeros(2, 50, 3072))
    assert seen == [(100, 3072), (42, 3072), (2, 50, 3072)]


def test_gradients_are_those_of_the_whole() -> None:
    plain = ACT2FN["gelu_new"]
    one, other = (torch.linspace(-4, 4, 2 * PIECE).view(-1, 512).requires_grad_() for _ in range(2))
    plain(one).sum().backward()
    in_pieces(plain)(other).sum().backward()
    assert one.grad is not None
    assert other.grad is not None
    assert torch.equal(one.grad, other.grad)


def test_a_loaded_model_has_them_and_one_in_memory_stays_as_it_is(tmp_path: object) -> None:
    torch.manual_seed(0)
    network = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=100, n_positions=64)).eval()
    network.save_pretrained(str(tmp_path))
    loaded, own = ms.load_model(str(tmp_path), tokenizer="ids"), ms.load_model(network, tokenizer="ids")
    kinds = [{type(block.mlp.act) for block in model.anatomy.model.transformer.h} for model in (loaded, own)]
    assert kinds == [{activation_pieces.NewGELUActivation}, {NewGELUActivation}]
    assert loaded.fingerprint == own.fingerprint
    ids = torch.arange(64).repeat(40, 1)
    with torch.inference_mode():
        assert torch.equal(loaded.logits(ids), own.logits(ids))
