"""The drawing of which memory feeds which: its lines are attribute's edges, those of one memory at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import torch
from starlette.testclient import TestClient

import mnemoscope as ms
from mnemoscope.models.opening.handmade import models as handmade
from support.browser import PHONE, Visits
from web.parts import Parts
from web.served import client, running
from web.test_axe_in_a_browser import settled

ASKED = {"prompt": "the old cat sat on the mat and the old dog sat on the new mat and the cat"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The planted model with noise on its weights, so that many memories fire and feed others."""
    folder, (network, tokenizer) = tmp_path_factory.mktemp("noisy"), handmade.build("planted")
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in network.parameters():
            weights += torch.randn_like(weights) * 0.3
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def found(model: str) -> Any:
    return ms.attribute(model, ASKED["prompt"], progress=False)


@pytest.fixture(scope="module")
def site(planted: Path, model: str) -> Iterator[str]:
    with running(planted, model=model, force_model=True) as base:
        yield base


def lines(parts: Parts) -> list[dict[str, str | None]]:
    return [at for tag, at in parts.found if tag == "path" and at.get("data-edge")]


def test_its_lines_are_the_edges_of_attribute(planted: Path, model: str, found: Any) -> None:
    reader: TestClient = client(planted, model=model, force_model=True)
    said = reader.get("/trace/cause.json", params=ASKED).json()["attribution"]
    assert said["edges"] == [pytest.approx(one) for one in found.to_dict()["edges"]]
    page = Parts(reader.get("/trace/cause", params=ASKED).text)
    points = [at["data-name"] for tag, at in page.found if at.get("data-point")]
    assert sorted(filter(None, points)) == sorted(
        f"{row['memory']} at {row['position']}" for row in found.memories.to_dicts() if row["ablation"] is not None
    )
    edges = found.edges.to_dicts()
    drawn = [str(at["data-edge"]).split("|") for at in lines(page)]
    assert [[points[int(end)] for end in line[:2]] for line in drawn] == [
        [f"{one[end]} at {one[f'{end}_position']}" for end in ("source", "target")] for one in edges
    ]
    assert [float(line[2].replace("\u2212", "-")) for line in drawn] == pytest.approx(
        [one["change"] for one in edges], abs=6e-4
    )
    # Without a script there are the lines that move F most.
    assert [("shown" in str(at["class"])) for at in lines(page)] == [place < 20 for place in range(len(edges))]
    links = [at for tag, at in page.found if tag == "a" and "data-point" in at]
    assert all(str(at["href"]).startswith("/L") for at in links)
    early = Parts(reader.get("/trace/cause", params=ASKED | {"until": "attributions"}).text)
    assert (lines(early), "feeds which" in early.text) == ([], False)


def test_a_notebook_has_the_first_lines_alone(found: Any) -> None:
    shown = found._repr_html_()
    assert len(lines(Parts(shown))) == min(20, found.edges.height) == 20
    assert "<script" not in shown
    assert "Which memory feeds which" in shown
    alone = ms.attribute("handmade:planted", "the cat sat on the", against=" dog", progress=False)  # one memory
    assert alone.edges.is_empty()
    assert "feeds which" not in alone._repr_html_()


def test_a_memory_shows_its_own_edges(visit: Visits, site: str, found: Any) -> None:
    seen = visit(f"{site}/trace?{urlencode(ASKED)}")
    page, part = seen.page, seen.page.locator(".feeding")
    page.get_by_role("heading", name="What it hangs on").click()
    page.get_by_text("others, median of 5 draws").wait_for()
    assert (part.locator("path.shown").count(), part.locator("tbody tr").count()) == (20, 20)
    first = found.edges.row(0, named=True)
    name = f"{first['target']} at {first['target_position']}"
    own = [
        one
        for one in found.edges.to_dicts()
        if name in [f"{one[end]} at {one[f'{end}_position']}" for end in ("source", "target")]
    ]
    point = part.locator(f'[data-name="{name}"]')
    for reach in (point.hover, point.focus):
        part.locator("a[data-point]").first.focus()
        reach()
        assert part.locator("path.shown").count() == min(20, len(own))
        assert part.locator("tbody tr").count() == min(20, len(own))
        cells = part.locator("tbody tr").first.locator("th, td").all_inner_texts()
        assert cells[:2] == [f"{first['source']} at {first['source_position']}", name]
        assert part.locator("[data-of]").inner_text() == f"{name}: {min(20, len(own))} of its {len(own)} edges"
    # The next point is one key away; from there back to all.
    page.keyboard.press("Tab")
    assert name not in part.locator("[data-of]").inner_text()
    part.get_by_role("button", name="those of all memories").click()
    assert part.locator("[data-of]").inner_text().startswith("The 20 that move F most")
    assert part.locator("path.shown").count() == 20
    assert seen.complaints == []


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_axe_has_nothing_to_object_to(visit: Visits, site: str, dark: bool) -> None:
    seen = settled(visit(f"{site}/trace/cause?{urlencode(ASKED)}", width=PHONE, dark=dark))
    assert seen.page.locator("path.shown").count() == 20
    # The line about a model that was not mined stands above the page's main part, on every page.
    assert [one for one in seen.barriers() if "is not the model that was mined" not in one] == []
    assert seen.wider_than_the_window() <= 0
