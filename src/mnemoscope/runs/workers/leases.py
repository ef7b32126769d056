"""Leases: the tasks of a stage as files in one folder, named by their owners; `work/stage.json` says which is on.

A task is taken by renaming its file, from `000017.0.free` to `000017.0.WORKER`: one process succeeds, for the others
the file is gone. So one listing shows everything, no file has to be opened, and a worker that dies leaves no lease
without an owner. The second part counts how often the task was taken from a worker that had not done it. Works on file
systems that rename atomically.
"""

import os
import re
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self
from uuid import uuid4

from mnemoscope.atlas.manifest import WORK
from mnemoscope.errors import StoreFailed
from mnemoscope.foundation.files import flush, json_bytes, make_folder, read_object, storing

FREE, DONE = "free", "done"
"""Owners that are no workers."""
TEXT, FINISHED = "mining", "finished"
"""The stage in which the model reads the text, and the one after the last."""
LEASES, STAGE = f"{WORK}/leases", f"{WORK}/stage.json"
_NAME = re.compile(r"([0-9]{6,9})\.([0-9]{1,9})\.([A-Za-z0-9-]+)")
_LOOKS, _MOMENT = 50, 0.02
"""Listings, and seconds between them, before a missing file counts as lost: it may be being renamed."""


@dataclass(frozen=True)
class Lease:
    """One task: its number, how often it was lost, and its owner: a worker, `free` or `done`."""

    number: int
    lost: int
    owner: str

    @property
    def file_name(self) -> str:
        return f"{self.number:06d}.{self.lost}.{self.owner}"


class LeaseFolder:
    """The tasks 0..count-1 of one stage, in a folder whose name has their number."""

    def __init__(self, directory: Path, stage: str, count: int) -> None:
        self.path = directory / LEASES / f"{stage.replace(' ', '-')}-of-{count}"
        self.count = count

    @classmethod
    def find(cls, directory: Path, stage: str) -> Self | None:
        """The tasks of a stage; None if nobody has counted them yet."""
        for path in (directory / LEASES).glob(f"{stage.replace(' ', '-')}-of-*"):
            return cls(directory, stage, int(path.name.rpartition("-")[2]))
        return None

    def make(self) -> None:
        """Makes the files, unless they are there; of several processes one succeeds."""
        making = self.path.parent / f"making-{uuid4().hex}"
        make_folder(making)
        with storing(self.path):
            for number in range(self.count):
                (making / Lease(number, 0, FREE).file_name).touch()
            flush(making)
            with suppress(OSError):  # it is there
                making.rename(self.path)
        shutil.rmtree(making, ignore_errors=True)

    def read(self) -> list[Lease]:
        """All tasks, in order."""
        for look in range(_LOOKS):
            time.sleep(_MOMENT if look else 0)
            found: dict[int, Lease] = {}
            for lease in self._read():
                # Renamed during the listing, a file can appear under both names: the later one counts.
                best = found.get(lease.number)
                if best is None or (best.lost, best.owner == DONE) < (lease.lost, lease.owner == DONE):
                    found[lease.number] = lease
            if len(found) == self.count:
                return [found[number] for number in sorted(found)]
        raise StoreFailed(f"{self.path} lacks {self.count - len(found)} of {self.count} files; mine again with --force")

    def _read(self) -> Iterable[Lease]:
        with storing(self.path):
            names = os.listdir(self.path)
        for name in names:
            if parts := _NAME.fullmatch(name):
                yield Lease(int(parts[1]), int(parts[2]), parts[3])

    def are_done(self) -> bool:
        return all(lease.owner == DONE for lease in self.read())

    def take(self, lease: Lease, worker: str) -> Lease | None:
        """None if another worker was first."""
        return self.rename(lease, worker, lost=lease.owner != FREE)

    def free_those_of(self, worker: str) -> None:
        """Gives back what an earlier process of this name had taken."""
        for lease in self.read():
            if lease.owner == worker:
                self.rename(lease, FREE)

    def rename(self, lease: Lease, owner: str, *, lost: int = 0) -> Lease | None:
        """Gives the task to another owner; None if it was taken away."""
        new = replace(lease, owner=owner, lost=lease.lost + lost)
        source, target = self.path / lease.file_name, self.path / new.file_name
        with storing(self.path):
            try:
                os.rename(source, target)
            except FileNotFoundError:
                # A network file system may have renamed it, lost the answer and tried again.
                return new if target.exists() else None
        return new


def publish(directory: Path, stage: str, *, turn: int = 0) -> None:
    """Says which stage is on, again if some of it turned out not to be done (`turn`). Not flushed to the disk: after a
    power cut no worker is alive.
    """
    path = directory / STAGE
    make_folder(path.parent)
    temporary = path.parent / f".{path.name}.mnemoscope-tmp"
    with storing(path):
        temporary.write_bytes(json_bytes({"name": stage, "turn": turn}))
        temporary.replace(path)


def published_stage(directory: Path) -> tuple[str, int] | None:
    """The last stage published, and its turn; None if there is none, or the folder is gone."""
    said = read_object(directory / STAGE)
    return (str(said["name"]), int(said["turn"])) if said.keys() == {"name", "turn"} else None
