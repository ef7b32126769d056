"""Makes each call of the tokenizers library use only the caller's thread, for a while.

By default it shares every call out among its own threads. The caller frees what these allocate while they allocate for
the next call, and both wait for each other: two concurrent callers then gain next to nothing. Callers that use their
own threads do not collide (figures in LOG.md). The library's only setting is an environment variable, which it reads at
each call.
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
    """Makes calls of tokenizers in this process use the caller's thread; a user's own setting stays."""
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
