"""Decoders with a transform before the head's matrix: what is read, the proof, the context, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from mnemoscope.cli import main
from mnemoscope.errors import ModelUnsupported, ProofFailed
from mnemoscope.models import load_model
from mnemoscope.models.proof.proof import prove
from models.expert_models import fill_randomly
from models.transformed_heads import CONTEXT, build_transformed

IDS = torch.tensor([[3, 17, 200, 45, 9, 120, 33]])


def test_values_pass_dense_map_norm_and_matrix_and_streams_the_whole_head(tokenizer: Any) -> None:
    hf = build_transformed("electra")  # its head is narrower than its stream
    model, head = load_model(hf, tokenizer=tokenizer), hf.generator_predictions
    value = model.values(1)[5]
    stream = value - value.mean()  # behind the block's own norm
    narrow = head.dense.weight @ (stream * hf.electra.encoder.layer[1].output.LayerNorm.weight)
    scores = hf.generator_lm_head.weight @ ((narrow - narrow.mean()) * head.LayerNorm.weight)
    assert (model.head_width, model.anatomy.head_kind) == (8, "linearised")
    torch.testing.assert_close(model.scores(value[None], projection="gain", layer=1)[0], scores)
    torch.testing.assert_close(model.scores(value[None], projection="lens")[0], hf.generator_lm_head(head(value)))
    with pytest.raises(ModelUnsupported, match="a transform stands before the head"):
        model.scores(value[None], projection="raw")


def test_the_scale_of_values_is_that_of_both_norms(tokenizer: Any) -> None:
    hf = build_transformed("modernbert-decoder")
    model, stream = load_model(hf, tokenizer=tokenizer), torch.linspace(-1, 2, 16)[None]
    activated = hf.lm_head.act(hf.lm_head.dense(hf.model.final_norm(stream)))
    deviations = [((x - x.mean()).square().mean() + 1e-5).sqrt() for x in (stream, activated)]
    torch.testing.assert_close(model.norm_scale(stream, layer=None)[0], deviations[0] * deviations[1])


@pytest.mark.parametrize("lost", ["function", "norm"])
def test_the_proof_notices_a_forgotten_part_of_the_transform(lost: str, tokenizer: Any) -> None:
    model = load_model(build_transformed("bert"), tokenizer=tokenizer)
    model.anatomy = replace(model.anatomy, transform=replace(model.anatomy.transform, **{lost: None}))
    with pytest.raises(ProofFailed, match="check 'scores'"):
        prove(model)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_in_half_precision_the_same_function_is_found(kind: str, tokenizer: Any) -> None:
    model = load_model(build_transformed(kind), tokenizer=tokenizer, dtype="bfloat16")
    assert model.anatomy.transform is not None
    x = torch.linspace(-2, 2, 9)
    torch.testing.assert_close(model.anatomy.transform.activate(x), torch.nn.functional.gelu(x))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_context_is_what_the_positions_hold(kind: str, tokenizer: Any) -> None:
    hf = build_transformed(kind)
    model = load_model(hf, tokenizer=tokenizer)
    assert model.sizes.context == CONTEXT
    assert model.logits(torch.full((1, CONTEXT), 7)).isfinite().all()
    with pytest.raises((IndexError, RuntimeError)):
        model.logits(torch.full((1, CONTEXT + 1), 7))


def test_a_folder_is_inspected(tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_transformed("roberta").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert main(["inspect", str(tmp_path)]) == 0
    assert "  head        linearised\n" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["cpmant", "xlnet"])
def test_models_that_read_the_text_whole_are_refused(kind: str, tokenizer: Any) -> None:
    settings = {"cpmant": {"prompt_types": 4, "prompt_length": 2}, "xlnet": {"d_model": 16, "d_inner": 24}}[kind]
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "dim_head": 8, "dim_ff": 24}
    sizes |= {"n_layer": 2, "n_head": 2, "vocab_size": 280}
    config = AutoConfig.for_model(kind, **sizes | settings)
    hf = fill_randomly(lambda: AutoModelForCausalLM.from_config(config))
    changed = IDS.clone()
    changed[0, -1] += 1
    with torch.no_grad():  # what is said of them is so
        earlier = [hf(input_ids=ids).logits[0, :-1] for ids in (IDS, changed)]
    assert not torch.allclose(*earlier, atol=1e-3)
    with pytest.raises(ModelUnsupported, match=f"'{kind}' lets later tokens change earlier ones"):
        load_model(hf, tokenizer=tokenizer)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_an_adapter_on_the_dense_map_of_the_head_counts(tokenizer: Any) -> None:
    adapted = get_peft_model(build_transformed("modernbert-decoder"), LoraConfig(target_modules=["dense"], r=2)).eval()
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            weight.copy_(torch.linspace(-1, 1, weight.numel()).view_as(weight) if "lora_B" in name else weight)
    model, values = load_model(adapted.base_model.model, tokenizer=tokenizer), torch.eye(16)[:4]
    scores = model.scores(values, projection="gain")
    plain = load_model(build_transformed("modernbert-decoder"), tokenizer=tokenizer)
    assert not torch.allclose(scores, plain.scores(values, projection="gain"), atol=1e-2)
    merged = load_model(adapted.merge_and_unload(), tokenizer=tokenizer)
    torch.testing.assert_close(scores, merged.scores(values, projection="gain"), atol=1e-4, rtol=1e-4)


def test_big_bird_reads_as_it_does_after_a_short_text(tokenizer: Any) -> None:
    """Its sparse attention sees later tokens; the first short text switches it to the full one, for good."""
    hf = build_transformed("big_bird", attention_type="block_sparse", block_size=4, num_random_blocks=1)
    model, ids = load_model(hf, tokenizer=tokenizer), torch.arange(3, 43)[None]
    changed = ids.clone()
    changed[0, -1] = 99
    torch.testing.assert_close(model.logits(ids)[:, :-1], model.logits(changed)[:, :-1])
