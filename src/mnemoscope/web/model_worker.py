"""A queue with a single worker in front of the model, and the loading of the model that a site names.

Requests wait for the worker in their own threads, so many at most, so long at most; browsing never waits behind them.
Answers are kept, also for those who stopped waiting. Interventions are part of every key, so nothing leaks. The model's
own lock is for whoever else runs it in this process; it knows no limits. Imports torch; is imported lazily.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeVar, cast, final

import torch
from starlette.exceptions import HTTPException

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.manifest import as_mined, mined_from, open_as_mined, resolve_opening
from mnemoscope.atlas.vocabulary import Vocabulary
from mnemoscope.errors import MnemoscopeError, ModelDiffers
from mnemoscope.foundation.cache import Cache
from mnemoscope.foundation.model_options import full_name
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.tracing import adopt_votes, trace
from mnemoscope.web.settings import Settings

MAX_QUEUED = 8
"""Requests that may be with the model or wait for it."""
TIMEOUT = 60.0
"""Seconds that a request waits for its answer."""
CACHE_SIZE = 8_000
"""The most recent answers are kept, up to so many places of traces together: some 100 MB."""

T = TypeVar("T")
_NOTHING = object()
Cancelled = Callable[[], bool]
"""Says whether nobody waits for the answer any more, nor will."""


@final
class ModelWorker:
    """The model; `differs` says, in a sentence, why it is not the one that was mined (empty where it is)."""

    def __init__(
        self, model: LanguageModel, spec: str, *, differs: str = "", max_queued: int = MAX_QUEUED,
        timeout: float = TIMEOUT,
    ) -> None:  # fmt: skip
        self.model = model
        self.spec = spec
        self.differs = differs
        self.max_queued = max_queued
        self.timeout = timeout
        self._lock = threading.Lock()
        self._answers = Cache(CACHE_SIZE)
        self._jobs: dict[Hashable, _Job] = {}
        self.waiting = 0
        """Requests that wait for an answer."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="model")

    @cached_property
    def words(self) -> Vocabulary:
        """The model's own vocabulary, which need not be the atlas's where the model was forced."""
        return Vocabulary(*self.model.vocabulary())

    def warm(self, atlas: Atlas) -> None:
        """Begins what a first trace would wait for; nobody waits for it. Kept are the words, and the atlas's votes."""

        def first() -> None:
            text = next((text for text in self.words.texts if text.strip().isalpha()), "a")
            with suppress(MnemoscopeError):
                adopt_votes(self.model, atlas)
            with suppress(MnemoscopeError):
                trace(self.model, text)

        self._worker.submit(first)

    def answer(
        self, key: Hashable, make: Callable[[LanguageModel, Cancelled], T], *,
        places: Callable[[T], int] = lambda _: 10, linger: float = 0.0,
    ) -> T:  # fmt: skip
        """What `make(model, cancelled)` gives for this key, made one at a time; `places` tells its size.

        Where `cancelled()`, `make` may raise TimeoutError; it is so `linger` seconds after the last reader stopped
        waiting, who may come again and find the answer made. Raises 503 where too many wait, or it takes too long.
        """
        key = self.model.fingerprint, key
        with self._lock:
            found = self._answers.find(key, _NOTHING)
            if found is not _NOTHING:
                return cast(T, found)
            # Jobs that nobody waits for any more count as well.
            if max(len(self._jobs), self.waiting) >= self.max_queued:
                raise HTTPException(503, "The model is busy and others wait already; try again in a moment.")
            job = self._jobs.get(key)
            if job is None:
                job = self._jobs[key] = _Job()
                job.future = self._worker.submit(self._run, key, make, job, places)
            job.until = time.monotonic() + self.timeout + linger
            self.waiting += 1
        try:
            answered: T = job.future.result(self.timeout)
        except TimeoutError:
            raise HTTPException(503, "The model is still busy; try again in a moment, or with less text.") from None
        finally:
            with self._lock:
                self.waiting -= 1
        return answered

    def _run(
        self, key: Hashable, make: Callable[[LanguageModel, Cancelled], T], job: "_Job", places: Callable[[T], int]
    ) -> T:
        with self._lock:
            if job.is_cancelled():
                del self._jobs[key]
                raise TimeoutError
        try:
            made = make(self.model, job.is_cancelled)
            self._answers.keep(key, made, weight=places(made))
            return made
        finally:
            with self._lock:
                del self._jobs[key]


class _Job:
    """An answer that waits or is made, and until when it is wanted."""

    future: "Future[Any]"
    until: float = math.inf

    def is_cancelled(self) -> bool:
        return time.monotonic() > self.until


def load_worker(settings: Settings, atlas: Atlas) -> ModelWorker:
    """The model that the settings name, if it is the one that was mined, or forced and of the same shape.

    Of the model that was mined, by that name, what the settings leave open is as it was mined.
    Raises ModelError, and ModelDiffers.
    """
    assert settings.model is not None
    # A core stays with the readers.
    torch.set_num_threads(max(1, min(torch.get_num_threads(), (os.cpu_count() or 2) - 1)))
    name = as_mined(atlas.path, "model", settings.model)
    opening = resolve_opening(atlas.path, settings.opening)
    if full_name(name) == full_name(mined_from(atlas.path).get("model", "")):
        name, opening = open_as_mined(atlas.path, name, opening)
    model = load_model(name, device=settings.device, **opening.keywords())
    worker = ModelWorker(model, model.name, differs=describe_difference(settings, model, atlas))
    worker.warm(atlas)
    return worker


def describe_difference(settings: Settings, model: LanguageModel, atlas: Atlas) -> str:
    """Why this is not the model that was mined, in a sentence; empty where it is. Raises ModelDiffers unless forced."""
    mined = atlas.manifest.model
    if model.is_model_of(atlas.manifest["model"]):
        return ""
    name = model.spec
    said = f"{name} is not the model that {atlas.path} was mined from ({mined.spec}):"
    shape = list(model.sizes.memories)
    if shape != list(mined.sizes.memories):
        sizes = " or ".join(f"{len(shape)} times {size:,}" for size in sorted(set(shape)))
        raise ModelDiffers(f"{said} its layers have {sizes} memories; name the model that was mined")
    if model.sizes.vocabulary != mined.sizes.vocabulary:
        raise ModelDiffers(f"{said} it has {model.sizes.vocabulary:,} tokens; name the model that was mined")
    if not settings.force_model:
        prints = f"fingerprint {model.fingerprint[:12]}, not {mined.fingerprint[:12]}"
        raise ModelDiffers(f"{said} {prints}; name that one, or use this one all the same with --force-model")
    return f"{name} is not the model that was mined."
