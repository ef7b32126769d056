"""Silences the libraries' warnings and progress bars, and reports their progress as ours.

Logging thresholds are global, so threads share their changes.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager, contextmanager
from logging import CRITICAL, ERROR, Logger, getLogger
from typing import Any

from huggingface_hub.utils import logging as hub_logging
from transformers.utils import logging

from mnemoscope.foundation.progress import report_loading
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
    hub_before, hook = hub_logging.get_verbosity(), logging.set_tqdm_hook(_replace_bar)
    hub_logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with suppress_warnings(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hub_logging.set_verbosity(hub_before)
        logging.set_tqdm_hook(hook)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _replace_bar(bar: Callable[..., Any], given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """The library's bar, which is silent; in place of the one over a model's weights a report of each."""
    if not given or not isinstance(given[0], Sized) or named.get("desc") != "Loading weights":
        return bar(*given, **named)
    return _report_each(given[0])


def _report_each(weights: Any) -> Iterator[Any]:
    for done, weight in enumerate(weights):
        report_loading("weights", done, len(weights))
        yield weight
