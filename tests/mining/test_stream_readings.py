"""Readings off shared products == readings off the model's own scores of each stream."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mining.conftest import byte_tokenizer, tiny_model
from mnemoscope.foundation.budget import Budget
from mnemoscope.mining.passes import stream_readings
from mnemoscope.mining.passes.stream_readings import StreamReader, Streams
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.forward.hooks import Block, read_blocks, read_final
from mnemoscope.models.readout import shared_readout
from mnemoscope.models.readout.shared_readout import SharedReadout
from mnemoscope.tracing.scoring.scores import folded_updates
from models.conftest import build

IDS = torch.tensor([[5, 1, 8, 3, 11, 2], [7, 4, 0, 9, 6, 10]])


def streams_of(model: LanguageModel) -> tuple[dict[int, Streams], Tensor]:
    """Every layer's streams at all places of a small batch, and the final one."""
    found: dict[int, Streams] = {}
    final: list[Tensor] = []

    def keep(layer: int, block: Block) -> None:
        streams = (block.residual, block.ffn_update, block.layer_output, block.ffn_output)
        found[layer] = Streams(*(s.flatten(0, 1).clone() for s in streams))

    with torch.inference_mode(), read_blocks(model, keep), read_final(model, lambda s: final.append(s.flatten(0, 1))):
        model.backbone(IDS)
    return found, final[0]


def rank(scores: Tensor, token: int) -> set[int]:
    """The ranks that rounding allows."""
    own, near = scores[token], 1e-5 * max(1.0, float(scores.abs().max()))
    return set(range(int((scores > own + near).sum()), int((scores >= own - near).sum())))


def assert_readings(model: LanguageModel, reader: StreamReader) -> None:
    """Every reading, against scores of one stream at one place."""
    streams, last = streams_of(model)
    with torch.inference_mode():
        finals = reader.lens_tops(last)
        found = reader.read(streams, finals)
    assert list(found) == list(streams)
    for row, token in enumerate(finals.tolist()):
        assert 0 in rank(model.scores(last[row : row + 1], projection="lens")[0], token)
    for layer, own in streams.items():
        for row in range(len(last)):
            here = (stream[row : row + 1] for stream in (own.residual, own.update, own.output))
            lens = [model.scores(stream, projection="lens")[0] for stream in here]
            with torch.inference_mode():
                votes = model.scorer().scores(folded_updates(model, layer, own.update[row : row + 1]))[0]
            here = {name: column[row].item() for name, column in found[layer].items()}
            final = int(finals[row])
            for name, scores in zip(("residual_top", "ffn_top", "output_top"), lens, strict=True):
                assert 0 in rank(scores, int(here[name])), (layer, row, name)
            assert 0 in rank(votes, int(here["ffn_vote_top"]))
            assert here["output_top_residual_rank"] in rank(lens[0], int(here["output_top"]))
            assert here["residual_final_rank"] in rank(lens[0], final)
            assert here["ffn_final_rank"] in rank(lens[1], final)
            assert here["residual_top_ffn_rank"] in rank(lens[1], int(here["residual_top"]))
            expected = float(lens[0].double().softmax(0)[final])
            assert here["residual_final_probability"] == pytest.approx(expected, rel=1e-4)
    assert torch.equal(found[model.sizes.layers - 1]["output_top"], finals)


@pytest.mark.parametrize("name", ["gpt2", "opt-350m", "gemma2", "cohere"])
def test_readings_are_those_of_the_model_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off shared products, and off one product a stream; a post-norm block's output is a norm of the sum."""
    model = tiny_model(name)
    reader = StreamReader(model)
    assert reader.shared == (name != "opt-350m")
    assert_readings(model, reader)
    monkeypatch.setattr(SharedReadout, "of", lambda _: None)
    assert not StreamReader(model).shared
    assert_readings(model, StreamReader(model))


@pytest.mark.parametrize("scores", [1, 2 * 263 * 3, 1 << 20])
def test_however_few_scores_exist_at_one_time(scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(stream_scores=scores, in_cache=max(1, scores // 3))
    monkeypatch.setattr(stream_readings, "BUDGET", budget)
    for name in ("gpt2", "opt-350m"):
        model = tiny_model(name)
        assert_readings(model, StreamReader(model))


def test_a_readout_that_is_not_what_the_head_says_is_not_shared() -> None:
    """Nor is one in half precision, whose own scores are rounded on the way."""
    model = tiny_model("gpt2")
    assert SharedReadout.of(model) is not None
    head = model.anatomy.head

    def bend(_: Any, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return output + 0.01 * output.square()

    with head.register_forward_hook(bend):
        assert SharedReadout.of(model) is None
    assert SharedReadout.of(load_model(build("gpt2"), tokenizer=byte_tokenizer(), dtype="bfloat16")) is None


def test_streams_that_nearly_cancel_keep_their_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update takes away what the residual had too much of: what is left is a millionth of both."""
    model = tiny_model("gpt2")
    chance = torch.Generator().manual_seed(0)
    large, small = torch.randn(2, 40, model.sizes.hidden, generator=chance)
    large = large * torch.tensor([1e6, 3.0]).repeat(20)[:, None]
    streams = {0: Streams(large, small - large, large + (small - large), small - large)}
    with torch.inference_mode():
        expected = model.scores(streams[0].output, projection="lens").argmax(1)
        finals = torch.zeros(len(large), dtype=torch.int64)
        assert StreamReader(model).read(streams, finals)[0]["output_top"].equal(expected)
        monkeypatch.setattr(shared_readout, "CANCELS", 1e9)
        added_up = StreamReader(model).read(streams, finals)[0]["output_top"]
    assert added_up[::2].ne(expected[::2]).any()
