"""Forwards that begin at a block: the same final stream as whole ones, and the blocks below do nothing."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.forward.hooks import read_final
from mnemoscope.models.forward.partial_forward import PartialForward
from models.conftest import LAYERS, build

IDS = torch.tensor([[5, 1, 9, 30], [7, 2, 2, 200]])
FAMILIES = ("gpt2", "llama", "gpt_neox", "opt-350m", "gemma2", "falcon-7b")


def final_of(model: LanguageModel, run: Any) -> Tensor:
    """The final stream of one forward."""
    found: list[Tensor] = []
    with read_final(model, found.append), torch.inference_mode():
        run()
    (final,) = found
    return final.clone()


@pytest.mark.parametrize("name", FAMILIES)
def test_from_any_block_on_the_final_stream_is_that_of_a_whole_forward(name: str, tokenizer: Any) -> None:
    model = load_model(build(name), tokenizer=tokenizer)
    partial = PartialForward(model)
    assert partial.possible
    ran: Counter[int] = Counter()
    for layer in range(LAYERS):
        model.layer(layer).ffn.exits[-1].register_forward_hook(lambda *_, layer=layer: ran.update([layer]))
    whole = final_of(model, lambda: model.backbone(IDS))
    with partial.install():
        for layer in range(LAYERS):
            stream = partial.stream_into(layer, IDS)
            assert stream.shape == (2, 4, model.sizes.hidden)
            before = stream.clone()
            ran.clear()
            found = final_of(model, lambda: partial.run(IDS, layer=layer, stream=stream))  # noqa: B023
            torch.testing.assert_close(found, whole)
            assert dict(ran) == dict.fromkeys(range(layer, LAYERS), 1)
            assert torch.equal(stream, before)
        ran.clear()
        assert torch.equal(final_of(model, lambda: partial.run(IDS, layer=1, stream=None)), whole)
        assert torch.equal(final_of(model, lambda: model.backbone(IDS)), whole)
        assert dict(ran) == dict.fromkeys(range(LAYERS), 2)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_stream_that_is_given_is_the_one_that_enters(name: str, tokenizer: Any) -> None:
    hf = build(name)
    model = load_model(hf, tokenizer=tokenizer)
    partial = PartialForward(model)

    def double(_: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if inputs:
            return (2 * inputs[0], *inputs[1:]), named
        return inputs, named | {"hidden_states": 2 * named["hidden_states"]}

    with model.layer(1).block.register_forward_pre_hook(double, with_kwargs=True):
        wanted = final_of(model, lambda: model.backbone(IDS))
    with partial.install():
        stream = 2 * partial.stream_into(1, IDS)
        found = final_of(model, lambda: partial.run(IDS, layer=1, stream=stream))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("why", ["replaced", "spread", "needs what was below", "gives more than the stream"])
def test_a_model_that_cannot_begin_in_the_middle_is_run_whole(why: str, tokenizer: Any) -> None:
    hf = build("bloom" if why == "gives more than the stream" else "gpt2")
    lower, upper = hf.transformer.h
    if why == "replaced":
        upper.forward = upper.forward
    model = load_model(hf, tokenizer=tokenizer)
    if why == "spread":
        lower._hf_hook = object()
    elif why == "needs what was below":
        noted: list[int] = []
        lower.mlp.register_forward_hook(lambda *_: noted.append(1))
        upper.register_forward_pre_hook(lambda *_: noted.pop() and None)
    whole = final_of(model, lambda: model.backbone(IDS))
    partial, before = PartialForward(model), dict(upper.__dict__)
    assert not partial.possible
    with partial.install():
        assert upper.__dict__.get("forward") is before.get("forward")
        found = final_of(model, lambda: partial.run(IDS, layer=1, stream=torch.zeros(2, 4, model.sizes.hidden)))
    assert torch.equal(found, whole)
