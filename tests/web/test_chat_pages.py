"""A chat on the pages of traces, attributions and differences: their numbers are those of Python, the template's tokens
have a class, and the switch is a form's.
"""

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from starlette.testclient import TestClient

import mnemoscope as ms
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.opening.handmade import models as handmade
from mnemoscope.show.pages.model.trace import TraceAddress
from mnemoscope.tracing import compare, generate
from support.browser import Visits
from web.parts import Parts
from web.planted_atlas import SPEC
from web.served import client, refused, running
from web.test_axe_in_a_browser import barriers

ASKED = {"prompt": "the cat", "chat": "true"}
CHAT = [{"role": "user", "content": "the cat"}]
TEMPLATE = (
    "a dog ran{% for m in messages %} {{ m.content }}{% endfor %}{% if add_generation_prompt %} sat on the{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The planted model with a chat template: `a dog ran`, then the message, and `sat on the`."""
    place = tmp_path_factory.mktemp("models") / "planted"
    network, tokenizer = handmade.build("planted")
    tokenizer.chat_template = TEMPLATE
    network.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    return load_model(str(folder))


@pytest.fixture(scope="module")
def reader(planted: Path, folder: Path) -> TestClient:
    return client(planted, model=str(folder))


def data(reader: TestClient, path: str = "/trace", **query: Any) -> Any:
    answer = reader.get(f"{path}.json", params=ASKED | query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def page(reader: TestClient, path: str = "/trace", **query: Any) -> Parts:
    answer = reader.get(path, params=ASKED | query)
    assert answer.status_code == 200, answer.text
    return Parts(answer.text)


def test_the_numbers_are_those_of_the_chat(reader: TestClient, model: LanguageModel) -> None:
    found = data(reader)
    assert found["trace"] == ms.trace(model, CHAT).to_dict()
    assert [one["position"] for one in found["trace"]["positions"]] == [-3, -2, -1, 0, 1, 2, 3, 4]
    assert (found["trace"]["own"], found["position"]) == (2, 4)
    assert "prompt = [{'role': 'user', 'content': 'the cat'}]" in found["python"]
    for position in (-2, 0, 1, 3):
        found = data(reader, position=position)
        asked = position if position >= 0 else position - 2
        expected = ms.attribute(model, CHAT, position=asked, progress=False)
        assert found["pushed"]["position"] == expected.position == found["position"] == position
        picture = ms.figure1(model, CHAT, found["layer"], position=asked).numbers  # type: ignore[arg-type]
        same = ("position", "own", "tokens", "others", "total", "output", "made_by")
        assert [found["figure1"][name] for name in same] == [picture[name] for name in same]
        assert found["figure1"]["position"] == position
        assert found["pushed"]["difference"] == pytest.approx(expected.difference, abs=1e-4)
        cause = data(reader, "/trace/cause", position=position, until="attributions")["attribution"]
        rows = {(one["memory"], one["position"]): one["attribution"] for one in cause["memories"]}
        for one in expected.memories.to_dicts():
            assert rows[one["memory"], one["position"]] == pytest.approx(one["attribution"], abs=1e-4)
    refused(reader, "/trace", ASKED | {"position": 5}, said="there is no position 5: the prompt has positions -3 to 4")


def test_changes_and_continuations_count_as_the_chat_does(reader: TestClient, model: LanguageModel) -> None:
    found = data(reader, set="L1.M4=0@3", generate=2)
    both = compare(model, CHAT, ["L1.M4=0@3"])
    assert found["comparison"]["differences"] == both.to_dict()["differences"]
    assert {one["position"] for one in found["comparison"]["differences"] if one["kl"]} <= {3, 4}
    steps = list(generate(model, CHAT, tokens=2, interventions=["L1.M4=0@3"]))
    assert [one["token"]["id"] for one in found["generation"]["after"]["steps"]] == [one.token.id for one in steps]
    assert found["generation"]["before"]["joined"] is None, "an answer is no part of what a user says"
    heat = found["heat"]["probability"]
    assert heat[-1][-1] != data(reader)["heat"]["probability"][-1][-1]
    assert heat[-1][:5] == data(reader)["heat"]["probability"][-1][:5]


def test_the_switch_is_a_form_s_and_the_template_is_pale(reader: TestClient) -> None:
    shown = page(reader)
    [box] = [at for tag, at in shown.found if tag == "input" and at.get("name") == "chat"]
    assert box["type"] == "checkbox"
    assert "checked" in box
    heads = [at.get("class") or "" for tag, at in shown.found if tag == "th" and at.get("scope") == "col"]
    pale = ["template" in one.split() for one in heads]
    assert [True, True, True, False, False, True, True, True] in [pale[at : at + 8] for at in range(len(pale))]
    assert all("chat=" in one for one in shown.links("/trace?") if "prompt=" in one)
    assert "position=-3" in "".join(shown.links("/trace?"))
    plain = Parts(reader.get("/trace", params={"prompt": "the cat"}).text)
    assert "template" not in " ".join(at.get("class") or "" for _, at in plain.found)
    [box] = [at for tag, at in plain.found if tag == "input" and at.get("name") == "chat"]
    assert "checked" not in box
    name = re.search(r"/(L\d\.M\d)\?", "".join(shown.links("chat=")))
    assert name
    beside = Parts(reader.get(f"/{name[1]}", params=ASKED).text)
    assert any("chat=True" in one for one in beside.links("/trace?"))


def test_a_memory_of_the_template_is_switched_off_everywhere(reader: TestClient) -> None:
    """Changes hold from a position from 0 on."""
    address = TraceAddress(prompt="the cat", chat=True)
    rows = [{"memory": "L1.M4", "position": -2}, {"memory": "L1.M5", "position": 1}]
    query = parse_qs(urlsplit(address.without_memories(rows, 4)).query)
    assert query["set"] == ["L1.M4=0", "L1.M5=0@1"]
    offs = "".join(page(reader, position=-1).links("set="))
    assert "%3D0" in offs
    assert "%40-" not in offs


def test_axe_has_nothing_to_object_to(planted: Path, folder: Path, visit: Visits) -> None:
    query = urlencode(ASKED)
    with running(planted, model=str(folder)) as address:
        found = [one for path in ("/trace", "/diff") for one in barriers(visit, f"{address}{path}?{query}&other=on")]
    assert not found, "\n".join(found)


def test_two_chats_differ_as_in_python(reader: TestClient, model: LanguageModel) -> None:
    found = data(reader, "/diff", other="the bird", **{"for": " mat", "against": " tree"})["difference"]
    other = [{"role": "user", "content": "the bird"}]
    expected = ms.diff(model, CHAT, other_prompt=other, target=" mat", against=" tree", both=True, progress=False)
    assert found["difference"]["second"] == pytest.approx(expected.second, abs=1e-4)
    assert found["own"] == expected.own == 2
    rows = {(one["memory"], one["position"]) for one in found["memories"]}
    assert rows == set(expected.memories.select("memory", "position").rows())
    shown = page(reader, "/diff", other="the bird", **{"for": " mat", "against": " tree"})
    assert any(at.get("name") == "chat" and "checked" in at for tag, at in shown.found if tag == "input")


def test_without_a_template_the_page_says_so(planted: Path) -> None:
    reader = client(planted, model=SPEC)
    for path in ("/trace", "/diff"):
        refused(reader, path, ASKED | {"other": "on"}, said="has no chat template")
        assert 'name="chat"' not in reader.get(path).text, "nor offers the switch"
