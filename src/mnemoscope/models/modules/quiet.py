"""What the libraries say while they work, kept from people's terminals: warnings, progress bars.

The switches are the process's, so the last of all threads to leave puts them back.
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
"""What the library's logging threshold was, once for each that keeps it quiet now, in whatever thread."""


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """Raises the library's logging threshold to errors; the last of all threads to leave puts it back.

    Whoever finds it raised leaves it: a change makes Python forget what every logger there is would log.
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
    """As `suppress_warnings`, and without progress bars and Python warnings: for loading, where all of them occur."""
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
