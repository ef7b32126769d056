"""Browsing in Chromium: no complaint, nothing asked of others, readable in the dark and on a phone, by keyboard."""

import re

import pytest

from mnemoscope.questions import QUESTIONS
from support.browser import PHONE, Visit, Visits

PAGES = ("/", "/L0.M0", "/L0.M0?pattern=0", "/search?q=script", "/tokens", "/tokens/6", "/L0.M99", "/nothing")


def opened(visit: Visits, site: str, path: str, *, width: int = 1280, dark: bool = False) -> Visit:
    """The page, once the search index behind it has been built."""
    for _ in range(20):
        seen = visit(site + path, width=width, dark=dark)
        if "search index is being built" not in seen.page.content():
            break
    return seen


@pytest.mark.parametrize("path", PAGES)
def test_a_page_complains_of_nothing_and_asks_nobody_else(visit: Visits, site: str, path: str) -> None:
    seen = opened(visit, site, path)
    missing = path in ("/L0.M99", "/nothing")
    assert ["404 (Not Found)" in line for line in seen.complaints] == [True] * missing
    assert len(seen.requests) >= 3
    assert all(request.startswith(f"{site}/") for request in seen.requests)
    assert (seen.page.evaluate("typeof window.ran"), seen.page.locator("img").count()) == ("undefined", 0)


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_scrolls_down_only(visit: Visits, site: str, path: str, dark: bool) -> None:
    assert opened(visit, site, path, width=PHONE, dark=dark).wider_than_the_window() <= 0


def test_the_dark_is_dark(visit: Visits, site: str) -> None:
    for dark in (False, True):
        colour = opened(visit, site, "/", dark=dark).page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert colour == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")


def test_from_the_overview_to_a_pattern_by_clicks(visit: Visits, site: str) -> None:
    page = opened(visit, site, "/").page
    page.get_by_label("Search text, or a memory").fill("L0.M0")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{site}/L0.M0")
    page.locator("#patterns li a").first.click()
    page.wait_for_url(f"{site}/L0.M0?pattern=0#triggers")
    assert page.locator("li.explained").count() >= 1
    page.get_by_role("link", name="Show all alike").click()
    page.wait_for_url(f"{site}/L0.M0")
    page.get_by_role("link", name="This page as JSON").click()
    assert '"memory": "L0.M0"' in page.content()


def test_keys_lead_through_the_memories(visit: Visits, site: str) -> None:
    page = opened(visit, site, "/L0.M1").page
    page.keyboard.press("j")
    page.wait_for_url(f"{site}/L0.M2")
    page.keyboard.press("k")
    page.wait_for_url(f"{site}/L0.M1")
    page.keyboard.press("?")
    assert page.locator("dialog#keys").is_visible()
    page.keyboard.press("j")
    page.keyboard.press("Escape")
    assert not page.locator("dialog#keys").is_visible()
    assert page.url == f"{site}/L0.M1"
    page.keyboard.press("/")
    # In a field a letter is a letter.
    page.keyboard.type("jg")
    assert page.locator("#find").input_value() == "jg"
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.wait_for_url(f"{site}/")


def test_keys_can_be_switched_off_and_stay_off(visit: Visits, site: str) -> None:
    page = opened(visit, site, "/L0.M1").page
    page.keyboard.press("?")
    page.get_by_label("use these keys").uncheck()
    page.get_by_role("button", name="Close").click()
    for path in ("/L0.M1", "/L0.M0/annotate"):
        page.goto(site + path)
        for key in "j?gx1":
            page.keyboard.press(key)
        assert page.url == site + path
        assert not page.locator("dialog#keys").is_visible()
        assert page.locator("input[name=marks]:checked").count() == 0
    page.get_by_role("button", name="Keys (?)").click()
    page.get_by_label("use these keys").check()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.wait_for_url(f"{site}/")


@pytest.mark.parametrize("path", ["/layers/0", *(f"/questions/{question}" for question in QUESTIONS)])
def test_figures_fit_a_phone_with_letters_of_a_readable_size(visit: Visits, site: str, path: str) -> None:
    seen = opened(visit, site, path, width=PHONE)
    drawings = [one for one in seen.page.locator("svg.drawing").all() if one.is_visible()]
    assert len(drawings) <= 1
    for drawing in drawings:
        box = drawing.bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= PHONE
        letters = drawing.evaluate(
            """one => [...one.querySelectorAll("text")].map((text) => [
              text.getBoundingClientRect(), parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a,
            ]).filter(([box]) => box.width).map(([box, size]) => [box.left, box.right, size])"""
        )
        assert min(size for *_, size in letters if size) >= 10
        assert min(left for left, *_ in letters) >= 0
        assert max(right for _, right, _ in letters) <= PHONE


def test_a_question_fills_a_laptop_and_breaks_no_range_of_layers(visit: Visits, site: str) -> None:
    page = opened(visit, site, "/questions/key_patterns", width=1280).page
    drawing, caption = page.locator(".broad svg").bounding_box(), page.locator("figcaption").bounding_box()
    assert drawing["x"] + drawing["width"] < caption["x"]
    assert abs(drawing["y"] - caption["y"]) < 40
    assert caption["x"] + caption["width"] > 1180
    cells = page.get_by_text(re.compile(r"^layers [\d-]+: all$")).all()
    assert len(cells) == 2
    lines = "one => { const range = document.createRange(); range.selectNodeContents(one);" + (
        " return new Set([...range.getClientRects()].map((box) => box.top)).size; }"
    )
    assert [one.evaluate(lines) for one in cells] == [1, 1]


def test_the_first_tab_skips_to_the_text_and_focus_is_seen(visit: Visits, site: str) -> None:
    page = opened(visit, site, "/L0.M0").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_without_script_everything_is_there(running_chromium: object, site: str, visit: Visits) -> None:
    from playwright.sync_api import Browser

    assert isinstance(running_chromium, Browser)
    context = running_chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site}/L0.M0?pattern=0")
    assert page.locator("li.explained").count() >= 1
    assert page.locator(".keys").is_hidden()
    context.close()
