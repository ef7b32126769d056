"""What all pages share: the atlas, views kept in memory, and, where one was given, the model's side.

A finished atlas never changes, so what was made from it is kept; answers and patterns can be made again, so everything
kept is dropped when their manifest changes. Never imports torch: the model's side is loaded by `with_model` alone.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl
from starlette.requests import Request

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.manifest import MANIFEST
from mnemoscope.atlas.store import file_hash
from mnemoscope.errors import AtlasUnfinished
from mnemoscope.memory import MemoryId
from mnemoscope.web.settings import Settings

if TYPE_CHECKING:
    from mnemoscope.web.model_side import ModelSide

T = TypeVar("T")
KEPT = 2_000
"""Pages and views kept, the most recent ones."""


class Site:
    """One atlas being served.

    `admits` are tests that let a request in without the access token (an invitation); `tasks` are begun in the
    background when serving begins; `said` gives people's patterns of a memory, `judgements` the annotations to search
    where they lie outside the atlas.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.atlas: Atlas = open_atlas(settings.atlas)
        if part := self.atlas.manifest.get("part"):
            raise AtlasUnfinished(
                f"{settings.atlas} is part {part['index']} of {part['of']}; join all parts with `mnemoscope merge`"
            )
        self.hash = file_hash(settings.atlas / MANIFEST)
        self.model: ModelSide | None = None
        self.nav: list[tuple[str, str]] = []
        self.admits: list[Callable[[Request], bool]] = []
        self.tasks: list[Callable[[], None]] = []
        self.said: Callable[[MemoryId], list[dict[str, Any]]] = lambda _: []
        self.judgements: Callable[[], pl.DataFrame | None] | None = None
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._lasting: dict[Hashable, _Slot] = {}
        self._lock = threading.Lock()
        self._seen = self.state()

    def with_model(self) -> "Site":
        """Itself, with the model of its settings loaded if they name one; raises ModelError, ModelDiffers."""
        if self.settings.model is not None:
            from mnemoscope.web.model_side import load

            self.model = load(self.settings, self.atlas)
        return self

    def has(self, address: str) -> bool:
        """Whether there are pages at or below this address."""
        return any(place == address or place.startswith(f"{address}/") for _, place in self.nav)

    def state(self) -> str:
        """What the pages depend on, in few characters: the atlas, and the answers and patterns made from it."""
        try:
            made = (self.atlas.path / "analyses" / MANIFEST).stat()
        except OSError:
            return self.hash[:16]
        return f"{self.hash[:16]}-{made.st_mtime_ns:x}-{made.st_size:x}"

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, made once for a key as long as the atlas's folder says the same, if asked for often."""
        with self._lock:
            self._renew()
            if key in self._kept:
                self._kept.move_to_end(key)
                found: T = self._kept[key]
                return found
        # Made outside the lock: two readers may make the same page at once, but nobody waits for another's.
        made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made

    def lasting(self, key: Hashable, make: Callable[[], T]) -> T:
        """Like `kept` for the few large things that many pages need: never dropped, and made by one reader alone."""
        with self._lock:
            self._renew()
            slot = self._lasting.setdefault(key, _Slot())
        with slot.lock:
            if not slot.made:
                slot.value, slot.made = make(), True
        found: T = slot.value
        return found

    def _renew(self) -> None:
        state = self.state()
        if state != self._seen:
            self._kept.clear()
            self._lasting.clear()
            self.atlas, self._seen = open_atlas(self.settings.atlas), state


class _Slot:
    """A place for one thing, and the lock of whoever makes it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made = False
        self.value: Any = None
