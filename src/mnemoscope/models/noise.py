"""Keeps libraries from writing to the terminal, and their errors to one line.

Warnings, logging and progress bars of transformers and the hub are silenced for the time of a call.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from logging import CRITICAL

from huggingface_hub.utils import logging as hub_logging
from transformers.utils import logging


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """Raises the library's logging threshold to errors, then puts it back."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
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


def first_line(problem: BaseException) -> str:
    """The first line of an error's text, shortened."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    text = lines[0] if lines else type(problem).__name__
    return text if len(text) <= 200 else text[:197] + "..."
