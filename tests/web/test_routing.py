"""The pages of an atlas of experts: routing, a layer, a memory by its name, a trace; a dense atlas has no routing."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from mining.conftest import byte_tokenizer
from mnemoscope.models import load_model
from models.expert_models import build_mixture
from models.planted_experts import EXPERTS, MEMORIES, PLANTED_EXPERTS, SENTENCES
from support.mined import mined_text
from web.served import client, patient


@pytest.fixture(scope="module")
def reader(experts: tuple[Path, str]) -> TestClient:
    return client(experts[0], model=experts[1])


def test_routing_is_told_and_drawn(reader: TestClient) -> None:
    page, data = reader.get("/routing"), reader.get("/routing.json").json()
    assert page.status_code == 200
    assert page.text.count('<section aria-labelledby="layer-') == len(data["layers"]) == 2
    assert [row["name"] for row in data["layers"][0]["experts"]] == [f"E{e}" for e in range(EXPERTS)]
    assert ">Routing<" in reader.get("/").text


@pytest.mark.full
def test_the_overview_of_a_hybrid_says_which_blocks_its_layers_are_of(tmp_path: Path) -> None:
    model = load_model(build_mixture("nemotron_h"), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    reader = client(mined_text(model, tmp_path, "\n".join(SENTENCES) + "\n", removals=2, prefixes=5))
    page = reader.get("/").text
    assert "layers 0-1 are those of blocks 1-2; without one: NemotronHAttention in block 0, " in page


def test_every_memory_has_a_page_and_its_neighbours_are_beside_it(reader: TestClient) -> None:
    name, seen = "L0.E0.M0", []
    while name is not None:
        data = reader.get(f"/{name}.json").json()
        assert data["memory"] == name
        seen.append(name)
        name = data["next"]
    assert seen == [f"L{layer}.E{e}.M{m}" for layer in range(2) for e in range(EXPERTS) for m in range(MEMORIES)]
    for wrong in ("L0.M0", "L0.E4.M0", "L0.S0.M0", "L0.E0.M4"):
        assert reader.get(f"/{wrong}").status_code == 404


def test_a_memory_says_how_many_prefixes_its_expert_gets(reader: TestClient) -> None:
    planted = next(one for one in PLANTED_EXPERTS if one.memory.expert == 2)
    data = reader.get(f"/{planted.memory}.json").json()
    activity = data["activity"]
    assert 0 < activity["prefixes"] < activity["all_prefixes"]
    assert f"those of {activity['all_prefixes']:,} that its expert gets" in reader.get(f"/{planted.memory}").text
    assert {one["token"]["text"].strip() for one in data["triggers"]} == {planted.word}


def test_experts_push_by_their_names(reader: TestClient) -> None:
    planted = PLANTED_EXPERTS[0]
    found = reader.get("/trace.json", params={"prompt": f"the {planted.word}"}).json()
    pushed = [row["memory"] for row in found["pushed"]["memories"] if row["direct"] > 0]
    assert pushed[0] == str(planted.memory)
    assert str(planted.memory) in [one["memory"] for one in found["dominant"][planted.memory.layer]]


def test_layers_link_to_memories_by_their_names(reader: TestClient) -> None:
    page = reader.get("/layers/1").text
    for expert in range(EXPERTS):
        assert f'href="/L1.E{expert}.M1"' in page
    names = [row["name"] for row in reader.get("/layers/1.json").json()["rows"]]
    assert names == [f"L1.E{e}.M{m}" for e in range(EXPERTS) for m in range(MEMORIES)]


def test_search_finds_memories_by_their_names(reader: TestClient) -> None:
    planted = PLANTED_EXPERTS[5]
    found = patient(reader, f"/search.json?q={planted.word}").json()
    assert str(planted.memory) in {hit["memory"] for hit in found["hits"]}
    assert reader.get("/search?q=l0.e1.m2").headers["location"] == "/L0.E1.M2"


def test_a_dense_atlas_has_no_routing(planted: Path) -> None:
    reader = client(planted)
    assert reader.get("/routing").status_code == 404
    page = reader.get("/").text
    assert ">Routing<" not in page
    assert "its blocks" not in page
