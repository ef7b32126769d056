"""The heartbeat of a run of one process, for `mnemoscope status`."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mnemoscope.cluster.coordination.heartbeats import Heartbeat
from mnemoscope.cluster.stages import TEXT
from mnemoscope.foundation.progress import Progress
from mnemoscope.mining.sealing import SEALING

SINGLE_PROCESS = "single-process"
"""The worker name of a run of one process, also when others go on with it."""
_PATIENCE = 60.0


@contextmanager
def telling_status(directory: Path, progress: Progress) -> Iterator[Progress]:
    """Wraps `progress`: from the text pass on it also updates the heartbeat of the run in `directory`."""
    said: dict[str, Any] = {"stage": TEXT, "share": 0.0, "rate": 0.0, "seconds_left": None}
    began: dict[str, tuple[float, float]] = {}

    with ExitStack() as stack:

        def report(stage: str, done: float, total: float | None, note: str) -> None:
            if stage == TEXT and stage not in began:
                stack.enter_context(Heartbeat(directory, SINGLE_PROCESS, lambda: dict(said), patience=_PATIENCE))
            if stage == SEALING:
                stack.close()
            elif began or stage == TEXT:
                now = time.monotonic()
                since, first = began.setdefault(stage, (now, done))
                rate = (done - first) / (now - since) if now > since else 0.0
                said.update(
                    stage=stage,
                    share=done / total if total else 0.0,
                    seconds_left=(total - done) / rate if total and rate else None,
                    rate=rate if stage == TEXT else 0.0,
                )
            progress(stage, done, total, note)

        yield report
