"""The driver's own part: what it does with states that do not fit together, and with workers that come and go."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from distributed.fleet import FleetWorker, begin, run_fleet, settle
from mining.conftest import WORDS, tiny_model
from mining_killed import sentences
from mnemoscope.cluster import driver as driver_file
from mnemoscope.cluster.driver import Driver
from mnemoscope.cluster.leases import AGAIN, DONE, LeaseFolder
from mnemoscope.cluster.settling import SettledRun
from mnemoscope.cluster.stages import TEXT, PublishedStage
from mnemoscope.cluster.state_folders import CLOSED, STATES, closed_folders
from mnemoscope.errors import MiningError, PartsDiffer
from mnemoscope.foundation.mining_options import MiningOptions
from mnemoscope.mining.steps import RunContext
from mnemoscope.models import LanguageModel

OPTIONS = MiningOptions(split="line", triggers=4, batch_tokens=60, checkpoint_every=0)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_file, "_POLL", 0.001)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return tiny_model("gpt2")


class Workers:
    """A launcher whose workers do nothing but end when told."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.over: dict[str, str | None] = {}

    def start(self, name: str) -> None:
        self.began.append(name)

    def take_ended(self) -> dict[str, str | None]:
        over, self.over = self.over, {}
        return over

    def stop(self) -> None:
        self.over = {}


@pytest.fixture
def settled(model: LanguageModel, tmp_path: Path) -> SettledRun:
    text = tmp_path / "text.txt"
    text.write_text(sentences(150, tuple(WORDS), 7))
    return settle(tmp_path / "a", begin(model, text, OPTIONS), OPTIONS)


def driver_of(directory: Path, settled: SettledRun) -> tuple[Driver, Workers, LeaseFolder]:
    launcher = Workers()
    driver = Driver(RunContext(directory), settled, launcher, workers=2)
    return driver, launcher, LeaseFolder(directory, TEXT, settled.run.leases)


def test_the_states_of_a_fleet_are_collected(model: LanguageModel, settled: SettledRun, tmp_path: Path) -> None:
    run_fleet(tmp_path / "a", settled, model, workers=3, deaths=0, seed=1)
    driver, _, leases = driver_of(tmp_path / "a", settled)
    found = driver._collect(leases)
    assert found == [f"{CLOSED}/{folder.name}/state.safetensors" for folder in closed_folders(tmp_path / "a")]
    assert PublishedStage.read(tmp_path / "a") == PublishedStage("collecting", 0)
    assert all(lease.owner == DONE for lease in leases.read())


def test_a_state_that_counts_twice_is_left_out(model: LanguageModel, settled: SettledRun, tmp_path: Path) -> None:
    directory = tmp_path / "a"
    run_fleet(directory, settled, model, workers=3, deaths=0, seed=1)
    closed = closed_folders(directory)
    shutil.copytree(closed[0], directory / CLOSED / "zombie")
    driver, _, leases = driver_of(directory, settled)
    found = driver._collect(leases)
    assert found is not None
    assert len(found) == len(closed)
    assert not (directory / CLOSED / "zombie/state.safetensors").exists()


def test_batches_that_are_in_no_state_are_done_again(model: LanguageModel, settled: SettledRun, tmp_path: Path) -> None:
    directory = tmp_path / "a"
    run_fleet(directory, settled, model, workers=3, deaths=0, seed=1)
    shutil.rmtree(closed_folders(directory)[0])
    driver, _, leases = driver_of(directory, settled)
    assert driver._collect(leases) is None
    again = [lease for lease in leases.read() if lease.owner == AGAIN]
    assert 0 < len(again) < leases.count
    PublishedStage(TEXT, leases.count).publish(directory)
    worker = FleetWorker(directory, "last", settled, model)
    while worker.step():
        pass
    worker.work.end()
    assert driver._collect(leases) is not None
    assert list((directory / STATES).iterdir()) == []


def test_devices_of_two_kinds_are_refused_unless_allowed(
    model: LanguageModel, settled: SettledRun, tmp_path: Path
) -> None:
    directory = tmp_path / "a"
    fleet = [FleetWorker(directory, f"w-{number}", settled, model) for number in range(2)]
    fleet[1].work._state.device = "cpu of another kind"
    while fleet:
        for worker in list(fleet):
            if not worker.step():
                worker.work.end()
                fleet.remove(worker)
    driver, _, leases = driver_of(directory, settled)
    with pytest.raises(PartsDiffer, match=r"computed on cpu .+ and cpu of another kind, .*allow_mixed_devices=True"):
        driver._collect(leases)
    allowed = replace(settled, run=replace(settled.run, mixed_devices=True))
    assert len(driver_of(directory, allowed)[0]._collect(leases) or []) == 2


def test_workers_that_die_one_after_the_other_end_the_run(settled: SettledRun, tmp_path: Path) -> None:
    driver, launcher, leases = driver_of(tmp_path / "a", settled)

    def look_on() -> None:
        for _ in range(20):
            launcher.over = dict.fromkeys(driver._workers, "layer 3 has NaN")
            driver._look_after(leases.read())

    with driver.running():
        assert len(launcher.began) == 2
        with pytest.raises(MiningError, match="no worker is left: layer 3 has NaN"):
            look_on()
        assert len(launcher.began) == 5  # two, and three in their place


def test_a_worker_that_ends_is_replaced_while_work_goes_on(settled: SettledRun, tmp_path: Path) -> None:
    driver, launcher, leases = driver_of(tmp_path / "a", settled)
    notes: list[str] = []
    driver._context = replace(driver._context, progress=lambda stage, *rest: notes.append(f"{stage} {rest[-1]}"))
    with driver.running():
        for number in range(9):
            launcher.over = {launcher.began[-1]: "killed by SIGKILL"}
            driver._look_after(leases.read())
            lease = leases.take(leases.read()[number], "w")
            assert lease is not None
            leases.end(lease)
        assert len(launcher.began) == 11
        assert len(driver._workers) == 2
    assert sum("lost: killed by SIGKILL" in note for note in notes) == 9
