"""A prompt traced and changed in Chromium: by clicks alone, back again, in the dark and on a phone."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from support.browser import PHONE, Visit, Visits
from web.planted_atlas import SPEC
from web.served import running

PROMPT = "the cat sat on the"


@pytest.fixture(scope="module")
def site(planted: Path) -> Iterator[str]:
    with running(planted, model=SPEC) as base:
        yield base


def clean(seen: Visit, site: str) -> None:
    """No complaint in the console, and nothing asked of anybody else."""
    assert (seen.complaints, {urlsplit(address)[:2] for address in seen.requests}) == ([], {urlsplit(site)[:2]})


def test_a_memory_switched_off_moves_the_prediction(visit: Visits, site: str) -> None:
    seen = visit(f"{site}/trace")
    page = seen.page
    page.get_by_label("Prompt").fill(PROMPT)
    page.get_by_role("button", name="Trace").click()
    assert "predicts ·mat" in page.locator(".answer").inner_text()
    traced = page.url
    assert parse_qs(urlsplit(traced).query)["prompt"] == [PROMPT]

    # The dominant memory's own page, and from there back to this prompt with the memory switched off.
    page.locator("a.memory").first.click()
    assert page.locator("h1").inner_text().startswith("L1.M4")
    page.get_by_role("link", name="Switch it off in the prompt").click()
    assert parse_qs(urlsplit(page.url).query) == {"prompt": [PROMPT], "set": ["L1.M4=0"]}
    assert "turns from ·mat to <s>" in page.locator("#change").inner_text()
    assert "with these changes predicts <s>" in page.locator(".answer").inner_text()
    page.get_by_role("link", name="before them").click()
    assert "the model predicts ·mat" in page.locator(".answer").inner_text()

    # The state is the address: back is where one was, and another window sees the same.
    for _ in range(3):
        page.go_back()
    assert page.url == traced
    assert page.locator("#change").count() == 0
    assert "predicts ·mat" in page.locator(".answer").inner_text()

    # One click in the table does the same; editing the list and removing from it, too.
    page.get_by_text("Layer 1 after position 4").click()
    page.get_by_role("link", name="off L1.M4").click()
    assert "turns from ·mat to <s>" in page.locator("#change").inner_text()
    page.get_by_label("Change 1").fill("L1.M4*1")
    page.get_by_role("button", name="Trace").click()
    assert "stays ·mat" in page.locator("#change").inner_text()
    page.get_by_role("link", name="remove L1.M4*1").click()
    assert page.locator("#change").count() == 0
    clean(seen, site)


def test_what_takes_longer_comes_by_itself(visit: Visits, site: str) -> None:
    seen = visit(f"{site}/trace?{urlencode({'prompt': PROMPT, 'against': ' dog'})}")
    page = seen.page
    assert "Who pushed ·mat over ·dog" in page.locator("#pushed").inner_text()
    page.get_by_role("heading", name="What it hangs on").click()
    page.get_by_text("others, median of 5 draws").wait_for()
    assert page.locator("[data-load]").count() == 0
    steps = [parse_qs(urlsplit(address).query).get("until") for address in seen.requests if "/cause" in address]
    assert steps == [["attributions"], ["ablations"], ["curve"]]
    page.locator("#cause").get_by_role("link", name="off without L1.M4").click()
    query = parse_qs(urlsplit(page.url).query)
    assert (query["set"], query["against"]) == (["L1.M4=0@4"], [" dog"])
    page.get_by_label("and not").fill("mean")
    page.get_by_role("button", name="Trace").click()
    assert "over the mean token" in page.locator("#pushed").inner_text()
    clean(seen, site)


def test_cells_and_keys_lead_on(visit: Visits, site: str) -> None:
    seen = visit(f"{site}/trace?{urlencode({'prompt': PROMPT})}")
    page = seen.page
    page.locator(".heat tbody tr").nth(0).locator("a").nth(1).click()
    query = parse_qs(urlsplit(page.url).query)
    assert (query["layer"], query["position"]) == (["0"], ["1"])
    assert "position 1, ·cat" in page.locator("#layers").inner_text()
    page.get_by_role("link", name="top token").click()
    assert "·mat" in page.locator(".heat tbody").inner_text()
    page.locator("h1").click()
    page.keyboard.press("n")
    page.wait_for_url("**/trace?prompt=the+cat+sat+on+the+mat**")
    page.get_by_role("heading", name="The same in Python").click()
    with page.expect_download() as kept:
        page.get_by_role("link", name="Download as trace.py").click()
    assert kept.value.suggested_filename == "trace.py"
    assert "the cat sat on the mat" in Path(kept.value.path()).read_text()
    assert [one for one in seen.complaints if "trace.py" not in one] == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("cell", ["probability", "rank", "token"])
def test_it_fits_a_phone_and_can_be_read(visit: Visits, site: str, dark: bool, cell: str) -> None:
    prompt = " ".join(["the cat sat on the mat and the old house"] * 3)
    query = urlencode([("prompt", prompt), ("set", "L1.M4=0"), ("generate", 3), ("cell", cell)])
    for address in (
        f"{site}/trace?{query}",
        f"{site}/trace",
        f"{site}/L1.M4/causal",
        f"{site}/trace?{query}&view=before",
        f"{site}/audit?{urlencode({'text': prompt})}",
        f"{site}/diff?{urlencode({'prompt': prompt, 'other': 'the old', 'until': 'patched'})}",
    ):
        seen = visit(address, width=PHONE, dark=dark)
        assert seen.wider_than_the_window() <= 0, address
        clean(seen, site)
        # Text against its own ground, wherever a shade lies under it.
        worst = seen.page.evaluate(CONTRAST)
        assert worst >= 4.5, (address, worst)


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const part = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };
  let worst = 21;
  for (const one of document.querySelectorAll("[class*='h'] a, .written .token, .legend span")) {
    let ground = one;
    while (ground && getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
    const pair = [getComputedStyle(one).color, ground ? getComputedStyle(ground).backgroundColor : "white"].map(light);
    worst = Math.min(worst, (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05));
  }
  return worst;
}"""


def test_script_in_a_prompt_does_not_run(visit: Visits, site: str) -> None:
    hostile = "the cat </textarea></script><script>document.title='run'</script><img src=x onerror=alert(1)>"
    seen = visit(f"{site}/trace?{urlencode({'prompt': hostile, 'set': 'L1.M4=0', 'generate': 1})}")
    assert (seen.page.title(), seen.page.get_by_label("Prompt").input_value()) == ("Trace · Mnemoscope", hostile)
    assert hostile in (seen.page.locator("pre").text_content() or "").replace("\\'", "'")
    clean(seen, site)
