"""The table `attention` against a slow reference of each kind of block, and what must not change because of it."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from mining.conftest import END, ENDS, byte_tokenizer, tiny_model
from mining.slow_attention import SlowAttention
from mnemoscope.atlas import open_atlas
from mnemoscope.errors import NotFinite
from mnemoscope.foundation.budget import BUDGET
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.mining import mine
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.passes.attention import AttentionPass
from mnemoscope.mining.passes.prefix_pass import cut_prefixes
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.steps import RunContext, join_pieces, run_piece
from mnemoscope.models import load_model
from mnemoscope.models.forward.attention import eager_attention, find_attention
from models.conftest import build
from models.expert_models import build_mixture
from models.uncommon_models import build_uncommon

OPTIONS: dict[str, Any] = {"split": "line", "triggers": 3, "removals": 0, "neighbours": 0, "prefixes": 8}
KINDS = ("gpt2", "gpt_neox", "opt-350m", "gemma2", "bloom", "cohere", "granite", "mixtral", "olmo2", "falcon")


def build_any(name: str) -> Any:
    return build_mixture(name) if name == "mixtral" else build(name)


def near(found: float, expected: float, size: float) -> bool:
    """Within 1e-4 of the size, float32 against float64."""
    return abs(found - expected) <= 1e-4 * max(1.0, abs(size))


@pytest.mark.fast(1, full=5)
@pytest.mark.parametrize("name", KINDS)
def test_every_row_is_the_slow_models(name: str, text: Path, tmp_path: Path) -> None:
    hf, tokenizer = build_any(name), byte_tokenizer(**ENDS)
    out = mine(load_model(hf, tokenizer=tokenizer), text, out=tmp_path / "atlas", **OPTIONS)
    slow = SlowAttention(hf, beginning=0)
    prefixes = pl.read_parquet(out / "prefixes.parquet")
    rows = pl.read_parquet(out / "attention.parquet")
    tokens = dict(pl.read_parquet(out / "sentences/*.parquet").select("sentence", "tokens").iter_rows())
    assert rows.height == prefixes.height * len(slow.blocks) > 0
    head = slow.hf.get_output_embeddings()
    bias = torch.zeros(len(head.weight)) if head.bias is None else head.bias
    for prefix in prefixes.iter_rows(named=True):
        own = rows.filter(pl.col("prefix") == prefix["prefix"]).rows(named=True)
        blocks, final, logits = slow.read(tokens[prefix["sentence"]][: prefix["position"] + 1])
        logits, top, other = slow.own_logits(logits), prefix["final_top"], own[0]["other_top"]
        split = {
            "": slow.parts(blocks, final, head.weight[top], float(bias[top])),
            "_mean": slow.parts(blocks, final, head.weight.mean(0), float(bias.mean())),
            "_other": slow.parts(blocks, final, head.weight[other], float(bias[other])),
        }
        for kind, token in (("_next", prefix["next_token"]), ("_other_next", own[0]["other_next_token"])):
            parts = slow.parts(blocks, final, head.weight[token], float(bias[token]))
            for part in ("attention", "ffn"):
                for layer, row in enumerate(own):
                    assert near(row[f"{part}_logit{kind}"], parts[part][layer], max(map(abs, parts[part])))
        whole = {"": float(logits[top]), "_mean": float(logits.mean()), "_other": float(logits[other])}
        for layer, row in enumerate(own):
            block = blocks[layer]
            for kind, parts in split.items():
                for part in ("attention", "ffn"):
                    size = max(map(abs, parts[part]))
                    assert near(row[f"{part}_logit{kind}"], parts[part][layer], size), (layer, part, kind)
                assert near(row[f"embedding_logit{kind}"], parts["embedding"], parts["embedding"])
                assert near(row[f"bias_logit{kind}"], parts["bias"], parts["bias"])
                assert near(row[f"final_logit{kind}"], whole[kind], whole[kind])
                assert near(row[f"rest_logit{kind}"], 0.0, whole[kind])
                total = sum(each[f"{part}_logit{kind}"] for each in own for part in ("attention", "ffn"))
                total += sum(row[f"{part}_logit{kind}"] for part in ("embedding", "rest", "bias"))
                parted = [abs(each[f"{part}_logit{kind}"]) for each in own for part in ("attention", "ffn")]
                assert abs(total - row[f"final_logit{kind}"]) <= 1e-4 * max(abs(whole[kind]), *parted)
            assert near(row["attention_norm"], float(block.attention.norm()), 1)
            assert near(row["ffn_norm"], float(block.update.norm()), float(block.update.norm()))
            assert near(row["attended"], block.attended, block.attended)
            is_top(slow, row["input_top"], block.before)
            is_top(slow, row["attention_top"], block.attention)
            if name in ("gpt_neox", "cohere", "falcon"):
                is_top(slow, row["ffn_alone_top"], block.before + block.update)
            else:
                assert row["ffn_alone_top"] is None


def is_top(slow: SlowAttention, token: int, stream: torch.Tensor) -> None:
    """A token is on top of a stream, or within rounding of it."""
    scores = slow.uncapped(stream)
    assert float(scores.max() - scores[token]) <= 1e-4 * max(1.0, float(scores.abs().max()))


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["recurrent_gemma", "rwkv"])
def test_blocks_without_attention_are_null_and_what_they_add_is_the_rest(name: str, text: Path, tmp_path: Path) -> None:
    model = load_model(build_uncommon(name), tokenizer=byte_tokenizer(bos_token=END))
    out = mine(model, text, out=tmp_path / "atlas", **OPTIONS)
    rows = pl.read_parquet(out / "attention.parquet")
    there = {layer for layer, found in enumerate(find_attention(model)) if found.separable}
    assert there == ({2} if name == "recurrent_gemma" else set())
    null = rows.filter(pl.col("attention_logit").is_null())
    assert set(null["layer"]) == set(range(model.sizes.layers)) - there
    for column in ("attention_top", "attention_norm", "attended", "attention_logit_mean"):
        assert null[column].null_count() == null.height
    assert_adds_up(rows)
    assert rows["rest_logit"].abs().max() > 1e-3


@pytest.mark.parametrize("name", ["gemma4", "gemma4 small"])
def test_a_block_that_multiplies_its_stream_hands_that_on_to_every_part(name: str, text: Path, tmp_path: Path) -> None:
    model = load_model(build_uncommon(name), tokenizer=byte_tokenizer(bos_token=END))
    out = mine(model, text, out=tmp_path / "atlas", **OPTIONS)
    rows = pl.read_parquet(out / "attention.parquet")
    assert rows["attention_logit"].null_count() == 0
    assert_adds_up(rows)
    left = float((rows["rest_logit"].abs() / rows["final_logit"].abs().clip(1.0)).max())
    assert left > 1e-3 if name == "gemma4 small" else left < 1e-5, "what a block adds behind its layer is the rest"


def test_some_layers_alone_leave_the_others_to_the_rest(text: Path, tmp_path: Path) -> None:
    out = mine(tiny_model("llama"), text, out=tmp_path / "atlas", layers="1", **OPTIONS)
    rows = pl.read_parquet(out / "attention.parquet")
    assert set(rows["layer"]) == {1}
    assert rows["rest_logit"].abs().min() > 0
    assert_adds_up(rows)


def assert_adds_up(rows: pl.DataFrame) -> None:
    parts = pl.col("attention_logit").fill_null(0).cast(pl.Float64) + pl.col("ffn_logit")
    once = ("embedding_logit", "rest_logit", "bias_logit", "final_logit")
    found = rows.group_by("prefix").agg(parts.sum().alias("layers"), *(pl.col(name).first() for name in once))
    total = found["layers"] + sum(found[name] for name in once[:3])
    assert ((total - found["final_logit"]).abs() <= 1e-4 * found["final_logit"].abs().clip(1.0)).all()


def test_the_attention_kernel_is_put_back_also_after_an_exception() -> None:
    model = tiny_model("gpt2")
    config = model.anatomy.model.config
    assert model.attention == "sdpa"
    seen = []

    def fail() -> None:
        with eager_attention(model):
            seen.append(config._attn_implementation)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (seen, model.attention) == (["eager"], "sdpa")


def test_a_number_that_is_none_is_refused(text: Path, tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    out = mine(model, text, out=tmp_path / "atlas", **OPTIONS)
    plan = MiningPlan.from_document(open_atlas(out).manifest.plan, out)
    asked = AttentionPass(MiningRun(RunContext(out), model, plan))
    model.anatomy.layers[1].block.attn.c_proj.weight[0, 0] = float("nan")
    model.usage = None  # nobody sees that it was changed
    with eager_attention(model), pytest.raises(NotFinite, match="NaN or infinite"):
        asked.steps.take(0)


def test_each_prefix_is_dealt_the_final_and_the_next_token_of_another(tmp_path: Path) -> None:
    """On tables written by hand."""
    prefixes = {"prefix": [0, 1, 2], "sentence": [0, 1, 2], "position": [2, 0, 1]}
    prefixes |= {"final_top": [4, 11, 3], "next_token": [30, 2, 8]}
    (tmp_path / "sentences").mkdir()
    sentences = {"sentence": [0, 1, 2], "tokens": [[5, 1, 9, 30], [7, 2, 200], [8, 8]]}
    pl.DataFrame(sentences).write_parquet(tmp_path / "sentences/part-000.parquet")
    pl.DataFrame(prefixes).write_parquet(tmp_path / "prefixes.parquet")
    model = tiny_model("gpt2")
    plan = MiningPlan.derive(MiningOptions(batch_tokens=8), model, corpus="by hand", validation=None)
    asked = AttentionPass(MiningRun(RunContext(tmp_path), model, plan))
    run_piece(RunContext(tmp_path), asked.steps, 0)
    join_pieces(RunContext(tmp_path), asked.steps)
    columns = asked.columns()
    assert columns["prefix"].tolist() == [0, 0, 1, 1, 2, 2]
    assert columns["layer"].tolist() == [0, 1, 0, 1, 0, 1]
    others, following = (columns[name].reshape(3, 2) for name in ("other_top", "other_next_token"))
    assert sorted(others[:, 0]) == [3, 4, 11]
    assert (others[:, 0] == others[:, 1]).all()
    assert (others[:, 0] != [4, 11, 3]).all()
    assert [{4: 30, 11: 2, 3: 8}[int(final)] for final in others[:, 0]] == following[:, 0].tolist()


def test_prefixes_share_a_forward_within_a_batch_128_rows_and_4_million_weights() -> None:
    def cut(lengths: list[int], area: int) -> list[int]:
        found = cut_prefixes(np.array(lengths), area=area, weights=BUDGET.weights)
        assert [place for one in found for place in range(one.start, one.stop)] == list(range(len(lengths)))
        return [one.stop - one.start for one in found]

    assert cut([10] * 300, 10**6) == [128, 128, 44]
    assert cut([10] * 5, 20) == [2, 2, 1]
    assert cut([1_000] * 6, 10**6) == [3, 3]  # 6 million weights of one head
    assert cut([2_048] * 3, 10**6) == [1, 1, 1]  # one alone is 4 * 2**20
    assert cut([5_000, 5_000], 10**6) == [1, 1]  # no prefix is cut
