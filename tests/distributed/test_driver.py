"""The driver's own part: what it does with states that do not fit together, and with workers that come and go."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import mnemoscope as ms
from distributed.fleet import FleetWorker, run_fleet, settle
from mining.conftest import WORDS, tiny_model
from mining_killed import sentences
from mnemoscope.errors import MiningError
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.mining.stages import STAGES
from mnemoscope.models import LanguageModel
from mnemoscope.runs import driver as driver_file
from mnemoscope.runs.driver import COLLECTING, Driver
from mnemoscope.runs.run import Run
from mnemoscope.runs.states import CLOSED, STATES, closed_folders
from mnemoscope.runs.workers.leases import DONE, FREE, TEXT, LeaseFolder, published_stage
from mnemoscope.runs.workers.worker import Stage, Worker

READING, VALUES = (next(stage for stage in STAGES if stage.name == name) for name in (TEXT, "values"))
OPTIONS = MiningOptions(split="line", triggers=4, batch_tokens=60, checkpoint_every=0)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_file, "POLL", 0.001)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return tiny_model("gpt2")


class Workers:
    """A launcher whose workers do nothing but end, at every look of the driver, as `ending` says."""

    def __init__(self, ending: Callable[[list[str]], dict[str, str | None]] = lambda alive: {}) -> None:
        self.began: list[str] = []
        self.alive: list[str] = []
        self.ending = ending

    def start(self, name: str) -> None:
        self.began.append(name)
        self.alive.append(name)

    def take_ended(self) -> dict[str, str | None]:
        over = self.ending(self.alive)
        self.alive = [name for name in self.alive if name not in over]
        return over

    def stop(self) -> None:
        self.alive = []


@pytest.fixture
def run(model: LanguageModel, tmp_path: Path) -> Run:
    """A run in the folder `a`."""
    text = tmp_path / "text.txt"
    text.write_text(sentences(150, tuple(WORDS), 7))
    return settle(tmp_path / "a", model, text, OPTIONS)


@pytest.fixture
def mined(model: LanguageModel, run: Run) -> Path:
    """The folder, whose text three workers have mined."""
    run_fleet(run, model, workers=3, deaths=0, seed=1)
    return run.directory


def driver_of(run: Run, launcher: Workers | None = None) -> Driver:
    return Driver(run, launcher=launcher or Workers(), workers=2)


def test_the_states_of_a_fleet_are_collected_each_once(mined: Path, run: Run) -> None:
    closed = closed_folders(mined)
    shutil.copytree(closed[0], mined / CLOSED / "zombie")
    driver_of(run).do(READING)
    assert run.states == [folder / "state.safetensors" for folder in closed]
    assert not (mined / CLOSED / "zombie/state.safetensors").exists()
    assert published_stage(mined) == (COLLECTING, 0)
    assert all(lease.owner == DONE for lease in LeaseFolder(mined, TEXT, run.leases).read())


def test_batches_that_are_in_no_state_are_done_again(model: LanguageModel, run: Run, mined: Path) -> None:
    shutil.rmtree(closed_folders(mined)[0])
    with pytest.raises(MiningError, match="no worker is left"):
        driver_of(run).do(READING)
    leases = LeaseFolder(mined, TEXT, run.leases)
    again = [lease for lease in leases.read() if lease.owner == FREE]
    assert 0 < len(again) < leases.count
    assert published_stage(mined) == (TEXT, 1)
    worker = FleetWorker(run, "last", model)
    while worker.step():
        pass
    worker.work.end()
    driver_of(run).do(READING)
    assert run.states
    assert list((mined / STATES).iterdir()) == []


def test_workers_that_die_one_after_the_other_end_the_run(run: Run) -> None:
    launcher = Workers(lambda alive: dict.fromkeys(alive, "layer 3 has NaN"))
    with pytest.raises(MiningError, match="no worker is left: layer 3 has NaN"):
        driver_of(run, launcher).drive([READING])
    assert len(launcher.began) == 5  # two, and three in their place


def test_a_worker_that_ends_is_replaced_while_work_goes_on(run: Run) -> None:
    """At every look the youngest has died, and another one has done a task."""
    tasks = LeaseFolder(run.directory, "values", 2)
    tasks.make()

    def end_one(alive: list[str]) -> dict[str, str | None]:
        free = next(lease for lease in tasks.read() if lease.owner == FREE)
        lease = tasks.take(free, "w")
        assert lease is not None
        run.record.units["values", lease.number] = {}
        tasks.rename(lease, DONE)
        return {alive[-1]: "killed by SIGKILL"}

    launcher, notes = Workers(end_one), list[str]()
    run.progress = lambda stage, *rest: notes.append(f"{stage} {rest[-1]}")
    driver = driver_of(run, launcher)
    driver.drive([VALUES])
    assert len(launcher.began) == 4
    assert notes[-1] == "values tasks; 2 workers"
    assert sum("lost: killed by SIGKILL" in note for note in notes) == 2


def test_what_is_done_and_not_recorded_is_done_again(run: Run) -> None:
    """As of a unit whose file was damaged after its worker had ended it."""
    tasks, free = LeaseFolder(run.directory, "values", 2), list[list[int]]()
    tasks.make()

    def do_all(alive: list[str]) -> dict[str, str | None]:
        free.append([lease.number for lease in tasks.read() if lease.owner != DONE])
        for lease in [lease for lease in tasks.read() if lease.owner != DONE]:
            tasks.rename(lease, DONE)
            run.record.units |= {("values", lease.number): {}} if len(free) > 1 or lease.number == 0 else {}
        return {}

    driver = driver_of(run, Workers(do_all))
    driver.drive([VALUES])
    assert free == [[0, 1], [1]]


@pytest.mark.full
def test_patterns_that_another_process_finds_have_the_same_bytes(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, helped, do = tmp_path / "text.txt", [0], Worker.do
    path.write_text(sentences(80, WORDS, seed=5))
    ms.mine(model, path, out=tmp_path / "alone", split="line")

    def do_late(worker: Worker, stage: Stage, number: int) -> None:
        """Leaves the helper the time to find patterns of a layer."""
        records, until = tmp_path / "helped" / "work" / "records", time.monotonic() + 60
        while stage.name == "patterns" and not helped[0] and time.monotonic() < until:
            helped[0] = sum(each.read_bytes().count(b'"patterns"') for each in records.glob("helper-*.jsonl"))
            time.sleep(0.05)
        do(worker, stage, number)

    monkeypatch.setattr(Worker, "do", do_late)
    monkeypatch.setattr(driver_file, "MEMORIES_EACH", 1)
    monkeypatch.setattr(driver_file, "usable_cores", lambda: range(2))
    ms.mine(model, path, out=tmp_path / "helped", split="line")
    assert helped[0] > 0
    for one in sorted((tmp_path / "alone").rglob("*.parquet")):
        assert one.read_bytes() == (tmp_path / "helped" / one.relative_to(tmp_path / "alone")).read_bytes(), one
