"""The status of a run, read from its folder: writes nothing, asks no process, needs no torch."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnemoscope.atlas.manifest import MANIFEST, STATE, WORK, read_manifest, unfinished_plan
from mnemoscope.atlas.schema import TABLES
from mnemoscope.errors import AtlasNotFound, AtlasTooNew, StoreFailed
from mnemoscope.foundation.files import read_object
from mnemoscope.foundation.options.mining_options import RULES, UNRELEASED
from mnemoscope.runs.workers.heartbeats import BEATS, DRIVER, beat_path, host, is_gone
from mnemoscope.runs.workers.leases import DONE, STAGE, TEXT, Lease, LeaseFolder, published_stage

_STALE = 60.0
"""Seconds since the last beat after which a worker of another machine counts as dead, by the clock here."""


@dataclass(frozen=True)
class WorkerStatus:
    """`rate` in tokens per second; `batches` counted."""

    name: str
    alive: bool
    rate: float
    batches: int


@dataclass(frozen=True)
class RunStatus:
    """`state` is preparing, mining, a later stage by its name, or finished. `batches` and `done` are of the text;
    `seconds_left` of the current stage, None if unknown. A run of one process has it as its only worker.
    """

    state: str
    batches: int
    done: int
    workers: list[WorkerStatus]
    leases_lost: int
    tokens_per_second: float
    seconds_left: float | None


def run_status(directory: Path) -> RunStatus:
    """Raises AtlasNotFound if the folder holds no run and no atlas, AtlasTooNew for one of another version."""
    begun = unfinished_plan(directory)
    if begun is None:
        if not (directory / MANIFEST).is_file():
            raise AtlasNotFound(f"{directory} holds no run and no atlas; begin one with `mnemoscope mine`")
        read_manifest(directory)
        lacking = not (directory / TABLES["patterns"].path()).is_file() and not (directory / STATE).is_dir()
        return RunStatus("patterns" if lacking else "finished", 0, 0, [], 0, 0.0, None if lacking else 0.0)
    if begun["plan"].get("rules") != RULES:
        raise AtlasTooNew(f"{directory} {UNRELEASED} with --force")
    beats = {path.stem: read_object(path) for path in sorted((directory / BEATS).glob("*.json"))}
    workers = [
        WorkerStatus(name, is_alive(directory, name, said), float(said.get("rate", 0.0)), int(said.get("batches", 0)))
        for name, said in beats.items()
        if name != DRIVER
    ]
    work, on = begun.get("work"), published_stage(directory)
    if not isinstance(work, dict):
        return RunStatus("preparing", 0, 0, workers, 0, 0.0, None)
    state, batches, text = on[0] if on else TEXT, int(work["batches"]), _leases(directory, TEXT)
    rate, lost = sum(worker.rate for worker in workers if worker.alive), sum(lease.lost for lease in text)
    if state != TEXT:
        return RunStatus(state, batches, batches, workers, lost, rate, _seconds_left(directory, state))
    alive = [beats[worker.name] for worker in workers if worker.alive]
    done = min(batches, counted_batches(text, int(work["lease_batches"]), alive))
    left = (batches - done) * float(work["tokens"]) / max(1, batches)
    return RunStatus(state, batches, done, workers, lost, rate, left / rate if rate else None)


def advice(directory: Path, run: RunStatus) -> str:
    """The command that a run on which nobody works goes on with; empty if somebody does, or it is finished. A merge is
    said by its verb: its marks name no parts.
    """
    from mnemoscope.atlas.tables import patterns_command, resume_command  # reads tables: a refusal needs none

    begun = unfinished_plan(directory)
    if run.state == "finished" or any(worker.alive for worker in run.workers):
        return ""
    if begun is None:
        return patterns_command(directory).strip("`")
    merged = begun["plan"].get("corpus_fingerprint") is not None and not (directory / WORK / "text").is_dir()
    return "the same `mnemoscope merge` again" if merged else resume_command(directory, begun)


def _leases(directory: Path, stage: str) -> list[Lease]:
    with suppress(StoreFailed):
        leases = LeaseFolder.find(directory, stage)
        return leases.read() if leases else []
    return []


def _seconds_left(directory: Path, stage: str) -> float | None:
    """The seconds that a stage takes yet, by the share of its units that is done; None if none is."""
    leases = _leases(directory, stage)
    done = sum(lease.owner == DONE for lease in leases)
    with suppress(OSError):
        spent = time.time() - (directory / STAGE).stat().st_mtime
        return spent * (len(leases) - done) / done if done else None
    return None


def counted_batches(leases: Sequence[Lease], size: int, beats: Iterable[Mapping[str, Any]]) -> int:
    """The batches of the text that are known to be counted: in leases of this size that are done, or by workers."""
    done = sum(lease.owner == DONE for lease in leases) * size
    return max(done, sum(int(beat.get("batches", 0)) for beat in beats))


def is_alive(directory: Path, name: str, said: Mapping[str, Any]) -> bool:
    """By the process on this machine, elsewhere by the age of the last beat."""
    if said.get("host") == host():
        return not is_gone(said)
    try:
        return time.time() - beat_path(directory, name).stat().st_mtime < _STALE
    except OSError:
        return False
