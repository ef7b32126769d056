"""The saved states of workers that read the text: a folder each, which can be closed, so that a worker taken for dead
saves no more.

A worker saves its state, with the batches counted, in `work/states/WORKER/`. To close it, another process renames the
folder into `work/closed/`: a late save then fails, and what was saved counts. So a batch is in one state or in none. A
new worker goes on with a closed state, if there is one, so there are never more states than workers at one time.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from mnemoscope.atlas.manifest import WORK
from mnemoscope.errors import MnemoscopeError, PartsDiffer
from mnemoscope.foundation.files import flush, make_folder, storing
from mnemoscope.runs.record import RunRecord

STATES, CLOSED = f"{WORK}/states", f"{WORK}/closed"
CHECKPOINT = "state.safetensors"
"""The file of a state: of a worker in its folder, of a finished part in `state/`."""


class WorkerClosed(MnemoscopeError):
    """The worker was taken for dead: what it has not saved is done by others."""


class StateFolder:
    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / STATES / name
        self.state = self.path / CHECKPOINT
        self._closed = directory / CLOSED

    def make(self) -> None:
        """The folder must be new."""
        make_folder(self.path.parent)
        with storing(self.path):
            self.path.mkdir()
            flush(self.path.parent)

    def adopt(self, fits: Callable[[Path], bool]) -> bool:
        """Takes over a closed state that fits; returns whether there was one."""
        make_folder(self.path.parent)
        for closed in closed_folders(self._closed.parents[1]):
            with suppress(FileNotFoundError):
                if fits(closed / CHECKPOINT):
                    os.rename(closed, self.path)  # of all that try, one succeeds
                    return True
        return False

    def save(self, data: bytes, record: RunRecord) -> None:
        """Writes the state atomically. Its name while it is written is not one that a new driver tidies away."""
        record.add_state(data)
        part = self.path / f"{CHECKPOINT}.part"
        with storing(self.state):
            try:
                with part.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(part, self.state)
                flush(self.path)
            except FileNotFoundError:
                why = f"{self.path.name} was silent for too long, and its work was given to others"
                raise WorkerClosed(why) from None
            except BaseException:
                with suppress(OSError):
                    part.unlink()
                raise

    def close(self) -> bool:
        """Ends saving here; returns whether this call did it."""
        closed = self._closed / self.path.name
        make_folder(closed.parent)
        with storing(closed):
            if closed.exists():  # of an earlier process of this name
                closed = closed.with_name(f"{closed.name}-{uuid4().hex[:8]}")
            try:
                os.rename(self.path, closed)
            except FileNotFoundError:
                return False
        return True


def check_devices(names: Iterable[str], *, mixed: bool) -> None:
    """Raises PartsDiffer if devices of several names count parts of a text, unless that is allowed."""
    known = sorted({*names} - {""})
    if len(known) > 1 and not mixed:
        raise PartsDiffer(
            f"{' and '.join(known)} have counted parts of this text, and last bits differ between them; use machines"
            " of one kind, or --allow-mixed-devices"
        )


def folders_in(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []


def closed_folders(directory: Path) -> list[Path]:
    """The closed folders with a saved state."""
    return [path for path in folders_in(directory / CLOSED) if (path / CHECKPOINT).is_file()]
