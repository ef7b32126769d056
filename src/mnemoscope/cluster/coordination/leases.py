"""Leases: the tasks of a stage as files in one folder, named by their owners.

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
from mnemoscope.foundation.files import make_folder, storing

FREE, AGAIN, DONE = "free", "again", "done"
"""Owners that are no workers: never taken; given up by a worker that may have begun; done."""
LEASES = f"{WORK}/leases"
_NAME = re.compile(r"([0-9]{6,9})\.([0-9]{1,9})\.([A-Za-z0-9-]+)")
_LOOKS, _MOMENT = 50, 0.02
"""Listings, and seconds between them, before a missing file counts as lost: it may be being renamed."""


@dataclass(frozen=True)
class Lease:
    """One task: its number, how often it was lost, and its owner: a worker, `free`, `again` or `done`."""

    number: int
    lost: int
    owner: str

    @property
    def is_free(self) -> bool:
        return self.owner in (FREE, AGAIN)

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

    def make(self, *, again: int = 0) -> None:
        """Makes the files, unless they are there; of several processes one succeeds. Some of the first `again` tasks
        may have been done before.
        """
        making = self.path.parent / f"making-{uuid4().hex}"
        make_folder(making)
        with storing(self.path):
            for number in range(self.count):
                lease = Lease(number, 0, AGAIN if number < again else FREE)
                os.close(os.open(making / lease.file_name, os.O_CREAT | os.O_EXCL, 0o644))
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

    def take(self, lease: Lease, worker: str) -> Lease | None:
        """None if another worker was first."""
        return self._rename(lease, replace(lease, lost=lease.lost + (not lease.is_free), owner=worker))

    def give_back(self, lease: Lease) -> Lease | None:
        """None if it was taken away."""
        return self._rename(lease, replace(lease, owner=AGAIN))

    def open_again(self, lease: Lease) -> None:
        """Frees a lease that turned out not to be done."""
        self._rename(lease, replace(lease, lost=lease.lost + 1, owner=AGAIN))

    def end(self, lease: Lease) -> Lease | None:
        """None if it was taken away."""
        return self._rename(lease, replace(lease, owner=DONE))

    def _rename(self, old: Lease, new: Lease) -> Lease | None:
        source, target = self.path / old.file_name, self.path / new.file_name
        with storing(self.path):
            try:
                os.rename(source, target)
            except FileNotFoundError:
                # A network file system may have renamed it, lost the answer and tried again.
                return new if target.exists() else None
        return new
