"""Every family from a tiny random configuration: what is read is what transformers computes."""

from types import SimpleNamespace

import pytest
import torch

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models import load_model, read_blocks, read_coefficients
from mnemoscope.models.anatomy.anatomy import experts_chosen, head_of

IDS = torch.tensor([[5, 1, 8, 3, 11, 2], [7, 4, 0, 9, 0, 0]])
LENGTHS = (6, 4)


def own(tensor):
    """The positions of the two sentences that are not padding."""
    return torch.cat([tensor[row, :length] for row, length in enumerate(LENGTHS)])


@pytest.mark.fast(3)
def test_sizes_are_the_tiny_ones(family, case, tiny, tokenizer):
    hf, known = tiny(family), case(family)
    model = load_model(hf, tokenizer=tokenizer)
    assert (model.sizes.layers, model.sizes.hidden, model.sizes.vocabulary) == (2, 16, 280)
    assert model.sizes.memories == (known.memories,) * 2
    assert model.sizes.context == known.context
    assert model.longest == known.context - 1
    assert model.sizes.parameters == sum(parameter.numel() for parameter in hf.parameters()) < 60_000
    assert (model.family, model.block, model.gated) == (known.kind, known.block, known.gated)
    assert model.has_negative == ("relu" not in model.activation)


@pytest.mark.fast(2)
def test_proof_holds_in_every_dtype(family, tiny, tokenizer):
    hf = tiny(family)
    for dtype, limit in (("float32", 1e-4), ("bfloat16", 2e-2), ("float16", 2e-2)):
        proof = load_model(hf, tokenizer=tokenizer, dtype=dtype).proof
        assert max(proof.residual, proof.ablation, proof.keys, proof.scores) <= limit
        assert len(proof.layers) == 2
        assert max(layer[1] for layer in proof.layers) == proof.ablation
    assert next(hf.parameters()).dtype == torch.float32  # a user's model is never converted in place


@pytest.mark.fast(5)
def test_coefficients_are_what_the_weights_give(family, case, tiny, tokenizer):
    hf, known = tiny(family), case(family)
    model = load_model(hf, tokenizer=tokenizer)
    blocks = {}
    with read_blocks(model, blocks.__setitem__):
        model.backbone(IDS)
    stack = max((m for m in hf.modules() if isinstance(m, torch.nn.ModuleList)), key=len)
    for layer, block in blocks.items():
        expected = known.coefficients(stack[layer], block.ffn_input)
        torch.testing.assert_close(block.coefficients, expected, rtol=1e-4, atol=1e-5)
        summed = block.coefficients @ model.values(layer)
        bias = model.layer(layer).ffn.down.bias()
        torch.testing.assert_close(block.ffn_output, summed if bias is None else summed + bias, rtol=1e-4, atol=1e-4)


@pytest.mark.fast(4)
def test_states_and_logits_are_those_of_transformers(family, tiny, tokenizer):
    hf = tiny(family)
    model = load_model(hf, tokenizer=tokenizer)
    blocks = {}
    with read_blocks(model, blocks.__setitem__):
        logits = model.logits(IDS)
    # The reference sees the padding mask; the package does without it, since padding is on the right.
    mask = (torch.arange(6)[None] < torch.tensor(LENGTHS)[:, None]).long()
    with torch.no_grad():
        reference = hf(input_ids=IDS, attention_mask=mask, output_hidden_states=True)
    torch.testing.assert_close(own(logits), own(reference.logits), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(own(blocks[0].layer_output), own(reference.hidden_states[1]), rtol=1e-4, atol=1e-4)
    lens = model.scores(blocks[1].layer_output, projection="lens")
    torch.testing.assert_close(own(lens), own(reference.logits), rtol=1e-4, atol=1e-4)


def test_backbone_is_the_forward_without_the_head(family, tiny, tokenizer):
    hf = tiny(family)
    model = load_model(hf, tokenizer=tokenizer)
    states = model.backbone(IDS)
    with torch.no_grad():
        scores = hf.get_output_embeddings()(states).float()
        logits = hf(input_ids=IDS).logits
    assert (scores.argmax(-1) == logits.argmax(-1)).all()
    seen = []
    with read_coefficients(model, lambda layer, coefficients: seen.append((layer, tuple(coefficients.shape)))):
        assert model.backbone(IDS, stop_after=0) is None
    assert seen == [(0, (2, 6, model.sizes.memories[0]))]


def test_multimodal_gemma3_is_read_by_its_text_model(tokenizer):
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = {
        "vocab_size": 280, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8,
        "num_key_value_heads": 1, "intermediate_size": 24, "max_position_embeddings": 64,
        "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
              "image_size": 14, "patch_size": 14}  # fmt: skip
    ids = {"image_token_index": 279, "boi_token_index": 278, "eoi_token_index": 277}
    torch.manual_seed(0)
    hf = Gemma3ForConditionalGeneration(Gemma3Config(text_config=text, vision_config=vision, **ids)).eval()
    model = load_model(hf, tokenizer=tokenizer)
    assert (model.family, model.block, model.sizes.layers, model.sizes.hidden) == ("gemma3", "sandwich", 2, 16)


@pytest.mark.parametrize("head", [None, torch.eye(2)])
def test_a_model_without_a_head_is_refused(head):
    with pytest.raises(ModelUnsupported, match=r"^SimpleNamespace has no language-model head; load a causal"):
        head_of(SimpleNamespace(get_output_embeddings=lambda: head))


@pytest.mark.parametrize(
    ("stated", "count"),
    [
        ({}, 2),
        ({"num_experts_per_tok": 8}, 8),
        ({"num_experts_per_tok": None, "moe_topk": 6}, 6),
        ({"num_experts_per_tok": 0, "moe_k": 4}, 4),
        ({"moe_topk": [6, 6], "num_selected_experts": 1}, 1),
    ],
)
def test_how_many_experts_a_token_goes_to_is_the_first_number_that_is_stated(
    stated: dict[str, object], count: int
) -> None:
    config = SimpleNamespace(get_text_config=lambda decoder: SimpleNamespace(**stated) if decoder else None)
    assert experts_chosen(config) == count
