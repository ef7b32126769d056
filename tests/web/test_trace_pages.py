"""The pages of traces: their numbers are those of ms.trace, hostile text is shown and never run, limits hold."""

import ast
import re
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

import mnemoscope as ms
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.show.pages.model.trace import CHANGES, PROMPT, WRITTEN
from mnemoscope.tracing import causal_check, compare, generate
from web.parts import Parts
from web.planted_atlas import SPEC, other_weights
from web.served import client, refused

PROMPT_TEXT = "the cat sat on the"
OFF = "L1.M4=0"  # fires on `sat on the`, promotes `mat`


@pytest.fixture(scope="module")
def reader(planted: Path) -> TestClient:
    return client(planted, model=SPEC)


def page(reader: TestClient, **query: Any) -> Parts:
    answer = reader.get("/trace", params={"prompt": PROMPT_TEXT, **query})
    assert answer.status_code == 200, answer.text
    return Parts(answer.text)


def data(reader: TestClient, **query: Any) -> Any:
    answer = reader.get("/trace.json", params={"prompt": PROMPT_TEXT, **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_numbers_are_those_of_the_trace(reader: TestClient, model: LanguageModel) -> None:
    found = data(reader)
    assert (found["trace"], found["comparison"]) == (ms.trace(model, PROMPT_TEXT).to_dict(), None)
    assert (found["layer"], found["position"]) == (found["trace"]["positions"][4]["output"]["decided"], 4)
    shown = page(reader)
    assert re.search(r"model predicts\s+·mat", shown.text)
    assert "L1.M4" in shown.text


NUMBERS = ("memory", "position", "coefficient", "direct", "attribution", "ablation")


def numbers(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: row[name] for name in names or NUMBERS} for row in rows]


@pytest.mark.parametrize(("against", "position"), [(None, None), (" dog", None), ("mean", 1)])
def test_who_pushed_is_what_attribute_says(
    reader: TestClient, model: LanguageModel, against: str | None, position: int | None
) -> None:
    asked = {name: value for name, value in (("against", against), ("position", position)) if value is not None}
    expected = ms.attribute(model, PROMPT_TEXT, against=against, position=position).to_dict()
    pushed = data(reader, **asked)["pushed"]
    for name in ("target", "against", "position", "difference", "direct", "residual_error", "heads"):
        assert pushed[name] == expected[name], name
    direct = [row for row in expected["memories"] if row["direct"]]
    assert numbers(pushed["memories"], "memory", "direct") == numbers(direct, "memory", "direct")
    whole = reader.get("/trace/cause.json", params={"prompt": PROMPT_TEXT, **asked}).json()["attribution"]
    for name in ("difference", "curve", "kept", "spearman", "frame"):
        assert whole[name] == expected[name], name
    assert numbers(whole["memories"]) == numbers(expected["memories"])


def test_the_answer_comes_in_steps(reader: TestClient) -> None:
    def step(until: str) -> tuple[Any, list[str | None]]:
        query = {"prompt": PROMPT_TEXT, "until": until}
        shown = Parts(reader.get("/trace/cause", params=query).text)
        return reader.get("/trace/cause.json", params=query).json()["attribution"], [
            at["data-load"] for _, at in shown.found if "data-load" in at
        ]

    found, later = step("attributions")
    assert ([row["ablation"] for row in found["memories"]], found["curve"], later) == ([None], [], ["ablations"])
    found, later = step("ablations")
    assert (found["memories"][0]["memory"], found["kept"], later) == ("L1.M4", [], ["curve"])
    found, later = step("curve")
    assert (found["curve"][0]["k"], later) == (1, [])
    # The page itself waits for none of them.
    assert [at["data-load"] for _, at in page(reader).found if "data-load" in at] == ["attributions"]


def test_one_click_switches_the_first_off_together(reader: TestClient) -> None:
    shown = page(reader, set="L0.M3*2")
    (together,) = (href for href in shown.links("generate=20") if "L1.M4" in href)
    assert parse_qs(urlsplit(together).query)["set"] == ["L0.M3*2", "L1.M4=0@4"]
    assert urlsplit(together).fragment == "change"
    changed = Parts(reader.get(together).text).text
    assert "Written before the changes" in changed
    assert "Written with the changes" in changed
    # F is of the pair that was compared before, whatever the model says now.
    found = data(reader, set=OFF)
    assert found["difference"]["before"] == data(reader)["pushed"]["difference"] > 4
    assert found["difference"]["after"] == found["pushed"]["difference"] == pytest.approx(0, abs=1e-4)
    assert found["pushed"]["target_text"] == " mat"


def test_dominance_is_a_share_of_a_memorys_own_largest(reader: TestClient, planted: Path) -> None:
    found = data(reader, layer=1)
    (one,) = found["dominant"][1]
    assert one["memory"] == "L1.M4"
    assert one["own_share"] == pytest.approx(one["coefficient"] / ms.open_atlas(planted)["L1.M4"].activity()["max"][0])
    assert found["dominant"][0] == []


def test_answers_of_several_tokens_are_asked_where_they_part(reader: TestClient) -> None:
    query = {"for": " dog ran", "against": " dog sat"}
    found = data(reader, **query)["pushed"]
    assert (found["shared"], found["position"], found["target_text"]) == (1, 5, " ran")
    assert "1 of their tokens" in page(reader, **query).text
    assert "is several tokens" in page(reader, **{"for": " dog ran", "against": " cat"}).text


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"against": " mat"}, "the model's own answer"),
        ({"for": " cat", "against": " cat"}, "are one, or one begins with the other"),
        ({"for": " cat", "against": " cat sat"}, "are one, or one begins with the other"),
        ({"for": "x" * 201}, "at most 200 characters"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(reader: TestClient, query: dict[str, str], sentence: str) -> None:
    asked = {"prompt": PROMPT_TEXT, **query}
    shown = refused(reader, "/trace", asked, said=sentence)
    assert reader.get("/trace/cause", params=asked).status_code == 400
    if len(query.get("for", "")) < 200:
        # The trace does not hang on it, and the boxes keep what was written.
        assert "Where the prediction is made" in shown.text
        values = {at.get("name"): at.get("value") for tag, at in shown.found if tag == "input"}
        assert {name: values[name] for name in query} == query


@pytest.mark.parametrize("stream", ["residual", "ffn", "output"])
def test_the_heat_map_is_the_final_predictions_in_every_stream(
    reader: TestClient, model: LanguageModel, stream: str
) -> None:
    heat = data(reader, stream=stream, set=OFF)["heat"]
    whole = ms.trace(model, PROMPT_TEXT, top=24, interventions=[OFF])
    for layer, places in enumerate(whole.places):
        for j, place in enumerate(places):
            final = whole.positions[j].prediction[0].token.id
            listed = getattr(place, stream)
            rank = next(rank for rank, guess in enumerate(listed) if guess.token.id == final)
            assert heat["rank"][layer][j] == rank
            assert heat["probability"][layer][j] == pytest.approx(listed[rank].probability, abs=1e-6)


def test_before_and_after_are_those_of_compare(reader: TestClient, model: LanguageModel) -> None:
    found = data(reader, set=OFF, generate=3)
    expected = compare(model, PROMPT_TEXT, [OFF]).to_dict()
    assert found["trace"] == expected["after"]
    assert data(reader, set=OFF, view="before")["trace"] == expected["before"]
    assert found["comparison"]["differences"] == expected["differences"]
    assert found["comparison"]["changed_places"] == expected["changed_places"]
    for name, changes in (("before", None), ("after", [OFF])):
        steps = [step.to_dict() for step in generate(model, PROMPT_TEXT, tokens=3, interventions=changes, cached=True)]
        assert found["generation"][name]["steps"] == steps
    shown = page(reader, set=OFF, generate=3).text
    assert re.search(r"turns from\s+·mat\s+to\s+<s>", shown)
    assert "Written with the changes" in shown


@pytest.mark.parametrize("at", ["last", "4"])
def test_where_a_change_holds_may_be_said_once(reader: TestClient, model: LanguageModel, at: str) -> None:
    found = data(reader, set=["L1.M4=0", "L0.M3*2@all"], at=at)
    assert found["interventions"] == [f"L1.M4=0@{at}", "L0.M3*2"]
    assert found["trace"] == ms.trace(model, PROMPT_TEXT, interventions=found["interventions"]).to_dict()


@pytest.mark.full
def test_every_link_of_a_trace_leads_somewhere(reader: TestClient) -> None:
    shown = page(reader, set=OFF, generate=2)
    ids = {at["id"] for _, at in shown.found if "id" in at}
    for href in dict.fromkeys(shown.links()):
        if href.startswith(("/search", "/annotate")):
            continue
        assert reader.get(href).status_code == 200, href
        if href.startswith("/trace?"):
            fragment = urlsplit(href).fragment
            assert not fragment or fragment in ids, href


def test_a_click_adds_a_change_in_place_of_the_memorys_other(reader: TestClient) -> None:
    shown = page(reader, set=["L0.M3*2", OFF], layer=1)
    clicks = [parse_qs(urlsplit(href).query)["set"] for href in shown.links("L1.M4%3D0")]
    assert ["L0.M3*2", "L1.M4=0"] in clicks
    doubled = [parse_qs(urlsplit(href).query)["set"] for href in page(reader, layer=1).links("L1.M4%2A2")]
    assert doubled == [["L1.M4*2"]]
    removed = [parse_qs(urlsplit(href).query).get("set") for href in shown.links("/trace?")]
    assert ["L0.M3*2"] in removed
    assert None in removed


def test_a_memorys_page_carries_prompt_and_changes_along(reader: TestClient) -> None:
    way = page(reader, set=["L0.M3*2"], layer=1).links("/L1.M4?")[0]
    memory = Parts(reader.get(way).text)
    (off,) = memory.links("L1.M4%3D0")
    query = parse_qs(urlsplit(off).query)
    assert query == {"prompt": [PROMPT_TEXT], "set": ["L0.M3*2", "L1.M4=0"]}
    assert "/L1.M4/causal" in memory.links()
    assert data(reader, set=query["set"])["interventions"] == ["L0.M3*2", "L1.M4=0"]


def test_the_papers_figure_1_of_a_layer_is_drawn_with_links_to_the_others(reader: TestClient, planted: Path) -> None:
    drawn = data(reader, layer=1)["figure1"]
    assert [one["memory"] for one in drawn["memories"]] == ["L1.M4"]
    atlas = ms.open_atlas(planted)
    assert atlas["L1.M4"].labels()["label"][0] == 'no clear pattern; promotes " mat"'
    label = 'fires at "the"; promotes " mat"'  # in lists, since too few triggers share it for a label
    labelled = ms.figure1(load_model(SPEC), PROMPT_TEXT, 1, atlas=atlas).numbers["memories"]
    assert [drawn["memories"][0]["label"], labelled[0]["label"]] == [label, label]
    shown = page(reader, layer=1)
    (broad, narrow) = (at for tag, at in shown.found if tag == "svg" and "Layer 1 as" in (at.get("aria-label") or ""))
    assert int(narrow["width"] or 0) < 400 < int(broad["width"] or 0)
    assert "no other memories" not in shown.text
    assert {f"layer={layer}" in link for layer, link in enumerate(shown.links("#figure1"))} == {True}
    assert len(shown.links("#figure1")) == 3
    assert shown.text.count("their sum y") == 2
    off = data(reader, layer=1, set=OFF)["figure1"]
    assert (off["memories"], off["total"]["length"]) == ([], 0.0)
    assert data(reader, layer=1, set=OFF, view="before")["figure1"] == drawn


def test_a_model_that_was_not_mined_has_lists_without_labels(planted: Path, tmp_path: Path) -> None:
    other = client(planted, model=str(other_weights(tmp_path / "other")), force_model=True)
    page = other.get("/trace", params={"prompt": PROMPT_TEXT}).text
    assert "Who pushed" in page
    assert re.search(r'<td class="about" title="; no clear token"></td>', page)
    cause = other.get("/trace/cause", params={"prompt": PROMPT_TEXT, "until": "attributions"})
    assert (cause.status_code, "Memories that the prediction hangs on" in cause.text) == (200, True)


def test_a_memorys_page_leads_to_figure_1_at_its_best_trigger(reader: TestClient) -> None:
    (way,) = Parts(reader.get("/L1.M4").text).links("#figure1")
    best = reader.get("/L1.M4.json").json()["triggers"][0]
    found = reader.get(way.replace("/trace?", "/trace.json?").partition("#")[0]).json()["figure1"]
    assert (found["layer"], found["position"]) == (1, best["position"])
    (row,) = (one for one in found["memories"] if one["memory"] == "L1.M4")
    assert row["coefficient"] == pytest.approx(best["coefficient"], rel=1e-5)


def test_the_next_token_grows_the_prompt(reader: TestClient) -> None:
    shown = page(reader, set=OFF, view="before")
    ahead = next(at["href"] for tag, at in shown.found if tag == "a" and at.get("data-key") == "n")
    assert ahead is not None
    assert parse_qs(urlsplit(ahead).query)["prompt"] == [PROMPT_TEXT + " mat"]
    assert data(reader, generate=1)["generation"]["before"]["joined"] == " mat"
    # The beginning token has no text that could be added.
    ended = page(reader, prompt=PROMPT_TEXT + " mat", generate=1)
    assert "cannot be added as text" in ended.text
    assert "Add this to the prompt" not in ended.text


HOSTILE = "the cat </textarea><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e{{ 7*7 }}"


def test_hostile_text_is_shown_and_never_markup(reader: TestClient, model: LanguageModel) -> None:
    answer = reader.get("/trace", params={"prompt": HOSTILE, "set": OFF, "generate": 1})
    assert answer.status_code == 200
    texts = (HOSTILE, f"{HOSTILE} cat" * 9)
    audits = [reader.get("/audit", params={"text": text, "alternatives": 19}) for text in texts]
    assert [one.status_code for one in audits] == [200, 400]
    for shown in (Parts(one.text) for one in (answer, *audits)):
        loaded = [(tag, (at.get("src") or "")[:8]) for tag, at in shown.found if tag in ("script", "img")]
        assert set(loaded) == {("script", "/static/")}
        assert not [at for _, at in shown.found if any(name.startswith("on") or name == "style" for name in at)]
        assert "alert(1)" in shown.text
        assert "{{ 7*7 }}" in shown.text
    for bad in ("<script>alert(3)</script>", '"><svg onload=alert(4)>', "L1.M4=0<b>"):
        refused = reader.get("/trace", params={"prompt": "the", "set": bad})
        assert refused.status_code == 400
        assert not [tag for tag, _ in Parts(refused.text).found if tag in ("svg", "b")]
        assert bad not in refused.text


def test_the_python_script_is_the_trace(reader: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    answer = reader.get("/trace.py", params={"prompt": HOSTILE, "set": OFF})
    assert answer.headers["content-disposition"] == 'attachment; filename="trace.py"'
    assert answer.text == reader.get("/trace.json", params={"prompt": HOSTILE, "set": OFF}).json()["python"]
    constants = [node.value for node in ast.walk(ast.parse(answer.text)) if isinstance(node, ast.Constant)]
    assert HOSTILE in constants
    exec(reader.get("/trace.py", params={"prompt": PROMPT_TEXT, "set": OFF}).text, {})
    assert "·mat" in capsys.readouterr().out


def test_line_ends_of_a_form_are_those_that_were_written(reader: TestClient) -> None:
    assert data(reader, prompt="the\r\ncat")["trace"]["prompt"] == "the\ncat"


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "the " * 40}, "has 40 tokens, but the model reads at most 31"),
        ({"prompt": "x" * (PROMPT + 1)}, "at most 2000 characters"),
        ({"set": "L1.M6=0"}, "L1.M6 is outside the model"),
        ({"set": "L3.M0=0"}, "L3.M0 is outside the model"),
        ({"set": "L1.E0.M1=0"}, "names an expert"),
        ({"set": "L1.M4=nan"}, "finite number"),
        ({"set": "L1.M4*inf"}, "finite number"),
        ({"set": "L1.M4=1e39"}, "beyond what"),
        ({"set": "M4=0"}, "not a change"),
        ({"set": "L1.M4=0", "at": "never"}, "not a change"),
        ({"set": "L1.M4=0@-1"}, "cannot be changed at|not a change"),
        ({"set": "L1.M4=0@99"}, "begins at position 99"),
        ({"set": "L1.M4=3e38"}, "NaN or infinite"),
        ({"set": [OFF] * (CHANGES + 1)}, "at most 50"),
        ({"set": [OFF] * 60}, "at most 51 items"),
        ({"set": "L1.M4=" + "0" * 100}, "at most 80 characters"),
        ({"generate": WRITTEN + 1}, "less than or equal to 64"),
        ({"generate": -1}, "greater than or equal to 0"),
        ({"generate": "many"}, "valid integer"),
        ({"position": 5}, "no position 5: the prompt has positions 0 to 4"),
        ({"layer": 3}, "no layer 3: the model has layers 0 to 2"),
        ({"layer": -1}, "greater than or equal to 0"),
        ({"stream": "other"}, "should be"),
    ],
)
def test_what_cannot_be_traced_is_one_sentence(reader: TestClient, query: dict[str, Any], sentence: str) -> None:
    refused(reader, "/trace", {"prompt": PROMPT_TEXT, **query}, said=sentence)


