"""Sweeps by one thread or by all: what is chosen, and that nothing depends on it."""

from collections.abc import Iterator

import pytest
import torch

from mnemoscope.mining import sweep_threads
from mnemoscope.mining.activity import Observer
from mnemoscope.mining.sweep_threads import SweepThreads

MUCH = 1 << 20


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(sweep_threads.time, "perf_counter", lambda: now[0])
    return now


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def sweep(threads: SweepThreads, clock: list[float], seconds: dict[int, float], times: int) -> list[int]:
    """How many threads each of some sweeps had, which take so many seconds by one thread and by two."""
    chosen = []
    for _ in range(times):
        with threads.choose(MUCH) as count:
            assert torch.get_num_threads() == count
            clock[0] += seconds[count]
        assert torch.get_num_threads() == 2
        chosen.append(count)
    return chosen


@pytest.mark.usefixtures("two_threads")
def test_the_faster_is_taken_and_the_other_tried_again(clock: list[float]) -> None:
    threads = SweepThreads()
    first = sweep(threads, clock, {1: 1.0, 2: 9.0}, 130)
    assert sorted(first[:2]) == [1, 2]
    assert first[2:].count(2) == 2  # the 64th and the 128th
    assert first[63] == first[127] == 2
    other = sweep(threads, clock, {1: 1.0, 2: 0.1}, 64 * 12)  # the other work is over
    assert other[-60:].count(2) == 59


@pytest.mark.usefixtures("two_threads")
def test_a_little_is_not_chosen_for(clock: list[float]) -> None:
    threads = SweepThreads()
    for _ in range(5):
        with threads.choose(100) as count:
            clock[0] += 1.0
        assert count == 2


@pytest.mark.usefixtures("two_threads")
def test_the_threads_come_back_after_an_error() -> None:
    with pytest.raises(MemoryError), SweepThreads().choose(MUCH):
        raise MemoryError
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("negative", [False, True])
def test_the_same_numbers_by_one_thread_and_by_two(
    sampled: bool, negative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = torch.randn(40, 60, 128, generator=torch.Generator().manual_seed(3))
    block = block if negative else block.relu()
    found, counts = [], []
    for count in (1, 2):
        monkeypatch.setattr(SweepThreads, "choose", lambda self, n, count=count: _threads(count, counts))
        found.append(Observer().observe(block, negative=negative, sampled=sampled))
    assert counts == [1, 2]
    for one, other in zip(_tensors(found[0]), _tensors(found[1]), strict=True):
        assert torch.equal(one, other)


class _threads:
    """So many threads, whatever is faster."""

    def __init__(self, count: int, counts: list[int]) -> None:
        self.count, self.counts = count, counts

    def __enter__(self) -> None:
        torch.set_num_threads(self.count)
        self.counts.append(torch.get_num_threads())

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(2)


def _tensors(found: object) -> list[torch.Tensor]:
    peaks, lows, measured = found
    return [one for one in (peaks, lows, *vars(measured).values()) if isinstance(one, torch.Tensor)]
