"""Every family from a tiny random configuration: what is read is what transformers computes."""

from types import SimpleNamespace

import pytest
import torch

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models import load_model, read_blocks
from mnemoscope.models.anatomy.anatomy import check_supported, experts_chosen, head_of

IDS = torch.tensor([[5, 1, 8, 3, 11, 2], [7, 4, 0, 9, 0, 0]])
LENGTHS = (6, 4)


def own(tensor):
    """The positions of the two sentences that are not padding."""
    return torch.cat([tensor[row, :length] for row, length in enumerate(LENGTHS)])


@pytest.mark.fast(2)
def test_proof_holds_in_every_dtype(family, tiny, tokenizer):
    hf = tiny(family)
    for dtype, limit in (("float32", 1e-4), ("bfloat16", 2e-2), ("float16", 2e-2)):
        proof = load_model(hf, tokenizer=tokenizer, dtype=dtype).proof
        assert max(proof.residual, proof.ablation, proof.keys, proof.scores) <= limit
        assert (len(proof.layers), max(layer[1] for layer in proof.layers)) == (2, proof.ablation)
    assert next(hf.parameters()).dtype == torch.float32  # a user's model is never converted in place


@pytest.mark.fast(6)
def test_all_that_is_read_is_what_transformers_computes(family, case, tiny, tokenizer):
    hf, known = tiny(family), case(family)
    model = load_model(hf, tokenizer=tokenizer)
    assert (model.sizes.layers, model.sizes.hidden, model.sizes.vocabulary) == (2, 16, 280)
    assert model.sizes.memories == (known.memories,) * 2
    assert model.sizes.context == model.longest + 1 == known.context
    assert model.sizes.parameters == sum(parameter.numel() for parameter in hf.parameters()) < 60_000
    assert (model.family, model.block, model.gated) == (known.kind, known.block, known.gated)
    assert model.has_negative == ("relu" not in model.activation)
    assert model.logits(torch.arange(known.context)[None] % 280).shape == (1, known.context, 280)
    blocks = {}
    with read_blocks(model, blocks.__setitem__):
        logits = model.logits(IDS)
    # The reference sees the padding mask; the package does without it, since padding is on the right.
    mask = (torch.arange(6)[None] < torch.tensor(LENGTHS)[:, None]).long()
    with torch.no_grad():
        reference = hf(input_ids=IDS, attention_mask=mask, output_hidden_states=True)
        said = hf.get_output_embeddings()(model.backbone(IDS)).float()
    torch.testing.assert_close(own(logits), own(reference.logits), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(own(blocks[0].layer_output), own(reference.hidden_states[1]), rtol=1e-4, atol=1e-4)
    lens = model.scores(blocks[1].layer_output, projection="lens")
    torch.testing.assert_close(own(lens), own(reference.logits), rtol=1e-4, atol=1e-4)
    assert (said.argmax(-1) == logits.argmax(-1)).all()
    stack = max((m for m in hf.modules() if isinstance(m, torch.nn.ModuleList)), key=len)
    for layer, block in blocks.items():
        ffn, up, values = model.layer(layer).ffn, model.up_keys(layer), model.values(layer)
        expected = known.coefficients(stack[layer], block.ffn_input)
        torch.testing.assert_close(block.coefficients, expected, rtol=1e-4, atol=1e-5)
        summed, bias = block.coefficients @ values, ffn.down.bias()
        torch.testing.assert_close(block.ffn_output, summed if bias is None else summed + bias, rtol=1e-4, atol=1e-4)
        assert model.keys(layer).shape == values.shape == (known.memories, 16)
        assert (None if up is None else up.shape) == ((known.memories, 16) if model.gated else None)
        for keys in (ffn.gate, ffn.up):
            assert keys is None or keys.bias() is None or keys.bias().shape == (known.memories,)
        assert not model.keys(layer).requires_grad
        folded = model.folded_values(layer)
        torch.testing.assert_close(folded @ model.head().T, model.scores(values, projection="gain", layer=layer))
        assert folded.dtype == model.head().dtype == torch.float32


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


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("mobilebert", "four feed-forward layers"),
        ("flaubert", "no module of it is a block"),
        ("zamba2", "share one block"),
    ],
)
def test_a_type_that_is_not_read_is_refused_with_its_reason(kind, why):
    with pytest.raises(ModelUnsupported, match=f"models of type '{kind}' are not read: .*{why}"):
        check_supported(SimpleNamespace(model_type=kind))
