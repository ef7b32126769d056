"""Pages of a model that reads sentences whole: a field for the masked position, and no continuation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import mnemoscope as ms
from agents.served import answer, tools_over
from mnemoscope.models import LanguageModel, load_model
from models.masked_models import build_masked, masked_tokenizer
from support.mined import mined_text
from web.parts import Parts
from web.served import client, refused

PROMPT = "w9 w8 w12 w17"
ASKED = {"prompt": PROMPT, "mask": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "bert"
    build_masked("bert").save_pretrained(place)
    masked_tokenizer().save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    return load_model(str(folder))


@pytest.fixture(scope="module")
def atlas(model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> ms.Atlas:
    numbers = np.random.default_rng(5).integers(5, 60, (20, 6)).tolist()
    text = "".join(" ".join(f"w{number}" for number in row) + "\n" for row in numbers)
    return mined_text(model, tmp_path_factory.mktemp("atlas"), text, prefixes=0, removals=0)


@pytest.fixture(scope="module")
def reader(atlas: ms.Atlas, folder: Path) -> TestClient:
    return client(atlas.path, model=str(folder))


def data(reader: TestClient, path: str = "/trace", **query: Any) -> Any:
    got = reader.get(f"{path}.json", params=ASKED | query)
    assert got.status_code == 200, got.text
    return got.json()


def page(reader: TestClient, path: str = "/trace", **query: Any) -> Parts:
    got = reader.get(path, params=ASKED | query)
    assert got.status_code == 200, got.text
    return Parts(got.text)


def test_the_numbers_are_those_of_the_mask(reader: TestClient, model: LanguageModel) -> None:
    found, expected = data(reader), ms.trace(model, PROMPT, mask=1)
    assert found["trace"] == expected.to_dict()
    assert (found["position"], found["figure1"]["position"], found["following"]) == (1, 1, [None] * 10)
    pushed = ms.attribute(model, PROMPT, mask=1, progress=False)
    assert found["pushed"]["difference"] == pytest.approx(pushed.difference, abs=1e-4)
    for position in (0, 3):  # what is looked at elsewhere does not move what is asked
        there = data(reader, position=position)
        assert (there["position"], there["pushed"]["position"]) == (position, 1)
    cause = data(reader, "/trace/cause", until="attributions")["attribution"]
    rows = {(one["memory"], one["position"]): one["attribution"] for one in cause["memories"]}
    shared = [one for one in pushed.memories.to_dicts() if (one["memory"], one["position"]) in rows]
    assert len(shared) > 100
    assert all(rows[one["memory"], one["position"]] == pytest.approx(one["attribution"], abs=1e-4) for one in shared)
    written = reader.get("/trace.json", params={"prompt": "w9 <mask> w12 w17"}).json()
    assert written["trace"]["positions"] == found["trace"]["positions"]
    assert "mask=1" in reader.get("/trace.py", params=ASKED).text


def test_changes_and_a_second_prompt_at_the_mask(reader: TestClient, model: LanguageModel) -> None:
    found = data(reader, set="L1.M4=3@last")
    after = ms.trace(model, PROMPT, mask=1, interventions=["L1.M4=3@last"])
    assert found["trace"]["positions"] == after.to_dict()["positions"]
    words = {"for": "w20", "against": "w33"}
    both = data(reader, "/diff", other="w9 w8 w40 w17", **words)["difference"]
    expected = ms.diff(model, PROMPT, other_prompt="w9 w8 w40 w17", mask=1, target="w20", against="w33", progress=False)
    assert list(both["difference"].values()) == pytest.approx([expected.first, expected.second], abs=1e-4)


def test_the_form_has_a_field_and_no_continuation(reader: TestClient) -> None:
    shown = page(reader, set="L1.M4=3@last")
    fields = {at["name"]: at for tag, at in shown.found if tag == "input" and "name" in at}
    assert fields["mask"]["value"] == "1"
    assert "generate" not in fields
    links = [one for one in shown.links("/trace?") if "prompt=" in one]
    assert links
    assert all("mask=1" in one for one in links)
    assert not any("generate=" in one for one in links)
    beside = Parts(reader.get("/L1.M4", params=ASKED).text)
    assert any("mask=1" in one for one in beside.links("/trace?"))
    assert "generate=" not in page(reader, "/diff", other="w9 w8 w40 w17", **{"for": "w20", "against": "w33"}).text
    refused(reader, "/trace", ASKED | {"generate": 3}, said="continues no text")
    refused(reader, "/trace", {"prompt": PROMPT}, said="the prompt holds 0 masks")
    refused(reader, "/trace", ASKED | {"mask": 9}, said="position 9 is not in the prompt")


def test_a_causal_model_has_no_such_field(planted: Path) -> None:
    plain = client(planted, model="handmade:planted")
    assert 'name="mask"' not in plain.get("/trace", params={"prompt": "the old"}).text
    refused(plain, "/trace", {"prompt": "the old", "mask": 1}, said="has no mask token")


def test_a_memory_is_checked_and_tried(reader: TestClient) -> None:
    checked = reader.get("/L1.M4/causal.json").json()
    assert {row["count"] for row in checked["rows"] if row["of"] == "memory"} == {checked["triggers"]}
    tried = reader.get("/L1.M4/try.json", params={"text": PROMPT}).json()
    assert len(tried["tokens"]) == 4


def test_tools_of_agents_ask_at_the_mask(atlas: ms.Atlas, model: LanguageModel) -> None:
    tools = tools_over(atlas, model=model)
    prompt = "w9 <mask> w12 w17"
    traced = answer(tools, "trace", prompt=prompt)
    best = ms.trace(model, prompt).positions[1].prediction[0].token.text
    assert traced["prediction"][0]["untrusted_text"]["text"] == best
    assert answer(tools, "trace", prompt=prompt, changes=["L1.M4=3@last"])["position"] == 1
    pushed = answer(tools, "attribute", prompt=prompt, target="w20", against="w33")
    expected = ms.attribute(model, prompt, target="w20", against="w33", progress=False)
    assert pushed["difference"] == pytest.approx(expected.difference, rel=1e-3)
    fires, others = (["w9 w8", "w8 w9 w7", "w9"], ["w20 w21", "w22 w23", "w24 w25"])
    tested = answer(tools, "test_memories", memories="L0.M2", should_fire=fires, should_not_fire=others)
    assert tested["set_to_0"]["should_fire"]["kl"] > 0
