"""A cache in memory: concurrent requests for a key make its value once; the least recently used values go first.

Entries never expire. A value made from something that can change belongs in a cache owned by that thing's current
state: the cache is dropped with the state, so no stale value is ever found.
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
    weight: float = 1
    made: bool = False
    value: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@final
class Cache:
    """A thread-safe LRU cache of total weight `most`; a value weighs 1 without `weigh(value)` or `keep(weight=)`."""

    def __init__(self, most: float = math.inf, *, weigh: Callable[[Any], float] | None = None) -> None:
        self._most, self._weigh = most, weigh
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of the key. Where it is missing, one thread calls `make` while others wait; its error is raised and
        not cached. `make` may request other keys, but not its own.
        """
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._make_room(key)
        with entry.lock:
            if not entry.made:
                try:
                    entry.value = make()
                except BaseException:
                    with self._lock:
                        if self._entries.get(key) is entry:
                            del self._entries[key]
                    raise
                entry.made = True
                entry.weight = 1 if self._weigh is None else self._weigh(entry.value)
                with self._lock:
                    if self._entries.get(key) is entry:
                        self._make_room(key)
        value: T = entry.value
        return value

    def find(self, key: Hashable, default: T) -> T:
        """The cached value of the key, or `default`; never waits."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or not entry.made:
                return default
            self._entries.move_to_end(key)
            value: T = entry.value
            return value

    def keep(self, key: Hashable, value: object, *, weight: float = 1) -> None:
        """Stores a value in place of any other of the key; the latest value stays, whatever its weight."""
        with self._lock:
            self._entries[key] = _Entry(weight, made=True, value=value)
            self._make_room(key)

    def _make_room(self, key: Hashable) -> None:
        """Drops the oldest entries, never that of the key, while all weigh too much."""
        self._entries.move_to_end(key)
        weight = sum(entry.weight for entry in self._entries.values())
        while weight > self._most and len(self._entries) > 1:
            weight -= self._entries.popitem(last=False)[1].weight
