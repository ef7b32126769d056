"""axe-core has nothing to object to: landmarks, names, headers, contrast; in the light, and on a phone at night."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import polars as pl
import pytest

import mnemoscope as ms
from support.browser import DESK, PHONE, Visit, Visits
from web.planted_atlas import SPEC
from web.served import running

PAGES = (
    "/",
    "/L0.M0",
    "/L0.M0?pattern=0",
    "/L0.M0/annotate",
    "/L0.M99",
    "/search?q=script",
    "/tokens",
    "/tokens/6",
    "/layers",
    "/layers/0",
    "/layers/0?kind=shallow",
    "/questions",
    "/questions/key_patterns",
    "/annotate",
)
ASKED = {"prompt": "the cat sat on the"}
OF_THE_MODEL = (
    "/trace",
    f"/trace?{urlencode(ASKED)}",
    f"/trace?{urlencode(ASKED | {'set': 'L1.M4=0', 'generate': 2})}",
    "/audit",
    f"/audit?{urlencode({'text': 'the old house'})}",
    "/L1.M0/causal",
    "/compare",
)


@pytest.fixture(scope="module")
def of_the_model(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a model, of an atlas that was compared."""
    atlas, other = (shutil.copytree(planted, tmp_path_factory.mktemp("compared") / name) for name in ("atlas", "other"))
    found = ms.compare(atlas, other)
    weights = [{"layer": 0, "module": "mlp.c_fc", "change": 1.0, "relative": 0.5, "share": 1.0}]
    replace(found, pairs=[{**found.pairs[0], "weights": pl.DataFrame(weights)}]).save()
    with running(atlas, model=SPEC) as address:
        yield address


@pytest.fixture(scope="module")
def of_experts(experts: tuple[Path, str]) -> Iterator[str]:
    with running(experts[0]) as address:
        yield address


def barriers(visit: Visits, address: str) -> list[str]:
    found = []
    for width, dark in ((DESK, False), (PHONE, True)):
        seen = visit(address, width=width, dark=dark)
        found += [f"{width}: {one}" for one in settled(seen).barriers()]
    return found


def settled(seen: Visit) -> Visit:
    """The page once the search index behind it has been built, and the parts that come later are there."""
    for _ in range(20):
        if "search index is being built" not in seen.page.content():
            break
        seen.page.reload()
    seen.page.wait_for_load_state("networkidle")
    return seen


@pytest.mark.parametrize("path", PAGES)
def test_pages(visit: Visits, site: str, path: str) -> None:
    assert barriers(visit, site + path) == []


@pytest.mark.parametrize("path", OF_THE_MODEL)
def test_pages_of_the_model(visit: Visits, of_the_model: str, path: str) -> None:
    assert barriers(visit, of_the_model + path) == []


@pytest.mark.parametrize("path", ["/routing", "/layers/0", "/L0.E0.M0"])
def test_pages_of_experts(visit: Visits, of_experts: str, path: str) -> None:
    assert barriers(visit, of_experts + path) == []


def test_pages_of_annotators(visit: Visits, atlas: Path) -> None:
    with running(atlas) as address:
        host = visit(f"{address}/annotate").page
        host.fill("#per-layer", "3")
        host.click("text=Draw and begin")
        host.fill("#who", "Ada")
        host.click("text=Make a link")
        link = host.input_value("input.link")
        for path in ("/annotate", "/annotate/results"):
            assert barriers(visit, address + path) == []
        seen = visit(link, width=PHONE)
        assert seen.barriers() == []
        seen.page.keyboard.press("Enter")
        seen.page.wait_for_selector("#pattern")
        assert seen.barriers() == []


def test_a_barrier_is_found(visit: Visits, site: str) -> None:
    """So that an empty list says something."""
    seen = visit(f"{site}/layers")
    seen.page.evaluate("document.body.insertAdjacentHTML('beforeend', '<table><tr><th></th><td>1</td></tr></table>')")
    found = {one.partition(":")[0] for one in seen.barriers()}
    assert found == {"All page content should be contained by landmarks", "Table header text should not be empty"}
