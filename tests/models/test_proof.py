"""The load-time proof refuses planted faults, names the layer and the check, and is not fooled by rounding."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaMLP

from mnemoscope.errors import ModelUnsupported, ProofFailed
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.anatomy.anatomy import family_of, resolve
from mnemoscope.models.loaded_parts import LoadedParts
from mnemoscope.models.proof import proof
from mnemoscope.models.tokens.model_tokens import Beginning, Tokens


def prove(hf, tokenizer, **changes):
    """Loads a model with its family's row changed."""
    return proved(resolve(hf, replace(family_of(hf.config), **changes)), tokenizer)


def proved(anatomy, tokenizer):
    parts = LoadedParts(
        network=anatomy.model,
        in_memory=False,
        spec="test",
        config={},
        tokens=Tokens(tokenizer),
        context=64,
        anatomy=lambda network: anatomy,
        beginning=lambda rows: Beginning(0, "bos"),
        ends=lambda rows: frozenset(),
    )
    return proof.prove(LanguageModel(parts, anatomy, revision=None, content=""))


FAULTS = {
    # Gemma-2's norm after the feed-forward, taken for a bare sum: u is y, not norm(y).
    "post norm undeclared": ("gemma2", {"post_norm": None}, "residual"),
    "post norm of the wrong place": ("gemma2", {"post_norm": "post_attention_layernorm"}, "residual"),
    "norm before taken for none": ("llama", {"ffn_norm": None}, "residual"),
    "output norm undeclared": ("opt-350m", {"output_norm": None}, "residual"),
    "parallel taken for sequential": ("gptj", {"attention": None}, "residual"),
    # The gate is the first half of Phi-3's fused matrix.
    "fused halves swapped": ("phi3", {"fused": ("up", "gate")}, "keys"),
    "gate and up swapped": ("llama", {"keys": "mlp.up_proj", "up": "mlp.gate_proj"}, "keys"),
    "gate forgotten": ("qwen2", {"up": None}, "keys"),
    "head scale ignored": ("cohere", {"logit_scale": None}, "scores"),
    "head divisor ignored": ("granite", {"logit_divisor": None}, "scores"),
    "soft-cap ignored": ("gemma2", {"softcap": None}, "scores"),
    "final norm ignored": ("gpt2", {"final_norm": None}, "scores"),
    "update scale ignored": ("granite", {"update_scale": None}, "residual"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_refused_by_check_and_layer(fault, tiny, tokenizer):
    family, changes, check = FAULTS[fault]
    hf = tiny(family)
    prove(hf, tokenizer)
    with pytest.raises(ProofFailed) as caught:
        prove(hf, tokenizer, **changes)
    message = str(caught.value)
    assert f"check {check!r}" in message
    assert message.startswith("layer ")
    assert "\n" not in message


def test_ablation_alone_catches_a_norm_that_the_sum_does_not_see(tiny, tokenizer, monkeypatch):
    """With (a) switched off, zeroing the coefficients still shows that a norm stands after the feed-forward."""
    monkeypatch.setattr(proof, "residual_error", lambda *arguments: 0.0)
    for family, changes in (
        ("gemma2", {"post_norm": None}),
        ("olmo2", {"post_norm": None}),
        ("opt-350m", {"output_norm": None}),
    ):
        with pytest.raises(ProofFailed, match="'ablation'"):
            prove(tiny(family), tokenizer, **changes)


def test_ablation_alone_catches_wrong_values(tiny, tokenizer, monkeypatch):
    hf = tiny("llama")
    model = load_model(hf, tokenizer=tokenizer)
    right = model.values
    monkeypatch.setattr(LanguageModel, "values", lambda self, layer: right(layer).roll(1, 0))
    with pytest.raises(ProofFailed, match="layer 0, check 'ablation'"):
        proof.prove(model)


def test_the_fault_of_one_layer_is_named_by_that_layer(tiny, tokenizer):
    hf = tiny("llama")
    resolved = resolve(hf, family_of(hf.config))
    right = resolved.layers[1]
    wrong = replace(right, ffn=replace(right.ffn, activation=torch.nn.functional.relu))
    broken = replace(resolved, layers=(resolved.layers[0], wrong))
    with pytest.raises(ProofFailed, match=r"^layer 1, check 'keys'"):
        proved(broken, tokenizer)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_huge_entry_of_the_stream_is_no_fault_and_hides_none(dtype, tiny, tokenizer, monkeypatch):
    """GPT-2's stream holds entries of thousands at the first position; one unit of their rounding is no fault."""
    hf = tiny("gpt_neox")
    hf.gpt_neox.embed_in.weight[:, 3] = 3e4
    load_model(hf, tokenizer=tokenizer, dtype=dtype)
    with pytest.raises(ProofFailed, match="'residual'"):
        prove(hf, tokenizer, attention=None, ffn_norm="post_attention_layernorm")
    monkeypatch.setattr(proof, "ROUNDINGS", 0.0)
    with pytest.raises(ProofFailed):
        load_model(hf, tokenizer=tokenizer, dtype=dtype)


def test_rounding_of_the_terms_is_left_out():
    scale = proof.ErrorScale(torch.ones(1, 2, dtype=torch.bool), torch.float32)
    b = torch.tensor([[[1.0], [1.0]]])
    assert scale.error(b * (1 + 5e-5), b) == pytest.approx(5e-5, rel=1e-2)
    assert scale.error(b * (1 + 2e-7), b) == 0.0  # two units in the last place
    assert scale.error(b + 1e-3, b) == pytest.approx(1e-3, rel=1e-2)  # rounding explains 5e-7 of it
    assert scale.error(b + 1e-3, b, terms=(b * 1e5,)) == 0.0  # rounding of a sum of 1e5 explains it all
    assert scale.error(b, b[:, :1]) == float("inf")
    assert scale.error(b * float("nan"), b) != scale.error(b * float("nan"), b)


def test_numbers_that_are_not_finite_are_refused(tiny, tokenizer):
    hf = tiny("llama")
    hf.model.layers[1].mlp.gate_proj.weight.mul_(1e4)
    hf.model.layers[1].mlp.up_proj.weight.mul_(1e4)
    load_model(hf, tokenizer=tokenizer)
    with pytest.raises(ProofFailed, match=r"layer 1.*not finite in float16"):
        load_model(hf, tokenizer=tokenizer, dtype="float16")


def test_a_model_that_reads_both_ways_is_refused(tiny, tokenizer):
    hf = tiny("llama")
    for layer in hf.model.layers:
        layer.self_attn.is_causal = False
    with pytest.raises(ModelUnsupported, match="later tokens change earlier ones"):
        load_model(hf, tokenizer=tokenizer)


@pytest.mark.parametrize(("dtype", "experts"), [(torch.float32, True), (torch.bfloat16, False), (torch.bfloat16, True)])
@pytest.mark.parametrize("changed", range(6))
def test_an_encoder_changes_most_positions_and_experts_in_half_precision_some(
    changed: int, dtype: torch.dtype, experts: bool
) -> None:
    """Five positions come before the last token; so many of them change with it. Experts are forgiven two of them."""
    ids = torch.zeros(1, 6, dtype=torch.long)
    logits = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(0)).to(dtype)

    def answer(given: torch.Tensor) -> torch.Tensor:
        after = logits.clone()
        after[:, :changed] += given[0, -1] * 10
        return after

    anatomy = SimpleNamespace(family="own", model=torch.nn.Module())
    model = SimpleNamespace(outputs=answer, dtype=dtype, numberings={0: None} if experts else {}, anatomy=anatomy)
    forgiven = 2 if experts and dtype == torch.bfloat16 else 0
    if changed <= forgiven:
        proof.check_causal(model, ids, logits, limit=0.1)
    else:
        with pytest.raises(ModelUnsupported, match=r"'own' model lets later tokens change earlier ones"):
            proof.check_causal(model, ids, logits, limit=0.1)


def test_a_block_that_never_runs_is_named(tiny, tokenizer):
    hf = tiny("llama")
    hf.config.num_hidden_layers = 1  # of two, which the forward goes by
    with pytest.raises(ProofFailed, match="layer 1: the block never ran; the 'llama' anatomy does not fit"):
        load_model(hf, tokenizer=tokenizer)


def test_a_map_that_is_called_by_keyword_is_refused(tiny, tokenizer):
    class Naming(LlamaMLP):
        def forward(self, x):
            return self.down_proj(input=self.act_fn(self.gate_proj(x)) * self.up_proj(x))

    hf = tiny("llama")
    hf.model.layers[1].mlp.__class__ = Naming
    with pytest.raises(ModelUnsupported, match="is called by keyword, so its input cannot be tapped"):
        load_model(hf, tokenizer=tokenizer)
