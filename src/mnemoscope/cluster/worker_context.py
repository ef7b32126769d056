"""What a worker has at hand whatever it does: the run, the model, the text, and how it tells others of itself."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnemoscope.cluster.heartbeats import Watch
from mnemoscope.cluster.shared_run import SharedRun
from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.kernels.devices import device_name
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.models import LanguageModel

_SHORTEST, _LONGEST, _LONGER = 0.02, 0.25, 1.3
"""Seconds between two looks where there is nothing to do: the first time, at most, and by which factor they grow."""


@dataclass
class WorkerContext:
    """One worker's own things; `name` is new whenever it was taken for dead and begins again."""

    directory: Path
    name: str
    plan: MiningPlan
    run: SharedRun
    model: LanguageModel
    copy: TokenizedCorpus
    stop: Callable[[], bool]
    """Whether it has been asked to save and end."""
    said: dict[str, Any] = field(default_factory=dict)
    """What its heartbeat tells."""
    _wait: float = _SHORTEST

    def __post_init__(self) -> None:
        self.device = device_name(self.model.device)
        self.watch = Watch(self.directory, patience=self.run.patience)
        self.tell(device=self.device, stage="starting", tokens=0, batches=0, rate=0.0)

    def tell(self, **said: Any) -> None:
        """Has the next heartbeat say this, too."""
        self.said = {**self.said, **said}

    def wait(self) -> None:
        """Sleeps a moment, a longer one each time until there was something to do."""
        time.sleep(self._wait)
        self._wait = min(_LONGEST, self._wait * _LONGER)

    def was_busy(self) -> None:
        """Notes that there was something to do."""
        self._wait = _SHORTEST
