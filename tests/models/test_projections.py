"""The three projections of definitions.md section 2, against each other and against sums done by hand."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from mnemoscope.errors import MemoryIdError, ModelUnsupported, OptionError
from mnemoscope.models import load_model
from mnemoscope.models.modules.projections import LinearHead, fold_of, gain_and_bias, room_for_scores, scale_of

VECTORS = torch.randn(5, 16, generator=torch.Generator().manual_seed(3))


def fold(norm):
    return fold_of(norm, 16, dtype=torch.float32, device=torch.device("cpu"))


class Doubtful(nn.Module):
    def forward(self, x):
        return torch.sin(x)


class PlusOne(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * (1 + self.weight)


def test_what_a_norm_does_is_found_by_asking_it():
    torch.manual_seed(0)
    layer = nn.LayerNorm(16).requires_grad_(False)
    layer.weight.normal_()
    layer.bias.normal_()
    centred = VECTORS - VECTORS.mean(-1, keepdim=True)
    torch.testing.assert_close(fold(layer)(VECTORS), centred * layer.weight)
    rms = nn.RMSNorm(16).requires_grad_(False)
    rms.weight.normal_()
    torch.testing.assert_close(fold(rms)(VECTORS), VECTORS * rms.weight)
    gemma = PlusOne().requires_grad_(False)
    torch.testing.assert_close(fold(gemma)(VECTORS), VECTORS * (1 + gemma.weight))
    torch.testing.assert_close(fold(nn.LayerNorm(16, elementwise_affine=False))(VECTORS), centred)
    torch.testing.assert_close(fold(nn.RMSNorm(16, elementwise_affine=False))(VECTORS), VECTORS)
    layer.weight.zero_()
    assert not fold(layer)(VECTORS).any()


def test_what_a_norm_divides_by_is_told_of_every_vector():
    layer, rms = nn.LayerNorm(16).requires_grad_(False), nn.RMSNorm(16, eps=1e-6).requires_grad_(False)
    layer.weight.normal_()
    layer.bias.normal_()
    rms.weight.normal_()
    torch.testing.assert_close(
        scale_of(layer, fold(layer), VECTORS), (VECTORS.var(-1, correction=0) + layer.eps).sqrt(), atol=1e-5, rtol=1e-5
    )
    wanted = (VECTORS.square().mean(-1) + rms.eps).sqrt()
    torch.testing.assert_close(scale_of(rms, fold(rms), VECTORS), wanted, atol=1e-5, rtol=1e-5)
    assert torch.equal(scale_of(None, fold(None), VECTORS), torch.ones(len(VECTORS)))
    for norm in (layer, rms):  # of zeros nothing is left, whatever they are divided by
        assert torch.isfinite(scale_of(norm, fold(norm), torch.zeros(2, 16))).all()


def test_each_norm_before_the_head_has_its_own_scale(tiny, tokenizer):
    centred, squares = VECTORS.var(-1, correction=0), VECTORS.square().mean(-1)
    gpt2, gemma2 = (load_model(tiny(name), tokenizer=tokenizer) for name in ("gpt2", "gemma2"))
    for model, layer, wanted in (
        (gpt2, None, (centred + gpt2.anatomy.final_norm.eps).sqrt()),
        (gpt2, 1, torch.ones(len(VECTORS))),  # nothing stands between a layer and the stream
        (gemma2, None, (squares + gemma2.anatomy.final_norm.eps).sqrt()),
        (gemma2, 1, (squares + gemma2.anatomy.final_norm.eps).sqrt()),
    ):
        torch.testing.assert_close(model.norm_scale(VECTORS, layer=layer), wanted, atol=1e-5, rtol=1e-5)


def test_a_module_that_is_no_norm_is_refused():
    with pytest.raises(ModelUnsupported, match="a Doubtful is neither a layer norm nor an RMS norm"):
        fold(Doubtful())


def bare(hf):
    """The model without what `gain` leaves out on purpose: norm biases and head bias."""
    for name, parameter in hf.named_parameters():
        if ("norm" in name or "ln_" in name or "lm_head" in name) and name.endswith("bias"):
            parameter.zero_()
    return hf


@pytest.mark.parametrize(
    "name", ["gpt2", "gpt_neox", "gptj", "llama", "gemma", "cohere", "opt", "phi", "bloom", "granite"]
)
def test_gain_is_the_lens_up_to_one_positive_factor(name, tiny, tokenizer):
    model = load_model(bare(tiny(name)), tokenizer=tokenizer)
    lens = model.scores(VECTORS, projection="lens")
    gain = model.scores(VECTORS, projection="gain")
    torch.testing.assert_close(cosine_similarity(lens, gain), torch.ones(5), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gain, model.scores(VECTORS * 7, projection="gain") / 7, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["gemma2", "olmo2", "opt-350m"])
def test_the_blocks_own_norm_comes_first(name, tiny, tokenizer):
    hf = bare(tiny(name))
    model = load_model(hf, tokenizer=tokenizer)
    layers = hf.model.decoder.layers if name == "opt-350m" else hf.model.layers
    norm = layers[1].final_layer_norm if name == "opt-350m" else layers[1].post_feedforward_layernorm
    lens = model.scores(norm(VECTORS), projection="lens")
    if model.anatomy.softcap is not None:
        lens = torch.atanh((lens / model.anatomy.softcap).clamp(-0.99999, 0.99999))
    gain = model.scores(VECTORS, projection="gain", layer=1)
    torch.testing.assert_close(cosine_similarity(lens, gain), torch.ones(5), rtol=2e-3, atol=2e-3)
    assert not torch.allclose(gain, model.scores(VECTORS, projection="gain"))
    assert not torch.allclose(gain, model.scores(VECTORS, projection="gain", layer=0))


def test_raw_is_the_output_embedding_alone(tiny, tokenizer):
    hf = tiny("phi")
    model = load_model(hf, tokenizer=tokenizer)
    torch.testing.assert_close(model.scores(VECTORS, projection="raw"), VECTORS @ hf.lm_head.weight.T)
    narrow = tiny("opt-350m")
    through = VECTORS @ narrow.model.decoder.project_out.weight.T @ narrow.lm_head.weight.T
    torch.testing.assert_close(load_model(narrow, tokenizer=tokenizer).scores(VECTORS, projection="raw"), through)


def test_without_norms_all_three_are_the_same():
    model = load_model("handmade:planted")
    vectors = model.values(1)
    raw = model.scores(vectors, projection="raw")
    assert torch.equal(raw, model.scores(vectors, projection="gain", layer=1))
    assert torch.equal(raw, model.scores(vectors, projection="lens"))


def test_lens_has_bias_scale_and_cap(tiny, tokenizer):
    for name, wanted in (
        ("phi", lambda hf: hf.lm_head(hf.model.final_layernorm(VECTORS))),
        ("gemma2", lambda hf: 3 * torch.tanh(hf.lm_head(hf.model.norm(VECTORS)) / 3)),
        ("granite", lambda hf: hf.lm_head(hf.model.norm(VECTORS)) / 3),
    ):
        hf = tiny(name)
        found = load_model(hf, tokenizer=tokenizer).scores(VECTORS, projection="lens")
        torch.testing.assert_close(found, wanted(hf))


def test_half_precision_scores_are_float32_and_near(tiny, tokenizer):
    hf = tiny("gpt2")
    exact = load_model(hf, tokenizer=tokenizer).scores(VECTORS, projection="gain")
    half = load_model(hf, tokenizer=tokenizer, dtype="bfloat16").scores(VECTORS, projection="gain")
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, exact, rtol=0.05, atol=0.2)


def test_wrong_names_are_refused(tiny, tokenizer):
    model = load_model(tiny("gpt2"), tokenizer=tokenizer)
    with pytest.raises(OptionError, match="projection 'best' does not exist; choose raw, gain or lens"):
        model.scores(VECTORS, projection="best")
    with pytest.raises(MemoryIdError, match="layer 7 does not exist"):
        model.fold_as_value(7, VECTORS)


def test_a_norms_gain_and_bias_are_as_wide_as_the_stream():
    norm = nn.LayerNorm(16).requires_grad_(False)
    norm.register_parameter("temperature", nn.Parameter(torch.ones(1), requires_grad=False))
    norm.register_parameter("beta", nn.Parameter(torch.ones(3), requires_grad=False))
    weight, bias = gain_and_bias(norm, 16)
    assert (weight.data_ptr(), bias.data_ptr()) == (norm.weight.data_ptr(), norm.bias.data_ptr())
    assert gain_and_bias(nn.RMSNorm(16, elementwise_affine=False), 16) == (None, None)


@pytest.mark.parametrize("vocabulary", [5, 1024, 1025, 2500])
def test_scores_written_to_room_are_the_products(vocabulary):
    head = LinearHead(torch.randn(vocabulary, 16, generator=torch.Generator().manual_seed(4)))
    room = room_for_scores(7, vocabulary, device=torch.device("cpu")).fill_(torch.nan)
    assert (room.shape, room.stride(0) % 16) == ((7, vocabulary), 0)
    found = head.scores(VECTORS, out=room[:5])
    assert found.data_ptr() == room.data_ptr()
    torch.testing.assert_close(found, VECTORS @ head.matrix.T)
    assert room[5:].isnan().all()
