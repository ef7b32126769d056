"""The logit of a token as a direction in the final stream: against the model's own logits, and by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.forward.hooks import read_final
from mnemoscope.models.readout.token_logits import FrozenNorm, LogitDirections, TokenLogits
from models.conftest import HIDDEN, build

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


def test_no_norm_changes_nothing(tokenizer: Any) -> None:
    model = load_model(build("gpt2"), tokenizer=tokenizer)
    directions = torch.randn(2, 3, HIDDEN, dtype=torch.float64)
    before, added = FrozenNorm(model, None).step_back(directions, torch.randn(3, HIDDEN))
    assert torch.equal(before, directions)
    assert added.shape == (2, 3)
    assert not added.any()
