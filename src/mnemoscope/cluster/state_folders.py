"""The saved states of workers: a folder each, which can be closed, so that a worker taken for dead saves no more.

A worker saves its state, with the batches counted, in `work/states/WORKER/`. To close it, another process renames the
folder into `work/closed/`: a late save then fails, and what was saved counts. So a batch is in one state or in none. A
new worker goes on with a closed state, if there is one, so there are never more states than workers at one time.
"""

import os
from contextlib import suppress
from pathlib import Path

from mnemoscope.atlas.manifest import WORK
from mnemoscope.errors import MnemoscopeError
from mnemoscope.foundation.files import flush, make_folder, storing
from mnemoscope.mining.record import RunRecord
from mnemoscope.mining.steps import CHECKPOINT
from mnemoscope.mining.text.ranges import Range, join_ranges
from mnemoscope.mining.text.state import StateFacts

STATES, CLOSED = f"{WORK}/states", f"{WORK}/closed"
_LOOKS = 100


class WorkerClosed(MnemoscopeError):
    """The worker was taken for dead: what it has not saved is done by others."""


class StateFolder:
    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / STATES / name
        self.state = self.path / CHECKPOINT

    def make(self) -> None:
        """The folder must be new."""
        make_folder(self.path.parent)
        with storing(self.path):
            self.path.mkdir()
            flush(self.path.parent)

    def adopt(self, directory: Path, device: str) -> bool:
        """Takes over a closed state from a device of this name; returns whether there was one."""
        make_folder(self.path.parent)
        for closed in closed_folders(directory):
            with suppress(FileNotFoundError):
                if StateFacts.read(closed / CHECKPOINT).device == device:
                    os.rename(closed, self.path)  # of all that try, one succeeds
                    return True
        return False

    def save(self, data: bytes, record: RunRecord) -> None:
        """Writes the state atomically."""
        record.add_state(data)
        temporary = self.path / f".{CHECKPOINT}.mnemoscope-tmp"
        for _ in range(_LOOKS):
            with storing(self.state), suppress(FileNotFoundError):
                try:
                    # Fails where the folder is missing: the worker was closed.
                    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
                    with os.fdopen(handle, "wb") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                    os.rename(temporary, self.state)
                    flush(self.path)
                    return
                except BaseException:
                    with suppress(OSError):
                        temporary.unlink()
                    raise
            if not self.path.is_dir():
                break  # otherwise a new driver has removed the temporary file
        raise WorkerClosed(f"{self.path.name} was silent for too long, and its work was given to others")

    def close(self, directory: Path) -> bool:
        """Ends saving here; returns whether this call did it."""
        closed = directory / CLOSED / self.path.name
        make_folder(closed.parent)
        with storing(closed):
            try:
                os.rename(self.path, closed)
            except FileNotFoundError:
                return False
        return True


def folders_in(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []


def closed_folders(directory: Path) -> list[Path]:
    """The closed folders with a saved state."""
    return [path for path in folders_in(directory / CLOSED) if (path / CHECKPOINT).is_file()]


def counted_anywhere(directory: Path) -> list[Range]:
    """The batches in any saved state at the moment."""
    for _ in range(_LOOKS):
        with suppress(FileNotFoundError):  # renamed meanwhile, and found under its other name
            before = folders_in(directory / CLOSED)
            paths = [*before, *folders_in(directory / STATES)]
            states = [path / CHECKPOINT for path in paths if (path / CHECKPOINT).is_file() or not path.is_dir()]
            found = [run for path in states for run in StateFacts.read(path).finished]
            if folders_in(directory / CLOSED) == before:
                return join_ranges(found)
    return join_ranges(counted_in_closed(directory))


def counted_in_closed(directory: Path) -> list[Range]:
    return [run for path in closed_folders(directory) for run in StateFacts.read(path / CHECKPOINT).finished]
