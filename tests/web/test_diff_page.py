"""The page of what two models, or the model on two prompts, do differently: its numbers are those of ms.diff."""

from itertools import accumulate
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from starlette.testclient import TestClient

import mnemoscope as ms
from mining.conftest import byte_tokenizer
from mnemoscope.cli import main
from mnemoscope.foundation.formatting import format_value
from mnemoscope.models import LanguageModel
from mnemoscope.show.pages.model.diff import DiffAddress, DiffView
from mnemoscope.show.pages.model.trace import PROMPT
from mnemoscope.tracing import generate
from models.test_adapters import save_adapter, save_base
from support.mined import mined_text
from web.parts import Parts
from web.planted_atlas import SPEC
from web.served import client, refused

# It asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

ASKED = {"prompt": "the cat sat on", "for": "x", "against": "y"}
NUMBERS = ("memory", "position", "coefficient_first", "coefficient_second", "direct_first", "direct_second", "change")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with its atlas, a LoRA of it, a LoRA of another model, and the model with another tokenizer."""
    folder = tmp_path_factory.mktemp("compared")
    model = ms.load_model(save_base(folder / "base", "llama"))
    mined_text(model, folder, "the cat sat on the mat\na dog ran to the house\nthe old house\n", triggers=5, removals=4)
    save_adapter(folder / "lora", "llama")
    save_adapter(folder / "stranger", "gpt2")
    save_base(folder / "reads otherwise", "llama")
    byte_tokenizer(["zz zzz zzzz zzzzz"]).save_pretrained(folder / "reads otherwise")
    return folder


@pytest.fixture(scope="module")
def reader(folder: Path) -> TestClient:
    return client(folder / "atlas", model=str(folder / "base"), other_adapter=str(folder / "lora"))


@pytest.fixture(scope="module")
def alone(planted: Path) -> TestClient:
    """A server with one model."""
    return client(planted, model=SPEC)


def data(reader: TestClient, **query: Any) -> Any:
    answer = reader.get("/diff.json", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def page(reader: TestClient, **query: Any) -> Parts:
    answer = reader.get("/diff", params=query)
    assert answer.status_code == 200, answer.text
    return Parts(answer.text)


def numbers(rows: list[dict[str, Any]], *more: str) -> list[dict[str, Any]]:
    return [{name: row[name] for name in (*NUMBERS, *more)} for row in rows]


@pytest.mark.parametrize("query", [ASKED, {"prompt": "the cat sat on"}])
def test_the_numbers_are_those_of_diff(reader: TestClient, folder: Path, query: dict[str, str]) -> None:
    base = ms.load_model(str(folder / "base"))
    asked = {"target": query.get("for"), "against": query.get("against")}
    expected = ms.diff(base, query["prompt"], other_adapter=folder / "lora", both=True, **asked).to_dict()
    found = data(reader, **query, until="patched")["difference"]
    for name in ("prompt", "models", "tokens", "difference", "parts", "residual_error", "patched", "turns_at"):
        assert found[name] == expected[name], name
    assert numbers(found["memories"]) == numbers(expected["memories"])
    assert found["tokens"] is not None
    assert found["models"] == {"first": "base", "second": "base+lora"}
    # Of every memory the tokens that its value promotes, of the sign that it has in the second run.
    first = found["memories"][0]
    side = "top_texts" if first["coefficient_second"] > 0 else "bottom_texts"
    value = ms.open_atlas(folder / "atlas")[first["memory"]].value()
    clear = value[side.replace("_texts", "_z")][0] > value["clear_z"][0]  # else it promotes nothing
    assert first["promotes"] == (value[side][0][:5].to_list() if clear else [])


def test_which_weights_changed(reader: TestClient, folder: Path, alone: TestClient) -> None:
    expected = ms.diff(ms.load_model(str(folder / "base")), "the cat sat on", other_adapter=folder / "lora").weights
    for query in (ASKED, {"prompt": "the cat sat on", "for": "x", "against": "z"}):
        assert data(reader, **query)["difference"]["weights"] == expected.to_dicts()
    shown = page(reader, **ASKED).text
    assert "Which weights changed" in shown
    sums = expected.group_by("module").agg(pl.col("share").sum())
    for module, share in sums.rows():
        assert "".join(f"{module}{format_value(share, 'share')}".split()) in "".join(shown.split())
    twice = {"prompt": "the old", "other": "the new", "for": " mat", "against": " house"}
    assert data(alone, **twice)["difference"]["weights"] == []
    assert "Which weights changed" not in page(alone, **twice).text


def test_the_parts_come_at_once_and_setting_back_is_a_link(reader: TestClient) -> None:
    assert data(reader, **ASKED)["difference"]["patched"] == []
    shown = page(reader, **ASKED)
    ((address, step),) = [(at["href"], at["data-load"]) for _, at in shown.found if "data-load" in at]
    assert step == "patched"
    assert "then predicted" not in shown.text
    # The page behind the link has everything: so it is without JavaScript, too.
    whole = Parts(reader.get(str(address)).text)
    assert [at for _, at in whole.found if "data-load" in at] == []
    patched = data(reader, **ASKED, until="patched")["difference"]["patched"]
    assert [one["k"] for one in patched[-2:]] == ["all", "everywhere"]
    assert whole.text.count("%") >= len(patched)
    assert "Recovered: the share of the change of F that is undone; over 100 %" in whole.text
    assert {at.get("id") for _, at in whole.found} >= {"parts", "memories", "back"}


def test_the_bars_add_up_from_the_first_to_the_second(reader: TestClient) -> None:
    found = data(reader, **ASKED)["difference"]
    look = DiffView(DiffAddress(prompt=ASKED["prompt"]), found, layers=2)
    first, *changes, second = look.waterfall()["bars"]
    assert (first["value"], second["value"]) == (found["difference"]["first"], found["difference"]["second"])
    ends = list(accumulate([first["value"], *(one["value"] for one in changes)]))
    assert ends[-1] == pytest.approx(second["value"], abs=found["limit"])
    assert [one["layer"] for one in changes if one["kind"] == "memories"] == [0, 1]
    # All bars are drawn to one scale, and each begins where the one before it ended.
    scale = max(0.0, *ends) - min(0.0, *ends)
    for one, before, after in zip(changes, ends, ends[1:], strict=False):
        assert one["height"] == pytest.approx(max(abs(after - before) / scale * 125, 0.5), abs=0.02)
    assert sum(change for _, change in look.sums()) == pytest.approx(ends[-1] - ends[0])


def test_memories_stand_on_the_side_that_they_moved_to(reader: TestClient) -> None:
    found = data(reader, **ASKED)["difference"]
    look = DiffView(DiffAddress(prompt=ASKED["prompt"]), found, layers=2)
    for sign in (1, -1):
        rows = [row["change"] for row in look.largest(sign)]
        expected = sorted((row["change"] for row in found["memories"] if row["change"] * sign > 0), key=abs)
        assert rows == expected[::-1][:20]
        assert rows
    links = page(reader, **ASKED).links("/L")
    assert len(links) == len(look.largest(1)) + len(look.largest(-1))
    for link in links[:3]:
        answer = reader.get(link)
        assert answer.status_code == 200
        assert "prompt=the+cat+sat+on" in answer.text


def test_what_each_writes_is_asked_for(reader: TestClient, folder: Path) -> None:
    assert data(reader, prompt="the cat")["generation"] is None
    (link,) = page(reader, prompt="the cat").links("generate=20")
    assert reader.get(link).status_code == 200
    found = data(reader, prompt="the cat", generate=3)["generation"]
    for name, adapter in (("first", None), ("second", str(folder / "lora"))):
        model = ms.load_model(str(folder / "base"), adapter=adapter)
        steps = [step.to_dict() for step in generate(model, "the cat", tokens=3, cached=True)]
        assert found[name]["steps"] == steps
    assert found["first"]["steps"] != found["second"]["steps"]


def test_nothing_that_differs_is_said(folder: Path) -> None:
    same = client(folder / "atlas", model=str(folder / "base"), other=str(folder / "base"))
    shown = page(same, prompt="the cat", until="patched")
    assert "never part within 64 tokens" in shown.text
    assert "Both predict the same." in shown.text
    assert "Nothing differs: every part adds the same to F in both" in page(same, **ASKED).text
    assert data(same, **ASKED)["difference"]["parts"] == []


def test_one_model_is_compared_on_two_prompts(alone: TestClient, model: LanguageModel) -> None:
    query = {"prompt": "the old", "other": "the cat", "for": " sat", "against": " house"}
    asked = {"target": " sat", "against": " house", "both": True}
    expected = ms.diff(model, query["prompt"], other_prompt=query["other"], **asked).to_dict()
    found = data(alone, **query, until="patched")["difference"]
    for name in ("prompts", "difference", "parts", "patched"):
        assert found[name] == expected[name], name
    assert numbers(found["memories"], "effect", "token") == numbers(expected["memories"], "effect", "token")
    assert found["memories"]
    assert "effect" in page(alone, **query).text
    # The page is not in the contents, but a trace leads to it.
    assert '"/diff"' not in alone.get("/").text
    assert Parts(alone.get("/trace", params={"prompt": "the old"}).text).links("/diff?prompt=the+old")


def test_two_models_can_be_set_aside_for_two_prompts(reader: TestClient) -> None:
    found = data(reader, prompt="the cat", other="the dog", **{"for": "x", "against": "y"})["difference"]
    assert found["models"] == {"first": "base", "second": "base"}
    assert '"/diff"' in reader.get("/").text


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"prompt": ""}, "the prompt is empty; write at least one word"),
        ({"prompt": "the cat", "for": "x"}, "give both answers, for and against"),
        ({"prompt": "the cat", "for": "x", "against": "x"}, "the answers 'x' and 'x' are one"),
        ({"prompt": "the cat", "for": "x", "against": "mean"}, "no answer of the first run; give a word"),
        ({"prompt": "the cat", "other": "the cat"}, "the other prompt is the prompt itself; give another one"),
        ({"prompt": "the " * 100}, "shorten it"),
        ({"prompt": "the cat", "other": "the " * 100}, "shorten it"),
        ({"prompt": "a" * (PROMPT + 1)}, "Prompt: String should have at most 2000 characters."),
        ({"prompt": "a", "until": "all"}, "Until: Input should be 'parts' or 'patched'."),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(reader: TestClient, query: dict[str, str], sentence: str) -> None:
    assert "What differs" not in refused(reader, "/diff", query, said=sentence).text


def test_one_model_needs_another_prompt(alone: TestClient) -> None:
    answer = alone.get("/diff", params={"prompt": "the cat"})
    assert answer.status_code == 200
    assert "The model reads two prompts." in answer.text
    assert ">the cat</textarea>" in answer.text.replace("\n", "")
    assert data(alone, prompt="the cat")["difference"] is None


def test_hostile_text_is_shown_and_never_markup(reader: TestClient) -> None:
    hostile = "<script>alert(1)</script>"
    query = {"prompt": hostile, "other": hostile + "'\"", "for": "<", "against": "&", "until": "patched"}
    answer = reader.get("/diff", params=query)
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--other", SPEC], "--other needs --model; name the model that was mined"),
        (["--other-adapter", "lora"], "--other-adapter needs --model; name the model that was mined"),
        (["--model", "base", "--other", "base", "--other-adapter", "lora"], "give one of them"),
        (["--model", "base", "--other", SPEC], "handmade:planted differs from base in layers and memories"),
        (["--model", "base", "--other", "reads otherwise"], "differs from base in tokenizer"),
        (["--model", "base", "--other", "none"], "give a folder with config.json and weights"),
        (["--model", "base", "--other-adapter", "none"], "give the folder of a saved adapter"),
        (["--model", "base", "--other-adapter", "stranger"], "does not fit"),
    ],
)
def test_a_second_model_that_cannot_be_compared_is_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    given = [one if one.startswith("--") or one == SPEC else str(folder / one) for one in options]
    assert main(["serve", str(folder / "atlas"), "--port", "0", *given]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert sentence in err


def test_beside_each_number_the_second_writes_with_so_many_set_back(reader: TestClient, folder: Path) -> None:
    shown = page(reader, prompt="the cat", until="patched")
    patched = data(reader, prompt="the cat", until="patched")["difference"]["patched"]
    ks = [one["k"] for one in patched if one["controls"]]
    links = shown.links("restored=")
    assert all(f"restored={k}&" in link and "generate=20" in link for k, link in zip(ks, links, strict=True))
    written = reader.get(links[1])
    assert written.status_code == 200
    assert "The second, with 2 memories set back where they part and behind, writes" in Parts(written.text).text
    base = ms.load_model(str(folder / "base"))
    expected = ms.diff(base, "the cat", other_adapter=folder / "lora", generate=4, restored=2).to_dict()["written"][2]
    found = data(reader, prompt="the cat", generate=4, restored=2)["generation"]
    assert found["set_back"] == expected
    assert set(data(reader, prompt="the cat", generate=4)["generation"]) == {"first", "second"}
    two = data(reader, **ASKED, other="the old", generate=4, restored=2)
    assert "set_back" not in two["generation"]
    assert page(reader, **ASKED, other="the old", until="patched").links("restored=") == []
    refused(reader, "/diff", {"prompt": "the cat", "restored": 257}, said="Restored: ")


def test_the_second_model_is_traced_by_a_switch(reader: TestClient, alone: TestClient, folder: Path) -> None:
    second = ms.load_model(str(folder / "base"), adapter=str(folder / "lora"))
    asked = {"prompt": "the cat", "of": "second"}
    found = reader.get("/trace.json", params=asked).json()
    assert found["trace"] == ms.trace(second, "the cat").to_dict()
    assert found["trace"] != reader.get("/trace.json", params={"prompt": "the cat"}).json()["trace"]
    assert "adapter=" in found["python"]
    shown = Parts(reader.get("/trace", params=asked).text)
    assert {at.get("value") for _, at in shown.found if at.get("name") == "of"} == {"second"}
    current = [at["href"] for _, at in shown.found if at.get("aria-current") and "/trace?" in (at.get("href") or "")]
    assert any("of=second" in link for link in current)
    back = [link for link in shown.links("/trace?prompt=the+cat") if "of=" not in link]
    assert reader.get(back[0]).status_code == 200
    cause = reader.get("/trace/cause.json", params={**asked, "until": "attributions"}).json()["attribution"]
    expected = ms.attribute(second, "the cat", by="attribution").to_dict()
    assert cause["difference"] == expected["difference"]
    assert [row["memory"] for row in cause["memories"]] == [row["memory"] for row in expected["memories"]]
    steps = Parts(reader.get("/trace/cause", params={**asked, "until": "attributions"}).text)
    assert any("of=second" in link for link in steps.links("/trace/cause"))
    assert "adapter=" in reader.get("/trace.py", params=asked).text
    changed = reader.get("/trace.json", params={**asked, "set": "L0.M1=0"}).json()["comparison"]
    assert changed["interventions"] == ["L0.M1=0"]
    refused(alone, "/trace", {"prompt": "the cat", "of": "second"}, said="there is no second model here")
    refused(reader, "/trace", {"prompt": "the cat", "of": "third"}, said="Of: ")
