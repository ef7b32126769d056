"""Silences the libraries' warnings and progress bars.

The switches are global, so the last of all threads to leave restores them.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from logging import CRITICAL, ERROR
from threading import Lock

from huggingface_hub.utils import logging as hub_logging
from transformers.utils import logging

_quiet = Lock()
_silencers: list[int] = []
"""The library's logging threshold from before, once per active silencer, in whatever thread."""


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """Raises the library's logging threshold to errors.

    Leaves a raised threshold alone: a change makes Python drop its cache of enabled levels for every logger.
    """
    with _quiet:
        before = _silencers[0] if _silencers else logging.get_verbosity()
        _silencers.append(before)
        if len(_silencers) == 1 and before < ERROR:
            logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        with _quiet:
            _silencers.pop()
            if not _silencers and before < ERROR:
                logging.set_verbosity(before)


@contextmanager
def suppress_output() -> Iterator[None]:
    """Like `suppress_warnings`, and without progress bars and Python warnings, for loading."""
    bars = logging.is_progress_bar_enabled()
    hub_before = hub_logging.get_verbosity()
    hub_logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with suppress_warnings(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hub_logging.set_verbosity(hub_before)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
