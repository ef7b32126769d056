"""The driver's own part: what it does with states that do not fit together, and with workers that come and go."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributed.fleet import FleetWorker, begin, run_fleet, settle
from mining.conftest import WORDS, tiny_model
from mining_killed import sentences
from mnemoscope.cluster import driver as driver_file
from mnemoscope.cluster.coordination.leases import AGAIN, DONE, LeaseFolder
from mnemoscope.cluster.driver import Driver
from mnemoscope.cluster.settling import SettledRun
from mnemoscope.cluster.stages import TEXT, PublishedStage
from mnemoscope.cluster.state_folders import CLOSED, STATES, closed_folders
from mnemoscope.errors import MiningError
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.mining.steps import RunContext
from mnemoscope.models import LanguageModel

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
def settled(model: LanguageModel, tmp_path: Path) -> SettledRun:
    """A run in the folder `a`."""
    text = tmp_path / "text.txt"
    text.write_text(sentences(150, tuple(WORDS), 7))
    return settle(tmp_path / "a", begin(model, text, OPTIONS), OPTIONS)


@pytest.fixture
def mined(model: LanguageModel, settled: SettledRun, tmp_path: Path) -> Path:
    """The folder, whose text three workers have mined."""
    run_fleet(tmp_path / "a", settled, model, workers=3, deaths=0, seed=1)
    return tmp_path / "a"


def driver_of(directory: Path, settled: SettledRun, launcher: Workers | None = None, **context: Any) -> Driver:
    return Driver(RunContext(directory, **context), settled, launcher or Workers(), workers=2)


def test_the_states_of_a_fleet_are_collected_each_once(mined: Path, settled: SettledRun) -> None:
    closed = closed_folders(mined)
    shutil.copytree(closed[0], mined / CLOSED / "zombie")
    found = driver_of(mined, settled).read_text()
    assert found == tuple(f"{CLOSED}/{folder.name}/state.safetensors" for folder in closed)
    assert not (mined / CLOSED / "zombie/state.safetensors").exists()
    assert PublishedStage.read(mined) == PublishedStage("collecting")
    assert all(lease.owner == DONE for lease in LeaseFolder(mined, TEXT, settled.run.leases).read())


def test_batches_that_are_in_no_state_are_done_again(model: LanguageModel, settled: SettledRun, mined: Path) -> None:
    shutil.rmtree(closed_folders(mined)[0])
    with pytest.raises(MiningError, match="no worker is left"):
        driver_of(mined, settled).read_text()
    leases = LeaseFolder(mined, TEXT, settled.run.leases)
    again = [lease for lease in leases.read() if lease.owner == AGAIN]
    assert 0 < len(again) < leases.count
    assert PublishedStage.read(mined) == PublishedStage(TEXT)
    worker = FleetWorker(mined, "last", settled, model)
    while worker.step():
        pass
    worker.work.end()
    assert driver_of(mined, settled).read_text()
    assert list((mined / STATES).iterdir()) == []


def test_workers_that_die_one_after_the_other_end_the_run(settled: SettledRun, tmp_path: Path) -> None:
    launcher = Workers(lambda alive: dict.fromkeys(alive, "layer 3 has NaN"))
    driver = driver_of(tmp_path / "a", settled, launcher)
    with driver.running(), pytest.raises(MiningError, match="no worker is left: layer 3 has NaN"):
        driver.read_text()
    assert len(launcher.began) == 5  # two, and three in their place


def test_a_worker_that_ends_is_replaced_while_work_goes_on(settled: SettledRun, tmp_path: Path) -> None:
    """At every look the youngest has died, and another one has done a task."""
    tasks = LeaseFolder(tmp_path / "a", "values", 9)
    tasks.make()

    def end_one(alive: list[str]) -> dict[str, str | None]:
        free = next(lease for lease in tasks.read() if lease.is_free)
        lease = tasks.take(free, "w")
        assert lease is not None
        tasks.end(lease)
        return {alive[-1]: "killed by SIGKILL"}

    launcher, notes = Workers(end_one), list[str]()
    driver = driver_of(
        tmp_path / "a", settled, launcher, progress=lambda stage, *rest: notes.append(f"{stage} {rest[-1]}")
    )
    with driver.running():
        driver.run_stage("values", ())
        assert (len(launcher.began), len(launcher.alive)) == (11, 2)
    assert notes[-1] == "values tasks; 2 workers"
    assert sum("lost: killed by SIGKILL" in note for note in notes) == 9
