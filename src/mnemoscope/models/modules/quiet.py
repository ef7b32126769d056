"""Silences the libraries' warnings and progress bars.

Logging thresholds are global, so threads share their changes.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from logging import CRITICAL, ERROR, Logger

from huggingface_hub.utils import logging as hub_logging
from transformers.utils import logging

from mnemoscope.foundation.shared_change import shared_change


@shared_change
def suppress_warnings() -> Iterator[None]:
    """Raises the library's logging threshold to errors, unless it is: a change drops a cache of Python's."""
    before = logging.get_verbosity()
    if before < ERROR:
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if before < ERROR:
            logging.set_verbosity(before)


@shared_change
def silence(logger: Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


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
