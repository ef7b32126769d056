"""Makes each call of the tokenizers library use only the caller's thread, for a while.

The caller frees what these allocate while they allocate for the next call, and both wait for each other: two concurrent
callers then gain next to nothing. Callers that use their own threads do not collide (docs/log). The library's
only setting is an environment variable, which it reads at each call.
"""

import os
from collections.abc import Iterator

from mnemoscope.foundation.shared_change import shared_change

_VARIABLE = "TOKENIZERS_PARALLELISM"


@shared_change
def one_thread_a_call() -> Iterator[None]:
    """Makes calls of tokenizers in this process use the caller's thread; a user's own setting stays."""
    if _VARIABLE in os.environ:
        yield
        return
    os.environ[_VARIABLE] = "false"
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
