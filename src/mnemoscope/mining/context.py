"""What every pass needs and no plan holds: where a run works, how often it saves, whom it tells, what frees memory."""

import ctypes
import resource
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnemoscope.atlas.manifest import WORK
from mnemoscope.progress import Progress, ignore_progress

CHECKPOINT = "state.safetensors"
"""The state of the pass over the text: in the work folder while that goes on, in `state/` of a finished part."""
ROOM = 48 << 20
"""Bytes by which the process may grow before holes are looked for: giving back costs some tens of milliseconds."""


class HeapTrimmer:
    """Gives memory that is free but held by the C library back to the operating system, when that has become much.

    Batches differ in shape, so the C library's heap is left with holes that the next batch does not fit; survivors that
    wait in their queues keep it from shrinking. Without this, ten times the text took 1.3 times the memory and more,
    although nothing that is alive grew (LOG.md). Does nothing where there is no Linux with glibc.

    Remembers how much was resident at the first look after memory was last given back. At the first look, not at once:
    what every batch needs and frees again is no hole.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._trim: Any = None
        self._least: int | None = None
        with suppress(OSError, AttributeError, TypeError):
            _resident()
            self._trim = ctypes.CDLL(None).malloc_trim

    def check(self) -> None:
        """Gives back what is free if the process has grown by more than the room since it was smallest."""
        if self._trim is None:
            return
        now = _resident()
        self._least = now if self._least is None else min(self._least, now)
        if now - self._least > self._room:
            self.trim()

    def trim(self) -> None:
        """Gives back what is free."""
        if self._trim is not None:
            self._trim(0)
            self._least = None


def _resident() -> int:
    """Bytes of this process in memory, mapped files aside."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return (int(fields[1]) - int(fields[2])) * resource.getpagesize()


@dataclass(frozen=True)
class RunContext:
    """One run in its locked folder: `checkpoint_every` in seconds, `progress` told how far every pass is."""

    directory: Path
    checkpoint_every: float = 60.0
    progress: Progress = ignore_progress
    heap: HeapTrimmer = field(default_factory=HeapTrimmer)
    began: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)
    """What each stage took that has ended, in order."""

    @property
    def work(self) -> Path:
        """Where the tokenized text and the saved states lie until the atlas is sealed."""
        return self.directory / WORK

    def end_stage(self, stage: str) -> None:
        """Notes that a stage ends here; the next one begins."""
        self.seconds[stage] = time.monotonic() - self.began - sum(self.seconds.values())
