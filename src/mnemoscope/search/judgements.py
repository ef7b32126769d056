"""People's judgements as a field to search: always those of now, so they are in no file of ours.

Controls are no memories and judgements of kind `none` describe nothing; both are left out. Authors are not shown.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from mnemoscope.judgements.reading import ANNOTATIONS, read_judgements


@dataclass(frozen=True)
class Judged:
    """One judgement that describes a pattern."""

    layer: int
    memory: int
    kind: str
    description: str
    triggers: int


class Judgements:
    """What people have judged of an atlas, read again when it has changed."""

    def __init__(self, atlas: Path, read: Callable[[], pl.DataFrame | None] | None) -> None:
        """`read` gives the judgements that count, as `read_judgements` does, which is asked where it is None."""
        self._atlas = atlas
        self._read = read
        self._lock = threading.Lock()
        self._state: tuple[tuple[int, int], ...] | None = None
        self._known: tuple[Judged, ...] = ()

    def now(self) -> tuple[Judged, ...]:
        """The judgements that count now, in order of memory; raises what `read_judgements` raises."""
        if self._read is not None:
            return _described(self._read())
        with self._lock:
            state = self._files()
            if state is None or state != self._state:
                # The state is taken before reading: what is written meanwhile is read next time.
                self._known, self._state = _described(read_judgements(self._atlas)), state
            return self._known

    def _files(self) -> tuple[tuple[int, int], ...] | None:
        """Size and time of the database and of the log that SQLite writes beside it; None without a database."""
        found = []
        for name in (ANNOTATIONS, f"{ANNOTATIONS}-wal"):
            try:
                status = (self._atlas / name).stat()
                found.append((status.st_size, status.st_mtime_ns))
            except OSError:
                if name == ANNOTATIONS:
                    return None
        return tuple(found)


def _described(table: pl.DataFrame | None) -> tuple[Judged, ...]:
    if table is None:
        return ()
    rows = table.filter(~pl.col("control") & (pl.col("kind") != "none") & (pl.col("description") != ""))
    return tuple(
        Judged(layer, memory, kind, description, len(triggers))
        for layer, memory, kind, description, triggers in rows.select(
            "layer", "memory", "kind", "description", "triggers"
        ).iter_rows()
    )
