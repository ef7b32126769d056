"""Writes the browsing pages of an atlas as static files, for a disk or any web host: no server, no script.

The pages are those of `serve`, with links between files. A link to a page that was not written keeps only its text.
Search, tokens, judgements, traces and audits need a server, and are left out.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

from mnemoscope.errors import AtlasBusy, AtlasDamaged, AtlasExists, MnemoscopeError, OptionError
from mnemoscope.foundation.files import storing
from mnemoscope.foundation.memory_names import MemoryId, NamedMemories
from mnemoscope.foundation.progress import Progress, ignore_progress
from mnemoscope.show.export.folder import MadeFolder
from mnemoscope.show.figures.examples import best_examples
from mnemoscope.show.pages.contents import PAGES, contents
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.layers import layer_rows
from mnemoscope.show.pages.page import Frame, PageKind
from mnemoscope.web.rendering import asset_bytes
from mnemoscope.web.settings import Settings
from mnemoscope.web.site import Site

SIDE = "browse"
PER_LAYER = 5
STRIKING = 10


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
    directory = (site.atlas.local(SIDE) if out is None else out).absolute()
    with storing(directory):
        is_link = directory.is_symlink()
    if is_link:
        raise AtlasExists(f"{directory} is a symbolic link; name the folder that it leads to")
    folder = MadeFolder(directory, site.atlas.path, SIDE, "pages")
    folder.check("browsing pages")

    def make() -> tuple[str, list[MemoryId], dict[str, bytes]]:
        edition = site.edition()
        selected = selection(edition, memories)
        return edition.atlas.manifest_hash, selected, _Writer(edition, selected).files(progress)

    atlas_hash, selected, files = site.read(make)
    if taken := sorted(name for name in files.keys() - folder.made_before().keys() if (directory / name).exists()):
        raise AtlasExists(f"{directory / taken[0]} is not a page written there; move it, or choose another folder")
    size = sum(folder.replace(files.items(), source=atlas_hash).values())
    return ExportSummary(directory, sum(name.endswith(".html") for name in files), len(selected), size)


def selection(edition: Edition, wanted: str | None) -> list[MemoryId]:
    """The memories whose pages are written, in order."""
    atlas = edition.atlas
    if wanted is not None and not re.fullmatch(r"\s*[0-9]{1,9}\s*", wanted):
        return sorted(NamedMemories.parse(wanted).of(atlas))
    each = PER_LAYER if wanted is None else int(wanted)
    if each < 1:
        raise OptionError(f"--memories {wanted} writes no memory; give at least 1 per layer")
    ordered = best_examples(atlas, sum(atlas.memories(layer) for layer in atlas.layers))
    striking = ordered.select("layer", "memory").head(STRIKING)
    selected = {atlas.name(layer, memory) for layer, memory in striking.iter_rows()}
    for layer in atlas.layers:
        best = ordered.filter(ordered["layer"] == layer)["memory"].to_list()
        rows = layer_rows(edition, layer).sort(["max_probability", "memory"], descending=[True, False])
        first = list(dict.fromkeys([*best, *rows["memory"].to_list()]))[:each]
        selected |= {atlas.name(layer, memory) for memory in first}
    return sorted(selected)


class _Writer:
    def __init__(self, edition: Edition, memories: Sequence[MemoryId]) -> None:
        self._edition = edition
        self._pages: dict[str, tuple[str, PageKind, Any]] = {}
        """By address: the page's file name, its kind and its parameters."""
        self._first: dict[str, str] = {}
        """By path: the file of the first page there."""
        self._assets: set[str] = set()
        for kind in PAGES:
            for address, parameters in kind.pages(edition, memories) if kind.exported else ():
                path, _, query = address.partition("?")
                number = dict(parse_qsl(query)).get("page")
                name = (path[1:] or "index") + (f"-{number}" if number else "") + ".html"
                self._pages[address] = name, kind, parameters
                self._first.setdefault(path, name)
        total = sum(edition.atlas.memories(layer) for layer in edition.atlas.layers)
        self._note = (
            f"Pages of {len(memories):,} of the {total:,} memories, written as files by mnemoscope report --browse."
            " Search, tokens, judgements, traces and audits are not among them: they need mnemoscope serve."
        )

    def files(self, progress: Progress) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        for done, address in enumerate(self._pages):
            progress("pages", done, len(self._pages), "pages")
            files[self._pages[address][0]] = self._page(address).encode()
        progress("pages", len(self._pages), len(self._pages), "pages")
        return files | {f"static/{name}": asset_bytes(name) for name in self._assets}

    def _page(self, address: str) -> str:
        name, kind, parameters = self._pages[address]
        path, root = address.partition("?")[0], "../" * name.count("/")

        def asset(name: str) -> str:
            self._assets.add(name)
            return f"{root}static/{name}"

        frame = Frame(
            self._edition,
            self._edition.atlas.path,
            path,
            asset,
            place=partial(self._place, address, root),
            contents=contents(self._edition),
            note=self._note,
        )
        try:
            page = kind.make_page(self._edition, parameters)
            text = frame.render(page.template, {"twin": f"{path}.json", **page.values()})
        except AtlasBusy:
            raise
        except MnemoscopeError as problem:
            where = f"{self._edition.atlas.path}: the page {path} cannot be made"
            raise AtlasDamaged(f"{where}: {' '.join(str(problem).split())}") from problem
        # The atlas's path on this machine is useless to other readers.
        return text.replace(escape(str(self._edition.atlas.path)), "ATLAS")

    def _place(self, here: str, root: str, link: str) -> str | None:
        if link.startswith("#"):
            return link
        parts = urlsplit(urljoin(f"http://atlas{here}", link))
        query = urlencode(sorted(parse_qsl(parts.query, keep_blank_values=True)))
        address = parts.path + (f"?{query}" if query else "")
        target = self._pages[address][0] if address in self._pages else None
        if target is None and query in ("", "page=1"):
            target = self._first.get(parts.path)
        return None if target is None else root + target + (f"#{parts.fragment}" if parts.fragment else "")
