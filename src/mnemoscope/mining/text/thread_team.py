"""Threads that run one model side by side, each on its own part of a batch.

A forward pass is many short operations. Threads that share each operation wait for one another at its end, which costs
small models a third of their speed, and nearly all of it on a busy machine (docs/log). So every thread runs the whole
model over some rows. Small matrices are then multiplied in another order of sums, which can change last bits: the plan
holds the number of threads.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Self, TypeVar

import torch

from mnemoscope.models import LanguageModel
from mnemoscope.models.modules.observed import with_source
from mnemoscope.models.modules.offloading import may_be_shared

Found = TypeVar("Found")

MOST = 8
"""Threads of a team, which wait for one another in Python; cores are divided evenly."""
_LIBRARIES = ("mnemoscope", "torch", "transformers")
"""Packages whose modules are known to be safe; modules of others are run by one thread."""
_BY_LENGTH = ("dynamic", "longrope")
"""Rotary embeddings that the module recomputes for every length of input."""


class ThreadTeam:
    """Threads between which torch's cores are divided; a team of one is the caller's own thread."""

    def __init__(self, size: int) -> None:
        self._cores = torch.get_num_threads()
        self.size = size
        self._pool: ThreadPoolExecutor | None = None

    @classmethod
    def of(cls, model: LanguageModel) -> Self:
        """A thread for each core on a CPU; one elsewhere and for models that cannot be run side by side."""
        side_by_side = model.device.type == "cpu" and runs_side_by_side(model)
        return cls.of_cores(model.device) if side_by_side else cls(1)

    @classmethod
    def of_cores(cls, device: torch.device) -> Self:
        """The same for work that needs no model."""
        return cls(min(torch.get_num_threads(), MOST) if device.type == "cpu" else 1)

    def run(self, tasks: Sequence[Callable[[], Found]]) -> list[Found]:
        """Runs all tasks, at most `size` at the same time; then raises the error of the first that failed, or returns
        what they return. Meanwhile the model may be used in these threads only, with hooks set with `own_thread`.
        """
        if len(tasks) <= 1 or self.size == 1:
            return [task() for task in tasks]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.size, thread_name_prefix="read")
        begun = [self._pool.submit(self._run_one, task) for task in tasks]
        try:
            wait(begun)
        finally:  # also after Ctrl-C
            wait(begun)
            torch.set_num_threads(self._cores)
        return [one.result() for one in begun]

    def _run_one(self, task: Callable[[], Found]) -> Found:
        # OpenMP has a number for each thread, the matrix library one for the process.
        torch.set_num_threads(max(1, self._cores // self.size))
        return task()


def runs_side_by_side(model: LanguageModel) -> bool:
    """Whether threads may run the model at the same time: all modules are of known kinds, none recomputes its rotary
    embedding by length, and a short forward leaves every module as it was.
    """
    modules = list(model.anatomy.model.modules())
    if not all(map(_is_known, modules)):
        return False
    before = _contents(modules)
    try:
        ids = torch.zeros(1, min(3, model.sizes.context), dtype=torch.long, device=model.device)
        model.backbone(with_source(ids, model.anatomy.model))
    except (RuntimeError, MemoryError):  # the pass itself reports it
        return False
    after = _contents(modules)
    return before.keys() == after.keys() and all(after[place] is value for place, value in before.items())


def _is_known(module: torch.nn.Module) -> bool:
    package, _, rest = type(module).__module__.partition(".")
    turns = str(getattr(module, "rope_type", ""))
    by_length = any(kind in turns for kind in _BY_LENGTH)
    return package in _LIBRARIES and not rest.startswith("_dynamo") and not by_length and may_be_shared(module)


def _contents(modules: Sequence[torch.nn.Module]) -> dict[tuple[int, str], object]:
    return {
        (number, name): value
        for number, module in enumerate(modules)
        for name, value in (*vars(module).items(), *module._buffers.items())
    }
