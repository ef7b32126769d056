"""How the attention pass cuts prefixes into forwards, and what it leaves open, on tables written by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from mining.conftest import tiny_model
from mnemoscope.foundation.budget import Budget
from mnemoscope.foundation.mining_options import MiningOptions
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.passes.attention import AttentionPass
from mnemoscope.mining.passes.prefix_pass import cut_prefixes
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.steps import RunContext, join_pieces, run_piece

SENTENCES = [[5, 1, 9, 30], [7, 2, 200], [8, 8]]
PREFIXES = {
    "prefix": [0, 1, 2], "sentence": [0, 1, 2], "position": [2, 0, 1], "final_top": [4, 11, 3],
    "next_token": [30, 2, 8],
}  # fmt: skip


def asked_of(name: str, folder: Path) -> tuple[Any, AttentionPass]:
    """A tiny model of transformers, and all that the pass answers of it, for the prefixes of those sentences."""
    model = tiny_model(name)
    (folder / "sentences").mkdir()
    pl.DataFrame({"sentence": [0, 1, 2], "tokens": SENTENCES}).write_parquet(folder / "sentences/part-000.parquet")
    pl.DataFrame(PREFIXES).write_parquet(folder / "prefixes.parquet")
    plan = MiningPlan.derive(MiningOptions(batch_tokens=8), model, corpus="by hand", validation=None)
    asked = AttentionPass(MiningRun(RunContext(folder), model, plan))
    run_piece(RunContext(folder), asked.steps)
    join_pieces(RunContext(folder), asked.steps)
    return model.anatomy.model, asked


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox"])
def test_only_in_a_parallel_block_the_stream_is_read_with_the_feed_forward_layer_alone(
    name: str, tmp_path: Path
) -> None:
    hf, asked = asked_of(name, tmp_path)
    columns = asked.columns()
    assert columns["prefix"].tolist() == [0, 0, 1, 1, 2, 2]
    assert columns["layer"].tolist() == [0, 1, 0, 1, 0, 1]
    others = columns["other_top"].reshape(3, 2)
    assert sorted(others[:, 0]) == [3, 4, 11]
    assert (others[:, 0] == others[:, 1]).all()
    assert (others[:, 0] != [4, 11, 3]).all(), "another prefix's"
    following = columns["other_next_token"].reshape(3, 2)[:, 0]
    # Of the same prefix as its final token.
    assert [{4: 30, 11: 2, 3: 8}[int(final)] for final in others[:, 0]] == following.tolist()
    assert not np.ma.getmaskarray(columns["attended"]).any()
    assert np.ma.getmaskarray(columns["ffn_alone_top"]).all() == (name == "gpt2")
    if name == "gpt2":
        return
    layers, seen = hf.gpt_neox.layers, {}
    for layer, block in enumerate(layers):
        block.register_forward_pre_hook(lambda _, given, layer=layer: seen.update({layer: given[0][0, -1]}))
        block.mlp.register_forward_hook(lambda _, given, made, layer=layer: seen.update({-1 - layer: made[0, -1]}))
    for prefix, (sentence, position) in enumerate(zip(PREFIXES["sentence"], PREFIXES["position"], strict=True)):
        hf(input_ids=torch.tensor([[0, *SENTENCES[sentence][: position + 1]]]))
        for layer in (0, 1):
            stream = hf.gpt_neox.final_layer_norm(seen[layer] + seen[-1 - layer])
            assert columns["ffn_alone_top"][2 * prefix + layer] == int(hf.lm_head(stream).argmax())


def test_prefixes_share_a_forward_within_a_batch_128_rows_and_4_million_weights() -> None:
    def cut(lengths: list[int], area: int) -> list[int]:
        found = cut_prefixes(np.array(lengths), area=area, weights=Budget().weights)
        assert [place for one in found for place in range(one.start, one.stop)] == list(range(len(lengths)))
        return [one.stop - one.start for one in found]

    assert cut([10] * 300, 10**6) == [128, 128, 44]
    assert cut([10] * 5, 20) == [2, 2, 1]
    assert cut([1_000] * 6, 10**6) == [3, 3]  # 6 million weights of one head
    assert cut([2_048] * 3, 10**6) == [1, 1, 1]  # one alone is 4 * 2**20
    assert cut([5_000, 5_000], 10**6) == [1, 1]  # no prefix is cut
