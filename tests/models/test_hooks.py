"""Taps read the very tensors, change what they are asked to change, and leave no hook behind."""

import pytest
import torch

from mnemoscope.errors import MemoryIdError
from mnemoscope.models import load_model, overwrite_coefficients, read_blocks, read_coefficients

IDS = torch.tensor([[5, 1, 8, 3], [7, 4, 0, 9]])


def hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.anatomy.model.modules())


@pytest.fixture
def model(tiny, tokenizer):
    return load_model(tiny("gpt2-relu"), tokenizer=tokenizer)


def test_the_callback_gets_the_tensor_that_enters_the_down_projection(model):
    entered, called = {}, []
    handles = [
        layer.ffn.down.module.register_forward_pre_hook(lambda _, inputs, n=n: entered.update({n: inputs[0]}))
        for n, layer in enumerate(model.anatomy.layers)
    ]
    with read_coefficients(model, lambda layer, tensor: called.append((layer, tensor))):
        model.backbone(IDS)
    assert [layer for layer, _ in called] == [0, 1]
    assert all(tensor.data_ptr() == entered[layer].data_ptr() for layer, tensor in called)
    assert all(tensor.shape == (2, 4, 24) for _, tensor in called)
    for handle in handles:
        handle.remove()


def test_flattened_blocks_still_give_batch_and_position(tiny, tokenizer):
    """OPT flattens batch and position inside its blocks; the view is undone without a copy."""
    model = load_model(tiny("opt"), tokenizer=tokenizer)
    shapes = []
    with read_coefficients(model, lambda layer, tensor: shapes.append(tuple(tensor.shape)), layers=[1]):
        model.backbone(IDS)
        model.backbone(IDS[:1, :3])
    assert shapes == [(2, 4, 24), (1, 3, 24)]


def test_stopping_after_a_layer_runs_nothing_beyond_it(model):
    ran = []
    handle = model.anatomy.layers[0].ffn.down.module.register_forward_hook(lambda *_: ran.append("down-projection"))
    seen = []
    with read_coefficients(model, lambda layer, tensor: seen.append(layer)):
        assert (model.backbone(IDS, stop_after=0), seen, ran) == (None, [0], [])
        assert model.backbone(IDS) is not None
    assert (seen, ran) == ([0, 0, 1], ["down-projection"])
    handle.remove()


def test_overwriting_moves_the_output_by_the_value(model):
    before, after = {}, {}
    with read_blocks(model, before.__setitem__):
        model.backbone(IDS)

    def one_more(coefficients):
        changed = coefficients.clone()
        changed[:, 2, 5] += 1.0
        return changed

    with overwrite_coefficients(model, {1: one_more}), read_blocks(model, after.__setitem__):
        model.backbone(IDS)
    moved = after[1].layer_output - before[1].layer_output
    torch.testing.assert_close(moved[:, 2], model.values(1)[5].expand(2, -1), rtol=1e-4, atol=1e-5)
    assert not moved[:, [0, 1, 3]].any()
    assert torch.equal(after[0].layer_output, before[0].layer_output)


@pytest.mark.parametrize("kind", ["coefficients", "blocks", "overwrite"])
def test_every_tap_unhooks_also_after_an_exception(kind, model):
    def fail(*_):
        raise RuntimeError("from the callback")

    taps = {
        "coefficients": lambda: read_coefficients(model, fail),
        "blocks": lambda: read_blocks(model, fail),
        "overwrite": lambda: overwrite_coefficients(model, {1: fail}),
    }
    before = hooks(model)

    def run():
        with taps[kind]():
            assert hooks(model) > before
            model.backbone(IDS)

    with pytest.raises(RuntimeError, match="from the callback"):
        run()
    assert hooks(model) == before


def test_a_layer_that_does_not_exist_is_refused_and_leaves_no_hook(model):
    before = hooks(model)
    with pytest.raises(MemoryIdError, match=r"layer 99 does not exist; the model has layers 0 to 1"):
        read_coefficients(model, print, layers=[0, 99]).__enter__()
    assert hooks(model) == before
    for wrong in (lambda: model.keys(-1), lambda: model.values(2), lambda: model.backbone(IDS, stop_after=2)):
        with pytest.raises(MemoryIdError):
            wrong()


@pytest.mark.parametrize(("name", "factor"), [("granite", 0.5), ("granite", 1.0), ("granite", 3.0), ("gptj", 1.0)])
def test_what_a_layer_adds_is_its_output_times_the_models_multiplier(name, factor, tiny, tokenizer):
    parallel, blocks, attention = name == "gptj", {}, []
    hf = tiny(name) if parallel else tiny(name, residual_multiplier=factor)
    model = load_model(hf, tokenizer=tokenizer)
    if parallel:  # where the residual is the block's input and the attention's output together
        hf.transformer.h[1].attn.register_forward_hook(lambda _, inputs, output: attention.append(output[0]))
    with read_blocks(model, blocks.__setitem__):
        model.backbone(IDS)
    for layer, block in blocks.items():
        torch.testing.assert_close(block.ffn_update, factor * block.ffn_output)
        torch.testing.assert_close(block.residual + block.ffn_update, block.layer_output)
        assert model.multiplier(layer) == pytest.approx(factor if parallel else factor / 3.0)  # logits divided by 3
    if parallel:
        torch.testing.assert_close(blocks[1].residual, blocks[0].layer_output + attention[0])
        torch.testing.assert_close(blocks[1].ffn_input, hf.transformer.h[1].ln_1(blocks[0].layer_output))
