"""Pages as files: no link leads nowhere, they open from a disk, and what cannot be written leaves what was there."""

import json
import re
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

import pytest

from mnemoscope.cli import main
from mnemoscope.errors import AtlasBusy, AtlasExists, MemoryIdError, ModelDiffers, OptionError, StoreFailed
from mnemoscope.foundation.files import write_bytes
from mnemoscope.foundation.memory_names import save_list
from mnemoscope.questions.answers import write
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.overview import overview_page
from mnemoscope.show.pages.page import DEAD, Frame, Page
from mnemoscope.web.static_export import ExportSummary, write_pages
from reports.reading import words
from reports.reported_atlas import reported
from support.browser import PHONE, Visits
from support.durable import Disk
from web.layer_atlas import Row, layered
from web.parts import Parts
from web.served import client, make_page

pytestmark = pytest.mark.full

Capture = pytest.CaptureFixture[str]


def addresses(page: Parts) -> list[str]:
    """All that a page asks for or leads to."""
    return [str(at[name]) for _, at in page.found for name in ("href", "src", "action", "srcset") if name in at]


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without answers, so that its pages are soon written: no figures."""
    return reported(tmp_path_factory.mktemp("atlas")).path


@pytest.fixture(scope="module")
def exported(answered_atlas: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportSummary:
    return write_pages(answered_atlas, tmp_path_factory.mktemp("out") / "pages", memories="L0.M0,L0.M3,L1.M0-0")


def pages(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.html"))


@pytest.mark.full
def test_every_link_leads_to_a_file_that_was_written(exported: ExportSummary) -> None:
    seen = set()
    for page in pages(exported.directory):
        text = page.read_text(encoding="utf-8")
        found = Parts(text)
        # Whatever a text of the atlas would run stays text, too.
        assert not {tag for tag, _ in found.found} & {"script", "form", "iframe", "img", "object", "style"}
        assert 'title="<' not in text
        for address in addresses(found):
            parts = urlsplit(address)
            assert not (parts.scheme + parts.netloc + parts.query)
            assert not parts.path.startswith("/")
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert target.is_file(), f"{page.name}: {address}"
            if parts.fragment:
                named = {at.get("id") for _, at in Parts(target.read_text(encoding="utf-8")).found}
                assert parts.fragment in named, f"{page.name}: {address}"
            seen.add(target)
    assert {page.resolve() for page in pages(exported.directory)} <= seen | {exported.directory / "index.html"}


def test_the_selection_is_written_and_the_rest_is_text(exported: ExportSummary, answered_atlas: Path) -> None:
    names = {path.name for path in exported.directory.glob("L*.M*.html")}
    assert names == {"L0.M0.html", "L0.M3.html", "L1.M0.html"}
    layer = (exported.directory / "layers" / "0.html").read_text(encoding="utf-8")
    links = re.findall(r'href="\.\./(L0\.M\d+)\.html"', layer)
    assert links == ["L0.M0"] * 3 + ["L0.M3"], "points of both features, then rows"
    memory = (exported.directory / "L0.M0.html").read_text(encoding="utf-8")
    for said in (f'title="{DEAD}"', "report --browse", "need mnemoscope serve"):
        assert said in memory
    assert str(answered_atlas) not in "".join(page.read_text(encoding="utf-8") for page in pages(exported.directory))


@pytest.mark.parametrize("name", ["L0.M0", "layers", "questions/value_agreement"])
def test_a_file_says_what_the_server_says(exported: ExportSummary, answered_atlas: Path, name: str) -> None:
    def main_of(page: str) -> str:
        found = re.search(r"<main.*</main>", page, flags=re.DOTALL)
        return words(re.sub(r"<form.*?</form>", "", found.group(), flags=re.DOTALL))

    served = client(answered_atlas).get(f"/{name}").text.replace(str(answered_atlas), "ATLAS")
    assert main_of((exported.directory / f"{name}.html").read_text(encoding="utf-8")) == main_of(served)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (PHONE, False)])
def test_it_opens_from_a_disk(visit: Visits, exported: ExportSummary, width: int, dark: bool) -> None:
    seen = visit((exported.directory / "index.html").as_uri(), width=width, dark=dark)
    for name in ("layers/0.html", "L0.M0.html", "questions/refinement_match.html"):
        assert seen.wider_than_the_window() <= 0, seen.page.url
        seen.page.goto((exported.directory / name).as_uri())
    seen.page.locator("svg.drawing a:visible").first.click()
    seen.page.wait_for_url(re.compile(r"layers/0\.html$"))
    seen.page.locator("svg.drawing a:visible").first.click()
    seen.page.wait_for_url(re.compile(r"L0\.M0\.html$"))
    assert seen.page.evaluate("getComputedStyle(document.body).fontFamily").startswith("system-ui"), "styled"
    # The icon is asked for after the page has loaded, and given up when the next page comes first; it is crawled above.
    assert [one for one in seen.complaints if not one.endswith("/static/icon.svg")] == []
    assert all(request.startswith("file:") for request in seen.requests)


def test_by_default_the_striking_and_the_best_of_each_layer(tmp_path: Path) -> None:
    rows: list[Row] = [(1 + i, 6, 6, 0.1 + i / 20, 1.0, "none") for i in range(12)]
    atlas = layered(tmp_path, rows, striking=True)
    done = write_pages(atlas)
    assert done.directory == atlas / "browse"
    names = {path.stem for path in done.directory.glob("L*.M*.html")}
    # Layer 1 has the same memories in the reverse order, and no striking one: these are the most confident.
    assert names == {f"L0.M{number}" for number in (0, 8, 9, 10, 11)} | {f"L1.M{number}" for number in range(5)}
    assert done.memories == 10
    again = write_pages(atlas, memories="1")
    assert {path.stem for path in again.directory.glob("L*.M*.html")} == {"L0.M0", "L1.M0"}
    assert len(pages(again.directory)) == again.pages, "the folder is replaced whole"
    listed = json.loads((again.directory / "manifest.json").read_text())["pages"]
    files = {path.relative_to(again.directory).as_posix() for path in again.directory.rglob("*") if path.is_file()}
    assert files == {*listed, "manifest.json"}


def test_a_long_selection_takes_several_pages_of_a_layer(tmp_path: Path) -> None:
    rows: list[Row] = [(1 + i % 50, 3, 3, 0.01 + i / 1000, 1.0, "none") for i in range(130)]
    chosen = ",".join(f"L0.M{number}" for number in range(101))
    done = write_pages(layered(tmp_path / "atlas", rows), tmp_path / "out", memories=chosen)
    first, second = (done.directory / "layers" / name for name in ("0.html", "0-2.html"))
    assert 'href="../layers/0-2.html#memories"' in first.read_text()
    assert 'href="../layers/0.html#memories"' in second.read_text()
    assert not (done.directory / "layers" / "0-3.html").exists()


def test_a_selection_that_cannot_be(tmp_path: Path, atlas: Path) -> None:
    no_memories = {"L9.M0": MemoryIdError, "nothing": MemoryIdError, "²": MemoryIdError, "٣": MemoryIdError}
    for memories, kind in {**no_memories, "9" * 5_000: MemoryIdError, "0": OptionError, ",": MemoryIdError}.items():
        with pytest.raises(kind):
            write_pages(atlas, tmp_path / "out", memories=memories)
        assert not (tmp_path / "out").exists()
    save_list(tmp_path / "other.json", [("L0.M0", 1, None)], model="another", made_by={"model": "c" * 64})
    with pytest.raises(ModelDiffers, match=r"other\.json lists memories of another"):
        write_pages(atlas, tmp_path / "out", memories=f"@{tmp_path / 'other.json'}")
    assert not (tmp_path / "out").exists()


def test_other_folders_are_left_alone(tmp_path: Path, atlas: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(AtlasExists, match="something other than"):
        write_pages(atlas, tmp_path)
    for inside in (atlas, atlas / "triggers", atlas.parent):
        with pytest.raises(OptionError, match="atlas"):
            write_pages(atlas, inside)
    with pytest.raises(AtlasExists, match="not a folder"):
        write_pages(atlas, tmp_path / "mine.txt")
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_what_others_put_among_the_pages_stays(tmp_path: Path, atlas: Path) -> None:
    out = tmp_path / "out"
    write_pages(atlas, out, memories="L0.M0,L0.M3")
    for name in ("notes.md", "deep/er/comments.md", "layers/mine.html"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(name)
    write_pages(atlas, out, memories="L0.M3")
    assert not (out / "L0.M0.html").exists()
    for name in ("notes.md", "deep/er/comments.md", "layers/mine.html"):
        assert (out / name).read_text() == name
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (out / "L0.M0.html").write_text("mine")
    with pytest.raises(AtlasExists, match=r"L0\.M0\.html is not a page written there"):
        write_pages(atlas, out, memories="L0.M0")
    assert (out / "L0.M0.html").read_text() == "mine"
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(AtlasExists, match="symbolic link"):
        write_pages(atlas, tmp_path / "link", memories="L0.M0")


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, atlas: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file" / "out", tmp_path / ("long" * 70)):
        with pytest.raises(StoreFailed) as raised:
            write_pages(atlas, out, memories="1")
        assert len(str(raised.value).splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_command_says_where_the_pages_are(tmp_path: Path, atlas: Path, capfd: Capture) -> None:
    out = tmp_path / "out"
    assert main(["report", str(atlas), "--browse", "--out", str(out), "--memories", "L1.M0", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["page"], said["pages"], said["memories"]) == (str(out / "index.html"), len(pages(out)), 1)
    assert said["bytes"] == sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    assert main(["report", str(atlas), "--memories", "1"]) == 2
    assert capfd.readouterr().err.splitlines()[-1].startswith("mnemoscope: --memories needs --browse")


def test_a_link_leads_where_its_page_lies_or_says_that_there_is_none() -> None:
    places = {"/here?a=1&b=2": "here.html"}
    edition = cast(Edition, None)
    frame = Frame(edition, Path("atlas"), "/", str, place=places.get, note="<note>")
    assert frame.link("/here?a=1&b=2", key="j", current="page") == ('href="here.html" data-key="j" aria-current="page"')
    assert frame.link("/gone", key="j", current="page", title="gone") == f'title="{DEAD}"'
    escaped = Frame(edition, Path("atlas"), "/", str).link('/"?a=1&b=2', title="<")
    assert escaped == 'href="/&#34;?a=1&amp;b=2" title="&lt;"'
    drawn = '<svg><a href="/here" tabindex="-1"><circle r="1"/></a><a href="/gone"></a></svg>'
    frame = Frame(edition, Path("atlas"), "/", str, place={"/here": "here.html"}.get, note="a note")
    shown = f'<svg><a href="here.html" tabindex="-1"><circle r="1"/></a><a title="{DEAD}"></a></svg>'
    assert frame.drawing(drawn) == shown


@pytest.mark.parametrize("times", [1, 99])
def test_all_pages_are_of_one_edition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Answers that are written while the pages are made: all are made again, and where it never ends, it is said."""
    opened = reported(tmp_path / "atlas")
    write(opened, ["value_rank"])
    atlas = opened.path
    begun: list[Edition] = []

    def page(edition: Edition) -> Page:
        begun.append(edition)
        if len(begun) <= times:
            manifest = atlas / "analyses" / "manifest.json"
            write_bytes(manifest, manifest.read_bytes() + b" ")
        return overview_page(edition)

    make_page(monkeypatch, "overview", page)
    if times == 1:
        write_pages(atlas, tmp_path / "pages", memories="L0.M0")
        assert len(begun) == 2
        return
    with pytest.raises(AtlasBusy, match="changed while it was being read"):
        write_pages(atlas, tmp_path / "pages", memories="L0.M0")
    assert not (tmp_path / "pages").exists()


def test_written_pages_survive_a_power_cut(atlas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path, monkeypatch)
    write_pages(atlas, tmp_path / "pages", memories="L0.M0")
    pages = tmp_path / "pages"
    assert disk.folders[tmp_path] < min(disk.named.values()), "the new folder's own name comes first"
    assert disk.named[pages / "manifest.json"] == max(disk.named.values())
    assert disk.named[pages / "manifest.json"] < disk.folders[pages]
