"""Runs the model in a single worker with a queue, and loads the model that a site names.

Requests wait for the worker in their own threads, limited in number and time; browsing never waits for it. Results are
cached, also those whose readers stopped waiting. Interventions are part of every key. The model's own lock protects it
from other users in this process and has no limits. Imports torch, so it is imported lazily.
"""

import copy
import os
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, cast, final

import torch
from starlette.exceptions import HTTPException

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.manifest import as_mined, mined_from, open_as_mined, resolve_opening
from mnemoscope.atlas.vocabulary import Vocabulary, is_spelled
from mnemoscope.attribution.diff import second_model
from mnemoscope.errors import MnemoscopeError, ModelDiffers, OptionError, PromptError
from mnemoscope.foundation.cache import Cache
from mnemoscope.foundation.options.model_options import full_name
from mnemoscope.foundation.progress import Progress
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.tracing import adopt_votes, trace
from mnemoscope.web.settings import Settings

CACHE_SIZE = 8_000
"""Places of traces in the cached results: about 100 MB."""
CACHED_BYTES = 12_500
"""Of one place."""

T = TypeVar("T")
_NOTHING = object()
Cancelled = Callable[[], bool]
"""Whether no reader waits for the result any more."""


@final
class ModelWorker:
    """The model, and perhaps a second one to compare it with; `differs` is one sentence on why the model is not the one
    that was mined, empty if it is.
    """

    def __init__(
        self,
        model: LanguageModel,
        spec: str,
        *,
        second: LanguageModel | None = None,
        differs: str = "",
        max_queued: int = 16,
        timeout: float = 60.0,
    ) -> None:
        self.model, self.second = model, second
        self.spec = spec
        self.differs = differs
        self.max_queued = max_queued
        self.timeout = timeout
        self._lock = threading.Lock()
        self._answers = Cache(CACHE_SIZE)
        self._jobs: dict[Hashable, _Job] = {}
        self._waiting: list[Hashable] = []
        """What requests wait for, also those of `of` and `with_source`."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="model")

    @cached_property
    def words(self) -> Vocabulary:
        """The model's own vocabulary, which may differ from the atlas's if the model was forced."""
        return Vocabulary(*self.model.vocabulary())

    @property
    def waiting(self) -> int:
        """Requests that wait for an answer."""
        return len(self._waiting)

    def of(self, which: str) -> "ModelWorker":
        """The worker itself, or for the `second` model one in the same queue."""
        if which == "first":
            return self
        if self.second is None:
            raise OptionError("there is no second model here; start the server with --other or --other-adapter")
        _ = self.words  # of both
        other = copy.copy(self)
        other.model, other.spec = self.second, self.second.name
        other.differs = f"{self.second.spec} is not the model that was mined."
        return other

    def with_source(self, source: str | None) -> "ModelWorker":
        """The worker itself, or one in the same queue on prompts with this source, which some models need."""
        if not source and self.model.sources is None:
            return self
        if not source:
            raise PromptError("this model reads a source and writes a text; write the source, too")
        other = copy.copy(self)
        other.model = self.model.with_source(source)
        other.second = None if self.second is None else self.second.with_source(source)
        return other

    def warm(self, atlas: Atlas) -> None:
        """Prepares in the background what a first trace needs: the words, and the atlas's votes."""

        def first() -> None:
            text = next((text for text in self.words.texts if is_spelled(text.strip())), "a")
            with suppress(MnemoscopeError):
                adopt_votes(self.model, atlas)
            with suppress(MnemoscopeError):
                model = self.model if self.model.sources is None else self.model.with_source(text)
                trace(model, text, mask=None if model.reading.causal else 0)

        self._worker.submit(first)

    def answer(
        self,
        key: Hashable,
        make: Callable[[LanguageModel, Cancelled], T],
        *,
        places: Callable[[T], int] = lambda _: 10,
        aside: bool = False,
        sourced: bool = True,
    ) -> T:
        """The result of `make(model, cancelled)` for this key, computed one at a time; `places` returns its size in the
        cache. Without `sourced` it is the same for prompts with any source.

        When `cancelled()` is true, `make` may raise TimeoutError: nobody waits any more, and something else is asked
        for; or for as long again nobody has come back. A result made `aside` makes way as soon as something else is.
        """
        key = self.model.fingerprint, sourced and self.model.given_source, key
        with self._lock:
            cached = self._answers.find(key, _NOTHING)
            if cached is not _NOTHING:
                return cast(T, cached)
            # Jobs without a waiting reader count as well.
            if max(len(self._jobs), self.waiting) >= self.max_queued:
                raise HTTPException(503, "The model is busy and others wait already; try again in a moment.")
            job = self._jobs.get(key)
            now = time.monotonic()
            if job is None:
                job = self._jobs[key] = _Job(aside, now)
                job.future = self._worker.submit(self._run, key, make, job, places)
            job.asked = now
            self._waiting.append(key)
        try:
            answered: T = job.future.result(self.timeout)
        except TimeoutError:
            raise HTTPException(503, "The model is still busy; try again in a moment, or with less text.") from None
        finally:
            with self._lock:
                self._waiting.remove(key)
        return answered

    def _run(
        self, key: Hashable, make: Callable[[LanguageModel, Cancelled], T], job: "_Job", places: Callable[[T], int]
    ) -> T:
        def is_cancelled() -> bool:
            others = any(one is not job and not one.aside for one in tuple(self._jobs.values()))
            late = time.monotonic() - job.asked
            return late > self.timeout * (1 if others else 2) or (job.aside and others)

        try:
            if is_cancelled():
                raise TimeoutError
            made = make(self.model, is_cancelled)
            self._answers.keep(key, made, weight=places(made))
            return made
        finally:
            with self._lock:
                del self._jobs[key]


