"""Values kept in memory by key: each made once, however many ask for it at the same time; the longest unused go first.

A cache knows nothing of time. What is made from something that can change belongs in a cache of that thing's present
state, which is dropped with it: then nothing made from the old state is ever found under the new one.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

T = TypeVar("T")


@dataclass(eq=False)
class _Entry:
    """A place for one value, and the lock of whoever makes it."""

    weight: float = 1
    made: bool = False
    value: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@final
class Cache:
    """Values by key, up to the weight `most` together; for threads.

    A value weighs what `weigh` gives once it is made, 1 without, and what `keep` says where it says so.
    """

    def __init__(self, most: float = math.inf, *, weigh: Callable[[Any], float] | None = None) -> None:
        self._most, self._weigh = most, weigh
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._weight = 0.0

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of the key; where there is none, what `make` gives, which one thread calls while others wait.

        What `make` raises is raised and not kept; whoever waited then calls their own. `make` may ask for other keys,
        not for its own.
        """
        with self._lock:
            if key not in self._entries:
                self._add(key, _Entry())
            entry = self._entries[key]
            self._entries.move_to_end(key)
        with entry.lock:
            if not entry.made:
                try:
                    entry.value = make()
                except BaseException:
                    with self._lock:
                        self._drop(key, entry)
                    raise
                entry.made = True
                if self._weigh is not None:
                    self._reweigh(key, entry, self._weigh(entry.value))
        found: T = entry.value
        return found

    def find(self, key: Hashable, default: T) -> T:
        """The value of the key, or the default where there is none yet; waits for nobody."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or not entry.made:
                return default
            self._entries.move_to_end(key)
            found: T = entry.value
            return found

    def keep(self, key: Hashable, value: object, *, weight: float = 1) -> None:
        """Keeps a value that was made elsewhere in the place of any other of the key; the latest one always stays."""
        entry = _Entry(weight, made=True, value=value)
        with self._lock:
            self._drop(key, self._entries.get(key))
            self._add(key, entry)

    def _add(self, key: Hashable, entry: _Entry) -> None:
        self._entries[key] = entry
        self._weight += entry.weight
        self._make_room()

    def _reweigh(self, key: Hashable, entry: _Entry, weight: float) -> None:
        with self._lock:
            if self._entries.get(key) is entry:
                self._weight += weight - entry.weight
                entry.weight = weight
                self._entries.move_to_end(key)
                self._make_room()

    def _make_room(self) -> None:
        while self._weight > self._most and len(self._entries) > 1:
            self._weight -= self._entries.popitem(last=False)[1].weight

    def _drop(self, key: Hashable, entry: _Entry | None) -> None:
        if entry is not None and self._entries.get(key) is entry:
            del self._entries[key]
            self._weight -= entry.weight