def test_no_placeholder_of_any_page_is_cut() -> None:
    """A field that is as wide as so many letters holds the words that stand in it before anything is written."""
    templates = files("mnemoscope.show.pages").joinpath("templates")
    texts = [one.read_text(encoding="utf-8") for one in templates.iterdir() if one.name.endswith(".html")]
    fields = [field for text in texts for field in re.findall(r"<input [^>]*>", text) if "placeholder=" in field]
    sized = [field for field in fields if ' size="' in field]
    assert len(sized) >= 7
    for field in sized:
        words, size = re.search(r'placeholder="([^"]*)"', field), re.search(r' size="(\d+)"', field)
        assert len(words[1]) <= int(size[1]), field


def test_a_form_keeps_what_could_not_be_traced(reader: TestClient) -> None:
    shown = Parts(reader.get("/trace", params={"prompt": "the cat", "set": "L9.M0=0"}).text)
    values = [at.get("value") for tag, at in shown.found if tag == "input" and at.get("name") == "set"]
    assert values == ["L9.M0=0", ""]
    assert "the cat" in shown.text


def test_empty_fields_of_a_form_are_none(reader: TestClient) -> None:
    found = data(reader, set=["", " ", OFF], at="", generate="", layer="", position="")
    assert (found["interventions"], reader.get("/trace").status_code) == ([OFF], 200)
    assert reader.get("/trace.json", params={"set": OFF}).json()["interventions"] == [OFF]
    assert reader.get("/trace.py").status_code == reader.get("/trace/cause").status_code == 400
    assert found["pushed"]["target"] == data(reader, **{"for": "", "against": ""}, set=OFF)["pushed"]["target"]


