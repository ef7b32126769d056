"""Stopped at any moment, mining goes on and ends with the same bytes; little is done twice."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mnemoscope
from mining.conftest import tables_of, tiny_model
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.errors import AtlasExists, AtlasUnfinished, Interrupted, PlanDiffers, StoreFailed, Terminated
from mnemoscope.foundation import progress
from mnemoscope.mining import mine
from mnemoscope.mining.text import batch_loader
from mnemoscope.models import LanguageModel
from mnemoscope.patterns import write_patterns

TESTS = Path(__file__).parents[1]
OPTIONS: dict[str, Any] = {"split": "line", "triggers": 5, "batch_tokens": 60}


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return tiny_model("gpt2")


@pytest.fixture
def whole(model: LanguageModel, text: Path, tmp_path: Path) -> dict[str, bytes]:
    return tables_of(mine(model, text, out=tmp_path / "whole", **OPTIONS))


class Stop(Exception):
    """The moment at which a run breaks off."""


class Log:
    """A progress callback that knows which batches ran and can break off after some of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[int] = []
        self.stages: list[str] = []
        self.stop_after: int | None = None
        self.act: dict[str, Any] = {}
        whole = batch_loader.BatchLoader.__call__

        def note(own: batch_loader.BatchLoader, number: int) -> Any:
            self.batches.append(number)
            return whole(own, number)

        monkeypatch.setattr(batch_loader.BatchLoader, "__call__", note)

    def __call__(self, stage: str, done: float, total: float | None, note: str) -> None:
        if stage not in self.stages:
            self.stages.append(stage)
            self.act.get(stage, lambda: None)()
        if stage == "mining" and self.stop_after is not None:
            self.stop_after -= 1
            if self.stop_after < 0:
                raise Stop


def environment() -> dict[str, str]:
    paths = [str(Path(mnemoscope.__file__).parents[1]), str(TESTS)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def killed(how: str, kills: int, folder: Path) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, str(TESTS / "mining_killed.py"), how, str(kills), "11", str(folder)],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)  # type: ignore[no-any-return]


@pytest.mark.full
def test_killed_at_random_moments_the_tables_are_the_same(tmp_path: Path) -> None:
    report = killed("warm", 12, tmp_path)
    assert report["kills"] >= 12
    assert len(report["killed in"]) >= 3, report


@pytest.mark.full
@pytest.mark.slow
def test_the_command_killed_at_random_moments(tmp_path: Path) -> None:
    assert killed("real", 3, tmp_path)["kills"] >= 3


@pytest.mark.full
@pytest.mark.parametrize("every", [1, 4])
def test_no_more_than_a_checkpoint_interval_is_done_twice(
    every: int,
    model: LanguageModel,
    text: Path,
    tmp_path: Path,
    whole: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(monkeypatch)
    # A clock that goes on by one with every batch that was fetched.
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: float(len(log.batches))))
    ends = []
    for after in (6, 5, 9, None):
        log.stop_after = after
        try:
            mine(model, text, out=tmp_path / "atlas", checkpoint_every=every, progress=log, **OPTIONS)
        except Stop:
            ends.append(len(log.batches))
    assert len(ends) == 3
    runs = [log.batches[a:b] for a, b in zip([0, *ends], [*ends, None], strict=True)]
    assert len(runs[0]) > 6
    for before, after in pairwise(runs):
        repeated = before[-1] - after[0] + 1
        assert 0 <= repeated <= every, (before, after)
        assert after == list(range(after[0], after[-1] + 1))
    assert set(log.batches) == set(range(max(log.batches) + 1))
    assert tables_of(tmp_path / "atlas") == whole


