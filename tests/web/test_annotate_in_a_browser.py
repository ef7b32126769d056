"""Two people annotate at once in Chromium: by keyboard, saved as they go, past a closed browser and a lost server."""

import re
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.annotate.campaigns.import_export import rows
from mnemoscope.annotations import open_store
from mnemoscope.atlas import open_atlas
from support.browser import PHONE, Visit, Visits
from web.served import running

SAVED = re.compile(r"^Saved")


def stored(atlas: Path, author: str) -> list[dict[str, Any]]:
    with open_store(open_atlas(atlas)) as store:
        return [row for row in rows(store) if row["author"] == author]


def begun(visit: Visits, url: str, *names: str) -> list[str]:
    """Begins a campaign on its form and invites people; their links."""
    page = visit(f"{url}/annotate").page
    page.fill("#per-layer", "3")
    page.click("text=Draw and begin")
    links = []
    for name in names:
        page.fill("#who", name)
        page.click("text=Make a link")
        links.append(page.input_value("input.link"))
    return links


def at_first_item(visit: Visits, link: str, **more: Any) -> Visit:
    opened = visit(link, **more)
    opened.page.keyboard.press("Enter")
    opened.page.wait_for_selector("#pattern")
    return opened


def typed(opened: Visit, keys: str) -> None:
    for key in keys.split():
        opened.page.keyboard.press(key)


def described(opened: Visit, text: str) -> None:
    opened.page.keyboard.press("d")
    opened.page.keyboard.press("Control+a")
    opened.page.keyboard.type(text)
    opened.page.keyboard.press("Escape")


def saved(opened: Visit) -> None:
    from playwright.sync_api import expect

    expect(opened.page.locator("[data-state]")).to_have_text(SAVED)


def fine(opened: Visit, url: str) -> None:
    # A page that is left at once may leave its icon unread.
    assert [one for one in opened.complaints if not one.endswith("/icon.svg")] == []
    assert all(address.startswith(url) for address in opened.requests)
    assert opened.wider_than_the_window() <= 0
    # A phone shows a page that is too wide as a whole, smaller.
    assert opened.page.evaluate("innerWidth <= document.documentElement.clientWidth")


def test_two_people_annotate_at_once_by_keyboard(atlas: Path, visit: Visits) -> None:
    with running(atlas) as url:
        links = begun(visit, url, "Ada", "Ben")
        ada, ben = at_first_item(visit, links[0]), at_first_item(visit, links[1], dark=True)
        typed(ada, "x j x j x")
        typed(ben, "1 2 x k x k x")
        described(ada, "first three")
        described(ben, "ten to twelve")
        typed(ada, "s")
        typed(ben, "m")
        for opened in (ada, ben):
            saved(opened)
        assert [row["kind"] for row in stored(atlas, "Ada")] == ["shallow"]
        assert [row["kind"] for row in stored(atlas, "Ben")] == ["semantic"]
        checked = "[...document.querySelectorAll('input[name=marks]:checked')].map((one) => Number(one.value))"
        assert (ada.page.evaluate(checked), ben.page.evaluate(checked)) == ([0, 1, 2], [9, 10, 11])
        # Another pattern, one that is changed, and both taken back step by step.
        typed(ada, "n")
        ada.page.wait_for_url("**?pattern=new")
        typed(ada, "5 x j x j x")
        described(ada, "a second")
        typed(ada, "b")
        saved(ada)
        typed(ada, "j x")
        saved_after = ada.page.locator("[data-marked]")
        saved_after.get_by_text("4 marked").wait_for()
        ada.page.wait_for_function("() => document.querySelector('[data-state]').textContent.startsWith('Saved')")
        assert [row["description"] for row in stored(atlas, "Ada")] == ["first three", "a second", "a second"]
        typed(ada, "u")
        ada.page.locator("[data-marked]").get_by_text("3 marked").wait_for()
        assert len(stored(atlas, "Ada")) == 4, "undoing is a row"
        first = ada.page.url.partition("?")[0]
        typed(ada, "Enter")
        ada.page.wait_for_url(lambda where: not where.startswith(first))
        ada.page.locator("h1").get_by_text("Item 2").wait_for()
        typed(ada, "-")
        ada.page.locator("h1").get_by_text("Item 3").wait_for()
        typed(ada, "?")
        assert ada.page.locator("#keys").is_visible()
        typed(ada, "Escape")
        typed(ada, "[")
        ada.page.get_by_text("You found no pattern here").wait_for()
        typed(ada, "g")
        ada.page.get_by_text("2 of 15 finished").wait_for()
        for opened in (ada, ben):
            fine(opened, url)


