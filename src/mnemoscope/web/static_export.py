"""The browsing pages of an atlas as plain files, which open from a disk or from any web host: no server, no script.

The pages are asked of the very application that `serve` runs, and their links are made relative. A link to a page that
was not written keeps its text alone. Search, tokens, judgements and traces need a server, and are left out.
"""

import asyncio
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from shutil import rmtree
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.derived_manifest import made_files
from mnemoscope.atlas.manifest import MANIFEST
from mnemoscope.errors import AtlasBusy, AtlasDamaged, AtlasExists, MnemoscopeError, OptionError
from mnemoscope.figures.examples import best_examples
from mnemoscope.files import flush, json_bytes, make_folder, storing, write_bytes
from mnemoscope.memory import MemoryId
from mnemoscope.pages.layer import ROWS, layer_rows
from mnemoscope.progress import Progress
from mnemoscope.questions import QUESTIONS
from mnemoscope.web.app import create_app
from mnemoscope.web.asking import asked
from mnemoscope.web.relative import Rewriter
from mnemoscope.web.settings import Settings
from mnemoscope.web.site import Site

SIDE = "browse"
PER_LAYER = 5
STRIKING = 10
TRIES = 3
NAMED = 1_000
"""Memories of a layer that its own page can name; with more, the page lists the layer from its first memory on."""


@dataclass(frozen=True)
class Exported:
    """Where the pages lie, how many there are, of how many memories, and their size in bytes."""

    directory: Path
    pages: int
    memories: int
    bytes: int


def write_pages(
    atlas: Path, out: Path | None = None, *, memories: str | None = None, progress: Progress | None = None
) -> Exported:
    """Writes the pages of the atlas into the folder `out` (default: `browse` inside the atlas), in place of older ones.

    `memories` are names apart by commas, or a number of memories per layer; by default the most striking ones and the
    best of each layer. Raises what opening an atlas raises, OptionError, MemoryIdError, AtlasExists for a folder of
    something else, AtlasBusy where the atlas or its answers change again and again meanwhile, StoreFailed.
    """
    app = create_app(Settings(atlas.absolute()))
    site: Site = app.state.site
    directory = (site.atlas.path / SIDE if out is None else out).absolute()
    _check(directory, site.atlas)
    selection(site, memories)  # what cannot be met is refused before anything is written
    # Begun before the pages are made, so that a folder that cannot be written is known at once.
    with _fresh(directory) as fresh:
        atlas_hash, chosen, files = _of_one_edition(app, site, memories, progress)
        listed = {name: len(data) for name, data in sorted(files.items())}
        files[MANIFEST] = json_bytes({"atlas": atlas_hash, "pages": listed})
        if taken := sorted(set(_foreign_files(directory)) & files.keys()):
            raise AtlasExists(f"{directory / taken[0]} is none of the pages written there; move it, or choose another")
        for name, data in files.items():
            with storing(directory / name):
                write_bytes(fresh / name, data)
        _replace(directory, fresh)
    pages = sum(name.endswith(".html") for name in listed)
    return Exported(directory, pages, len(chosen), sum(map(len, files.values())))


def selection(site: Site, wanted: str | None) -> list[MemoryId]:
    """The memories whose pages are written, in order; raises OptionError, MemoryIdError."""
    if wanted is not None and not wanted.strip().isdigit():
        names = [MemoryId.parse(name.strip()) for name in wanted.split(",") if name.strip()]
        if not names:
            raise OptionError(f"--memories {wanted!r} names no memory; write L0.M1,L3.M7 or a number per layer")
        return sorted({site.atlas[name].id for name in names})
    each = PER_LAYER if wanted is None else int(wanted)
    if each < 1:
        raise OptionError(f"--memories {wanted} writes no memory; give at least 1 per layer")
    ordered = best_examples(site.atlas, sum(site.atlas.memories(layer) for layer in site.atlas.layers))
    found = {MemoryId(layer, memory) for layer, memory in ordered.select("layer", "memory").head(STRIKING).iter_rows()}
    for layer in site.atlas.layers:
        best = ordered.filter(ordered["layer"] == layer)["memory"].to_list()
        rows = layer_rows(site.edition(), layer).sort(["max_probability", "memory"], descending=[True, False])
        first = list(dict.fromkeys([*best, *rows["memory"].to_list()]))[:each]
        found |= {MemoryId(layer, memory) for memory in first}
    return sorted(found)


def _check(directory: Path, atlas: Atlas) -> None:
    """Refuses a folder that holds something else, and the atlas itself."""
    place, home = directory.resolve(), atlas.path.resolve()
    if place == home or place in home.parents or (home in place.parents and place != home / SIDE):
        raise OptionError(f"{directory} holds the atlas or lies inside it; leave --out away, or choose another folder")
    if directory.is_symlink():
        raise AtlasExists(f"{directory} is a symbolic link; name the folder that it leads to")
    if not directory.exists():
        return
    if not directory.is_dir():
        raise AtlasExists(f"{directory} is not a folder; choose another")
    with storing(directory):
        empty = not any(directory.iterdir())
    if not empty and not made_files(directory / MANIFEST, "pages"):
        raise AtlasExists(f"{directory} holds something else than browsing pages; choose another folder")


