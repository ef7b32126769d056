"""Writes the browsing pages of an atlas as static files, for a disk or any web host: no server, no script.

The pages are those of `serve`, with links between files. A link to a page that was not written keeps only its text.
Search, tokens, judgements, traces and audits need a server, and are left out.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from shutil import rmtree
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.derived_manifest import check_replaceable, made_files
from mnemoscope.atlas.manifest import MANIFEST
from mnemoscope.errors import AtlasBusy, AtlasDamaged, AtlasExists, MnemoscopeError, OptionError
from mnemoscope.foundation.files import flush, json_bytes, make_folder, storing, write_bytes
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.progress import Progress, ignore_progress
from mnemoscope.questions import QUESTIONS
from mnemoscope.show.figures.examples import best_examples
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.layers import ROWS, Choice, layer_page, layer_rows, layers_page
from mnemoscope.show.pages.memory import memory_page
from mnemoscope.show.pages.overview import overview_page
from mnemoscope.show.pages.page import Frame, Page
from mnemoscope.show.pages.questions import question_page, questions_page
from mnemoscope.web.rendering import asset_bytes
from mnemoscope.web.settings import Settings
from mnemoscope.web.site import Site

PageMaker = Callable[[Edition], Page]

SIDE = "browse"
PER_LAYER = 5
STRIKING = 10
TRIES = 3
NAMED = 1_000
"""Most memories of a layer whose page lists exactly these; with more, the page lists the layer from its first
memory.
"""


@dataclass(frozen=True)
class ExportSummary:
    directory: Path
    pages: int
    memories: int
    bytes: int


def write_pages(
    atlas: Path, out: Path | None = None, *, memories: str | None = None, progress: Progress = ignore_progress
) -> ExportSummary:
    """Writes the pages of the atlas into the folder `out` (default: `browse` inside the atlas), replacing older ones.

    `memories` are names separated by commas, or a number of memories per layer; by default the most striking ones and
    the best of each layer. Raises what opening an atlas raises, OptionError, MemoryIdError, AtlasExists for a folder of
    something else, AtlasBusy if the atlas or its answers keep changing meanwhile, StoreFailed.
    """
    site = Site(Settings(atlas.absolute()))
    directory = (site.atlas.path / SIDE if out is None else out).absolute()
    _check(directory, site.atlas)
    selection(site.edition(), memories)  # fails before anything is written
    # Entered before the pages are made, so that an unwritable folder fails at once.
    with _fresh(directory) as fresh:
        atlas_hash, chosen, files = _of_one_edition(site, memories, progress)
        listed = {name: len(data) for name, data in sorted(files.items())}
        files[MANIFEST] = json_bytes({"atlas": atlas_hash, "pages": listed})
        if taken := sorted(set(_foreign_files(directory)) & files.keys()):
            raise AtlasExists(f"{directory / taken[0]} is none of the pages written there; move it, or choose another")
        for name, data in files.items():
            with storing(directory / name):
                write_bytes(fresh / name, data)
        _replace(directory, fresh)
    pages = sum(name.endswith(".html") for name in listed)
    return ExportSummary(directory, pages, len(chosen), sum(map(len, files.values())))


def selection(edition: Edition, wanted: str | None) -> list[MemoryId]:
    """The memories whose pages are written, in order. Raises OptionError, MemoryIdError."""
    atlas = edition.atlas
    if wanted is not None and not wanted.strip().isdigit():
        names = [MemoryId.parse(name.strip()) for name in wanted.split(",") if name.strip()]
        if not names:
            raise OptionError(f"--memories {wanted!r} names no memory; write L0.M1,L3.M7 or a number per layer")
        return sorted({atlas[name].id for name in names})
    each = PER_LAYER if wanted is None else int(wanted)
    if each < 1:
        raise OptionError(f"--memories {wanted} writes no memory; give at least 1 per layer")
    ordered = best_examples(atlas, sum(atlas.memories(layer) for layer in atlas.layers))
    striking = ordered.select("layer", "memory").head(STRIKING)
    chosen = {atlas.name(layer, memory) for layer, memory in striking.iter_rows()}
    for layer in atlas.layers:
        best = ordered.filter(ordered["layer"] == layer)["memory"].to_list()
        rows = layer_rows(edition, layer).sort(["max_probability", "memory"], descending=[True, False])
        first = list(dict.fromkeys([*best, *rows["memory"].to_list()]))[:each]
        chosen |= {atlas.name(layer, memory) for memory in first}
    return sorted(chosen)


def _check(directory: Path, atlas: Atlas) -> None:
    place, home = directory.resolve(), atlas.path.resolve()
    if place == home or place in home.parents or (home in place.parents and place != home / SIDE):
        raise OptionError(f"{directory} holds the atlas or lies inside it; leave --out away, or choose another folder")
    if directory.is_symlink():
        raise AtlasExists(f"{directory} is a symbolic link; name the folder that it leads to")
    check_replaceable(directory, lambda folder: bool(made_files(folder / MANIFEST, "pages")), "browsing pages")


def _of_one_edition(
    site: Site, memories: str | None, progress: Progress
) -> tuple[str, list[MemoryId], dict[str, bytes]]:
    """The atlas's hash, the memories and the files, all from one unchanged edition."""
    for _ in range(TRIES):
        edition = site.edition()
        try:
            with site.reading(edition):
                edition.read_ahead()
                chosen = selection(edition, memories)
                files = _Writer(edition, chosen, people=site.judgements.published_for).files(progress)
        except MnemoscopeError:
            if site.edition() is edition:
                raise
            continue
        if site.edition() is edition:
            return edition.atlas.manifest_hash, chosen, files
    raise AtlasBusy(f"{site.settings.atlas} changed while its pages were made; run the command again")


