"""What a worker needs at every stage: the run, the model, the text, and its heartbeat."""

import random
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

_SHORTEST, _LONGEST = 0.02, 0.2
"""Seconds between two looks without work, at random, so that workers do not look at the same moment."""


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

    def __post_init__(self) -> None:
        self.device = device_name(self.model.device)
        self.watch = Watch(self.directory, patience=self.run.patience)
        self.tell(device=self.device, stage="starting", tokens=0, batches=0, rate=0.0)

    def tell(self, **said: Any) -> None:
        self.said = {**self.said, **said}

    @staticmethod
    def wait() -> None:
        time.sleep(random.uniform(_SHORTEST, _LONGEST))
