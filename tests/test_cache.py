"""The one cache: made once, however many ask; the longest unused go first; what fails is nobody's answer."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from mnemoscope.foundation.cache import Cache


def test_many_who_ask_at_once_wait_for_one_who_makes() -> None:
    cache, made = Cache(), []
    begun, go, asked = threading.Event(), threading.Event(), threading.Barrier(8)

    def make() -> str:
        begun.set()
        assert go.wait(120)
        made.append("x")
        return "x"

    def ask() -> str:
        asked.wait(120)
        return cache.get("key", make)

    with ThreadPoolExecutor(8) as readers:
        found = [readers.submit(ask) for _ in range(8)]
        assert begun.wait(120)
        # Another key is nobody's to wait for.
        assert (cache.get("other", lambda: 1), cache.find("key", None)) == (1, None)
        go.set()
        assert [one.result(120) for one in found] == ["x"] * 8
    assert made == ["x"]


def test_the_longest_unused_go_first() -> None:
    cache = Cache(3)
    for key in "abc":
        cache.get(key, lambda key=key: key)  # type: ignore[misc]
    cache.get("a", lambda: "made again")
    cache.get("d", lambda: "d")
    assert [cache.find(key, None) for key in "abcd"] == ["a", None, "c", "d"]


def test_weights_are_bounded_together_and_the_latest_stays() -> None:
    cache = Cache(10)
    cache.keep("small", 1, weight=4)
    cache.keep("same", 2, weight=6)
    cache.keep("same", 3, weight=5)
    assert (cache.find("small", 0), cache.find("same", 0)) == (1, 3)
    cache.keep("large", 4, weight=99)
    assert [cache.find(key, 0) for key in ("small", "same", "large")] == [0, 0, 4]
    cache.keep("next", 5, weight=1)
    assert [cache.find(key, 0) for key in ("large", "next")] == [0, 5]


def test_what_is_made_weighs_what_it_is_worth() -> None:
    cache = Cache(10, weigh=len)
    for key, value in (("a", "xxx"), ("b", "xxxx"), ("c", "xxx")):
        assert cache.get(key, partial(str, value)) == value
    assert (cache.get("a", lambda: "made again"), cache.get("d", lambda: "x")) == ("xxx", "x")
    assert [cache.find(key, None) for key in "abcd"] == ["xxx", None, "xxx", "x"]
    assert cache.get("large", lambda: 99 * "x") == 99 * "x", "larger than all may be together: it stays alone"
    assert [cache.find(key, None) for key in "acd"] == [None] * 3
    assert cache.find("large", None) is not None
    cache.get("next", lambda: "x")
    assert cache.find("large", None) is None


def test_what_is_raised_is_not_kept() -> None:
    cache = Cache(1)
    cache.get("good", lambda: 1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            cache.get("bad", lambda: 1 // 0)
    assert cache.get("bad", lambda: 2) == 2


def test_none_is_a_value() -> None:
    cache = Cache()
    assert cache.get("key", lambda: None) is None
    assert cache.get("key", lambda: 1) is None  # type: ignore[arg-type,return-value]
    assert cache.find("key", 2) is None


def test_one_value_needs_another() -> None:
    cache = Cache()
    assert cache.get("sum", lambda: cache.get("part", lambda: 1) + 1) == 2