def test_what_was_typed_survives_a_closed_browser_and_a_lost_server(atlas: Path, visit: Visits) -> None:
    with running(atlas) as url:
        port = int(url.rpartition(":")[2])
        (link,) = begun(visit, url, "Ada")
        ada = at_first_item(visit, link)
        place = ada.page.url
        # Not complete: kept in the browser, and there again.
        typed(ada, "x j x")
        described(ada, "two so far")
        ada.page.locator("[data-state]").get_by_text("mark at least 3 prefixes, choose a class").wait_for()
        context = ada.page.context
        ada.page.close()
        page = context.new_page()
        page.goto(place)
        again = Visit(page)
        assert page.input_value("#description") == "two so far"
        page.locator("[data-marked]").get_by_text("2 marked").wait_for()
        assert stored(atlas, "Ada") == []
    # The server is gone in the middle of a save: it is said, and nothing is lost.
    typed(again, "3 x s")
    page.locator("[data-state]").get_by_text("It is kept in this browser, and sent again soon").wait_for()
    page.close()
    with running(atlas, port=port) as url:
        page = context.new_page()
        page.goto(place)
        page.wait_for_url("**?pattern=0")
        saved(Visit(page))
        assert [row["description"] for row in stored(atlas, "Ada")] == ["two so far"]
        # An answer that never came: the judgement is stored, and sent again under its own key.
        page.route("**/save", lambda route: (route.fetch(), route.abort()))
        described(Visit(page), "three of them")
        page.locator("[data-state]").get_by_text("cannot be reached").wait_for()
        page.close()
        page = context.new_page()
        page.goto(place)
        saved(Visit(page))
        found = stored(atlas, "Ada")
        assert [row["description"] for row in found] == ["two so far", "three of them"]
        # Closed at once after the last key: a tab that goes still sends.
        described(Visit(page), "the last words")
        page.close(run_before_unload=True)
        page = context.new_page()
        page.goto(place)
        saved(Visit(page))
        assert page.input_value("#description") == "the last words"
        assert [row["description"] for row in stored(atlas, "Ada")][2:] == ["the last words"]
        assert len({row["pattern"] for row in stored(atlas, "Ada")}) == 1


def test_on_a_phone_without_a_keyboard(atlas: Path, visit: Visits) -> None:
    with running(atlas) as url:
        (link,) = begun(visit, url, "Ada")
        ada = visit(link, width=PHONE, height=844, dark=True)
        fine(ada, url)
        page = ada.page
        page.tap("text=Begin")
        for row in (1, 2, 3):
            page.tap(f".prefixes li:nth-child({row}) label")
        page.fill("#description", "tapped")
        page.tap('.kinds label:has-text("semantic")')
        saved(ada)
        fine(ada, url)
        page.tap("text=Finished, next")
        page.locator("h1").get_by_text("Item 2").wait_for()
        page.goto(f"{url}/annotate/work")
        page.tap(".places:last-of-type a")
        page.tap(".verdicts button[value=distant]")
        page.locator("h1").get_by_text("Item 13").wait_for()
        fine(ada, url)
        assert [row["event"] for row in stored(atlas, "Ada")] == ["judgement", "finish", "verdict"]


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_the_host_s_pages_and_a_memory_s(atlas: Path, visit: Visits, width: int) -> None:
    with running(atlas) as url:
        (link,) = begun(visit, url, "Ada")
        boss = visit(f"{url}/annotate", width=width)
        fine(boss, url)
        boss.page.goto(f"{url}/annotate/results")
        fine(boss, url)
        boss.page.goto(f"{url}/L0.M0")
        boss.page.click("text=Annotate it")
        boss.page.fill("#name", "Grace")
        boss.page.click("text=Go on")
        for row in (1, 2, 3):
            boss.page.click(f".prefixes li:nth-child({row}) label")
        boss.page.fill("#description", "the host's own <b>word</b>")
        boss.page.click('.kinds label:has-text("shallow")')
        saved(boss)
        fine(boss, url)
        boss.page.click("text=Done: back to L0.M0")
        boss.page.get_by_text("the host's own <b>word</b>").wait_for()
        fine(boss, url)
        assert visit(link).complaints == []


def test_a_verdict_survives_a_lost_server(atlas: Path, visit: Visits) -> None:
    with running(atlas) as url:
        port = int(url.rpartition(":")[2])
        (link,) = begun(visit, url, "Ada")
        page = visit(link).page
        page.click(".places:last-of-type a")
        page.wait_for_selector("#verdict")
        place = page.url
    page.keyboard.press("r")
    page.locator("[data-state]").get_by_text("sent again soon").wait_for()
    context = page.context
    page.close()
    with running(atlas, port=port):
        page = context.new_page()
        page.goto(place)
        page.locator("h1").get_by_text("Item 13").wait_for()
        assert [row["kind"] for row in stored(atlas, "Ada")] == ["related"]
