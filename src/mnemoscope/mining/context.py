"""Where a run of mining works, how often it saves, and whom it tells: what no plan holds, and every pass needs."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from mnemoscope.atlas.manifest import WORK
from mnemoscope.progress import Progress, ignore_progress

CHECKPOINT = "state.safetensors"
"""The state of the pass over the text: in the work folder while that goes on, in `state/` of a finished part."""


class StageTimes:
    """The seconds that each stage of a run took, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.monotonic()

    def end(self, stage: str) -> None:
        """Notes that a stage ends here; the next one begins."""
        now = time.monotonic()
        self.seconds[stage] = now - self._began
        self._began = now


@dataclass(frozen=True)
class RunContext:
    """One run in its locked folder: `checkpoint_every` in seconds, `progress` told how far every pass is."""

    directory: Path
    checkpoint_every: float = 60.0
    progress: Progress = ignore_progress
    times: StageTimes = field(default_factory=StageTimes)

    @property
    def work(self) -> Path:
        """Where the working copy of the text and the saved states lie until the atlas is sealed."""
        return self.directory / WORK