@pytest.mark.full
def test_progress_after_a_restart_counts_what_was_done_before(
    model: LanguageModel, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(monkeypatch)
    log.stop_after = 9
    with pytest.raises(Stop):
        mine(model, text, out=tmp_path / "atlas", checkpoint_every=0, progress=log, **OPTIONS)
    seen: list[tuple[float, float | None]] = []

    def note(stage: str, done: float, total: float | None, unit: str) -> None:
        if stage == "mining":
            seen.append((done, total))

    mine(model, text, out=tmp_path / "atlas", progress=note, **OPTIONS)
    assert seen[-1][0] == seen[-1][1]
    assert seen == sorted(seen)


@pytest.mark.full
@pytest.mark.parametrize("stage", ["mining", "tables", "values", "removals", "predictions", "scales"])
def test_ctrl_c_saves_and_says_how_to_go_on(
    stage: str,
    model: LanguageModel,
    text: Path,
    tmp_path: Path,
    whole: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(monkeypatch)
    log.act[stage] = lambda: os.kill(os.getpid(), signal.SIGINT)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="run the same command again") as stopped:
        mine(model, text, out=tmp_path / "atlas", progress=log, **OPTIONS)
    assert stopped.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(AtlasUnfinished, match="run the same"):
        open_atlas(tmp_path / "atlas")
    first = list(log.batches)
    mine(model, text, out=tmp_path / "atlas", progress=log, **OPTIONS)
    assert sorted(log.batches) == sorted(set(log.batches)), "Ctrl-C lost a batch that was done"
    assert len(first) == (1 if stage == "mining" else len(log.batches))
    assert tables_of(tmp_path / "atlas") == whole
    assert verify(tmp_path / "atlas") == []


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
    ("stage", "number"),
    [("mining", signal.SIGTERM), ("tables", signal.SIGTERM), ("removals", signal.SIGUSR1),
     ("scales", signal.SIGUSR1)],
)  # fmt: skip
def test_a_scheduler_stops_a_run_with_everything_saved(
    stage: str,
    number: signal.Signals,
    model: LanguageModel,
    text: Path,
    tmp_path: Path,
    whole: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(monkeypatch)
    log.act[stage] = lambda: os.kill(os.getpid(), number)
    line = f"{number.name} came: stopped.*run the same command again"
    with pytest.raises(Terminated, match=line) as stopped, as_command():
        mine(model, text, out=tmp_path / "atlas", progress=log, **OPTIONS)
    assert stopped.value.exit_code == 75
    mine(model, text, out=tmp_path / "atlas", progress=log, **OPTIONS)
    assert sorted(log.batches) == sorted(set(log.batches)), "a batch that was done was lost"
    assert tables_of(tmp_path / "atlas") == whole


@pytest.mark.full
def test_a_scheduler_stops_the_patterns_and_the_same_command_goes_on(
    model: LanguageModel, text: Path, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(monkeypatch)
    log.act["patterns"] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Terminated, match=r"SIGTERM came: stopped; .* run the same command again"), as_command():
        mine(model, text, out=tmp_path / "atlas", progress=log, **OPTIONS)
    assert tables_of(mine(model, text, out=tmp_path / "atlas", **OPTIONS)) == whole


@pytest.mark.fast(1)
@pytest.mark.parametrize("place", ["patterns.parquet", "analyses/manifest.json"])
def test_patterns_that_cannot_be_written_are_what_is_left_to_make(
    place: str, model: LanguageModel, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The atlas is sealed by then, so that the same command would be refused: both lines name the one that helps."""
    log, atlas = Log(monkeypatch), tmp_path / "atlas"
    log.act["sealing"] = lambda: (atlas / place).mkdir(parents=True)
    left = r"but for its patterns, which `mnemoscope analyze .*atlas --patterns` makes"
    with pytest.raises(StoreFailed, match=rf"cannot write .*{place}: Is a directory.*; .* is finished {left}$"):
        mine(model, text, out=atlas, progress=log, **OPTIONS)
    (atlas / place).rmdir()
    with pytest.raises(AtlasExists, match=f"is finished already {left}; "):
        mine(model, text, out=atlas, **OPTIONS)
    write_patterns(open_atlas(atlas))
    assert verify(atlas) == []
    with pytest.raises(AtlasExists, match="is finished already; "):
        mine(model, text, out=atlas, **OPTIONS)


@pytest.mark.full
def test_the_second_ctrl_c_stops_at_once(
    model: LanguageModel,
    text: Path,
    tmp_path: Path,
    whole: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(monkeypatch)

    def press_twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

    log.act["mining"] = press_twice
    with pytest.raises(Interrupted):
        mine(model, text, out=tmp_path / "atlas", progress=log, **OPTIONS)
    assert not (tmp_path / "atlas/work/state.safetensors").exists()
    mine(model, text, out=tmp_path / "atlas", **OPTIONS)
    assert tables_of(tmp_path / "atlas") == whole


@pytest.mark.slow
def test_ctrl_c_on_the_command(tmp_path: Path) -> None:
    from mining_killed import sentences
    from mnemoscope.models.opening.handmade.models import WORDS

    (tmp_path / "text.txt").write_text(sentences(30_000, WORDS[2:], 0))
    command = [sys.executable, "-m", "mnemoscope", "mine", "handmade:planted", str(tmp_path / "text.txt")]
    command += ["--out", str(tmp_path / "atlas"), "--split", "line", "--batch-tokens", "200"]
    command += ["--checkpoint-every", "0.1"]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (tmp_path / "atlas/work/state.safetensors").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1].strip().splitlines()
    assert process.returncode == 130, said
    assert "run the same command again" in said[-1]
    again = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert verify(tmp_path / "atlas") == []


@pytest.mark.full
def test_a_forced_run_that_was_stopped_goes_on_with_the_same_command(
    model: LanguageModel,
    text: Path,
    tmp_path: Path,
    whole: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine(model, text, out=tmp_path / "atlas", split="line", triggers=3)
    log = Log(monkeypatch)
    log.stop_after = 6
    for _ in range(2):
        try:
            mine(model, text, out=tmp_path / "atlas", checkpoint_every=0, force=True, progress=log, **OPTIONS)
        except Stop:
            log.stop_after = None
    assert log.batches.count(0) == 1, "what was saved was thrown away"
    assert tables_of(tmp_path / "atlas") == whole


@pytest.mark.full
def test_force_replaces_an_unfinished_atlas_of_another_plan(
    model: LanguageModel,
    text: Path,
    tmp_path: Path,
    whole: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(monkeypatch)
    log.stop_after = 6
    with pytest.raises(Stop):
        mine(model, text, out=tmp_path / "atlas", checkpoint_every=0, progress=log, **{**OPTIONS, "triggers": 3})
    with pytest.raises(PlanDiffers, match="triggers was 3, now 5"):
        mine(model, text, out=tmp_path / "atlas", **OPTIONS)
    mine(model, text, out=tmp_path / "atlas", force=True, **OPTIONS)
    assert tables_of(tmp_path / "atlas") == whole


@pytest.mark.full
def test_a_text_that_changed_meanwhile_is_another_plan(
    model: LanguageModel,
    text: Path,
    tmp_path: Path,
    whole: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(monkeypatch)
    log.stop_after = 6
    with pytest.raises(Stop):
        mine(model, text, out=tmp_path / "atlas", checkpoint_every=0, progress=log, **OPTIONS)
    before = text.read_text()
    text.write_text(before + "one more bird\n")
    with pytest.raises(PlanDiffers, match="corpus fingerprint"):
        mine(model, text, out=tmp_path / "atlas", **OPTIONS)
    text.write_text(before)
    mine(model, text, out=tmp_path / "atlas", **OPTIONS)
    assert tables_of(tmp_path / "atlas") == whole


@pytest.mark.full
def test_force_begins_anew_where_the_text_has_changed(
    model: LanguageModel,
    text: Path,
    tmp_path: Path,
    whole: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(monkeypatch)
    log.stop_after = 6
    before = text.read_text()
    text.write_text(before + "one more bird\n")
    with pytest.raises(Stop):
        mine(model, text, out=tmp_path / "atlas", checkpoint_every=0, progress=log, **OPTIONS)
    text.write_text(before)
    mine(model, text, out=tmp_path / "atlas", force=True, **OPTIONS)
    assert tables_of(tmp_path / "atlas") == whole


@pytest.mark.full
def test_the_working_copy_is_gone_at_the_end_unless_asked_for(model: LanguageModel, text: Path, tmp_path: Path) -> None:
    out = mine(model, text, out=tmp_path / "a", **OPTIONS)
    assert not (out / "work").exists()
    kept = mine(model, text, out=tmp_path / "b", keep_work=True, **OPTIONS)
    assert (kept / "work/text").is_dir()
    assert tables_of(out) == {name: made for name, made in tables_of(kept).items() if not name.startswith("work/")}
