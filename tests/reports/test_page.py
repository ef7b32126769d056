"""The report's page in a browser: drawn, offline, in the dark, on a phone, on paper, and deaf to hostile text."""

import re
from pathlib import Path

import pytest

from mnemoscope.questions import QUESTIONS
from support.browser import PHONE, Visit, Visits

DRAWN = "html[data-charts=drawn]"


@pytest.fixture(scope="module")
def address(reported_atlas: Path) -> str:
    return (reported_atlas / "report" / "index.html").as_uri()


def opened(visit: Visits, address: str, *, width: int = 1280, dark: bool = False) -> Visit:
    """The page once its charts are drawn."""
    seen = visit(address, width=width, dark=dark)
    seen.page.wait_for_selector(DRAWN)
    return seen


def test_every_figure_is_drawn_without_a_request_or_a_complaint(visit: Visits, address: str) -> None:
    seen = opened(visit, address)
    assert (seen.complaints, seen.requests[0]) == ([], address)
    assert all(re.match(r"(file|data|blob):", request) for request in seen.requests)
    for question in QUESTIONS:
        box = seen.page.locator(f"[data-chart={question}] svg").bounding_box()
        assert box is not None, question
        assert box["width"] > 400
        assert box["height"] > 150
        assert seen.page.locator(f"[data-chart={question}] svg path").count() > 5


def test_hostile_text_is_never_run(visit: Visits, address: str) -> None:
    seen = opened(visit, address)
    seen.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert (seen.page.evaluate("typeof window.ran"), seen.page.locator("img").count()) == ("undefined", 0)
    assert "<script>window.ran=3</script>" in seen.page.locator("#memories").inner_text()


def test_the_policy_stops_what_a_page_might_ask_for(visit: Visits, address: str) -> None:
    """So that the log of requests above would not be empty for want of looking."""
    seen = opened(visit, address)
    script = "fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'stopped')"
    assert seen.page.evaluate(script) == "stopped"
    assert any("Content Security Policy" in line for line in seen.complaints)


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable_in_light_and_dark(visit: Visits, address: str, dark: bool) -> None:
    seen = opened(visit, address, dark=dark)
    ink, paper = (
        _lightness(seen.page.evaluate(f"getComputedStyle(document.body).{name}"))
        for name in ("color", "backgroundColor")
    )
    assert (ink > 0.8 and paper < 0.2) if dark else (ink < 0.2 and paper > 0.8)
    axis = seen.page.locator("[data-chart=refinement_match] svg .role-axis-label text").first
    drawn = _lightness(axis.evaluate("one => getComputedStyle(one).fill"))
    assert abs(drawn - ink) < 0.05, "the charts take the colour of the text around them"
    assert seen.complaints == []


def _lightness(colour: str) -> float:
    channels = [int(part) for part in re.findall(r"\d+", colour)[:3]]
    return sum(channels) / 3 / 255


def test_the_first_screen_tells_what_was_found(visit: Visits, address: str) -> None:
    seen = opened(visit, address)
    titles, claims = seen.page.locator("#glance h3"), seen.page.locator("#glance .claims li")
    assert (titles.count(), claims.count() > 20) == (3, True)
    for one in (*titles.all(), claims.first):
        box = one.bounding_box()
        assert box["y"] + box["height"] < 900


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (PHONE, True)])
def test_axe_has_nothing_to_object_to(visit: Visits, address: str, width: int, dark: bool) -> None:
    assert opened(visit, address, width=width, dark=dark).barriers() == []


def test_a_phone_does_not_scroll_sideways(visit: Visits, address: str) -> None:
    seen = opened(visit, address, width=PHONE)
    assert (seen.page.evaluate("innerWidth"), seen.wider_than_the_window()) == (PHONE, 0)
    ours = seen.page.locator("#paper td[data-name='by ours']").first.bounding_box()
    assert ours["x"] + ours["width"] <= PHONE, "our number stands beside the paper's"
    chart = seen.page.locator("[data-chart=key_patterns] svg").bounding_box()
    assert 250 < chart["width"] <= PHONE
    assert seen.complaints == []


def test_captions_stand_beside_the_figures_and_ranges_of_layers_are_not_broken(visit: Visits, address: str) -> None:
    page = opened(visit, address).page
    own = page.locator("#key_patterns")
    drawing, caption = own.locator(".chart svg").bounding_box(), own.locator("figcaption").bounding_box()
    assert drawing["x"] + drawing["width"] < caption["x"]
    assert caption["x"] + caption["width"] > 1180
    lines = "one => { const range = document.createRange(); range.selectNodeContents(one);" + (
        " return new Set([...range.getClientRects()].map((box) => box.top)).size; }"
    )
    cells = own.locator("td[data-name='the paper']").all()
    assert any("1-9" in str(one.text_content()) for one in cells)
    assert [one.evaluate(lines) for one in cells] == [1] * len(cells)


def test_series_stand_beside_one_another_around_their_layer(visit: Visits, address: str) -> None:
    """The middle of a layer's dodged points is the middle of its band, where its tick is."""
    seen = opened(visit, address)
    chart = seen.page.locator("[data-chart=layer_composition] svg")
    middle = "one => { const box = one.getBoundingClientRect(); return box.x + box.width / 2; }"
    panel = chart.locator(".concat_0_group, .role-scope").first
    labels = panel.locator(".role-axis-label text").all()
    ticks = [one.evaluate(middle) for one in labels if one.text_content() in ("0", "1")]
    points = sorted(one.evaluate(middle) for one in panel.locator(".mark-symbol.role-mark path").all())
    assert len(ticks) == 2
    assert len(points) >= 4
    half = len(points) // 2
    for tick, own in zip(ticks, (points[:half], points[half:]), strict=True):
        assert abs((own[0] + own[-1]) / 2 - tick) < 4
        assert own[-1] - own[0] > 5


def test_it_prints(visit: Visits, address: str, tmp_path: Path) -> None:
    seen = opened(visit, address, dark=True)
    seen.page.pdf(path=tmp_path / "report.pdf", format="A4")
    printed = (tmp_path / "report.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    pages = max(int(number) for number in re.findall(rb"/Count (\d+)", printed))
    assert len(QUESTIONS) < pages < 2 * len(QUESTIONS) + 5
    seen.page.emulate_media(media="print")
    assert _lightness(seen.page.evaluate("getComputedStyle(document.body).backgroundColor")) == 1.0
    assert not seen.page.locator("nav").is_visible()
