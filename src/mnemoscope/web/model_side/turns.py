"""One trace at a time, a few waiting, and browsing never behind them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException

from mnemoscope.models import LanguageModel

WAITING = 8
"""Requests that may be with the model or wait for it."""
PATIENCE = 60.0
"""Seconds that a request waits for its turn."""


@dataclass
class ModelSide:
    """The model; `differs` says, in a sentence, why it is not the one that was mined (empty where it is)."""

    model: LanguageModel
    spec: str
    differs: str = ""
    _places: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(WAITING))
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def turn(self) -> Iterator[LanguageModel]:
        """The model, for one request at a time; raises 503 where too many wait."""
        if not self._places.acquire(blocking=False):
            raise HTTPException(503, "The model is busy and others wait already; try again in a moment.")
        try:
            if not self._turn.acquire(timeout=PATIENCE):
                raise HTTPException(503, "The model is still busy with somebody else's prompt; try again in a moment.")
            try:
                yield self.model
            finally:
                self._turn.release()
        finally:
            self._places.release()
