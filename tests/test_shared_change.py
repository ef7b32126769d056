"""The first thread in applies a change, the last one out undoes it."""

from collections.abc import Iterator
from threading import Barrier, Thread

import pytest

from mnemoscope.foundation.shared_change import shared_change


class Switch:
    def __init__(self) -> None:
        self.moves: list[str] = []

    def hold(self, key: str, note: object = None) -> Iterator[list[str]]:
        self.moves.append(f"set {key}")
        try:
            yield self.moves
        finally:
            self.moves.append(f"reset {key}")


def test_calls_within_one_another_change_once_and_share_what_is_yielded() -> None:
    switch = Switch()
    hold = shared_change(switch.hold)
    with hold("a") as outer, hold("a", note="not compared") as inner:
        assert inner is outer
        assert switch.moves == ["set a"]
    with hold("a"):
        pass
    assert switch.moves == ["set a", "reset a"] * 2


def test_the_first_argument_tells_changes_apart() -> None:
    switch = Switch()
    hold = shared_change(switch.hold)
    with hold("a"):
        with hold("b"):
            pass
        assert switch.moves == ["set a", "set b", "reset b"]


def test_the_last_thread_undoes_what_the_first_has_changed() -> None:
    switch, inside = Switch(), Barrier(2)
    hold = shared_change(switch.hold)

    def other() -> None:
        with hold("a"):
            inside.wait()
            inside.wait()

    thread = Thread(target=other)
    with hold("a"):
        thread.start()
        inside.wait()
    assert switch.moves == ["set a"]
    inside.wait()
    thread.join()
    assert switch.moves == ["set a", "reset a"]


def test_a_change_that_fails_is_tried_again_and_an_error_inside_undoes_it() -> None:
    tries: list[int] = []

    @shared_change
    def hold() -> Iterator[None]:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no change")
        try:
            yield
        finally:
            tries.append(0)

    with pytest.raises(OSError, match="no change"), hold():
        pass
    with pytest.raises(ValueError, match="within"), hold():
        raise ValueError("within")
    assert tries == [1, 1, 0]
