"""Real workers: processes that mine together, are killed, frozen and replaced; the bytes are those of one process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from mining_killed import sentences, tables
from mnemoscope.atlas import verify
from mnemoscope.errors import (
    AtlasBusy,
    AtlasNotFound,
    CorpusUnreadable,
    Interrupted,
    MiningError,
    ModelDiffers,
    OptionError,
    PartsDiffer,
)
from mnemoscope.foundation.files import write_json
from mnemoscope.foundation.options.fleet_options import FleetOptions
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.mining import run_mining
from mnemoscope.mining.run import run_worker
from mnemoscope.models.opening.handmade.models import WORDS
from mnemoscope.runs.launch import local
from mnemoscope.runs.workers.leases import TEXT
from mnemoscope.runs.workers.status import run_status

pytestmark = pytest.mark.full

MODEL = "handmade:planted"
OPTIONS = MiningOptions(split="line", triggers=30, batch_tokens=80, checkpoint_every=0.3, random=True)


def command(*words: str, threads: int = 1) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    words, pipe = (sys.executable, "-m", "mnemoscope", *words), subprocess.PIPE
    return subprocess.Popen(words, env=environment, text=True, stdout=pipe, stderr=pipe)


def mine_words(text: Path, out: Path, *more: str) -> list[str]:
    options = ["--split", "line", "--triggers", "30", "--batch-tokens", "80", "--checkpoint-every", "0.3", "--random"]
    return ["mine", MODEL, str(text), "--out", str(out), *options, *more]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(sentences(4_000, tuple(WORDS[2:]), 5))
    return path


@pytest.fixture(scope="module")
def alone(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The atlas of one process of one thread."""
    return run_mining(MODEL, str(text), tmp_path_factory.mktemp("alone") / "atlas", OPTIONS)


def assert_same(atlas: Path, alone: Path) -> None:
    assert tables(atlas) == tables(alone)
    assert (atlas / "manifest.json").read_bytes() == (alone / "manifest.json").read_bytes()
    assert verify(atlas) == []
    assert sorted(path.name for path in atlas.iterdir()) == sorted(path.name for path in alone.iterdir())


def held(out: Path, name: str) -> list[Path]:
    """The pieces of the text that a worker has."""
    return list((out / "work/leases").glob(f"{TEXT}-of-*/*.{name}"))


def worker_processes(out: Path) -> dict[str, psutil.Process]:
    """The processes that work on the run by the workers' names, found by their heartbeats."""
    found = {}
    for worker in run_status(out).workers:
        said = json.loads((out / "work/beats" / f"{worker.name}.json").read_text())
        if worker.alive:
            found[worker.name] = psutil.Process(said["pid"])
    return found


