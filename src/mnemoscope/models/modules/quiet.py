"""Silences the libraries' warnings and progress bars.

Logging thresholds are global, so threads share their changes.
"""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from logging import CRITICAL, ERROR, Logger, getLogger

from huggingface_hub.utils import logging as hub_logging
from transformers.utils import logging

from mnemoscope.foundation.shared_change import shared_change


@shared_change
def silence(logger: Logger) -> Iterator[None]:
    """Raises the logger's threshold to errors, unless it is: a change drops a cache of Python's."""
    level = logger.level
    if level < ERROR:
        logger.setLevel(ERROR)
    try:
        yield
    finally:
        if level < ERROR:
            logger.setLevel(level)


def suppress_warnings() -> AbstractContextManager[None]:
    return silence(getLogger("transformers"))


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
