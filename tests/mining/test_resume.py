"""Stopped at any moment, mining goes on and ends with the same bytes; little is done twice."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mnemoscope
from mining.conftest import tables_of
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.errors import (
    AtlasDamaged,
    AtlasExists,
    AtlasUnfinished,
    Interrupted,
    PlanDiffers,
    StoreFailed,
    Terminated,
)
from mnemoscope.foundation import progress
from mnemoscope.mining import mine
from mnemoscope.mining.text import batch_loader
from mnemoscope.models import LanguageModel
from mnemoscope.patterns import write_patterns

TESTS = Path(__file__).parents[1]
RUNS = TESTS.parent / "runs"
OPTIONS: dict[str, Any] = {"split": "line", "triggers": 5, "batch_tokens": 60}


class Stop(Exception):
    """The moment at which a run breaks off."""


class Runs:
    """Runs of one plan into one folder: notes which batches ran, breaks off after some, acts when a stage begins."""

    def __init__(self, model: LanguageModel, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model, self.text, self.atlas = model, text, text.parent / "atlas"
        self.batches: list[int] = []
        self.stop_after: int | None = None
        self.act: dict[str, Callable[[], object]] = {}
        fetch = batch_loader.BatchLoader.__call__

        def note(own: batch_loader.BatchLoader, number: int) -> Any:
            self.batches.append(number)
            return fetch(own, number)

        monkeypatch.setattr(batch_loader.BatchLoader, "__call__", note)

    def __call__(self, **changes: Any) -> dict[str, bytes]:
        return tables_of(mine(self.model, self.text, out=self.atlas, **{"progress": self.look, **OPTIONS, **changes}))

    def look(self, stage: str, *_: Any) -> None:
        self.act.pop(stage, lambda: None)()
        if stage == "mining" and self.stop_after is not None:
            self.stop_after -= 1
            if self.stop_after < 0:
                self.stop_after = None
                raise Stop

    def break_off(self, after: int, **changes: Any) -> None:
        self.stop_after = after
        with pytest.raises(Stop):
            self(checkpoint_every=0, **changes)


@pytest.fixture
def run(model: LanguageModel, text: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(model, text, monkeypatch)


def environment() -> dict[str, str]:
    paths = [str(Path(mnemoscope.__file__).parents[1]), str(TESTS)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def killed(how: str, kills: int, folder: Path) -> dict[str, Any]:
    command = [sys.executable, str(RUNS / "mining_killed.py"), how, str(kills), "11", str(folder)]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)  # type: ignore[no-any-return]


@pytest.mark.full
def test_killed_at_random_moments_the_tables_are_the_same(tmp_path: Path) -> None:
    report = killed("warm", 4, tmp_path)
    assert report["kills"] >= 4
    assert len(report["killed in"]) >= 2, report


@pytest.mark.full
@pytest.mark.slow
def test_the_command_killed_at_random_moments(tmp_path: Path) -> None:
    assert killed("real", 3, tmp_path)["kills"] >= 3


@pytest.mark.full
@pytest.mark.parametrize("every", [1, 4])
def test_no_more_than_a_checkpoint_interval_is_done_twice(every: int, run: Runs, whole: Any, monkeypatch: Any) -> None:
    # A clock that goes on by one with every batch that was fetched.
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: float(len(run.batches))))
    ends = []
    for run.stop_after in (6, 5, 9):
        with pytest.raises(Stop):
            run(checkpoint_every=every)
        ends.append(len(run.batches))
    assert run(checkpoint_every=every) == whole
    runs = [run.batches[a:b] for a, b in pairwise([0, *ends, None])]
    assert len(runs[0]) > 6
    for before, after in pairwise(runs):
        assert 0 <= before[-1] - after[0] + 1 <= every, (before, after)
        assert after == list(range(after[0], after[-1] + 1))
    assert set(run.batches) == set(range(max(run.batches) + 1))


@pytest.mark.full
def test_progress_after_a_restart_counts_what_was_done_before(run: Runs) -> None:
    run.break_off(9)
    seen: list[tuple[float, float | None]] = []
    run(progress=lambda stage, done, total, unit: seen.append((done, total)) if stage == "mining" else None)
    assert (seen[-1][0], seen) == (seen[-1][1], sorted(seen))


@contextmanager
def as_command() -> Iterator[None]:
    """SIGTERM and SIGUSR1 are answered as in a process of the command."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        with progress.end_at_signals():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "stage"),
    [
        *((signal.SIGINT, stage) for stage in ("mining", "tables", "values", "removals", "predictions", "scales")),
        *((signal.SIGTERM, "mining"), (signal.SIGTERM, "patterns"), (signal.SIGUSR1, "scales")),
    ],
)
def test_ctrl_c_or_a_scheduler_saves_and_says_how_to_go_on(
    number: signal.Signals, stage: str, run: Runs, whole: dict[str, bytes]
) -> None:
    run.act[stage] = lambda: os.kill(os.getpid(), number)
    pressed, before = number == signal.SIGINT, signal.getsignal(signal.SIGINT)
    line = rf"{'' if pressed else f'{number.name} received: '}stopped.*run the same command again"
    error, answered = (Interrupted, nullcontext()) if pressed else (Terminated, as_command())
    with pytest.raises(error, match=line) as stopped, answered:
        run()
    assert stopped.value.exit_code == (130 if pressed else 75)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(AtlasUnfinished, match="run the same"):
        open_atlas(run.atlas)
    first = list(run.batches)
    assert run() == whole
    assert sorted(run.batches) == sorted(set(run.batches)), "a batch that was done was lost"
    assert len(first) == (1 if stage == "mining" else len(run.batches))
    assert verify(run.atlas) == []


