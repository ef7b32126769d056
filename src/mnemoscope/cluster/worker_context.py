"""What a worker needs at every stage: the run, the model, the text, and its heartbeat."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnemoscope.cluster.coordination.heartbeats import Watch
from mnemoscope.cluster.shared_run import SharedRun
from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.kernels.devices import device_name
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.models import LanguageModel

_SHORTEST, _LONGEST, _LONGER = 0.02, 0.25, 1.3
"""Seconds between two looks without work: the first, the longest, and the growth factor."""


@dataclass
class WorkerContext:
    """The state of one worker; `name` is new whenever it was taken for dead and begins again."""

    directory: Path
    name: str
    plan: MiningPlan
    run: SharedRun
    model: LanguageModel
    copy: TokenizedCorpus
    stop: Callable[[], bool]
    """Whether it has been asked to save and end."""
    said: dict[str, Any] = field(default_factory=dict)
    """The content of its heartbeat."""
    _wait: float = _SHORTEST

    def __post_init__(self) -> None:
        self.device = device_name(self.model.device)
        self.watch = Watch(self.directory, patience=self.run.patience)
        self.tell(device=self.device, stage="starting", tokens=0, batches=0, rate=0.0)

    def tell(self, **said: Any) -> None:
        self.said = {**self.said, **said}

    def wait(self) -> None:
        """Sleeps, longer each time until `was_busy` is called."""
        time.sleep(self._wait)
        self._wait = min(_LONGEST, self._wait * _LONGER)

    def was_busy(self) -> None:
        self._wait = _SHORTEST
