"""An attribution as a graph that circuit-tracer's own classes read, and what else its pages need of it."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import mnemoscope as ms
from mining.conftest import byte_tokenizer
from mnemoscope.cli import main
from mnemoscope.errors import AtlasExists, ModelDiffers, OptionError
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.models import load_model
from models.conftest import build
from models.expert_models import build_mixture

PROMPT = "the cat sat on"


@pytest.fixture(scope="module")
def found() -> Any:
    model = load_model(build("gpt2"), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    return replace(ms.attribute(model, PROMPT, target='"', singles=40, top=50, progress=False), model="tiny/model")


def written(folder: Path) -> dict[str, Any]:
    [slug] = [one["slug"] for one in json.loads((folder / "graph-metadata.json").read_text())["graphs"]]
    return json.loads((folder / f"{slug}.json").read_text())  # type: ignore[no-any-return]


def ablated(found: Any) -> list[dict[str, Any]]:
    """The rows that have a node: ten more are listed, which were not ablated."""
    rows = [row for row in found.memories.to_dicts() if row["ablation"] is not None]
    assert 0 < len(rows) == found.memories.height - 10
    return rows


def unpaired(number: int) -> tuple[int, int]:
    """The two numbers of Cantor's, as the page takes a feature apart: its layer and its number there."""
    diagonal = (math.isqrt(8 * number + 1) - 1) // 2
    second = number - diagonal * (diagonal + 1) // 2
    return diagonal - second, second


def test_circuit_tracer_reads_it(found: Any, tmp_path: Path) -> None:
    forms = pytest.importorskip("circuit_tracer.frontend.graph_models", reason="needs circuit-tracer (see .ci/run)")
    graph = written(ms.write_graph(found, tmp_path / "graph"))
    read = forms.Model(**graph)
    assert [forms.Link(**link) for link in graph["links"]]
    assert read.metadata.node_threshold is None
    assert read.metadata.prompt_tokens == list(found.tokens)
    nodes = {node.node_id: node for node in read.nodes}
    for row in ablated(found):
        layer, number = (int(part[1:]) for part in row["memory"].split("."))
        place = row["position"] + 1  # behind the beginning token
        own = forms.Node.feature_node(layer, place, number, activation=row["coefficient"])
        made = nodes.pop(own.node_id)
        assert made == own.model_copy(update={"influence": made.influence, "clerp": made.clerp})
    for token, probability, first in (
        (found.target, found.target_probability, True),
        (found.against, found.against_probability, False),
    ):
        own = forms.Node.logit_node(
            len(found.tokens) - 1, token.id, token.text, 2, target_logit=first, token_prob=probability
        )
        made = nodes.pop(own.node_id)
        assert made == own.model_copy(update={"clerp": made.clerp})
    assert not nodes


def test_links_are_edges_and_ablations(found: Any, tmp_path: Path) -> None:
    graph = written(ms.write_graph(found, str(tmp_path / "graph")))
    nodes, last = {node["node_id"]: node for node in graph["nodes"]}, len(found.tokens) - 1
    outputs = {sign: f"3_{token.id}_{last}" for sign, token in ((1, found.target), (-1, found.against))}
    rows, edges = ablated(found), found.edges.to_dicts()
    weights = {(link["source"], link["target"]): link["weight"] for link in graph["links"]}
    expected = {
        (
            f"{edge['source'].replace('L', '').replace('.M', '_')}_{edge['source_position'] + 1}",
            f"{edge['target'].replace('L', '').replace('.M', '_')}_{edge['target_position'] + 1}",
        ): edge["change"]
        for edge in edges
    }
    for row in rows:
        name = f"{row['memory'].replace('L', '').replace('.M', '_')}_{row['position'] + 1}"
        expected |= {(name, output): sign * row["ablation"] for sign, output in outputs.items()}
    assert weights == expected
    assert len(graph["links"]) == len(edges) + 2 * len(rows)

    # What the page takes from a node: the layer and number in its feature, the probability in an output's label.
    memories = [node for node in graph["nodes"] if node["feature_type"] != "logit"]
    for node in memories:
        layer, number, column = map(int, node["node_id"].split("_"))
        assert (unpaired(node["feature"]), node["layer"]) == ((layer, number), str(layer))
        assert node["ctx_idx"] == column
    labels = [nodes[output]["clerp"] for output in outputs.values()]
    assert labels[0] == f'Output "\'" (p={found.target_probability:.3f})'  # the token is a quotation mark
    assert all(label.split("(p=")[1].endswith(")") and label.count('"') == 2 for label in labels)

    # The memories that matter most come first; the last has reached all.
    sizes = [abs(row["ablation"]) for row in rows]
    assert [node["influence"] for node in memories] == pytest.approx(
        [sum(sizes[: place + 1]) / sum(sizes) for place in range(len(sizes))]
    )
    said = graph["metadata"]
    assert "otal effect" in said["title_prefix"]
    assert "total effect, through all paths" in said["info"]["description"]
    assert said["scan"] == "./data/tiny-model"  # no address of a hub
    assert json.loads((tmp_path / "graph/graph-metadata.json").read_text())["graphs"] == [said]


