"""Which memory feeds which: against plain hooks on the network, one ablation at a time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor

import mnemoscope as ms
from attribution.test_attribute import tiny
from mining.conftest import byte_tokenizer
from mnemoscope.cli import main
from mnemoscope.errors import OptionError
from mnemoscope.models import load_model
from models.conftest import build
from models.expert_models import HandRead, build_mixture

PROMPT = "the cat sat on"
DOWN = {
    "gpt2": "transformer.h.{}.mlp.c_proj",
    "llama": "model.layers.{}.mlp.down_proj",
    "opt-350m": "model.decoder.layers.{}.fc2",
}
"""Where each tiny model's coefficients enter: a plain, a gated and a post-norm one."""
DEPTH = {"gpt2": {"n_layer": 3}}
LAYERS, LISTED = 3, 90
Place = tuple[int, int, int]
"""Layer, memory (through all experts) and position."""


def read_dense(network: Any, name: str, ids: Tensor, without: Place | None = None) -> list[Tensor]:
    """The inputs of the down-projections `[token, memory]` by layer, where one of them may be set to 0."""
    read: list[Tensor] = []
    removes = []
    for layer in range(LAYERS):

        def enter(_: Any, inputs: tuple[Tensor, ...], layer: int = layer) -> tuple[Tensor, ...]:
            entered = inputs[0].clone()
            if without is not None and without[0] == layer:
                entered.view(-1, entered.shape[-1])[without[2] + 1, without[1]] = 0.0
            read.append(entered.view(-1, entered.shape[-1]))
            return (entered,)

        removes.append(network.get_submodule(DOWN[name].format(layer)).register_forward_pre_hook(enter))
    with torch.no_grad():
        network(ids)
    for one in removes:
        one.remove()
    return read


def read_experts(network: Any, name: str, ids: Tensor, without: Place | None = None) -> list[Tensor]:
    """As `read_dense`, of a mixture: what a memory adds is taken from the output of its layer's experts."""
    hand = HandRead(network, name)
    if without is None:
        return hand.read(ids[0].tolist())[0]
    layer, memory, position = without
    removed = hand.read(ids[0].tolist())[0][layer][position + 1, memory] * hand.values(layer)[memory]

    def leave(_: Any, __: Any, output: Tensor) -> Tensor:
        changed = output.clone()
        changed.view(-1, changed.shape[-1])[position + 1] -= removed
        return changed

    with network.get_submodule(f"model.layers.{layer}.mlp.experts").register_forward_hook(leave):
        return hand.read(ids[0].tolist())[0]


def deep(name: str) -> Any:
    """Three layers: targets in the middle one count at every position."""
    changes = DEPTH.get(name, {"num_hidden_layers": LAYERS})
    return build(name, **changes) if name in DOWN else build_mixture(name, **changes)


