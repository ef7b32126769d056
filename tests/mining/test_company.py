"""Atlases of models that read a long row otherwise: every number is that of its row, run alone through the model."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as pieces
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import mnemoscope as ms
from mnemoscope.auditing.likelihoods import likelihoods
from mnemoscope.cli.mined import OTHER_FUNCTION, summarise
from mnemoscope.errors import ModelUnsupported
from mnemoscope.mining import mine
from mnemoscope.mining.lenses.lens_pass import LensText
from mnemoscope.models import LanguageModel, load_model
from models.conftest import build
from models.test_company import SIZES, Windowed, longrope, loud

BOUNDARY = 16
WORDS = [f"{first}{second}" for first in "bdfgklmnprstvz" for second in "aeiou"]
Network = Any


def read_with(network: Network) -> LanguageModel:
    vocabulary = {"<s>": 0, "<unk>": 1, **{word: 2 + number for number, word in enumerate(WORDS)}}
    plain = Tokenizer(pieces.WordLevel(vocabulary, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", unk_token="<unk>")
    return load_model(network, tokenizer=words)


def write_text(folder: Path, *lengths: int, lines: int = 40, seed: int = 7) -> Path:
    chance = random.Random(seed)
    path = folder / f"text-{seed}.txt"
    path.write_text("".join(" ".join(chance.choices(WORDS, k=chance.choice(lengths))) + "\n" for _ in range(lines)))
    return path


@torch.no_grad()
def alone(network: Network, tokens: list[int]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The coefficients `[position, memory]` of every layer, and the logits, of one row after the beginning token."""
    seen: list[torch.Tensor] = []
    hooks = [
        layer.mlp.down_proj.register_forward_pre_hook(lambda _, given: seen.append(given[0][0, 1:].clone()))
        for layer in network.model.layers
    ]
    logits = network(input_ids=torch.tensor([[0, *tokens]])).logits[0, 1:]
    for hook in hooks:
        hook.remove()
    return seen, logits


def near(found: float, expected: float, size: float = 1.0) -> bool:
    return abs(found - expected) <= 1e-4 * max(1.0, abs(expected), size)


def dynamic() -> Network:
    turned = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    return loud(LlamaForCausalLM(LlamaConfig(**SIZES | {"max_position_embeddings": 23}, rope_parameters=turned)))


@pytest.fixture(scope="module", params=[longrope, dynamic])
def mined(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Any, Path]:
    """A network, it as a model, and its atlas, of rows on both sides of the boundary, at it and one behind it."""
    folder, network = tmp_path_factory.mktemp("company"), request.param()
    model = read_with(network)
    options: dict[str, Any] = {"split": "line", "triggers": 6, "prefixes": 30, "removals": "all", "neighbours": 0}
    options["validation"] = write_text(folder, 12, 15, 16, 17, 22, seed=8)
    out = mine(model, write_text(folder, 4, 13, 14, 15, 16, 17), out=folder / "atlas", **options)
    return network, model, out


def tokens_of(out: Path) -> dict[int, list[int]]:
    return dict(pl.read_parquet(out / "sentences/*.parquet").select("sentence", "tokens").iter_rows())


def test_triggers_are_those_of_the_sentence_read_alone(mined: tuple[Network, Any, Path]) -> None:
    network, _, out = mined
    known = {sentence: alone(network, tokens)[0] for sentence, tokens in tokens_of(out).items()}
    for layer in range(2):
        rows = pl.read_parquet(out / f"triggers/layer-{layer:03d}.parquet")
        assert rows.height > 500
        for row in rows.iter_rows(named=True):
            expected = float(known[row["sentence"]][layer][row["position"], row["memory"]])
            assert near(row["coefficient"], expected), row


@pytest.mark.full
def test_removals_are_those_of_the_prefix_without_the_token_read_alone(mined: tuple[Network, Any, Path]) -> None:
    network, _, out = mined
    tokens, known, changed = tokens_of(out), dict[tuple[int, ...], list[torch.Tensor]](), 0
    places = {
        (layer, memory, rank): sentence
        for layer in range(2)
        for memory, rank, sentence in pl.read_parquet(out / f"triggers/layer-{layer:03d}.parquet")
        .filter(pl.col("sign") == 1)
        .select("memory", "rank", "sentence")
        .iter_rows()
    }
    rows = pl.read_parquet(out / "removals.parquet")
    assert rows.height > 1000
    for row in rows.iter_rows(named=True):
        sentence = tokens[places[row["layer"], row["memory"], row["trigger_rank"]]]
        whole = sentence[: row["position"] + 1]
        left = (*whole[: row["removed_position"]], *whole[row["removed_position"] + 1 :])
        if left not in known:
            known[left] = alone(network, list(left))[0]
        at = row["layer"], row["position"] - 1, row["memory"]
        assert near(row["removed_coefficient"], float(known[left][at[0]][at[1], at[2]])), row
        changed += len(sentence) + 1 > BOUNDARY >= len(left) + 1
    assert changed > 50, "rows that come to lie on the other side"


def test_predictions_and_attention_are_those_of_the_prefix_read_alone(mined: tuple[Network, Any, Path]) -> None:
    network, model, out = mined
    tokens, attention = tokens_of(out), pl.read_parquet(out / "attention.parquet")
    prefixes = pl.read_parquet(out / "prefixes.parquet")
    longest = int(prefixes["position"].max()) + 2  # type: ignore[arg-type]
    assert longest > BOUNDARY
    for row in prefixes.iter_rows(named=True):
        _, logits = alone(network, tokens[row["sentence"]][: row["position"] + 1])
        assert near(float(logits[-1, row["final_top"]]), float(logits[-1].max()))
        own = attention.filter(pl.col("prefix") == row["prefix"])
        assert own["attended"].null_count() == 0
        found = own["final_logit"].to_list()
        assert all(near(each, float(logits[-1, row["final_top"]])) for each in found)
        parts = float(own.select(pl.col("attention_logit").sum() + pl.col("ffn_logit").sum()).item())
        once = own.select("embedding_logit", "rest_logit", "bias_logit").row(0)
        assert near(parts + sum(once), found[0], 5.0)
    assert model.eager