def test_against_the_mean_there_is_one_output(tmp_path: Path) -> None:
    model = load_model("handmade:planted")
    found = ms.attribute(model, "the old", against="mean", singles=8, progress=False)
    graph = written(ms.write_graph(found, tmp_path / "graph"))
    assert [node["is_target_logit"] for node in graph["nodes"] if node["feature_type"] == "logit"] == [True]
    nothing = ms.attribute(model, "the old", singles=0, progress=False)
    graph = written(ms.write_graph(nothing, tmp_path / "graph"))
    assert ({node["feature_type"] for node in graph["nodes"]}, graph["links"]) == ({"logit"}, [])


def test_a_shortened_list_keeps_the_links_between_its_memories(found: Any, tmp_path: Path) -> None:
    few = replace(found, memories=found.memories.head(8))
    graph = written(ms.write_graph(few, tmp_path / "graph"))
    ids = {node["node_id"] for node in graph["nodes"]}
    assert len(ids) == 10
    assert 0 < len(graph["links"]) - 2 * 8 < found.edges.height
    assert {link[end] for link in graph["links"] for end in ("source", "target")} <= ids
    assert "Which memory feeds which" in few._repr_html_()


def test_memories_of_experts_have_numbers_of_their_own(tmp_path: Path) -> None:
    network = build_mixture("qwen2_moe")  # with shared experts
    model = load_model(network, tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    found = ms.attribute(model, PROMPT, singles=200, top=200, progress=False)
    graph = written(ms.write_graph(found, tmp_path / "graph"))
    features: dict[int, str] = {}
    for node in graph["nodes"]:
        if node["feature_type"] != "logit":
            memory = node["clerp"].split(":")[0]
            assert features.setdefault(node["feature"], memory) == memory
            assert unpaired(node["feature"])[0] == MemoryId.parse(memory).layer
    assert {name.split(".")[1][0] for name in features.values()} == {"E", "S"}
    assert len(set(features.values())) == len(features) > 50


def test_markup_in_a_label_stays_text(found: Any, tmp_path: Path) -> None:
    hostile = found.memories.with_columns(label=pl.lit('<img src=x onerror="alert(1)">\x1b[2J'))
    graph = written(ms.write_graph(replace(found, memories=hostile, prompt="../<b>\n"), tmp_path / "graph"))
    for node in graph["nodes"]:
        assert not set("<>\x1b") & set(node["clerp"])
    assert {path.name for path in (tmp_path / "graph").iterdir()} == {
        *("manifest.json", "graph-metadata.json", "attribution-..-b.json")
    }


def test_a_graph_is_replaced_and_nothing_else(found: Any, tmp_path: Path, planted: Path) -> None:
    folder = ms.write_graph(found, tmp_path / "graph")
    before = {path.name for path in folder.iterdir()}
    (folder / "notes.md").write_text("mine")
    other = ms.attribute("handmade:planted", "the old", singles=8, progress=False)
    ms.write_graph(other, folder, atlas=planted)
    after = {path.name for path in folder.iterdir()}
    assert before - after == {"attribution-the-cat-sat-on.json"}
    assert {"notes.md", "attribution-the-old.json", "handmade-planted"} <= after
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.tex").write_text("")
    for place, line in ((tmp_path / "thesis", "other than a graph"), (tmp_path / "thesis/chapter.tex", "not a folder")):
        with pytest.raises(AtlasExists, match=line):
            ms.write_graph(found, place)
    with pytest.raises(OptionError, match="inside the atlas"):
        ms.write_graph(other, planted / "graph", atlas=planted)
    with pytest.raises(ModelDiffers, match="another model than tiny/model"):
        ms.write_graph(found, tmp_path / "new", atlas=planted)
    assert not (tmp_path / "new").exists()
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]


def test_the_command_refuses_a_folder_before_it_loads_a_model(
    tmp_path: Path, planted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.tex").write_text("")
    assert main(["attribute", "no/such-model", "the old", "--graph", str(tmp_path / "thesis")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "holds something other than a graph" in line
    words = ["attribute", "handmade:planted", "the old", "--singles", "8", "--json"]
    assert main([*words, "--atlas", str(planted), "--graph", str(tmp_path / "graph")]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["memories"]
    assert f"{tmp_path / 'graph'}: the graph" in said.err


def test_an_atlas_gives_each_memory_a_page(tmp_path: Path, planted: Path) -> None:
    atlas = ms.open_atlas(planted)
    found = ms.attribute("handmade:planted", "the old", singles=8, atlas=atlas, progress=False)
    folder = ms.write_graph(found, tmp_path / "graph", atlas=atlas)
    graph = written(folder)
    for node in graph["nodes"]:
        if node["feature_type"] == "logit":
            continue
        memory = atlas[node["clerp"].split(":")[0]]
        page = json.loads((folder / "handmade-planted" / f"{node['feature']}.json").read_text())
        assert page["transcoder_id"] == str(memory.id)
        assert page["top_logits"] == memory.value()["top_texts"][0].to_list()
        triggers = memory.triggers(None)
        shown = [one for group in page["examples_quantiles"] for one in group["examples"]]
        assert len(shown) == min(triggers.height, 40)
        largest = max(map(abs, triggers["coefficient"]))
        for example in shown:
            assert len(example["tokens"]) == len(example["tokens_acts_list"])
            assert 0 < example["tokens_acts_list"][example["train_token_ind"]] <= largest * 1.001
        assert page["act_max"] == pytest.approx(largest, rel=1e-3)