def flip(path: Path, part: float = 0.5) -> None:
    """Changes one bit in the middle of a file, or behind another part of it."""
    data = bytearray(path.read_bytes())
    data[int(part * (len(data) - 1))] ^= 1
    path.write_bytes(data)


def flip_piece(atlas: Path, table: str) -> None:
    """Changes one bit of the answers that a pass has saved, where it was killed before it made a table of them."""
    (atlas / f"{table}.parquet").unlink()
    flip(atlas / f"work/{table}-1.safetensors", 1.0)  # behind the header, whose damage is seen


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


@pytest.mark.full
@pytest.mark.parametrize(
    ("stage", "damage"),
    [
        ("sealing", lambda atlas: swap(atlas / "values/layer-000.parquet", atlas / "values/layer-001.parquet")),
        ("sealing", lambda atlas: flip(atlas / "values/layer-000.parquet")),
        ("roles", lambda atlas: flip_piece(atlas, "predictions")),
        ("neighbours", lambda atlas: flip(atlas / "work/closed/single-process/state.safetensors")),
        ("values", lambda atlas: flip(atlas / "work/prefixes.safetensors", 1.0)),
        ("values", lambda atlas: (atlas / "triggers/layer-001.parquet").unlink()),
        ("roles", lambda atlas: swap(atlas / "work/scales.json", atlas / "work/removals.json")),
        ("sealing", lambda atlas: flip(atlas / "work/patterns-001.parquet")),
        ("mining", lambda atlas: flip(atlas / "work/text/tokens.bin")),
        ("mining", lambda atlas: flip(atlas / "work/text/lengths.bin")),
        ("predictions", lambda atlas: flip(atlas / "work/text/text.bin")),
    ],
    ids=[
        *("tables swapped", "bit of a table", "saved piece", "saved state", "prefixes", "a table gone", "notes"),
        *("patterns", "tokens", "lengths", "text"),
    ],
)
def test_what_was_damaged_while_the_run_was_unfinished_is_made_again(
    stage: str, damage: Callable[[Path], None], run: Runs, whole: dict[str, bytes], request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id

    def stop() -> None:
        raise Stop

    run.act[stage] = stop
    with pytest.raises(Stop):
        run(checkpoint_every=0)
    damage(run.atlas)
    said: list[str] = []
    assert run(progress=lambda stage, *more: said.append(more[-1]) if stage == "note" else None) == whole
    assert len([line for line in said if "damaged since the run was stopped" in line]) == (0 if "gone" in name else 1)
    assert verify(run.atlas) == []


@pytest.mark.full
def test_a_saved_state_that_was_damaged_is_not_taken_up(run: Runs, whole: dict[str, bytes]) -> None:
    run.break_off(9)
    flip(run.atlas / "work/closed/single-process/state.safetensors")
    said: list[str] = []
    assert run(progress=lambda stage, *more: said.append(more[-1]) if stage == "note" else None) == whole
    assert len([line for line in said if "damaged since the run was stopped" in line]) == 1
    assert run.batches.count(0) == 2


@pytest.mark.full
def test_a_table_that_is_damaged_while_the_run_goes_on_is_not_sealed(run: Runs, whole: dict[str, bytes]) -> None:
    run.act["patterns"] = lambda: flip(run.atlas / "values/layer-001.parquet")
    with pytest.raises(AtlasDamaged, match=r"values/layer-001.parquet was changed after it was made"):
        run()
    assert run() == whole


@pytest.mark.full
def test_the_second_ctrl_c_stops_at_once(run: Runs, whole: dict[str, bytes]) -> None:
    def press_twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

    run.act["mining"] = press_twice
    with pytest.raises(Interrupted):
        run()
    assert not list(run.atlas.glob("work/*/*/state.safetensors"))
    assert run() == whole


@pytest.mark.fast(1)
@pytest.mark.parametrize("place", ["patterns.parquet", "analyses/manifest.json"])
def test_patterns_that_cannot_be_written_are_what_is_left_to_make(place: str, run: Runs) -> None:
    """The atlas is sealed by then, so that the same command is refused until they are made: both lines say by what."""
    run.act["sealing"] = lambda: (run.atlas / place).mkdir(parents=True)
    left = r"but for its patterns, which `mnemoscope analyze .*atlas --patterns` makes"
    with pytest.raises(StoreFailed, match=rf"cannot write .*{place}: Is a directory"):
        run()
    (run.atlas / place).rmdir()
    with pytest.raises(AtlasExists, match=f"is finished already {left}"):
        run()
    write_patterns(open_atlas(run.atlas))
    assert verify(run.atlas) == []
    before = tables_of(run.atlas)
    assert run() == before


@pytest.mark.full
def test_a_forced_run_that_was_stopped_goes_on_with_the_same_command(run: Runs, whole: dict[str, bytes]) -> None:
    run(triggers=3)
    run.batches.clear()
    run.break_off(6, force=True)
    assert run(force=True) == whole
    assert run.batches.count(0) == 1, "what was saved was thrown away"


@pytest.mark.full
def test_another_plan_or_text_is_refused_unless_forced(run: Runs, whole: dict[str, bytes]) -> None:
    run.break_off(6, triggers=3)
    with pytest.raises(PlanDiffers, match="triggers was 3, now 5"):
        run()
    assert run(force=True) == whole
    run.break_off(6, force=True)
    before = run.text.read_text()
    run.text.write_text(before + "one more bird\n")
    with pytest.raises(PlanDiffers, match="corpus fingerprint"):
        run()
    run.text.write_text(before)
    assert run() == whole, "the text is as it was"
    run.text.write_text(before + "one more bird\n")
    run.break_off(6, force=True)
    run.text.write_text(before)
    assert run(force=True) == whole


@pytest.mark.full
def test_the_working_copy_is_gone_at_the_end_unless_asked_for(run: Runs, whole: dict[str, bytes]) -> None:
    kept = run(keep_work=True)
    assert (run.atlas / "work/text").is_dir()
    assert {name: made for name, made in kept.items() if not name.startswith("work/")} == whole
    run(force=True)
    assert not (run.atlas / "work").exists()
