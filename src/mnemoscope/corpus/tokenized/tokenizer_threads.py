"""Says to the tokenizers library, for a while, that each call is to use the caller's thread alone.

By itself it shares every call out among threads of its own. What these allocate the caller frees, while they allocate
for the next call, and both wait for each other: two callers at a time then gain next to nothing. Callers that use their
own threads do not meet (figures in LOG.md). The library has no setting for this but a variable of the process, which it
reads at each call. Not for what else runs on many threads.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_VARIABLE = "TOKENIZERS_PARALLELISM"
_lock = Lock()
_within = 0


@contextmanager
def one_thread_a_call() -> Iterator[None]:
    """While this lasts, calls of tokenizers in this process use the caller's thread; a user's own setting stays."""
    global _within
    with _lock:
        own = _VARIABLE in os.environ and _within == 0
        if not own:
            _within += 1
            os.environ[_VARIABLE] = "false"
    try:
        yield
    finally:
        if not own:
            with _lock:
                _within -= 1
                if _within == 0:
                    os.environ.pop(_VARIABLE, None)