def test_the_trace_is_that_of_its_prompt_alone(mined: tuple[Network, Any, Path]) -> None:
    """A trigger's coefficient where the prompt is the whole sentence; a prompt cut short is a shorter row."""
    network, model, out = mined
    texts = pl.read_parquet(out / "sentences/*.parquet").filter(pl.col("tokens").list.len() == BOUNDARY + 1)
    for text, tokens in texts.head(2).select("text", "tokens").iter_rows():
        for length in (len(tokens), 10):
            own, logits = alone(network, tokens[:length])
            found = ms.trace(model, " ".join(text.split()[:length]), memories=3)
            for layer, position in ((0, 9), (1, length - 1)):
                for one in found.places[layer][position].memories:
                    assert near(one.coefficient, float(own[layer][position, one.memory.memory]))
            assert found.logits[-1].logit == pytest.approx(float(logits[-1].max()), rel=1e-4, abs=1e-4)


@pytest.mark.fast(1)
def test_width_and_lenses_read_every_sentence_as_alone(mined: tuple[Network, Any, Path]) -> None:
    network, model, out = mined
    ms.extend(out, model, ["width"])
    rows = pl.read_parquet(out / "width.parquet").filter(pl.col("kind") == "whole")
    tokens, total, count = tokens_of(out), 0.0, 0
    for row in pl.read_parquet(out / "prefixes.parquet").iter_rows(named=True):
        words = tokens[row["sentence"]]
        scores = alone(network, words)[1][:-1].log_softmax(-1)
        total -= float(scores.gather(1, torch.tensor(words[1:])[:, None]).sum())
        count += len(words) - 1
    assert int(rows["tokens"].sum()) == count
    assert float(rows["loss"].sum()) == pytest.approx(total, rel=1e-4)
    edges = [BOUNDARY - 1]
    batches = LensText(out, area=400, seed=0, most=10**6, boundaries=edges).batches
    assert {len(set(np.searchsorted(edges, [len(row) for row in batch.rows]))) for batch in batches} == {1}
    mixed = LensText(out, area=400, seed=0, most=10**6).batches
    assert max(len(set(np.searchsorted(edges, [len(row) for row in batch.rows]))) for batch in mixed) == 2


def test_likelihoods_of_texts_are_those_of_each_alone(mined: tuple[Network, Any, Path]) -> None:
    network, model, out = mined
    texts = list(tokens_of(out).values())[:12]
    assert {len(text) + 1 > BOUNDARY for text in texts} == {True, False}
    for text, found in zip(texts, likelihoods(model, texts), strict=True):
        scores = torch.cat([alone(network, text)[1]]).log_softmax(-1)
        expected = scores[:-1].gather(1, torch.tensor(text[1:])[:, None])[:, 0]
        assert found.log_probability[1:].tolist() == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-4)


def test_attention_that_is_another_function_loses_its_weights_and_no_run(tmp_path: Path, capsys: Any) -> None:
    for name, network in (("alibi", loud(build("falcon-rw"))), ("refusing", refusing())):
        text = write_text(tmp_path, 3, 5, 9)
        out = mine(read_with(network), text, out=tmp_path / name, split="line", removals=0, neighbours=0, triggers=3)
        summarise(out, json=False)
        assert [line for line in capsys.readouterr().err.splitlines() if OTHER_FUNCTION in line] != []
        rows, tokens = pl.read_parquet(out / "attention.parquet"), tokens_of(out)
        assert rows["attended"].null_count() == rows.height > 0
        assert rows["attention_logit"].null_count() == (0 if name == "alibi" else rows.height)
        for row in pl.read_parquet(out / "prefixes.parquet").iter_rows(named=True):
            ids = torch.tensor([[0, *tokens[row["sentence"]][: row["position"] + 1]]])
            expected = float(network(input_ids=ids).logits[0, -1, row["final_top"]])
            assert near(rows.filter(pl.col("prefix") == row["prefix"])["final_logit"][0], expected)


def refusing() -> Network:
    """A network whose attention cannot be computed as plain matrix products."""
    network = build("llama")

    def check(*_: Any) -> None:
        if network.config._attn_implementation == "eager":
            raise RuntimeError("The size of tensor a (4) must match the size of tensor b (2)")

    network.model.layers[0].self_attn.register_forward_pre_hook(check)
    return network


def test_a_text_with_rows_beyond_what_company_changes_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    class Unmade(Windowed):
        def __init__(self, config: Any, more: int) -> None:
            super().__init__(config)

    model = read_with(loud(Unmade(LlamaConfig(**SIZES, sliding_window=20), 1)))
    options: dict[str, Any] = {"split": "line", "triggers": 2, "removals": 0, "neighbours": 0, "prefixes": 4}
    mine(model, write_text(tmp_path, 5, 19), out=tmp_path / "short", **options)
    with pytest.raises(ModelUnsupported, match="where one is longer than 20 tokens"):
        mine(model, write_text(tmp_path, 5, 20, seed=9), out=tmp_path / "long", **options)
    assert not (tmp_path / "long" / "manifest.json").exists()
