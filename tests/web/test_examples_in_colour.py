"""A memory's examples in colour, near-duplicates folded under the best, and a text tried on a memory."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

import mnemoscope as ms
from mnemoscope.atlas import verify
from mnemoscope.atlas.manifest import seal
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_table
from mnemoscope.errors import AtlasDamaged
from mnemoscope.models import LanguageModel
from mnemoscope.show.pages.triggers import colour_tokens, group_triggers
from support.handbuilt_atlas import PROVENANCE, build_atlas, manifest
from web.parts import Parts
from web.planted_atlas import SPEC, other_weights
from web.served import client

TEXT = "the cat sat on the mat"


def coloured_atlas(folder: Path) -> Path:
    """The hand-built atlas with the coefficients of three triggers: those of L0.M0 at ranks 0, 1 and below zero."""
    atlas = build_atlas(folder)
    none = {"memory": [], "sign": [], "rank": [], "coefficients": [], "scale": []}
    rows = {
        "memory": [0, 0, 0],
        "sign": [1, 1, -1],
        "rank": [0, 1, 0],
        "scale": [3.0, 2.0, 0.5],
        "coefficients": [[0.5, 0, -0.25, 0, 1, 0, 0.125], [1, 0, 0, 0, 0.5, 0, 0], [0, 0, 0, -1, 0, 0, 0.5]],
    }
    for layer, columns in ((0, rows), (1, none)):
        path = atlas / TABLES["token_activations"].path(layer)
        path.parent.mkdir(exist_ok=True)
        write_table(path, columns, name="token_activations", provenance=PROVENANCE)
    seal(atlas, manifest())
    return atlas


@pytest.fixture(scope="module")
def coloured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coloured_atlas(tmp_path_factory.mktemp("coloured"))


def lit(text: str) -> list[list[tuple[str, str | None, str | None]]]:
    """Of every coloured sentence its tokens: text, class and title."""
    found = []
    for line in re.findall(r'<span class="text lit" dir="auto">(.*?)(?:<span class="hidden"|</details>)', text):
        pattern = r'<(?:span|mark|a)(?: class="(?!after)([^"]*)")?(?: title="([^"]*)")?[^>]*>([^<]+)<'
        found.append([(shown, kind or None, title or None) for kind, title, shown in re.findall(pattern, line)])
    return found


def test_every_token_has_the_colour_and_the_number_of_its_coefficient(coloured: Path) -> None:
    assert verify(coloured) == []
    reader = client(coloured)
    first, second, third = lit(reader.get("/L0.M0").text)
    assert [one for one in first if one[0] != "✓"] == [
        ("The", "h4", "1.50"),
        (" capital", None, "0.00"),
        (" of", "h2 minus", "-0.75"),
        (" France", None, "0.00"),
        ("·is", "h9", "3.00"),
        ("·Paris", "token foretold", "0.00"),
        (".", "h1", "0.38"),
    ]
    assert [kind for _, kind, _ in second[:5]] == ["h6", "token", None, None, "h3"]
    assert [kind for _, kind, _ in third] == [None, None, None, "h9 minus", "token", None, "h4"]
    tokens = reader.get("/L0.M0.json").json()["triggers"][0]["tokens"]
    assert [one["text"] for one in tokens] == ["The", " capital", " of", " France", " is", " Paris", "."]
    assert [one["coefficient"] for one in tokens] == [1.5, 0, -0.75, 0, 3, 0, 0.375]


def test_a_reader_who_sees_no_colours_hears_the_numbers(coloured: Path) -> None:
    text = client(coloured).get("/L0.M0").text
    assert '<span class="hidden">activations: The 1.50;  of -0.75;  is 3.00; . 0.38; nearly 0 elsewhere</span>' in text
    assert "blue above zero, orange below" in text
    assert "token_activations" not in text


def test_without_the_table_the_page_says_how_to_make_it(handbuilt: Path) -> None:
    reader = client(handbuilt)
    text = reader.get("/L0.M0").text
    assert f"mnemoscope extend {handbuilt} token_activations" in text
    assert "lit" not in {at.get("class") for _, at in Parts(text).found}
    assert {one["tokens"] for one in reader.get("/L0.M0.json").json()["triggers"]} == {None}


def test_lists_that_do_not_fit_the_sentences_are_damage(tmp_path: Path) -> None:
    atlas = coloured_atlas(tmp_path)
    rows = {"memory": [0], "sign": [1], "rank": [0], "scale": [3.0], "coefficients": [[0.5, 1]]}
    path = atlas / TABLES["token_activations"].path(0)
    write_table(path, rows, name="token_activations", provenance=PROVENANCE)
    seal(atlas, manifest())
    assert client(atlas).get("/L0.M0").status_code == 409
    with pytest.raises(AtlasDamaged, match="do not fit"):
        ms.open_atlas(atlas)["L0.M0"].token_activations()


def trigger(rank: int, *, group: int, fold: int, next_token: int = 1, coloured: bool = False) -> dict[str, Any]:
    text = {"token": next_token, "shown": "n", "text": "n"}
    found = {"sign": 1, "rank": rank, "coefficient": 3.0 - rank, "prefix_group": group, "fold": fold, "position": 1}
    found |= {"before": "t0", "token": text, "next": text, "after": f"after {rank}", "patterns": [], "tokens": None}
    tokens = [{"text": f"t{place}", "coefficient": float(place)} for place in range(4)]
    return found | {"tokens": tokens if coloured else None}


def test_near_duplicates_stand_under_the_best(coloured: Path) -> None:
    groups = ((0, 0), (1, 0), (2, 2), (1, 0), (4, 0))
    triggers = [trigger(rank, group=group, fold=fold) for rank, (group, fold) in enumerate(groups)]
    folded = group_triggers(triggers, 1, says=None)
    found = [(one["rank"], [other["ranks"] for other in one["similar"]]) for one in folded]
    assert found == [(0, [[1, 3], [4]]), (2, [])]
    assert {one["fold"] for one in client(coloured).get("/L0.M0.json").json()["triggers"]} == {0, 1, 3}


def test_what_follows_another_trigger_of_the_prefix_has_no_colours() -> None:
    first, other = trigger(0, group=0, fold=0, coloured=True), trigger(1, group=0, fold=0, next_token=7)
    (shown,) = group_triggers([first, other], 1, says=7)
    tokens = [(one["text"], one["coefficient"]) for one in shown["coloured"]["tokens"]]
    assert tokens == [("t0", 0.0), ("t1", 1.0), ("", None), ("after 1", None)]
    (own,) = group_triggers([first], 1, says=7)
    assert [one["shade"] for one in own["coloured"]["tokens"]] == ["", "h3", "h6", "h9"]


def test_long_sentences_are_cut_between_tokens() -> None:
    long = trigger(0, group=0, fold=0) | {"position": 50, "before": "12345" * 50, "after": "12345" * 50}
    long["tokens"] = [{"text": "12345", "coefficient": 1.0}] * 102
    (shown,) = group_triggers([long], 1, says=None)
    names = ("before", "short_before", "after", "short_after")
    assert [len(shown["coloured"][name]) for name in names] == [50, 32, 50, 20]
    assert shown["cut"]


def test_shades_go_by_the_strongest_and_hold_a_doubled_space() -> None:
    tokens = [{"text": text, "coefficient": number} for text, number in ((" a", 2.0), (" ", -9.0), (" b\n", 0.1))]
    shown = [(one["shown"], one["shade"]) for one in colour_tokens(tokens, 4.0)]
    assert shown == [("·a", "h4"), (" ", "h9 minus"), ("·b⏎", "")]
    assert [one["shade"] for one in colour_tokens(tokens, 0.0)] == ["", "", ""]


@pytest.fixture(scope="module")
def reader(planted: Path, tmp_path_factory: pytest.TempPathFactory, model: LanguageModel) -> TestClient:
    atlas = Path(shutil.copytree(planted, tmp_path_factory.mktemp("served") / "atlas"))
    ms.extend(atlas, model, ["token_activations"])
    return client(atlas, model=SPEC)


def test_a_text_is_tried_on_a_memory(reader: TestClient, model: LanguageModel) -> None:
    """Against the down-projection's input, hooked by hand."""
    network, seen = model.anatomy.model, list[torch.Tensor]()
    down = [module for name, module in network.named_modules() if name.endswith(("c_proj", "down_proj", "fc2"))]
    hooks = [one.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach())) for one in down]
    tokens = model.encode([TEXT])[0]
    with torch.no_grad():
        network(input_ids=torch.tensor([model.reading.frame(tokens)]))
    for hook in hooks:
        hook.remove()
    wide = [one for one in seen if one.shape[-1] == model.sizes.memories[1]]
    expected = wide[1].reshape(-1, model.sizes.memories[1])[-len(tokens) :, 4].tolist()
    found = reader.get("/L1.M4/try.json", params={"text": TEXT}).json()
    assert [one["token"] for one in found["tokens"]] == list(tokens)
    assert [one["coefficient"] for one in found["tokens"]] == pytest.approx(expected, abs=1e-5)
    assert max(map(abs, expected)) > 0.1
    page = reader.get("/L1.M4/try", params={"text": TEXT}).text
    assert f"{TEXT}</textarea>" in page
    (shown,) = lit(page)
    assert len(shown) == len(tokens)
    assert any(kind and kind.startswith("h") for _, kind, _ in shown)


def test_a_memory_s_page_leads_there(reader: TestClient, planted: Path) -> None:
    assert 'action="/L1.M4/try"' in reader.get("/L1.M4").text
    assert lit(reader.get("/L1.M4").text)
    bare = client(planted)
    assert "/try" not in bare.get("/L1.M4").text
    assert bare.get("/L1.M4/try").status_code == 404


def test_texts_and_memories_that_cannot_be_tried(reader: TestClient, planted: Path, tmp_path: Path) -> None:
    assert reader.get("/L1.M4/try").status_code == 200
    for text in ("", "the " * 400, "x" * 2_001):
        assert reader.get("/L1.M4/try", params={"text": text}).status_code == 400, text[:9]
    for name in ("L9.M0", "L1.M9999", "x"):
        assert reader.get(f"/{name}/try", params={"text": TEXT}).status_code == 404, name
    refused = reader.get("/L1.M4/try", params={"text": ""})
    assert Parts(refused.text).text.count("empty") == 1
    other = client(planted, model=str(other_weights(tmp_path)), force_model=True)
    assert other.get("/L1.M4/try.json", params={"text": TEXT}).json()["tokens"]
