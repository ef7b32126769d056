"""Pages, and tools of agents, of an encoder-decoder: a source that links carry along, and traces read with it."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

import mnemoscope as ms
from agents.served import answer, answers, tools_over
from mnemoscope.tracing import generate
from models.pair_models import build_pair_model, pair_tokenizer
from web.parts import Parts
from web.served import client, refused

PROMPT, SOURCE = "w9 w8 w17", "w5 w6 w7"
ASKED = {"prompt": PROMPT, "source": SOURCE}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "bart"
    build_pair_model("bart").save_pretrained(place)
    pair_tokenizer("bart").save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def model(folder: Path) -> ms.LanguageModel:
    return ms.load_model(str(folder))


@pytest.fixture(scope="module")
def atlas(model: ms.LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("atlas")
    words = lambda *numbers: " ".join(f"w{4 + number % 36}" for number in numbers)  # noqa: E731
    rows = [{"from": words(at, 3 * at), "to": words(5 * at, at + 7, 2 * at)} for at in range(24)]
    (place / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {"source_field": "from", "text_field": "to"}
    ms.mine(model, place / "pairs.jsonl", out=place / "atlas", removals=4, progress=False, **fields)
    return place / "atlas"


@pytest.fixture(scope="module")
def reader(atlas: Path, folder: Path) -> TestClient:
    return client(atlas, model=str(folder))


def data(reader: TestClient, path: str = "/trace", **query: Any) -> Any:
    got = reader.get(f"{path}.json", params=ASKED | query)
    assert got.status_code == 200, got.text
    return got.json()


def said(traced: Any) -> Any:
    """The best tokens after every position, with their probabilities; and the coefficients of the last one."""
    best = [one["prediction"] for one in traced["positions"]]
    dominant = [one["coefficient"] for layer in traced["layers"] for one in layer["positions"][-1]["memories"][:5]]
    return [*(each["probability"] for some in best for each in some[:3]), *dominant]


def test_the_numbers_are_those_with_the_source(reader: TestClient, model: ms.LanguageModel) -> None:
    found, expected = data(reader), ms.trace(model, PROMPT, source=SOURCE)
    assert said(found["trace"]) == pytest.approx(said(expected.to_dict()), abs=1e-5)
    assert found["trace"]["made_by"] == expected.to_dict()["made_by"]
    assert found["trace"]["made_by"]["options"]["source"] == SOURCE
    other = said(data(reader, source="w20 w4")["trace"])
    assert other == pytest.approx(said(ms.trace(model, PROMPT, source="w20 w4").to_dict()), abs=1e-5)
    assert max(abs(one - its) for one, its in zip(other, said(found["trace"]), strict=True)) > 0.01
    pushed = ms.attribute(model, PROMPT, source=SOURCE, progress=False)
    assert found["pushed"]["difference"] == pytest.approx(pushed.difference, abs=1e-4)
    cause = data(reader, "/trace/cause", until="ablations")["attribution"]
    assert cause["made_by"]["options"]["source"] == SOURCE
    rows = {(one["memory"], one["position"]): one["ablation"] for one in cause["memories"]}
    for one in pushed.memories.to_dicts()[:20]:
        assert rows[one["memory"], one["position"]] == pytest.approx(one["ablation"], abs=1e-4)
    assert "source='w5 w6 w7'" in reader.get("/trace.py", params=ASKED).text


def test_changes_and_what_is_written_with_the_source(reader: TestClient, model: ms.LanguageModel) -> None:
    found = data(reader, set="L1.M4=3@last", generate=3)
    after = ms.trace(model, PROMPT, source=SOURCE, interventions=["L1.M4=3@last"])
    assert said(found["trace"]) == pytest.approx(said(after.to_dict()), abs=1e-5)
    steps = [*generate(model.with_source(SOURCE), PROMPT, tokens=3)]
    written = [step["token"]["id"] for step in found["generation"]["before"]["steps"]]
    assert written == [step.token.id for step in steps]
    words = {"for": " w20", "against": " w33"}
    both = data(reader, "/diff", other="w9 w8 w30", **words)["difference"]
    named: dict[str, Any] = {"target": " w20", "against": " w33", "source": SOURCE, "progress": False}
    expected = ms.diff(model, PROMPT, other_prompt="w9 w8 w30", **named)
    assert list(both["difference"].values()) == pytest.approx([expected.first, expected.second], abs=1e-4)


def test_the_form_has_a_field_and_links_carry_it_along(reader: TestClient) -> None:
    for path, query in (("/trace", {}), ("/diff", {"other": "w9 w8 w30", "for": " w20", "against": " w33"})):
        empty, shown = (Parts(reader.get(path, params=given).text) for given in ({}, ASKED | query))
        assert 'name="source"' in reader.get(path).text
        assert "this model reads a source" in empty.text
        links = [one for one in (*shown.links("/trace?"), *shown.links("/L")) if "prompt=" in one]
        assert links
        assert all(parse_qs(urlsplit(one).query)["source"] == [SOURCE] for one in links)
    beside = Parts(reader.get("/L1.M4", params=ASKED).text)
    assert any("source=w5" in one for one in beside.links("/trace?"))
    refused(reader, "/trace", {"prompt": PROMPT}, said="write the source, too")
    refused(reader, "/trace", ASKED | {"source": ""}, said="write the source, too")
    refused(reader, "/trace/cause", {"prompt": PROMPT}, said="write the source, too")
    refused(reader, "/trace", ASKED | {"source": "w5 " * 40}, said="the source .* has 42 tokens")


def test_the_audit_is_no_page_of_such_an_atlas(reader: TestClient) -> None:
    shown = Parts(reader.get("/trace", params=ASKED).text)
    assert not shown.links("/audit")
    refused(reader, "/audit", {"text": PROMPT}, said="writes its text of a source", status=409)


def test_a_memory_links_to_the_pair_of_its_best_trigger(reader: TestClient, atlas: Path) -> None:
    opened = ms.open_atlas(atlas)
    best = opened["L1.M4"].triggers().row(0, named=True)
    pair = opened.sentences([best["sentence"]]).row(0, named=True)
    [link] = [one for one in Parts(reader.get("/L1.M4").text).links("/trace?") if "figure1" in one]
    query = parse_qs(urlsplit(link).query)
    assert (query["source"], query["prompt"]) == ([pair["source"]], [pair["text"]])
    shown = reader.get(urlsplit(link).path + ".json", params=query).json()
    own = [one["token"]["id"] for one in shown["trace"]["positions"]]
    assert (own, shown["position"]) == (pair["tokens"], best["position"])


def test_a_memory_is_checked_and_tried(reader: TestClient) -> None:
    checked = reader.get("/L1.M4/causal.json").json()
    assert max(row["count"] for row in checked["rows"] if row["of"] == "memory") == checked["triggers"] > 10
    tried = [
        reader.get("/L1.M4/try.json", params={"text": PROMPT, "source": source}).json()["tokens"]
        for source in (SOURCE, "w20 w4")
    ]
    assert [len(tokens) for tokens in tried] == [3, 3]
    assert tried[0] != tried[1]
    refused(reader, "/L1.M4/try", {"text": PROMPT}, said="write the source, too")


def test_a_decoder_alone_has_no_such_field(planted: Path) -> None:
    plain = client(planted, model="handmade:planted")
    assert 'name="source"' not in plain.get("/trace", params={"prompt": "the old"}).text
    refused(plain, "/trace", {"prompt": "the old", "source": "x"}, said="reads no source")


def test_tools_of_agents_read_with_the_source(atlas: Path, model: ms.LanguageModel) -> None:
    tools = tools_over(ms.open_atlas(atlas), model=model)
    traced = answer(tools, "trace", **ASKED)
    best = ms.trace(model, PROMPT, source=SOURCE).positions[-1].prediction[0]
    assert traced["prediction"][0]["untrusted_text"]["text"] == best.token.text
    assert traced["prediction"][0]["probability"] == pytest.approx(best.probability, rel=1e-3)
    asked = {"target": " w20", "against": " w33"}
    pushed = answer(tools, "attribute", **ASKED, **asked)
    expected = ms.attribute(model, PROMPT, source=SOURCE, progress=False, target=" w20", against=" w33")
    assert pushed["difference"] == pytest.approx(expected.difference, rel=1e-3)
    examples = {"should_fire": ["w9 w8", "w8 w9 w7", "w9"], "should_not_fire": ["w20 w21", "w22 w23", "w24 w25"]}
    scores = [answer(tools, "test_memories", memories="L0.M2", source=one, **examples) for one in (SOURCE, "w20")]
    assert scores[0]["set_to_0"]["should_fire"]["kl"] != scores[1]["set_to_0"]["should_fire"]["kl"]
    [(failed, said)] = answers(tools, [("trace", {"prompt": PROMPT})])
    assert failed
    assert "give the source, too" in said
