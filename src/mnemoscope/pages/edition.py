"""The atlas as its folder was at one moment, with what pages have made from it.

A finished atlas never changes, but another may be mined in its place, and answers and patterns can be made again: each
such state is an edition with caches of its own.
"""

from dataclasses import dataclass, field

from mnemoscope.atlas import Atlas
from mnemoscope.cache import Cache

PAGES = 2_000
"""Pages and views kept of one edition, the most recent ones."""

Footprint = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True)
class Edition:
    """One state of an atlas, which `state` names for readers; `footprint` tells it from others of the same folder.

    `pages` holds the most recent pages and views, `tables` the few large things that many pages need.
    """

    atlas: Atlas
    state: str = ""
    footprint: Footprint = ()
    pages: Cache = field(default_factory=lambda: Cache(PAGES))
    tables: Cache = field(default_factory=Cache)

    @property
    def hash(self) -> str:
        """The sha256 of the atlas's manifest, of the very bytes that were opened."""
        return self.atlas.manifest_hash
