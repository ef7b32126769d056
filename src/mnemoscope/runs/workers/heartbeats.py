"""Whether a worker is alive: each rewrites a small file every few seconds, and others look for changes.

Clocks are never compared; what counts is how long a file has not changed by the observer's clock. A dead process of the
same machine is noticed at once.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from mnemoscope.atlas.manifest import WORK
from mnemoscope.errors import StoreFailed
from mnemoscope.foundation.files import json_bytes, make_folder, read_object, storing

BEATS = f"{WORK}/beats"
DRIVER = "driver"
"""The name of the driver's heartbeat."""
_EVERY = 2.0
"""Seconds between two beats; at most a sixth of the time after which silence means death."""
_PER_PATIENCE = 6


def host() -> str:
    """The machine since its last boot, and the container: where process ids are unique."""
    marks = [socket.gethostname()]
    with suppress(OSError):
        marks.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with suppress(OSError):
        marks.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(marks)


def beat_path(directory: Path, name: str) -> Path:
    return directory / BEATS / f"{name}.json"


class Heartbeat:
    """Writes what `say` returns now and then, in a thread; a failed beat is skipped. The end removes the file."""

    def __init__(self, directory: Path, name: str, say: Callable[[], Mapping[str, Any]], *, patience: float) -> None:
        self._path, self._say = beat_path(directory, name), say
        self._every = min(_EVERY, patience / _PER_PATIENCE)
        self._count = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)
        self._birth = psutil.Process().create_time()

    def __enter__(self) -> Self:
        make_folder(self._path.parent)
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def beat(self) -> None:
        """Raises StoreFailed."""
        self._count += 1
        process = {"host": host(), "pid": os.getpid(), "birth": self._birth}
        data = json_bytes({**self._say(), **process, "beat": self._count})
        temporary = self._path.parent / f".{self._path.name}.mnemoscope-tmp"
        with storing(self._path):
            # Not flushed to the disk: after a power cut no worker is alive.
            temporary.write_bytes(data)
            temporary.replace(self._path)

    def _beat_on(self) -> None:
        while not self._over.wait(self._every):
            with suppress(StoreFailed):
                self.beat()


class Watch:
    def __init__(self, directory: Path, *, patience: float) -> None:
        self._directory, self._patience = directory, patience
        self._seen: dict[str, tuple[object, float]] = {}
        """The last beat of each worker and since when it has not changed."""

    def last_beat(self, name: str) -> dict[str, Any]:
        """Empty without a heartbeat."""
        return read_object(beat_path(self._directory, name))

    def is_dead(self, name: str) -> bool:
        """Whether the worker has ended (no heartbeat) or is silent."""
        return not self.last_beat(name) or self.is_silent(name)

    def is_silent(self, name: str) -> bool:
        """Whether the worker's process is gone from this machine, or its heartbeat has not changed for too long. A
        missing file counts as unchanged: a file system may show it late.
        """
        said = self.last_beat(name)
        if said and is_gone(said):
            return True
        beat, now = said.get("beat"), time.monotonic()
        before = self._seen.get(name)
        if before is None or before[0] != beat:
            self._seen[name] = beat, now
            return False
        return now - before[1] > self._patience


def is_gone(said: Mapping[str, Any]) -> bool:
    """Whether a heartbeat is of a process of this machine that does not exist any more."""
    if said.get("host") != host():
        return False
    try:
        process = psutil.Process(int(said.get("pid", 0)))
        return bool(abs(process.create_time() - float(said.get("birth", 0.0))) > 1 or process.status() == "zombie")
    except (psutil.Error, ValueError, TypeError):
        return True
