"""A page (template, title and data), the declaration of its kind, and the frame that renders it to HTML.

Templates write links as `<a {{ link(address) }}>`, so that the same page works on a server, where an address is a link,
and in a separate file, from which only some pages can be reached.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from pydantic import BaseModel

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.derived_manifest import shares_by
from mnemoscope.atlas.schema import table_kind
from mnemoscope.errors import MnemoscopeError
from mnemoscope.foundation.formatting import DASH, format_value, show_text, show_token, times_chance
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.reading import Reading
from mnemoscope.show.pages.edition import Data, Edition

MODEL, SECOND = "model", "second model"
DEAD = "This page is not among those that were written"
"""The tooltip of a link without a target."""


@dataclass(frozen=True)
class Page:
    """A template, its title, the data that the JSON returns, and values for the template, made when it is drawn."""

    template: str
    title: str
    data: Data
    extra: Callable[[], Data] = field(default=dict)
    status: int = 200

    def values(self) -> Data:
        return {"title": self.title, **self.data, **self.extra()}


class PageNotFound(MnemoscopeError):
    """There is no such page; answered with 404."""


class Address(BaseModel, frozen=True):
    """The parameters of a page's address, which are its whole state; empty form fields are left out."""

    path: ClassVar[str] = ""

    def query(self, **changes: Any) -> str:
        changed, usual = self.model_copy(update=changes), type(self)()
        pairs = {
            str(field.validation_alias or name): f"{value:g}" if isinstance(value, float) else value
            for name, field in type(self).model_fields.items()
            if (value := getattr(changed, name)) != getattr(usual, name)
        }
        return urlencode(pairs, doseq=True)

    def address(self, **changes: Any) -> str:
        return f"{self.path}?{self.query(**changes)}"


Instances = Iterable[tuple[str, Mapping[str, Any]]]
"""Addresses of pages of one kind, each with the parameters that it holds."""


@dataclass(frozen=True)
class PageKind:
    """A kind of page, declared once. `make` takes an edition, the parameters in `path`, and those of the query as
    `address`; its docstring is the route's. A page without `make` has a route of its own. `name` is the operation id in
    the OpenAPI document. With a `label` the page is in the contents (of an atlas that has the table `needs`, or of a
    site with a model, or a second one; `causal`: of such a model's atlas only), with `about` also on the overview.
    `exported` pages are written as files, and made in advance: those of `instances`, for the memories chosen for files
    (None: in advance). A page that is not `stored` is made for each request; a stored one again when `mark` changes.
    """

    name: str
    path: str
    make: Callable[..., Page] | None = None
    label: str = ""
    about: str = ""
    needs: str = ""
    causal: bool = False
    exported: bool = False
    instances: Callable[[Edition, Sequence[MemoryId] | None], Instances] | None = None
    stored: bool = True
    mark: Callable[..., object] = lambda edition, **_: None

    def make_page(self, edition: Edition, parameters: Mapping[str, Any]) -> Page:
        assert self.make is not None
        return self.make(edition, **parameters)

    def pages(self, edition: Edition, memories: Sequence[MemoryId] | None = None) -> Instances:
        return ((self.path, {}),) if self.instances is None else self.instances(edition, memories)


@dataclass(frozen=True)
class Frame:
    """The surroundings of a page. `place` maps a link to an address, or None without a target; `asset` maps a style or
    script file; `contents` are the pages of the navigation. `differs` is the reason why the model is not the one that
    was mined (None: there is no model). A page in a separate file has a `note` at its head; `dead` is the tooltip of a
    link without a target.
    """

    edition: Edition
    folder: Path
    path: str
    asset: Callable[[str], str]
    place: Callable[[str], str | None] = str
    contents: Sequence[PageKind] = ()
    differs: str | None = None
    note: str = ""
    dead: str = DEAD

    def is_below(self, address: str) -> bool:
        return self.path == address or (address != "/" and self.path.startswith(f"{address}/"))

    def link(self, address: str, *, key: str = "", current: str = "", title: str = "") -> Markup:
        place = self.place(address)
        attributes = {"href": place, "data-key": key, "aria-current": current, "title": title}
        shown = {"title": self.dead} if place is None else attributes
        return Markup(" ".join(f'{name}="{escape(value)}"' for name, value in shown.items() if value))

    def drawing(self, svg: str) -> Markup:
        """A drawing of our own, which contains only permitted elements, with its links mapped like the page's."""
        return Markup(re.sub(r'href="(/[^"]*)"', lambda match: self.link(match[1]), svg) if self.note else svg)

    def render(self, template: str, values: Data) -> str:
        usual = {"frame": self, "link": self.link, "asset": self.asset, "twin": "", "title": "", "bare": False}
        return environment().get_template(template).render(usual | template_words(self.edition.atlas) | values)


def template_words(atlas: Atlas | None) -> Data:
    """Of every template: the `words` for how the model reads, and whether it is `causal`, or has `keys_only`."""
    reading, keys_only = (Reading(), False) if atlas is None else (atlas.reading, atlas.manifest.keys_only)
    words = {name: Markup(text) for name, text in reading.words.items()}
    return {"causal": reading.causal, "words": words, "keys_only": keys_only}


def _sign(value: float | None, digits: int = 2) -> str:
    """A number with its sign, and a true minus; -0 becomes +0."""
    return DASH if value is None else f"{value + 0.0:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


@cache
def environment() -> Environment:
    engine = Environment(
        loader=PackageLoader("mnemoscope.show.pages"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    engine.filters |= {
        "token": show_token,
        "running": show_text,
        "percent": lambda share: format_value(share, "share"),
        "chance": times_chance,
        "shares_by": shares_by,
        "number": lambda value: format_value(value, "number"),
        "signed": _sign,
        "count": lambda value: DASH if value is None else f"{value:,}",
        "part": lambda text: quote(str(text), safe=""),
    }
    engine.globals |= template_words(None)
    engine.globals["column"] = lambda table, name: table_kind(table).by_name[name]
    return engine
