"""The logit of a token as a direction in the final stream: against the model's own logits, and by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.forward.hooks import read_final
from mnemoscope.models.readout.token_logits import FrozenNorm, LogitDirections, TokenLogits
from models.conftest import HIDDEN, ROWS, build

IDS = torch.tensor([[5, 1, 9, 30], [7, 2, 2, 200]])
TOKENS = torch.tensor([3, 0, 279, 17, 17, 100, 42, 1])


def read(name: str, tokenizer: Any) -> tuple[Any, LanguageModel, Tensor, Tensor]:
    """The model twice, its final stream `[row, hidden]`, and its own logits `[row, vocab]` before any soft-cap."""
    hf = build(name)
    model, found = load_model(hf, tokenizer=tokenizer), list[Tensor]()
    with read_final(model, found.append), torch.inference_mode():
        logits = hf(input_ids=IDS).logits.double()
    cap = getattr(hf.config, "final_logit_softcapping", None)
    logits = logits if cap is None else cap * torch.atanh(logits / cap)
    return hf, model, found[0].flatten(0, 1), logits.flatten(0, 1)


def assert_reads(found: LogitDirections, stream: Tensor, logits: Tensor) -> None:
    """The logits are those, and are what directions and biases make of the stream."""
    torch.testing.assert_close(found.logit, logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close((stream.double() * found.direction).sum(-1) + found.bias, logits, atol=1e-4, rtol=1e-4)
    assert found.direction.dtype == found.bias.dtype == torch.float64


@pytest.mark.parametrize(
    "name",
    ["gpt2", "llama", "opt-350m", "opt-no-final-norm", "gemma2", "granite", "cohere", "phi", "gptj", "bloom", "olmo2"],
)
def test_directions_read_the_models_own_logits(name: str, tokenizer: Any) -> None:
    _, model, stream, logits = read(name, tokenizer)
    makes = TokenLogits(model)
    own = makes.of_tokens(stream, TOKENS)
    mean = makes.of_mean(stream)
    assert_reads(own, stream, logits[torch.arange(len(TOKENS)), TOKENS])
    assert_reads(mean, stream, logits.mean(1))
    both = LogitDirections.stack([own, mean])
    assert both.direction.shape == (2, len(TOKENS), HIDDEN)
    assert torch.equal(both.bias[1], mean.bias)
    assert torch.equal(both.logit[0], own.logit)


def test_a_direction_is_the_heads_row_with_gain_and_centring_over_the_scale(tokenizer: Any) -> None:
    hf, model, stream, _ = read("gpt2", tokenizer)
    norm, wide = hf.transformer.ln_f, stream.double()
    row = hf.lm_head.weight[TOKENS].double() * norm.weight.double()
    scale = (wide.var(1, correction=0) + norm.eps).sqrt()
    found = TokenLogits(model).of_tokens(stream, TOKENS)
    torch.testing.assert_close(found.direction, (row - row.mean(1, keepdim=True)) / scale[:, None], atol=1e-5, rtol=0)
    bias = hf.lm_head.weight[TOKENS].double() @ norm.bias.double()
    torch.testing.assert_close(found.bias, bias, atol=1e-6, rtol=0)


def test_a_norm_of_root_mean_squares_is_not_centred(tokenizer: Any) -> None:
    hf, model, stream, _ = read("llama", tokenizer)
    norm = hf.model.norm
    row = hf.lm_head.weight[TOKENS].double() * norm.weight.double()
    scale = (stream.double().square().mean(1) + norm.variance_epsilon).sqrt()
    found = TokenLogits(model).of_tokens(stream, TOKENS)
    torch.testing.assert_close(found.direction, row / scale[:, None], atol=1e-5, rtol=0)
    assert not found.bias.any()


def test_a_bias_of_the_head_belongs_to_its_token(tokenizer: Any) -> None:
    hf, model, stream, _ = read("phi", tokenizer)
    own, norm = hf.lm_head, hf.model.final_layernorm
    found, mean = TokenLogits(model).of_tokens(stream, TOKENS), TokenLogits(model).of_mean(stream)
    wanted = own.bias + own.weight @ norm.bias
    torch.testing.assert_close(found.bias, wanted[TOKENS].double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(mean.bias, wanted.mean().double().expand(len(TOKENS)), atol=1e-5, rtol=0)
    assert wanted.shape == (ROWS,)


def test_no_norm_changes_nothing(tokenizer: Any) -> None:
    model = load_model(build("gpt2"), tokenizer=tokenizer)
    directions = torch.randn(2, 3, HIDDEN, dtype=torch.float64)
    before, added = FrozenNorm(model, None).step_back(directions, torch.randn(3, HIDDEN))
    assert torch.equal(before, directions)
    assert added.shape == (2, 3)
    assert not added.any()
