"""One at a time with the model: nothing leaks between requests, nobody waits too long, and browsing never waits."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.exceptions import HTTPException

import mnemoscope as ms
from mnemoscope.errors import ModelDiffers
from mnemoscope.models import LanguageModel
from mnemoscope.web import Settings
from mnemoscope.web.app import create_app
from mnemoscope.web.model_worker import CACHE_SIZE, Cancelled, ModelWorker
from web.planted_atlas import SPEC, other_weights
from web.served import client, running

PROMPTS = ("the cat sat on the", "a dog ran home", "the red fox slept under the")
CHANGES = ((), ("L1.M4=0",), ("L0.M0*3",), ("L1.M4=0@last", "L0.M3=2"))


def fetched(address: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


@pytest.mark.full
def test_parallel_requests_give_what_they_give_alone(planted: Path, model: LanguageModel) -> None:
    asked = [(prompt, changes) for prompt in PROMPTS for changes in CHANGES]
    alone = {(prompt, changes): ms.trace(model, prompt, interventions=changes).to_dict() for prompt, changes in asked}
    with running(planted, model=SPEC) as base, ThreadPoolExecutor(4) as readers:

        def read(one: tuple[str, tuple[str, ...]]) -> tuple[int, Any]:
            query = urlencode([("prompt", one[0]), *(("set", change) for change in one[1])])
            return fetched(f"{base}/trace.json?{query}")

        # Twice, so that kept answers are compared, too.
        for order in (asked, asked[::-1]):
            for one, (status, found) in zip(order, readers.map(read, order), strict=True):
                assert status == 200
                assert found["trace"] == alone[one], one
                assert found["interventions"] == list(one[1])


@contextmanager
def busy(worker: ModelWorker) -> Iterator[None]:
    """The model at work on something that does not end before the block does."""
    begun, done = threading.Event(), threading.Event()

    def slow(model: LanguageModel, cancelled: Cancelled) -> bool:
        begun.set()
        return done.wait(60)

    with ThreadPoolExecutor(1) as readers:
        waiting = readers.submit(worker.answer, "slow", slow)
        assert begun.wait(30)
        try:
            yield
        finally:
            done.set()
            waiting.result(30)


def test_browsing_does_not_wait_for_a_slow_trace(planted: Path) -> None:
    reader = client(planted, model=SPEC)
    worker = reader.app.state.site.model  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as readers:
        with busy(worker):
            traced = readers.submit(reader.get, "/trace", params={"prompt": PROMPTS[0]})
            for path in ("/", "/L1.M4", "/layers/0", "/L0.M0.json", "/trace"):
                assert reader.get(path).status_code == 200, path
            assert not traced.done()
        assert traced.result(30).status_code == 200


def test_too_many_are_told_to_come_again(planted: Path) -> None:
    reader = client(planted, model=SPEC)
    worker = reader.app.state.site.model  # type: ignore[attr-defined]
    worker.max_queued = 1
    query = {"prompt": PROMPTS[0]}
    with busy(worker):
        refused = reader.get("/trace.json", params=query)
        assert refused.status_code == 503
        assert refused.json()["message"] == "The model is busy and others wait already; try again in a moment."
        assert "others wait already" in reader.get("/trace", params=query).text
        assert reader.get("/L1.M4").status_code == 200
    assert reader.get("/trace", params=query).status_code == 200


def test_what_is_made_aside_makes_way(model: LanguageModel) -> None:
    worker, begun = ModelWorker(model, SPEC, max_queued=2), threading.Event()

    def until_cancelled(model: LanguageModel, cancelled: Cancelled) -> None:
        begun.set()
        while not cancelled():
            pass
        raise TimeoutError

    with ThreadPoolExecutor(2) as readers:
        long = readers.submit(worker.answer, "long", until_cancelled, aside=True)
        assert begun.wait(30)
        another = readers.submit(worker.answer, "another such", lambda model, cancelled: cancelled(), aside=True)
        while worker.waiting < 2:
            pass
        with pytest.raises(HTTPException, match="others wait"):
            worker.answer("a third", until_cancelled, aside=True)
        worker.max_queued = 3
        assert not another.done()
        assert worker.answer("short", lambda model, cancelled: "made") == "made"
        with pytest.raises(HTTPException, match="still busy"):
            long.result(30)


def test_nobody_waits_longer_than_the_limit(model: LanguageModel) -> None:
    worker = ModelWorker(model, SPEC, timeout=0.5)
    done = threading.Event()
    with pytest.raises(HTTPException, match="still busy") as refused:
        worker.answer("slow", lambda model, cancelled: done.wait(60))
    assert refused.value.status_code == 503
    with pytest.raises(HTTPException, match="still busy"):
        worker.answer("behind it", lambda model, cancelled: "never made, since nobody waits for it")
    with pytest.raises(HTTPException, match="still busy"):
        worker.answer("last", lambda model, cancelled: "never made, either")
    time.sleep(0.6)
    done.set()
    assert worker.answer("after all", lambda model, cancelled: "made") == "made"
    # What came too late is kept for whoever asks again.
    assert worker.answer("slow", lambda model, cancelled: False) is True
    assert worker.answer("behind it", lambda model, cancelled: "made now") == "made now"


@pytest.mark.parametrize(("later", "others", "cancelled"), [(0.0, False, False), (0.0, True, True), (0.6, False, True)])
def test_an_answer_may_be_wanted_as_long_again_while_nothing_else_is(
    model: LanguageModel, later: float, others: bool, cancelled: bool
) -> None:
    worker = ModelWorker(model, SPEC, timeout=0.5)
    left, made = threading.Event(), threading.Event()

    def ask_late(model: LanguageModel, cancelled: Cancelled) -> bool:
        left.wait(60)
        found = cancelled()
        made.set()
        return found

    with pytest.raises(HTTPException, match="still busy"):
        worker.answer("late", ask_late)
    if others:
        with pytest.raises(HTTPException, match="still busy"):
            worker.answer("another", lambda model, cancelled: None)
    time.sleep(later)
    left.set()
    assert made.wait(30)
    assert worker.answer("late", lambda model, cancelled: None) is cancelled


def test_many_readers_of_one_slow_answer_are_bounded_too(model: LanguageModel) -> None:
    worker = ModelWorker(model, SPEC, max_queued=2)
    begun, done = threading.Event(), threading.Event()

    def slow(model: LanguageModel, cancelled: Cancelled) -> int:
        begun.set()
        done.wait(60)
        return 7

    with ThreadPoolExecutor(2) as readers:
        first = readers.submit(worker.answer, "same", slow)
        assert begun.wait(30)
        second = readers.submit(worker.answer, "same", slow)
        while worker.waiting < 2:
            pass
        with pytest.raises(HTTPException, match="others wait"):
            worker.answer("same", slow)
        done.set()
        assert first.result(30) == second.result(30) == 7
    assert worker.answer("same", lambda model, cancelled: 8) == 7


def test_an_error_is_everybodys_own_and_is_not_kept(model: LanguageModel) -> None:
    worker = ModelWorker(model, SPEC)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            worker.answer("bad", lambda model, cancelled: 1 // 0)
    assert worker.answer("bad", lambda model, cancelled: 1) == 1
    worker.answer("large", lambda model, cancelled: "x", places=lambda _: CACHE_SIZE)
    assert worker.answer("bad", lambda model, cancelled: 2) == 2


@pytest.mark.full
def test_another_model_is_refused_or_forced_under_a_banner(planted: Path, tmp_path: Path) -> None:
    other = str(other_weights(tmp_path / "other"))
    with pytest.raises(ModelDiffers, match=r"not the model that .* was mined from.*force_model=True"):
        create_app(Settings(planted, other))
    reader = client(planted, model=other, force_model=True)
    for path in ("/", "/L1.M4", "/layers/0", "/trace", "/trace?prompt=the+cat", "/audit", "/L1.M4/causal", "/nothing"):
        assert "is not the model that was mined." in reader.get(path).text, path
    mined = client(planted, model=SPEC)
    assert "is not the model" not in mined.get("/L1.M4").text
    # A browser must not keep the page of the one for that of the other.
    assert len({one.get("/L1.M4").headers["etag"] for one in (reader, mined, client(planted))}) == 3


def test_another_shape_is_refused_even_if_forced(planted: Path) -> None:
    with pytest.raises(ModelDiffers, match="its layers have"):
        create_app(Settings(planted, "handmade:worked-example", force_model=True))
