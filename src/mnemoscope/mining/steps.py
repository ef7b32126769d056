"""A run's work in steps: where it works, whom it tells, how it is saved and gone on from, how it makes do with memory.

`RunContext` is what every pass needs and no plan holds. The passes that follow the pass over the text (removals,
predictions) know beforehand what they will ask (`PlannedSteps`), so their state is the answers so far and the number of
the next step: `run_checkpointed`. Nothing here knows what the steps do.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mnemoscope.atlas.manifest import WORK
from mnemoscope.errors import MiningError
from mnemoscope.foundation.files import write_bytes
from mnemoscope.foundation.heap import HeapTrimmer
from mnemoscope.foundation.progress import Checkpoints, Progress, ignore_progress
from mnemoscope.mining.text.batches import even_parts, halves_of, run_in_halves
from mnemoscope.mining.text.thread_team import ThreadTeam

Answers = dict[str, NDArray[Any]]

CHECKPOINT = "state.safetensors"
"""The state of the pass over the text: in the work folder while that goes on, in `state/` of a finished part."""


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


def digest(*parts: object) -> str:
    """The sha256, in hex, of arrays, tensors on a CPU and plain values, in this order."""
    found = hashlib.sha256()
    for part in parts:
        array = np.asarray(part)
        found.update(f"{array.dtype} {array.shape} ".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


@dataclass(frozen=True)
class PlannedSteps:
    """Steps that are known before the first is taken: `step(items)` fills `answers` for the items of one of the `cuts`.

    `answers` come as `empty_answers`, and are changed in place. `inputs` is a digest of all that the steps read: what
    was saved of other inputs or other arrays is not believed.
    """

    step: Callable[[slice], None]
    cuts: Sequence[slice]
    answers: Answers
    stage: str
    unit: str
    plan: str
    inputs: str
    team: ThreadTeam

    def take(self, number: int) -> bool:
        """Takes one cut, of whose items the threads of the team take a part each; whether memory held it whole.

        What does not fit is taken in halves; raises MiningError for an item that does not fit alone.
        """
        return run_in_halves(self._share_out, self.cuts[number], halves_of)

    def _share_out(self, items: slice) -> None:
        self.team.run([partial(self.step, part) for part in even_parts(items, self.team.size)])

    def forget(self) -> None:
        """Empties all answers."""
        for array in self.answers.values():
            array[...] = empty_answers(array.shape, array.dtype)

    def check_filled(self, *saved: Path) -> None:
        """Raises MiningError, and forgets what was `saved`, where an answer is still what no answer can be."""
        for name, array in self.answers.items():
            empty = is_unanswered(array)
            if empty.any():
                for path in saved:
                    path.unlink(missing_ok=True)
                raise MiningError(
                    f"{int(empty.sum())} of {array.size} entries of {name} were never filled; "
                    "run the same command again, which makes them anew"
                )


def empty_answers(shape: int | tuple[int, ...], kind: DTypeLike) -> NDArray[Any]:
    """Room for answers of which none is there: NaN, or -1 in integers."""
    return np.full(shape, np.nan if np.dtype(kind).kind == "f" else -1, kind)


def is_unanswered(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Which entries of an array of answers no step has filled."""
    return np.isnan(array) if array.dtype.kind == "f" else array < 0


def run_checkpointed(context: RunContext, steps: PlannedSteps) -> list[int]:
    """Takes every cut that no earlier run has taken, in order.

    The answers are saved now and then in the work folder, under the names of the stage and the plan; where a checkpoint
    is not believed, the work begins anew. The numbers of the steps that were taken in halves are returned. Raises
    Interrupted after Ctrl-C with the state saved, StoreFailed, MiningError (an item that does not fit alone, an answer
    that no step gave).
    """
    cuts, stage, unit = steps.cuts, steps.stage, steps.unit
    checkpoint = context.work / f"{stage}-{steps.plan[:16]}.safetensors"
    state = {**steps.answers, "halved": np.zeros(len(cuts), bool), "next_step": np.zeros(1, np.int64)}
    _resume(state, checkpoint, steps.inputs)
    total = float(cuts[-1].stop) if cuts else 0.0

    def save_state() -> None:
        write_bytes(checkpoint, save(state, {"inputs": steps.inputs}))

    with Checkpoints(save_state, every=context.checkpoint_every) as checkpoints:
        for k in range(int(state["next_step"][0]), len(cuts)):
            context.progress(stage, float(cuts[k].start), total, unit)
            state["halved"][k] = not steps.take(k)
            context.heap.check()
            state["next_step"][0] = k + 1
            checkpoints.step_done()
    steps.check_filled(checkpoint)
    save_state()
    context.progress(stage, total, total, unit)
    context.end_stage(stage)
    return np.flatnonzero(state["halved"]).tolist()


def _resume(state: Answers, checkpoint: Path, inputs: str) -> None:
    """Fills the state from the checkpoint, if that is one of the same inputs and arrays."""
    found = read_saved(checkpoint, inputs)
    if found is not None and _shapes(found) == _shapes(state):
        for name, array in state.items():
            array[...] = found[name]


def read_saved(path: Path, inputs: str) -> Answers | None:
    """The arrays that were saved at `path`; None where there is nothing that was made of these inputs."""
    try:
        with safe_open(path, "np") as file:
            stated = (file.metadata() or {}).get("inputs")
            return {name: file.get_tensor(name) for name in file.keys()} if stated == inputs else None  # noqa: SIM118
    except (OSError, SafetensorError):
        return None


def _shapes(arrays: Answers) -> dict[str, Any]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}