def suspend_one_at_work(out: Path) -> tuple[str, psutil.Process]:
    """A worker that has a piece of the text, and stands still; one that only starts has none yet."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for name, worker in worker_processes(out).items():
            worker.suspend()
            if held(out, name):
                return name, worker
            worker.resume()
        time.sleep(0.02)
    raise AssertionError("no worker has a piece of the text")


class Trouble:
    """Makes trouble once, when the text is read up to a share."""

    def __init__(self, **at: Callable[[], None]) -> None:
        self.at = {float(name.removeprefix("at_")) / 100: step for name, step in at.items()}
        self.notes: list[str] = []

    def __call__(self, stage: str, done: float, total: float | None, note: str) -> None:
        self.notes.append(note)
        if stage == "mining" and total:
            for share in [share for share in self.at if done >= share * total]:
                self.at.pop(share)()


def test_killed_and_frozen_workers_change_no_byte(text: Path, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "atlas"
    woken: list[bool] = []

    def kill() -> None:
        next(iter(worker_processes(out).values())).kill()

    def freeze() -> None:
        name, victim = suspend_one_at_work(out)

        def wake() -> None:
            end = time.monotonic() + 60
            while held(out, name) and time.monotonic() < end:
                time.sleep(0.05)
            woken.append(time.monotonic() < end)
            # The run may have ended it by now.
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.resume()

        threading.Thread(target=wake, daemon=True).start()

    def begin_twice() -> None:
        with pytest.raises(AtlasBusy, match="is being written by another process"):
            run_mining(MODEL, str(text), out, OPTIONS, FleetOptions(workers=1))

    trouble = Trouble(at_3=begin_twice, at_15=kill, at_40=freeze)
    run_mining(MODEL, str(text), out, OPTIONS, FleetOptions(workers=2, patience=3.0), progress=trouble)
    assert not trouble.at
    assert woken == [True]
    assert_same(out, alone)
    assert any(", 0 leases lost" not in note and "lost" in note for note in trouble.notes)


def test_actors_of_ray_change_no_byte(text: Path, alone: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    out = tmp_path / "atlas"
    process = command(*mine_words(text, out, "--ray", "--workers", "2", "--json"), threads=2)
    printed, said = process.communicate()
    assert process.returncode == 0, said
    assert json.loads(printed)["atlas"] == str(out)
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [event["what"] for event in events if event["event"] == "worker"].count("started") == 2
    assert {event["workers"] for event in events if event.get("stage") == "mining"} == {2}
    assert_same(out, alone)


def test_stopped_and_killed_and_begun_again(text: Path, alone: Path, tmp_path: Path) -> None:
    """A worker by hand is told to end, a driver is interrupted, another one killed; the last finds what they left."""
    out = tmp_path / "atlas"
    run_mining(MODEL, str(text), out, OPTIONS, FleetOptions(prepare=True))
    prepared = run_status(out)
    assert (prepared.state, prepared.done, prepared.workers) == ("mining", 0, [])
    by_hand = command("worker", str(out), "--text-only")
    wait_for(out, prepared.batches // 8, by_hand)
    by_hand.send_signal(signal.SIGTERM)
    assert by_hand.wait(60) == 75, by_hand.communicate()
    by_hand.communicate()
    status = run_status(out)
    assert prepared.batches // 8 <= status.done <= prepared.batches
    assert (status.workers, status.leases_lost) == ([], 0)

    def press(*_: object) -> None:
        if any(held(out, name) for name in worker_processes(out)):
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="run the same command again"):
        run_mining(MODEL, str(text), out, OPTIONS, FleetOptions(workers=1), progress=press)
    assert run_status(out).done >= status.done
    assert (run_status(out).workers, run_status(out).leases_lost) == ([], 0)

    driver = command(*mine_words(text, out, "--workers", "2"), threads=2)
    _, at_work = suspend_one_at_work(out)  # frozen, so that the text is not done before the driver is killed
    workers = [at_work, *worker_processes(out).values()]
    driver.kill()
    at_work.resume()
    driver.communicate()
    wait_until_ended(workers)  # they see that nobody waits for them
    assert run_status(out).state != "finished"
    again = command(*mine_words(text, out, "--json"))  # without a word of workers: goes on with one
    printed, said = again.communicate()
    assert again.returncode == 0, said
    assert json.loads(printed)["atlas"] == str(out)
    assert_same(out, alone)


def wait_until_ended(workers: list[psutil.Process]) -> None:
    end = time.monotonic() + 60
    while any(runs(worker) for worker in workers):
        assert time.monotonic() < end, workers
        time.sleep(0.05)


def runs(process: psutil.Process) -> bool:
    """Whether the process works still; where nobody collects orphans, an ended one stays a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(out: Path, batches: int, process: subprocess.Popen[str]) -> None:
    """Until so many batches of the text are done, or the process has ended."""
    end = time.monotonic() + 120
    while run_status(out).done < batches and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)


def test_workers_that_cannot_work_end_the_run_in_one_line(text: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(local.sys, "executable", "/bin/false")
    with pytest.raises(MiningError, match="no worker is left: ended with code 1"):
        run_mining(MODEL, str(text), tmp_path / "atlas", OPTIONS, FleetOptions(workers=2))
    with pytest.raises(OptionError, match="part is a fixed share"):
        run_mining(MODEL, str(text), tmp_path / "part", replace(OPTIONS, part="1/2"), FleetOptions(workers=2))


def test_a_worker_with_another_model_library_or_text_is_refused_by_name(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "atlas"
    run_mining(MODEL, str(text), out, OPTIONS, FleetOptions(prepare=True))
    with pytest.raises(ModelDiffers, match="with model fingerprint"):
        run_worker(out, "w-1", model="builtin:pydocs")
    begun = out / "unfinished.json"
    stored = json.loads(begun.read_text())
    older = {"plan": {**stored["plan"], "torch": "1.0"}, "versions": [{**stored["versions"][0], "torch": "1.0"}]}
    begun.write_text(json.dumps({**stored, **older}))
    with pytest.raises(ModelDiffers, match=r"with torch 1\.0 \(here 2\.\S+\)"):
        run_worker(out, "w-1")
    begun.write_text(json.dumps({**stored, "plan": {**stored["plan"], "attention": "another"}}))
    with pytest.raises(ModelDiffers, match="with attention another"):
        run_worker(out, "w-1")
    begun.write_text(json.dumps(stored))
    write_json(out / "work/beats/other.json", {"device": "NVIDIA H100", "beat": 1})
    with pytest.raises(PartsDiffer, match=r"NVIDIA H100 and cpu .* have counted"):
        run_worker(out, "w-1")
    (out / "work/text/copy.json").unlink()
    with pytest.raises(CorpusUnreadable, match="does not hold a completely prepared text"):
        run_worker(out, "w-1")
    with pytest.raises(AtlasNotFound, match="holds no run for workers"):
        run_worker(tmp_path / "nothing", "w-1")
    with pytest.raises(OptionError, match="is not a name for a worker"):
        run_worker(out, "../w-1")
    assert list((out / "work/states").glob("*")) == []