def _of_one_edition(
    app: Any, site: Site, memories: str | None, progress: Progress | None
) -> tuple[str, list[MemoryId], dict[str, bytes]]:
    """The atlas's hash, the memories and the files, all made while the atlas and its answers stayed what they are."""
    for _ in range(TRIES):
        edition = site.edition()
        try:
            chosen = selection(site, memories)
            files = _made(_Writer(app, site, chosen, progress))
        except MnemoscopeError:
            if site.edition() is edition:
                raise
            continue
        if site.edition() is edition:
            return edition.hash, chosen, files
    raise AtlasBusy(f"{site.settings.atlas} changed while its pages were made; run the command again")


def _made(writer: "_Writer") -> dict[str, bytes]:
    """What the writer writes, asked for in a thread of its own: this one may have an event loop, as in a notebook."""
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(lambda: asyncio.run(writer.files()))
        try:
            return waiting.result()
        except BaseException:
            # Ctrl-C arrives here, not in the thread; it ends after the page in hand.
            writer.stopped = True
            raise


class _Writer:
    """Asks the application for every page of the selection, and makes files of the answers."""

    def __init__(self, app: Any, site: Site, chosen: Sequence[MemoryId], progress: Progress | None) -> None:
        self.stopped = False
        self._app, self._site, self._progress = app, site, progress
        self._addresses = {"/": "index.html", "/layers": "layers.html", "/questions": "questions.html"}
        self._addresses |= {f"/questions/{question}": f"questions/{question}.html" for question in QUESTIONS}
        self._addresses |= {f"/{memory}": f"{memory}.html" for memory in chosen}
        self._alias: dict[str, str] = {}
        for layer in site.atlas.layers:
            self._add_layer(layer, [one.memory for one in chosen if one.layer == layer])
        total = sum(site.atlas.memories(layer) for layer in site.atlas.layers)
        self._note = (
            f"Pages of {len(chosen):,} of the {total:,} memories, written as files by mnemoscope report --browse."
            " Search, tokens, judgements and traces are not among them: they need mnemoscope serve."
        )

    def _add_layer(self, layer: int, own: list[int]) -> None:
        """The layer's page with the selection alone, in as many pieces as it takes."""
        query = {"memories": ",".join(map(str, own))} if 0 < len(own) <= NAMED else {}
        rows = len(own) if query else ROWS
        for page in range(1, max(1, -(-rows // ROWS)) + 1):
            asked = query | ({"page": str(page)} if page > 1 else {})
            name = f"layers/{layer}.html" if page == 1 else f"layers/{layer}-{page}.html"
            self._addresses[_address(f"/layers/{layer}", asked)] = name
        self._alias |= {f"/layers/{layer}": f"layers/{layer}.html"}
        self._alias |= {_address(f"/layers/{layer}", query | {"page": "1"}): f"layers/{layer}.html"}

    async def files(self) -> dict[str, bytes]:
        """Every file by its name."""
        found: dict[str, bytes] = {}
        assets: dict[str, str] = {}
        for done, (address, name) in enumerate(self._addresses.items()):
            if self.stopped:
                break
            if self._progress is not None:
                self._progress("pages", done, len(self._addresses), "pages")
            # What a page says of the atlas's place on this machine is nothing for readers elsewhere.
            body = (await self._asked(address)).replace(escape(str(self._site.atlas.path)).encode(), b"ATLAS")

            def place(link: str, here: str = address, file: str = name) -> str | None:
                return self._place(link, here, file, assets)

            rewriter = Rewriter(place, note=self._note)
            found[name] = rewriter.rewritten(body.decode()).encode()
        if self._progress is not None:
            self._progress("pages", len(self._addresses), len(self._addresses), "pages")
        for address, name in assets.items():
            found[name] = await self._asked(address)
        return found

    def _place(self, link: str, here: str, file: str, assets: dict[str, str]) -> str | None:
        """Where the link leads, relative to the file that holds it; None where nothing was written."""
        parts = urlsplit(urljoin(f"http://atlas{here}", link))
        if parts.netloc != "atlas":
            return None
        if link.startswith("#"):
            return link
        if parts.path.startswith("/static/"):
            target: str | None = f"static/{parts.path.rsplit('/', 1)[1]}"
            assets[parts.path] = str(target)
        else:
            address = _address(parts.path, dict(parse_qsl(parts.query, keep_blank_values=True)))
            target = self._addresses.get(address) or self._alias.get(address)
        if target is None:
            return None
        return "../" * file.count("/") + target + (f"#{parts.fragment}" if parts.fragment else "")

    async def _asked(self, address: str) -> bytes:
        """The application's answer; one of its own refusals is an error of ours."""
        status, body = await asked(self._app, address)
        if status != 200:
            said = re.search(r'<p class="refusal">(.*?)</p>', body.decode("utf-8", "replace"), flags=re.DOTALL)
            reason = f"the server answers {status}" if said is None else unescape(said.group(1))
            raise AtlasDamaged(f"{self._site.atlas.path}: the page {urlsplit(address).path} cannot be made: {reason}")
        return body


def _address(path: str, query: dict[str, str]) -> str:
    return path + (f"?{urlencode(sorted(query.items()))}" if query else "")


@contextmanager
def _fresh(directory: Path) -> Iterator[Path]:
    """An empty folder beside the one to be written, gone at the end; raises StoreFailed."""
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
    """Puts the fresh folder in the directory's place, foreign files along; the old one stays where that fails."""
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
    """The files in a folder of pages that are none of them, relative to it."""
    listed = {MANIFEST, *made_files(directory / MANIFEST, "pages")}
    files = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if not _is_folder(path))
    return [name for name in files if name not in listed]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
