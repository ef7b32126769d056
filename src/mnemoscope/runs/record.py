"""What is done of a run: a line for each unit, with the hashes of the files that it wrote.

A unit is done when its files are there with these hashes, which are compared when a run is taken up, not at every read;
what is missing or differs is made again. Each process appends to a file of its own, since on a network file system
several cannot append to one, and only after the unit's files were renamed. A saved state (of the pass over the text, of
the training of a lens) is noted before it is renamed instead: a kill in between costs neither the old state nor the new
one, and a state that nobody has noted is damaged.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mnemoscope.atlas.manifest import WORK
from mnemoscope.foundation.files import file_hash, flush, make_folder, storing
from mnemoscope.foundation.progress import NOTE, Progress

RECORDS = f"{WORK}/records"
Unit = tuple[str, int]
"""A stage's name and a unit's number."""


class RunRecord:
    """The record of the run in a folder; lines of another run than `of` count for nothing. `name` is the process's."""

    def __init__(self, directory: Path, of: str, *, name: str) -> None:
        self._directory, self._of = directory, of
        self._own = directory / RECORDS / f"{name}.jsonl"
        self.units: dict[Unit, dict[str, str]] = {}
        """The hashes of the files of every unit that is done, by path relative to the atlas."""
        self._states: set[str] = set()
        self.read()

    def read(self) -> None:
        """Reads what all processes have recorded by now. A unit that lacks a file is not done."""
        for path in sorted((self._directory / RECORDS).glob("*.jsonl")):
            for line in path.read_bytes().splitlines():
                with suppress(ValueError, LookupError, TypeError, AttributeError):  # cut short by a kill
                    said = json.loads(line)
                    if said["of"] == self._of:
                        self._states |= {str(said["state"])} if "state" in said else set()
                        self.units |= {(said["stage"], said["unit"]): dict(said["files"])} if "stage" in said else {}
        there = {path: (self._directory / path).is_file() for files in self.units.values() for path in files}
        self.units = {unit: files for unit, files in self.units.items() if all(there[path] for path in files)}

    def add(self, stage: str, unit: int, files: Iterable[Path]) -> None:
        """Records that a unit is done, whose files have been renamed."""
        hashes = {path.relative_to(self._directory).as_posix(): file_hash(path) for path in files}
        self._append({"stage": stage, "unit": unit, "files": hashes})
        self.units[stage, unit] = hashes

    def add_state(self, data: bytes) -> None:
        """Notes a state that is saved next."""
        state = hashlib.sha256(data).hexdigest()
        self._append({"state": state})
        self._states.add(state)

    @property
    def hashes(self) -> dict[str, str]:
        """Of all files that are done, by path."""
        return {path: sha for files in self.units.values() for path, sha in files.items()}

    def finds(self, state: Path, progress: Progress) -> bool:
        """Whether a saved state is there as a process of this run has saved it; says of another that it is damaged."""
        try:
            found = file_hash(state)
        except FileNotFoundError:
            return False
        if found not in self._states:
            self.read()  # it may have been saved since
        if found not in self._states:
            progress(NOTE, 0, None, f"{state} was damaged since the run was stopped; what it held is done again")
        return found in self._states

    def take_up(self, progress: Progress) -> None:
        """Removes every file that differs from its hash, whose unit is then not done, and says so. From then on
        processes can record.
        """
        make_folder(self._own.parent)
        differing = sorted(path for path, sha in self.hashes.items() if file_hash(self._directory / path) != sha)
        for path in differing:
            with storing(self._directory / path):
                (self._directory / path).unlink()
        if differing:
            self.read()
            others = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            said = f"{', '.join(differing[:3])}{others}: damaged since the run was stopped, made again"
            progress(NOTE, 0, None, said)

    def _append(self, said: dict[str, Any]) -> None:
        line = json.dumps({"of": self._of, **said}, sort_keys=True)
        new = not self._own.exists()
        with storing(self._own), suppress(FileNotFoundError):  # the run is over, and its folder gone
            with self._own.open("ab") as file:
                file.write(f"\n{line}\n".encode())  # a line before it may have been cut short
                file.flush()
                os.fsync(file.fileno())
            if new:
                flush(self._own.parent)
