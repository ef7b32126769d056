"""Two models compared in Chromium: what takes longer comes by itself, and the page fits a phone."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from support.browser import PHONE, Visits
from web.planted_atlas import SPEC, other_weights
from web.served import running

QUOTE, MINUS = "\N{RIGHT SINGLE QUOTATION MARK}", "\N{MINUS SIGN}"
SECOND, FIRST = f"The second{QUOTE}s answer", f"the first{QUOTE}s"


@pytest.fixture(scope="module")
def site(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    other = other_weights(tmp_path_factory.mktemp("compared") / "other")
    with running(planted, model=SPEC, other=str(other)) as base:
        yield base


@pytest.mark.parametrize("width", [1300, PHONE])
def test_a_reader_compares_two_models_and_then_two_prompts(visit: Visits, site: str, width: int) -> None:
    seen = visit(f"{site}/", width=width)
    page = seen.page
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Diff").click()
    page.get_by_label("Prompt (at most").fill("the cat sat on the")
    page.get_by_role("button", name="Compare").click()
    assert "never part within 64 tokens" in page.locator(".answer").inner_text()
    page.get_by_label(SECOND).fill(" mat")
    page.get_by_label(FIRST).fill(" house")
    page.get_by_role("button", name="Compare").click()
    assert "Nothing differs: every part adds the same" in page.locator("main").inner_text()

    page.get_by_text("on two prompts instead").click()
    page.get_by_label("Other prompt").fill("the old")
    page.get_by_label(SECOND).fill(" house")
    page.get_by_label(FIRST).fill(" mat")
    page.get_by_role("button", name="Compare").click()
    assert parse_qs(urlsplit(page.url).query)["other"] == ["the old"]
    assert f"goes from {MINUS}5.66 to +5.66" in page.locator(".answer").inner_text()
    assert page.locator(".waterfall rect").count() > 3
    page.get_by_role("rowheader", name="all of this position").wait_for()
    assert page.locator("[data-load]").count() == 0
    assert [parse_qs(urlsplit(address).query).get("until") for address in seen.requests if "until" in address] == [
        ["patched"]
    ]
    assert seen.wider_than_the_window() <= 0
    page.locator("#memories").get_by_role("link", name="L1.M").first.click()
    assert "Switch it off in the prompt" in page.locator("main").inner_text()
    assert seen.complaints == []
