"""Who wrote the prediction, on a trace: every part and every attended token against the slow reference."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mining.conftest import byte_tokenizer, tiny_model
from mining.slow_attention import SlowAttention
from mnemoscope.foundation.reading import Reading
from mnemoscope.models import load_model
from mnemoscope.tracing import Token, trace
from mnemoscope.tracing.logit_sums import AttendedToken, most_attended
from models.checkpoints import KINDS, args_of, edges_of, weights_of, write
from models.conftest import build
from models.uncommon_models import build_uncommon

PROMPT = "the cat sat on"


@pytest.mark.parametrize("name", ["gpt2", "gptj", "olmo2", "opt-350m", "gemma2"])
def test_every_sum_is_the_slow_models(name: str) -> None:
    hf, tokenizer = build(name), byte_tokenizer(bos_token="<|endoftext|>")
    model = load_model(hf, tokenizer=tokenizer)
    found = trace(model, PROMPT).to_dict()
    slow = SlowAttention(hf, beginning=0)
    tokens = tokenizer.encode(PROMPT)
    head = slow.hf.get_output_embeddings()
    bias = torch.zeros(len(head.weight)) if head.bias is None else head.bias
    for j, written in enumerate(found["logits"]):
        blocks, final, logits = slow.read(tokens[: j + 1])
        logits = slow.own_logits(logits)
        top = found["positions"][j]["prediction"][0]["id"]
        own = slow.parts(blocks, final, head.weight[top], float(bias[top]))
        mean = slow.parts(blocks, final, head.weight.mean(0), float(bias.mean()))
        near(written["logit"], float(logits[top]))
        near(written["logit_above_mean"], float(logits[top] - logits.mean()))
        for part in ("embedding", "bias"):
            near(written[part], own[part])
            near(written[f"{part}_above_mean"], own[part] - mean[part])
        for layer, row in enumerate(written["layers"]):
            for part in ("attention", "ffn"):
                near(row[part], own[part][layer])
                near(row[f"{part}_above_mean"], own[part][layer] - mean[part][layer])
            near(row["attended_positions"], blocks[layer].attended)
            check_attended(row["attended"], blocks[layer].rows, [0, *tokens])
    assert written["position"] == len(tokens) - 1


def near(found: float, expected: float) -> None:
    assert abs(found - expected) <= 1e-4 * max(1.0, abs(expected))


def check_attended(found: list[dict[str, Any]], rows: torch.Tensor, read: list[int]) -> None:
    """The five that get most, mean over heads; position counts the prompt's own tokens."""
    shares = rows.mean(0).tolist()
    order = sorted(range(len(shares)), key=lambda at: (-shares[at], at))[:5]
    assert len(found) == min(5, len(shares))
    for one, at in zip(found, order, strict=True):
        near(one["weight"], shares[at])
        place = 0 if one["position"] is None else one["position"] + 1
        assert one["id"] == read[place]
        near(shares[place], shares[at])


def test_the_most_attended_tokens_by_eye() -> None:
    """Of equal ones the earlier; nothing that gets nothing; the beginning token has no position."""
    model: Any = SimpleNamespace(reading=Reading((0,)), vocabulary=lambda: (["<s>", "a", "b"], []))
    weights = torch.tensor([[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], [[0.25, 0.25, 0.5], [0.25, 0.25, 0.5]]])
    start, a, b = Token(0, "<s>"), Token(1, "a"), Token(2, "b")
    assert most_attended(model, [1, 2], weights) == [
        (AttendedToken(start, None, 0.75), AttendedToken(a, 0, 0.25)),
        (AttendedToken(b, 1, 0.5), AttendedToken(start, None, 0.25), AttendedToken(a, 0, 0.25)),
    ]
    model.reading = Reading()
    (found,) = most_attended(model, [1] * 7, torch.full((1, 2, 7), 1 / 7))
    assert [one.position for one in found] == [0, 1, 2, 3, 4]


def test_a_change_of_a_memory_is_in_the_sum() -> None:
    model = tiny_model("gpt2-relu")
    before, after = (trace(model, PROMPT, interventions=changes) for changes in (None, ["L0.M3=50"]))
    assert before.logits[-1].layers[0].ffn != after.logits[-1].layers[0].ffn
    for found in (before, after):
        for one in found.logits:
            parts = sum((part.attention or 0.0) + part.ffn for part in one.layers)
            near(parts + one.embedding + one.bias + one.rest, one.logit)
    assert model.attention == "sdpa"


def test_a_block_without_attention_has_none_to_show() -> None:
    model = load_model(build_uncommon("recurrent_gemma"), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    found = trace(model, PROMPT)
    first, *_, last = found.logits[-1].layers
    assert (first.attention, first.attended, first.attended_positions) == (None, (), None)
    assert last.attention is not None
    assert last.attended
    assert "Who wrote" in found.text()


def test_under_an_adaptive_softmax_the_parts_add_up_to_the_two_scores(tmp_path: Any) -> None:
    model = load_model(write(tmp_path / "model", args_of(KINDS["tied"]), weights_of(KINDS["tied"])))
    found = trace(model, "a b a")
    for one in found.logits:
        parts = sum((part.attention or 0.0) + part.ffn for part in one.layers)
        near(parts + one.embedding + one.bias + one.rest, one.logit)
        assert all(part.attention is not None and part.attended for part in one.layers)
    # What is normalised in two levels: the difference of two words of one band is that of their log-probabilities.
    head = model.scorer()
    hidden = torch.randn(1, model.sizes.hidden if model.anatomy.project is None else model.anatomy.project.out_features)
    rows = head.vectors_of(torch.arange(model.sizes.vocabulary))
    scores, plain = head.scores(hidden)[0].double(), rows @ hidden[0].double()
    torch.testing.assert_close(head.mean_vector(), rows.mean(0))
    assert KINDS["tied"].softmax_cutoffs is not None
    for start, end in pairwise([0, *edges_of(KINDS["tied"].softmax_cutoffs)]):
        band, own = scores[start:end] - scores[start], plain[start:end] - plain[start]
        torch.testing.assert_close(band, own, atol=1e-4, rtol=1e-4)