@pytest.mark.parametrize(("page", "verb"), [("/trace", "trace"), ("/audit", "audit"), ("/diff", "diff")])
def test_without_a_model_a_page_says_how_to_have_one(handbuilt: Path, page: str, verb: str) -> None:
    reader = client(handbuilt)
    answer = reader.get(page, params={"prompt": "x", "text": "x"})
    assert answer.status_code == reader.get(f"{page}.json").status_code == 404
    assert f"mnemoscope {verb} handbuilt" in answer.text or "--model handbuilt" in answer.text
    assert "--model MODEL" in reader.get(f"{page}.json").json()["message"]
    assert reader.get("/L0.M0/causal").status_code == 404
    assert not {"/trace", "/audit"} & set(Parts(reader.get("/L0.M0").text).links())


def test_the_causal_check_is_that_of_tracing(reader: TestClient, model: LanguageModel, planted: Path) -> None:
    expected = causal_check(model, ms.open_atlas(planted), "L1.M4").to_dict()
    assert reader.get("/L1.M4/causal.json").json() == expected
    text = " ".join(Parts(reader.get("/L1.M4/causal").text).text.split())
    assert "What L1.M4 does at its own triggers" in text
    assert "·mat" in text
    measured = {(row["measure"], row["of"]): row for row in expected["rows"]}
    shift = measured["own_tokens_probability", "difference"]
    sentence = "Nothing can be told" if shift["low"] is None or shift["low"] <= 0 <= shift["high"] else "become less"
    assert sentence in text
    for name, status in (("L1.M99", 404), ("L9.M0", 404), ("x", 404), ("L0.M5", 400)):
        assert reader.get(f"/{name}/causal").status_code == status, name
    assert "no trigger" in reader.get("/L0.M5/causal.json").json()["message"]
    assert reader.get("/L1.M4/causal?sign=2").status_code == 400