def stop_if(cancelled: Cancelled) -> Progress:
    """A progress that stops the work which reports to it."""

    def stop(*_: object) -> None:
        if cancelled():
            raise TimeoutError

    return stop


@dataclass
class _Job:
    aside: bool
    asked: float
    """When it was last asked for."""
    future: "Future[Any]" = field(init=False)


def load_worker(settings: Settings, atlas: Atlas) -> ModelWorker:
    """The model of the settings, and the second; options left open are as mined if it has the mined model's name."""
    assert settings.model is not None
    # One core is left for serving pages.
    torch.set_num_threads(max(1, min(torch.get_num_threads(), (os.cpu_count() or 2) - 1)))
    name = as_mined(atlas.path, "model", settings.model)
    opening = resolve_opening(atlas.path, settings.opening)
    if full_name(name) == full_name(mined_from(atlas.path).get("model", "")):
        name, opening = open_as_mined(atlas.path, name, opening)
    model = load_model(name, device=settings.device, **opening.keywords())
    differs = describe_difference(settings, model, atlas)
    compared = settings.other is not None or settings.other_adapter is not None
    second = second_model(model, settings.other, settings.other_adapter) if compared else None
    worker = ModelWorker(model, model.name, second=second, differs=differs)
    worker.warm(atlas)
    return worker


def describe_difference(settings: Settings, model: LanguageModel, atlas: Atlas) -> str:
    """One sentence on why this is not the model that was mined; empty if it is."""
    mined = atlas.manifest.model
    if model.fingerprint == mined.fingerprint:
        return ""
    name = model.spec
    text = f"{name} is not the model that {atlas.path} was mined from ({mined.spec}):"
    shape = list(model.sizes.memories)
    if shape != list(mined.sizes.memories):
        sizes = " or ".join(f"{len(shape)} times {size:,}" for size in sorted(set(shape)))
        raise ModelDiffers(f"{text} its layers have {sizes} memories; name the model that was mined")
    if model.sizes.vocabulary != mined.sizes.vocabulary:
        raise ModelDiffers(f"{text} it has {model.sizes.vocabulary:,} tokens; name the model that was mined")
    if not settings.force_model:
        prints = f"fingerprint {model.fingerprint[:12]}, not {mined.fingerprint[:12]}"
        raise ModelDiffers(f"{text} {prints}; name that one, or use this one all the same with --force-model")
    return f"{name} is not the model that was mined."