def place_of(name: str, position: int) -> Place:
    """Of `L1.M3`, or `L1.E2.M3`, where each expert has 24 memories."""
    layer, *expert, memory = (int(part[1:]) for part in name.split("."))
    return layer, memory + 24 * sum(expert), position


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt-350m", "mixtral"])
def test_an_edge_is_what_one_ablation_changes_in_another_memory(name: str) -> None:
    model = load_model(deep(name), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    found = ms.attribute(model, PROMPT, singles=LISTED, top=LISTED, edges=10_000, progress=False)
    rows = found.memories.to_dicts()
    places = {(row["memory"], row["position"]): place_of(row["memory"], row["position"]) for row in rows}
    lost = {(row["memory"], row["position"]): row["ablation"] for row in rows}

    # Experts multiply in single precision alone.
    network = deep(name).double() if name in DOWN else deep(name)
    read = read_dense if name in DOWN else read_experts
    ids = torch.tensor([[*model.beginning.tokens, *model.encode([PROMPT])[0]]])
    before = read(network, name, ids)
    medians = [float(m[1:].abs().median()) for m in before]  # column 0 is the beginning token's
    expected: dict[tuple[Any, ...], tuple[float, float | None]] = {}
    for source, (layer, memory, position) in places.items():
        after = read(network, name, ids, (layer, memory, position))
        for target, (its_layer, its_memory, its_position) in places.items():
            if its_layer > layer and its_position >= position:
                own, left = (float(m[its_layer][its_position + 1, its_memory]) for m in (before, after))
                share = None if abs(own) < medians[its_layer] / 1000 else (own - left) / own
                expected[*source, *target] = own - left, share

    edges = {
        (row["source"], row["source_position"], row["target"], row["target_position"]): (row["change"], row["share"])
        for row in found.edges.to_dicts()
    }
    assert len(edges) == found.edges.height > 200
    assert any(source < target < found.position for _, source, _, target in edges)
    assert {one for one, (change, _) in expected.items() if abs(change) > 1e-5} <= edges.keys() <= expected.keys()
    for one, (change, share) in edges.items():
        assert change == pytest.approx(expected[one][0], rel=1e-3, abs=2e-5), one
        assert share == pytest.approx(expected[one][1], rel=1e-3, abs=1e-3), one

    # Those first that move F most: by the share of what the target's ablation does.
    moved = [abs(share * lost[one[2:]]) for one, (_, share) in edges.items() if share is not None]
    assert moved == sorted(moved, reverse=True)
    first = ms.attribute(model, PROMPT, singles=LISTED, top=LISTED, edges=7, progress=False)
    assert first.edges.equals(found.edges.head(7))


def test_a_coefficient_near_zero_has_no_share() -> None:
    network = build("llama")
    with torch.no_grad():
        network.model.layers[1].mlp.up_proj.weight[3] *= 1e-6
    model = load_model(network, tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    found = ms.attribute(model, PROMPT, singles=1_000, top=1_000, edges=100_000, progress=False)
    null = found.edges["share"].is_null()
    assert set(found.edges.filter(null)["target"]) == {"L1.M3"}
    assert found.edges.filter(~null).filter(pl.col("target") == "L1.M3").is_empty()
    assert null.to_list() == sorted(null.to_list())  # they come last
    assert [*found.to_dict()["edges"][-1]] == [
        *("source", "source_position", "target", "target_position", "change", "share")
    ]
    alone = replace(found, edges=found.edges.filter(null))
    assert str(alone).count("  -\n") == 10


def test_edges_cost_no_forward_and_change_nothing_else() -> None:
    model, forwards = tiny("gpt2"), []
    counting = model.anatomy.backbone.register_forward_pre_hook(lambda *_: forwards.append(1))
    results, counts = [], []
    ms.attribute(model, PROMPT, singles=1, progress=False)  # what is found once of a model
    for edges in (0, 1_000):
        forwards.clear()
        results.append(ms.attribute(model, PROMPT, singles=40, edges=edges, progress=False))
        counts.append(len(forwards))
    counting.remove()
    without, with_edges = results
    assert counts[0] == counts[1] > 0
    assert without.edges.is_empty()
    assert with_edges.edges.height > 100
    assert without.edges.schema == with_edges.edges.schema
    assert without.memories.equals(with_edges.memories)
    assert (without.curve, without.kept) == (with_edges.curve, with_edges.kept)
    assert "edges" not in str(without)
    assert "The first 10 of " in str(with_edges)


def test_both_ends_are_listed_and_ablated() -> None:
    found = ms.attribute(tiny("gpt2"), PROMPT, singles=30, top=12, progress=False)
    listed = set(found.memories.select("memory", "position").rows())
    ends = {*found.edges.select("source", "source_position").rows()} | {
        *found.edges.select("target", "target_position").rows()
    }
    assert ends <= listed
    assert len(ends) > 5
    by_direct = ms.attribute(tiny("gpt2"), PROMPT, singles=30, top=200, by="direct", progress=False)
    ablated = by_direct.memories.filter(pl.col("ablation").is_not_null())
    assert 0 < ablated.height < 200
    assert set(by_direct.edges["source"]) | set(by_direct.edges["target"]) <= set(ablated["memory"])
    for nothing in ({"singles": 0}, {"top": 0}, {"edges": 0}):
        assert ms.attribute(tiny("gpt2"), PROMPT, progress=False, **nothing).edges.is_empty()


def test_what_the_model_read_is_in_the_answer(tmp_path: Path) -> None:
    model = tiny("gpt2")
    found = ms.attribute(model, PROMPT, target="x", against="mean", singles=20, progress=False)
    ids = torch.tensor([[*model.beginning.tokens, *model.encode([PROMPT])[0]]])
    with torch.no_grad():
        shares = model.anatomy.model(ids).logits[0, -1].double().softmax(0)
    assert found.target_probability == pytest.approx(float(shares[found.target.id]), rel=1e-4)
    assert found.against_probability is None
    assert "".join(found.tokens[1:]) == PROMPT
    assert len(found.tokens) - 1 == found.position + model.reading.offset
    for row in found.memories.to_dicts():
        assert row["token"] == found.tokens[row["position"] + model.reading.offset]
    opened = ms.open_result(found.save(tmp_path / "result.json"))
    assert opened.edges.equals(found.edges)
    assert opened.to_dict() == found.to_dict()


def test_the_command_gives_the_same_edges(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["attribute", "builtin:pydocs", "Return a list of", "--singles", "16"]
    assert main([*words, "--edges", "5", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    found = ms.attribute("builtin:pydocs", "Return a list of", singles=16, edges=5, progress=False)
    assert said["edges"] == json.loads(json.dumps(found.to_dict()["edges"]))
    assert len(said["edges"]) == 5
    assert said["tokens"] == list(found.tokens)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Return a list of"}\n')
    for bad, line in (
        (["Return", "--edges", "-1"], "--edges -1 is impossible; it must be 0 or more"),
        (["--prompts", str(prompts), "--edges", "5"], "--edges is for one prompt"),
        (["--prompts", str(prompts), "--graph", str(tmp_path / "graph")], "--graph is for one prompt"),
    ):
        assert main(["attribute", "builtin:pydocs", *bad]) == 2
        assert line in capsys.readouterr().err.splitlines()[-1]
    with pytest.raises(OptionError, match="edges=-2 is impossible"):
        ms.attribute("builtin:pydocs", "Return", edges=-2)
