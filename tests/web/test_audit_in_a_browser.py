"""A string audited in Chromium: by its form, to the trace and back, in the dark and on a phone."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from support.browser import PHONE, Visit, Visits
from web.planted_atlas import SPEC
from web.served import running

TEXT = "the old house"


@pytest.fixture(scope="module")
def site(planted: Path) -> Iterator[str]:
    with running(planted, model=SPEC) as base:
        yield base


def clean(seen: Visit, site: str) -> None:
    """No complaint in the console, and nothing asked of anybody else."""
    assert seen.complaints == []
    assert {urlsplit(address)[:2] for address in seen.requests} == {urlsplit(site)[:2]}


def test_a_string_is_audited_traced_and_audited_again(visit: Visits, site: str) -> None:
    seen = visit(f"{site}/")
    page = seen.page
    page.get_by_role("navigation").get_by_role("link", name="Audit").click()
    page.get_by_role("textbox", name="String").fill(TEXT)
    page.get_by_label("Compare with").fill("20")
    page.get_by_label("random in").select_option("digits and letters")
    page.get_by_role("button", name="Audit").click()
    asked = {"text": [TEXT], "alternatives": ["20"], "vary": ["all"]}
    assert parse_qs(urlsplit(page.url).query) == asked
    assert "of 21" in page.locator(".answer").inner_text()
    assert page.get_by_role("textbox", name="String").input_value() == TEXT

    # The best memory's own page, and the trace without it.
    page.locator("a.memory").first.click()
    assert page.locator("h1").inner_text().startswith("L1.M0")
    page.go_back()
    page.get_by_role("link", name="trace the string without L1.M0").click()
    assert parse_qs(urlsplit(page.url).query) == {"prompt": [TEXT], "set": ["L1.M0=0"]}
    page.get_by_role("link", name="Who carries this string?").click()
    assert parse_qs(urlsplit(page.url).query) == {"text": [TEXT]}
    page.get_by_role("link", name="Trace this string").click()
    assert parse_qs(urlsplit(page.url).query) == {"prompt": [TEXT]}
    clean(seen, site)


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone(visit: Visits, site: str, dark: bool) -> None:
    long = " ".join(["the cat sat on the mat and the old house"] * 3)
    for query in ({"text": TEXT}, {"text": long}, {"text": TEXT, "vary": "digits"}, {}):
        seen = visit(f"{site}/audit?{urlencode(query)}", width=PHONE, dark=dark)
        assert seen.wider_than_the_window() <= 0, query
        clean(seen, site)


def test_script_in_a_string_does_not_run(visit: Visits, site: str) -> None:
    hostile = "the cat </textarea></script><script>document.title='run'</script><img src=x onerror=alert(1)>"
    seen = visit(f"{site}/audit?{urlencode({'text': hostile})}")
    assert seen.page.title() == "Audit · Mnemoscope"
    assert seen.page.get_by_role("textbox", name="String").input_value() == hostile
    assert hostile in seen.page.locator("pre").inner_text().replace("\\'", "'")
    clean(seen, site)
