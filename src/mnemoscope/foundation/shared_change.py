"""A temporary change of global state that threads share: the first one in applies it, the last one out undoes it."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def shared_change(change: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """Like `contextmanager`, for threads: calls with the same first argument, or without any, share one change and what
    it yields. It may begin in one thread and end in another; meanwhile no other one begins or ends.
    """
    lock, changes = Lock(), dict[Hashable, tuple[ExitStack, Any]]()
    users = Counter[Hashable]()

    @wraps(change)
    @contextmanager
    def share(*given: P.args, **named: P.kwargs) -> Iterator[T]:
        key = given[:1]
        with lock:
            if key not in changes:
                undo = ExitStack()
                changes[key] = undo, undo.enter_context(contextmanager(change)(*given, **named))
            undo, value = changes[key]
            users[key] += 1
        try:
            yield value
        finally:
            with lock:
                users[key] -= 1
                if not users[key]:
                    del users[key], changes[key]
                    undo.close()

    return share
