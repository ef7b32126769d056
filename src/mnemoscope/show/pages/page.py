"""A page: its template, its title and its data; and the frame in which the template becomes HTML.

A template writes its links as `<a {{ link(address) }}>`, so that the same page stands on a server, where an address is
a link, and in a file of its own, from which only some pages can be reached.
"""

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup, escape

from mnemoscope.foundation.formatting import DASH, format_value, show_text, show_token, times_chance
from mnemoscope.show.pages.edition import Edition

NAV = (
    *(("Overview", "/"), ("Layers", "/layers"), ("Search", "/search"), ("Tokens", "/tokens")),
    *(("Questions", "/questions"), ("Annotate", "/annotate")),
)
"""What stands at the head of every page."""
WITH_MODEL = (("Trace", "/trace"), ("Audit", "/audit"))
"""The same where there is a model."""
ROUTING = ("Routing", "/routing")
"""The same where the model has experts."""
DEAD = "This page is not among those that were written"
"""What a link says when it is pointed at but leads nowhere."""


@dataclass(frozen=True)
class Page:
    """A page: its template and title, the data that its JSON is, and what only the template needs (made when drawn)."""

    template: str
    title: str
    data: dict[str, Any]
    extra: Callable[[], dict[str, Any]] = field(default=dict)
    status: int = 200

    def values(self) -> dict[str, Any]:
        """All that the template sees of the page."""
        return {"title": self.title, **self.data, **self.extra()}


@dataclass(frozen=True)
class Frame:
    """What stands around a page: of which atlas it is, its own path, and where its links lead.

    `place` gives the address of a link as this page writes it, None where it leads nowhere; `asset` that of a file of
    style or script. `differs` says why the model is not the one that was mined (None: there is no model). A page that
    stands alone, with neither forms nor scripts, has a `note` at its head. What `dead` says is seen where a link that
    leads nowhere is pointed at.
    """

    edition: Edition
    folder: Path
    path: str
    asset: Callable[[str], str]
    place: Callable[[str], str | None] = str
    differs: str | None = None
    note: str = ""
    dead: str = DEAD

    @property
    def nav(self) -> tuple[tuple[str, str], ...]:
        """The labels and addresses of the pages that every page leads to."""
        routing = (ROUTING,) if self.edition.atlas.has("routing") else ()
        return (*NAV[:2], *routing, *NAV[2:], *(() if self.differs is None else WITH_MODEL))

    def is_below(self, address: str) -> bool:
        """Whether the page is the one at this address, or below it."""
        return self.path == address or (address != "/" and self.path.startswith(f"{address}/"))

    def link(self, address: str, *, key: str = "", current: str = "", title: str = "") -> Markup:
        """The attributes of a link: its address, the key that follows it, whether it is the page that is read."""
        place = self.place(address)
        given = {"href": place, "data-key": key, "aria-current": current, "title": title}
        shown = {"title": self.dead} if place is None else given
        return Markup(" ".join(f'{name}="{escape(value)}"' for name, value in shown.items() if value))

    def drawing(self, svg: str) -> Markup:
        """A drawing of our own, rebuilt from a list of what may stand in a page, with its links as the page's."""
        found = re.sub(r'href="(/[^"]*)"', lambda found: self.link(found[1]), svg) if self.note else svg
        return Markup(found)

    def render(self, template: str, values: dict[str, Any]) -> str:
        """The page as HTML: the template's blocks inside page.html."""
        usual = {"frame": self, "link": self.link, "asset": self.asset, "twin": "", "title": "", "bare": False}
        return environment().get_template(template).render(usual | values)


SYNTAX: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
"""How templates are read, which says what they are compiled to."""


class _CompiledTemplates(FileSystemBytecodeCache):
    """Keeps templates where Python keeps this module once it is compiled, so that a server need not compile them anew.

    Where nothing can be read or written there, nothing is kept.
    """

    def get_source_checksum(self, source: str) -> str:
        """Of the template, and of how it is read."""
        return super().get_source_checksum(f"{source}{SYNTAX}")

    def load_bytecode(self, bucket: Bucket) -> None:
        """Reads the template's file, if there is one."""
        with suppress(OSError):
            super().load_bytecode(bucket)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Writes a file beside it, which then takes its place; as Python, not where it is told to write none."""
        if not sys.dont_write_bytecode:
            with suppress(OSError):
                super().dump_bytecode(bucket)


@cache
def environment() -> Environment:
    """The engine, with autoescape and undefined names refused; filters spell tokens and numbers."""
    kept = _CompiledTemplates(str(Path(cache_from_source(__file__)).parent), "template-%s.cache")
    found = Environment(
        loader=PackageLoader("mnemoscope.show.pages"),
        undefined=StrictUndefined,
        auto_reload=False,
        bytecode_cache=kept,
        **SYNTAX,
    )
    found.filters |= {
        "token": show_token,
        "running": show_text,
        "percent": lambda share: format_value(share, "share"),
        "chance": times_chance,
        "number": lambda value: format_value(value, "number"),
        "count": lambda value: DASH if value is None else f"{value:,}",
        "part": lambda text: quote(str(text), safe=""),
    }
    return found
