"""A temporary change of global state that threads share: the first one in applies it, the last one out undoes it."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(eq=False)
class _Shared:
    lock: Lock = field(default_factory=Lock)
    callers: int = 0
    """The threads inside or at the door; the entry is dropped after the last."""
    users: int = 0
    value: Any = None
    undo: ExitStack = field(default_factory=ExitStack)


def shared_change(change: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """Like `contextmanager`, for threads: calls with the same first argument, or without any, share one change and what
    it yields. It may begin in one thread and end in another.
    """
    lock, changes = Lock(), dict[Hashable, _Shared]()

    @wraps(change)
    @contextmanager
    def share(*given: P.args, **named: P.kwargs) -> Iterator[T]:
        with lock:
            one = changes.setdefault(given[:1], _Shared())
            one.callers += 1
        try:
            with one.lock:
                if not one.users:
                    one.value = one.undo.enter_context(contextmanager(change)(*given, **named))
                one.users += 1
            try:
                yield one.value
            finally:
                with one.lock:
                    one.users -= 1
                    if not one.users:
                        one.undo.close()
        finally:
            with lock:
                one.callers -= 1
                if not one.callers:
                    del changes[given[:1]]

    return share
