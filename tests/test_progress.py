"""What stops long work: Ctrl-C, SIGTERM and SIGUSR1, in steps and outside of them; whose handlers are left alone."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

import pytest

from mnemoscope.errors import Interrupted, Terminated
from mnemoscope.foundation.progress import Checkpoints, StopSignal, end_at_signals

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
ENDING = SIGNALS[1:]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Every test begins with the handlers of a fresh process, and leaves those that were there."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def found_handlers() -> list[object]:
    return [signal.getsignal(number) for number in SIGNALS]


def send(number: int, to: int | None = None) -> None:
    os.kill(to or os.getpid(), number)
    time.sleep(0.001)  # handlers run at the next instruction


class Saves:
    """Counts how often it was asked to save."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def in_one_step(saves: Saves, *numbers: int) -> None:
    """A step during which these signals come."""
    with Checkpoints(saves, every=1e9) as checkpoints:
        for number in numbers:
            send(number)
            assert saves.count == 0
        checkpoints.step_done()
        pytest.fail("went on")


@pytest.mark.parametrize(
    ("number", "error", "line"),
    [
        (signal.SIGINT, Interrupted, "stopped after saving; run"),
        (signal.SIGTERM, Terminated, "SIGTERM received: stopped after saving; run"),
        (signal.SIGUSR1, Terminated, "SIGUSR1 received: stopped after saving; run"),
    ],
)
def test_the_step_in_hand_ends_and_is_saved(number: int, error: type[Interrupted], line: str) -> None:
    saves, before = Saves(), found_handlers()
    with pytest.raises(Interrupted) as stopped:
        in_one_step(saves, number)
    assert saves.count == 1
    assert type(stopped.value) is error
    assert str(stopped.value).startswith(line)
    assert found_handlers() == before


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, StopSignal)])
def test_the_second_one_stops_at_once(number: int, error: type[BaseException]) -> None:
    saves = Saves()
    with pytest.raises(error):
        in_one_step(saves, number, number)
    assert saves.count == 0


def test_a_warning_never_stops_at_once() -> None:
    """A scheduler sends SIGUSR1 to a shell and to what it began, and SIGTERM when the time is up."""
    saves = Saves()
    with pytest.raises(Terminated, match="SIGUSR1 received"):
        in_one_step(saves, signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1)
    assert saves.count == 1


@pytest.mark.parametrize("number", SIGNALS)
def test_one_that_comes_after_the_last_step_is_not_lost(number: int) -> None:
    saves = Saves()

    def run() -> None:
        with Checkpoints(saves, every=1e9) as checkpoints:
            checkpoints.step_done()
            send(number)

    with pytest.raises(Interrupted):
        run()
    assert saves.count == 1


def test_what_goes_wrong_is_said_and_not_that_a_signal_came() -> None:
    def run() -> None:
        with Checkpoints(Saves(), every=1e9):
            send(signal.SIGTERM)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()


@pytest.mark.parametrize("number", ENDING)
def test_outside_of_steps_it_ends_what_runs(number: int) -> None:
    def run() -> None:
        with end_at_signals():
            send(number)
            pytest.fail("went on")

    with pytest.raises(SystemExit) as stopped:
        run()
    assert (stopped.value.code, str(stopped.value)) == (75, f"stopped by {signal.Signals(number).name}")
    send(number)  # the command is at its end, and its exit code stands


def test_a_warning_does_not_disturb_the_end_that_has_begun() -> None:
    cleared = []

    def run() -> None:
        with end_at_signals():
            try:
                send(signal.SIGTERM)
            finally:
                send(signal.SIGUSR1)
                cleared.append(True)

    with pytest.raises(StopSignal, match="SIGTERM"):
        run()
    assert cleared


@pytest.mark.parametrize("number", ENDING)
def test_one_that_a_library_swallows_stops_the_next_step(number: int) -> None:
    saves = Saves()

    def run() -> None:
        with end_at_signals():
            with suppress(BaseException):
                send(number)
            in_one_step(saves)

    with pytest.raises(Terminated):
        run()
    assert saves.count == 1


@pytest.mark.parametrize("number", ENDING)
def test_a_handler_of_somebody_elses_stays(number: int) -> None:
    seen: list[int] = []

    def own(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    for handler in (own, signal.SIG_IGN):
        signal.signal(number, handler)
        with end_at_signals(), Checkpoints(Saves(), every=1e9) as checkpoints:
            assert signal.getsignal(number) is handler
            send(number)
            checkpoints.step_done()
        assert signal.getsignal(number) is handler
    assert seen == [number]


def test_in_another_thread_no_handler_is_set() -> None:
    before, found = found_handlers(), []

    def work() -> None:
        with Checkpoints(Saves(), every=1e9) as checkpoints:
            found.append(found_handlers())
            checkpoints.step_done()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]


@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize("steps", [True, False])
def test_a_forked_child_dies_as_any_process_does(number: int, steps: bool) -> None:
    """Such as those of a pool, which are ended by SIGTERM."""
    with end_at_signals(), Checkpoints(Saves(), every=1e9) if steps else end_at_signals():
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.write(write, b"here")
            time.sleep(60)
            os._exit(0)
        os.read(read, 4)
        send(number, child)
        status = os.waitpid(child, 0)[1]
    os.close(read)
    os.close(write)
    assert os.WTERMSIG(status) == number