class _Writer:
    def __init__(
        self, edition: Edition, chosen: Sequence[MemoryId], *, people: Callable[[MemoryId], list[dict[str, Any]]]
    ) -> None:
        self._edition, self._people = edition, people
        self._pages: dict[str, tuple[str, PageMaker]] = {
            "/": ("index.html", overview_page),
            "/layers": ("layers.html", layers_page),
            "/questions": ("questions.html", questions_page),
            **{
                f"/questions/{question}": (f"questions/{question}.html", partial(question_page, question=question))
                for question in QUESTIONS
            },
            **{f"/{memory}": (f"{memory}.html", partial(self._memory, memory)) for memory in chosen},
        }
        """By address: the page's file name, and the function that makes it."""
        self._alias: dict[str, str] = {}
        self._assets: set[str] = set()
        for layer in edition.atlas.layers:
            self._add_layer(layer, [edition.atlas.number(one) for one in chosen if one.layer == layer])
        total = sum(edition.atlas.memories(layer) for layer in edition.atlas.layers)
        self._note = (
            f"Pages of {len(chosen):,} of the {total:,} memories, written as files by mnemoscope report --browse."
            " Search, tokens, judgements, traces and audits are not among them: they need mnemoscope serve."
        )

    def _memory(self, memory: MemoryId, edition: Edition) -> Page:
        return memory_page(edition, memory, people=self._people(memory))

    def _add_layer(self, layer: int, own: list[int]) -> None:
        """Adds the layer's page with only the selected memories, in several parts if needed."""
        memories = ",".join(map(str, own)) if len(own) <= NAMED else ""
        rows = len(own) if memories else ROWS
        for number in range(1, max(1, -(-rows // ROWS)) + 1):
            name = f"layers/{layer}.html" if number == 1 else f"layers/{layer}-{number}.html"
            choice = Choice(memories=memories, page=number)
            address = f"/layers/{layer}{choice.query(page=number)}"
            self._pages[address] = name, partial(layer_page, layer=layer, choice=choice)
        for address in (f"/layers/{layer}", f"/layers/{layer}?page=1"):
            self._alias[address] = f"layers/{layer}.html"

    def files(self, progress: Progress) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        for done, (address, (name, make)) in enumerate(self._pages.items()):
            progress("pages", done, len(self._pages), "pages")
            files[name] = self._page(address, name, make).encode()
        progress("pages", len(self._pages), len(self._pages), "pages")
        return files | {f"static/{name}": asset_bytes(name) for name in self._assets}

    def _page(self, address: str, name: str, make: PageMaker) -> str:
        """The page as HTML. Raises AtlasDamaged for one that cannot be made."""
        path, root = address.partition("?")[0], "../" * name.count("/")

        def asset(name: str) -> str:
            self._assets.add(name)
            return f"{root}static/{name}"

        frame = Frame(
            self._edition, self._edition.atlas.path, path, asset, place=partial(self._place, address, root),
            note=self._note,
        )  # fmt: skip
        try:
            page = make(self._edition)
            text = frame.render(page.template, {"twin": f"{path}.json", **page.values()})
        except MnemoscopeError as problem:
            where = f"{self._edition.atlas.path}: the page {path} cannot be made"
            raise AtlasDamaged(f"{where}: {' '.join(str(problem).split())}") from problem
        # The atlas's path on this machine is useless to other readers.
        return text.replace(escape(str(self._edition.atlas.path)), "ATLAS")

    def _place(self, here: str, root: str, link: str) -> str | None:
        """The target of a link, relative to the page's file; None if it was not written."""
        if link.startswith("#"):
            return link
        parts = urlsplit(urljoin(f"http://atlas{here}", link))
        query = urlencode(sorted(parse_qsl(parts.query, keep_blank_values=True)))
        address = parts.path + (f"?{query}" if query else "")
        target = self._pages[address][0] if address in self._pages else self._alias.get(address)
        return None if target is None else root + target + (f"#{parts.fragment}" if parts.fragment else "")


@contextmanager
def _fresh(directory: Path) -> Iterator[Path]:
    """An empty temporary folder beside the target, removed at the end. Raises StoreFailed."""
    make_folder(directory.parent)
    fresh = directory.parent / f".{directory.name}.{os.getpid()}.mnemoscope-tmp"
    try:
        with storing(directory):
            rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
        yield fresh
    finally:
        rmtree(fresh, ignore_errors=True)


def _replace(directory: Path, fresh: Path) -> None:
    """Swaps in the fresh folder and keeps foreign files; restores the old folder if that fails."""
    old = fresh.with_name(f"{fresh.name}-old")
    with storing(directory):
        if directory.exists():
            directory.rename(old)
        try:
            fresh.rename(directory)
        except OSError:
            if old.exists():
                old.rename(directory)
            raise
        flush(directory.parent)
        for name in _foreign_files(old):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            if not (directory / name).exists():
                (old / name).rename(directory / name)
    if not _foreign_files(old):
        rmtree(old, ignore_errors=True)


def _foreign_files(directory: Path) -> list[str]:
    """Files in a folder of pages that do not belong to it, relative to the folder."""
    listed = {MANIFEST, *made_files(directory / MANIFEST, "pages")}
    files = (path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())
    return [name for path in files if (name := path.relative_to(directory).as_posix()) not in listed]
