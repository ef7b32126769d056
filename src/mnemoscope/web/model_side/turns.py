"""One at a time with the model, a few waiting, and browsing never behind them.

A single worker runs the model; requests wait for it in their own threads, so many at most, so long at most. What was
worked out is kept, also for those who stopped waiting. Interventions are part of every key, so nothing leaks.
"""

import math
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, cast

from starlette.exceptions import HTTPException

from mnemoscope.atlas.vocabulary import Vocabulary
from mnemoscope.cache import Cache
from mnemoscope.errors import MnemoscopeError
from mnemoscope.models import LanguageModel
from mnemoscope.tracing import trace

WAITING = 8
"""Requests that may be with the model or wait for it."""
PATIENCE = 60.0
"""Seconds that a request waits for its answer."""
KEPT = 8_000
"""The most recent answers are kept, up to so many places of traces together: some 100 MB."""

T = TypeVar("T")
_NOTHING = object()
Late = Callable[[], bool]


@dataclass
class ModelSide:
    """The model; `differs` says, in a sentence, why it is not the one that was mined (empty where it is)."""

    model: LanguageModel
    spec: str
    differs: str = ""
    waiting: int = WAITING
    patience: float = PATIENCE
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _answers: Cache = field(default_factory=lambda: Cache(KEPT))
    _going: dict[Hashable, "_Going"] = field(default_factory=dict)
    _waiters: int = 0

    @cached_property
    def words(self) -> Vocabulary:
        """The model's own vocabulary, which need not be the atlas's where the model was forced."""
        return Vocabulary(*self.model.vocabulary())

    def warm(self) -> None:
        """Begins what a first trace would wait for; nobody waits for it, and nothing of it is kept but the words."""

        def first() -> None:
            text = next((text for text in self.words.texts if text.strip().isalpha()), "a")
            with suppress(MnemoscopeError):
                trace(self.model, text)

        self._worker.submit(first)

    def answer(
        self, key: Hashable, make: Callable[[LanguageModel, Late], T], *, places: Callable[[T], int] = lambda _: 10
    ) -> T:
        """What `make(model, late)` gives for this key, made by one worker, one at a time; `places` tells its size.

        `late()` says whether nobody waits any more; then it may raise TimeoutError. Raises 503 where too many wait, or
        where it takes too long.
        """
        with self._lock:
            found = self._answers.find(key, _NOTHING)
            if found is not _NOTHING:
                return cast(T, found)
            # Jobs that nobody waits for any more count as well.
            if max(len(self._going), self._waiters) >= self.waiting:
                raise HTTPException(503, "The model is busy and others wait already; try again in a moment.")
            going = self._going.get(key)
            if going is None:
                going = self._going[key] = _Going()
                going.future = self._worker.submit(self._made, key, make, going, places)
            going.until = time.monotonic() + self.patience
            self._waiters += 1
        try:
            answered: T = going.future.result(self.patience)
        except TimeoutError:
            raise HTTPException(503, "The model is still busy; try again in a moment, or with less text.") from None
        finally:
            with self._lock:
                self._waiters -= 1
        return answered

    @cached_property
    def _worker(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="model")

    def _made(
        self,
        key: Hashable,
        make: Callable[[LanguageModel, Late], T],
        going: "_Going",
        places: Callable[[T], int],
    ) -> T:
        with self._lock:
            if going.late():
                del self._going[key]
                raise TimeoutError
        try:
            made = make(self.model, going.late)
            self._answers.keep(key, made, weight=places(made))
            return made
        finally:
            with self._lock:
                del self._going[key]


class _Going:
    """A job that waits or runs, and until when somebody waits for it."""

    future: "Future[Any]"
    until: float = math.inf

    def late(self) -> bool:
        """Whether nobody waits any more."""
        return time.monotonic() > self.until
