"""A temporary change of global state that threads share: the first one in applies it, the last one out undoes it."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from threading import RLock
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def shared_change(change: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """Like `contextmanager`, for threads: calls with the same first argument, or without any, share one change and what
    it yields. It may begin in one thread and end in another.
    """
    lock, changes = RLock(), dict[Hashable, tuple[AbstractContextManager[T], T, int]]()

    @wraps(change)
    @contextmanager
    def share(*given: P.args, **named: P.kwargs) -> Iterator[T]:
        key = given[:1]
        with lock:
            if key in changes:
                made, value, users = changes[key]
            else:
                made, users = contextmanager(change)(*given, **named), 0
                value = made.__enter__()
            changes[key] = made, value, users + 1
        try:
            yield value
        finally:
            with lock:
                made, value, users = changes.pop(key)
                if users > 1:
                    changes[key] = made, value, users - 1
                else:
                    made.__exit__(None, None, None)

    return share
