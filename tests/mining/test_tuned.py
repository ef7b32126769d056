"""Training of the tuned lens against Adam written out, on a model whose readout is torch's own modules."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mining.conftest import byte_tokenizer
from mnemoscope.mining.lenses.tuned import TunedFit
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.readout.translators import Translator
from models.conftest import build

HIDDEN, RATE, STEPS, POSITIONS = 16, 1e-3, 300, 128


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, LanguageModel]:
    hf = build("gpt2-relu")
    return hf, load_model(hf, tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))


def random_maps(generator: torch.Generator) -> dict[int, Translator]:
    return {
        layer: Translator(torch.randn(HIDDEN, HIDDEN, generator=generator), torch.randn(HIDDEN, generator=generator))
        for layer in (0, 1)
    }


def loss_of(hf: Any, maps: dict[int, tuple[Tensor, Tensor]], streams: dict[int, Tensor], final: Tensor) -> Tensor:
    """The Kullback-Leibler divergence from the model's own prediction, mean over positions, summed over layers."""

    def read(stream: Tensor) -> Tensor:
        return hf.lm_head(hf.transformer.ln_f(stream)).log_softmax(-1)

    wanted = read(final)
    said = (read(streams[layer] @ weight + bias) for layer, (weight, bias) in maps.items())
    return sum((wanted.exp() * (wanted - each)).sum(1).mean() for each in said)


def test_every_step_is_adams_along_the_gradient_of_the_divergence(loaded: tuple[Any, LanguageModel]) -> None:
    hf, model = loaded
    generator = torch.Generator().manual_seed(0)
    begin = random_maps(generator)
    fit = TunedFit(model, begin, seed=0)
    own = {layer: [each.weight.clone(), each.bias.clone()] for layer, each in begin.items()}
    first = {layer: [torch.zeros_like(tensor) for tensor in pair] for layer, pair in own.items()}
    second = {layer: [torch.zeros_like(tensor) for tensor in pair] for layer, pair in own.items()}
    for step, number in enumerate((0, 1, 2, 200, 299), 1):
        streams = {layer: torch.randn(40, HIDDEN, generator=generator) for layer in own}
        final = torch.randn(40, HIDDEN, generator=generator)
        fit.step(number, streams, final)
        asked = {layer: tuple(t.requires_grad_() for t in pair) for layer, pair in own.items()}
        changed = [tensor for pair in asked.values() for tensor in pair]
        gradients = torch.autograd.grad(loss_of(hf, asked, streams, final), changed)
        places, rate = [(layer, index) for layer in own for index in (0, 1)], RATE * (1 - number / STEPS)
        for (layer, index), gradient in zip(places, gradients, strict=True):
            first[layer][index] = 0.9 * first[layer][index] + 0.1 * gradient
            second[layer][index] = 0.999 * second[layer][index] + 0.001 * gradient.square()
            size = (second[layer][index] / (1 - 0.999**step)).sqrt() + 1e-8
            moved = own[layer][index] - rate * first[layer][index] / (1 - 0.9**step) / size
            own[layer][index] = moved.detach()
    for layer, found in fit.translators().items():
        torch.testing.assert_close(found.weight, own[layer][0], atol=2e-6, rtol=0)
        torch.testing.assert_close(found.bias, own[layer][1], atol=2e-6, rtol=0)
        assert (found.weight - begin[layer].weight).abs().max() > RATE


def test_a_step_learns_from_128_positions_that_its_number_draws(loaded: tuple[Any, LanguageModel]) -> None:
    hf, model = loaded
    generator = torch.Generator().manual_seed(0)
    fit = TunedFit(model, {1: Translator.identity(HIDDEN)}, seed=3)
    final = torch.randn(500, HIDDEN, generator=generator)
    read: list[Tensor] = []
    with hf.transformer.ln_f.register_forward_pre_hook(lambda module, given: read.append(given[0].detach().clone())):
        for number in (0, 1, 0):
            fit.step(number, {1: final}, final)
    wanted, moved = read[::2], read[1::2]
    places = [(final[:, None] == each[None]).all(2).nonzero()[:, 0].tolist() for each in wanted]
    assert [len(set(each)) for each in places] == [POSITIONS] * 3
    assert places[0] == places[2] != places[1]
    # The same positions of the layer's stream, which the map has not yet moved.
    assert torch.equal(moved[0], wanted[0])
    assert fit.facts() == {"steps": STEPS, "positions": POSITIONS, "rate": RATE}


def test_few_positions_are_all_learnt_from(loaded: tuple[Any, LanguageModel]) -> None:
    hf, model = loaded
    fit, read = TunedFit(model, {0: Translator.identity(HIDDEN)}, seed=0), list[int]()
    with hf.transformer.ln_f.register_forward_pre_hook(lambda module, given: read.append(len(given[0]))):
        fit.step(0, {0: torch.zeros(5, HIDDEN)}, torch.zeros(5, HIDDEN))
    assert read == [5, 5]
