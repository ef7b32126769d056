"""A run's work in steps that are saved and resumed, and taken in halves when memory runs out.

`run_checkpointed` is the one loop that saves now and then: of the text, of passes, of lenses. A pass after the text
plans all its steps (`PlannedSteps`). A piece is a run of neighbouring steps, which any process takes in any order
(`run_piece`); `join_pieces` puts the answers together. Nothing here knows what the steps do.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
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
from mnemoscope.foundation.progress import Checkpoints, Progress, ignore_progress
from mnemoscope.mining.text.batches import even_parts, halves_of, run_in_halves
from mnemoscope.mining.text.thread_team import ThreadTeam

Answers = dict[str, NDArray[Any]]

CHECKPOINT = "state.safetensors"
"""The state of the pass over the text, in the work folder; of a finished part in `state/`."""
_ROWS, _HALVED, _DONE = "rows", "halved", "done"
"""In a piece's file beside its answers: their places along the first axis, the steps halved, the number of steps taken.
"""


@dataclass(frozen=True)
class RunContext:
    """One run in its locked folder; `checkpoint_every` is in seconds."""

    directory: Path
    checkpoint_every: float = 60.0
    progress: Progress = ignore_progress
    began: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)
    """Of each stage that has ended, in order."""

    @property
    def work(self) -> Path:
        """Holds the tokenized text and saved states until the atlas is sealed."""
        return self.directory / WORK

    def end_stage(self, stage: str) -> None:
        self.seconds[stage] = time.monotonic() - self.began - sum(self.seconds.values())


def run_checkpointed(
    context: RunContext, numbers: Sequence[int], take: Callable[[int], None], save_state: Callable[[], None]
) -> None:
    """Takes the steps in order, saves now and then and at the end."""
    with Checkpoints(save_state, every=context.checkpoint_every) as checkpoints:
        for number in numbers:
            take(number)
            checkpoints.step_done()
    save_state()


def digest(*parts: object) -> str:
    """The sha256, in hex, of arrays, CPU tensors and plain values, in this order."""
    sha = hashlib.sha256()
    for part in parts:
        array = np.asarray(part)
        sha.update(f"{array.dtype} {array.shape} ".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


@dataclass(frozen=True)
class PlannedSteps:
    """Steps known beforehand: `step(items)` fills `answers` for the items of one of the `cuts`, inside `around()`.
    `answers` come from `empty_answers`, share their first axis and are changed in place. `inputs` is a digest of all
    that the steps read: saved answers of other inputs are ignored.
    """

    step: Callable[[slice], None]
    cuts: Sequence[slice]
    answers: Answers
    stage: str
    unit: str
    inputs: str
    team: ThreadTeam
    around: Callable[[], AbstractContextManager[object]] = nullcontext

    def take(self, number: int) -> bool:
        """Takes one cut, shared among the team; returns whether memory held it whole."""

        def share_out(items: slice) -> None:
            self.team.run([partial(self.step, part) for part in even_parts(items, self.team.size)])

        return run_in_halves(share_out, self.cuts[number], halves_of)

    def forget(self) -> None:
        for array in self.answers.values():
            array[...] = empty_answers(array.shape, array.dtype)


def empty_answers(shape: int | tuple[int, ...], kind: DTypeLike) -> NDArray[Any]:
    """NaN, or -1 in integers: no answer has these values."""
    return np.full(shape, np.nan if np.dtype(kind).kind == "f" else -1, kind)


def is_unanswered(array: NDArray[Any]) -> NDArray[np.bool_]:
    return np.isnan(array) if array.dtype.kind == "f" else array < 0


def run_piece(context: RunContext, steps: PlannedSteps, number: int = 0, *, of: int = 1) -> None:
    """Takes the steps of piece `number` (0-based) that no earlier run has taken, and saves their answers; drops what
    `steps.answers` held. Two processes may do one piece at the same time.
    """
    numbers, path, inputs = _piece(context, steps, number, of)
    cuts = steps.cuts[numbers.start : numbers.stop] or [slice(0, 0)]
    begin, end = float(cuts[0].start), float(cuts[-1].stop)
    steps.forget()
    saved = read_saved(path, inputs)
    done = 0 if saved is None else int(saved[_DONE][0])
    if saved is not None and done == len(numbers):
        return
    halved = [] if saved is None else _fill(steps.answers, saved)

    def take(k: int) -> None:
        nonlocal done
        context.progress(steps.stage, float(steps.cuts[k].start) - begin, end - begin, steps.unit)
        if not steps.take(k):
            halved.append(k)
        done = k + 1 - numbers.start

    def save_piece() -> None:
        there = [(~is_unanswered(one)).any(axis=tuple(range(1, one.ndim))) for one in steps.answers.values()]
        rows = np.flatnonzero(np.logical_or.reduce(there))
        arrays = {name: array[rows] for name, array in steps.answers.items()}
        arrays |= {_ROWS: rows, _HALVED: np.array(halved, np.int64), _DONE: np.array([done], np.int64)}
        write_bytes(path, save(arrays, {"inputs": inputs}))

    with steps.around():
        run_checkpointed(context, numbers[done:], take, save_piece)
    context.progress(steps.stage, end - begin, end - begin, steps.unit)


def join_pieces(context: RunContext, steps: PlannedSteps, *, of: int = 1) -> list[int]:
    """Fills `steps.answers` from the files of all pieces; returns the numbers of the steps that were halved. Raises
    MiningError for a piece that is missing, unfinished or of other inputs, and for an entry without an answer.
    """
    halved: list[int] = []
    steps.forget()
    pieces = [_piece(context, steps, number, of) for number in range(of)]
    for number, (numbers, path, inputs) in enumerate(pieces, 1):
        saved = read_saved(path, inputs)
        if saved is None or saved[_DONE][0] != len(numbers):
            raise missing(f"piece {number} of {of} of the {steps.stage}", path)
        halved += _fill(steps.answers, saved)
    for name, array in steps.answers.items():
        if empty := int(is_unanswered(array).sum()):
            for _, path, _ in pieces:
                path.unlink(missing_ok=True)
            raise MiningError(
                f"{empty} of {array.size} entries of {name} were never filled; "
                "run the same command again, which makes them anew"
            )
    return halved


def missing(what: str, path: Path) -> MiningError:
    """The error for something that an earlier step of this run should have made."""
    return MiningError(f"{what} is missing, or is of another run ({path}); run the same command again, which makes it")


def read_saved(path: Path, inputs: str) -> Answers | None:
    """The arrays saved at `path`; None unless they were made of these inputs."""
    try:
        with safe_open(path, "np") as file:
            stated = (file.metadata() or {}).get("inputs")
            return {name: file.get_tensor(name) for name in file.keys()} if stated == inputs else None  # noqa: SIM118
    except (OSError, SafetensorError):
        return None


def _fill(answers: Answers, saved: Answers) -> list[int]:
    for name, array in answers.items():
        array[saved[_ROWS]] = saved[name]
    return list(saved[_HALVED].tolist())


def _piece(context: RunContext, steps: PlannedSteps, number: int, of: int) -> tuple[range, Path, str]:
    """The numbers of a piece's steps, its file, and the digest that this must state."""
    kinds = [(name, array.dtype.str, array.shape) for name, array in sorted(steps.answers.items())]
    path = context.work / f"{steps.stage.replace(' ', '-')}-{number + 1}-of-{of}.safetensors"
    count = len(steps.cuts)
    numbers = range(number * count // of, (number + 1) * count // of)
    return numbers, path, digest(steps.inputs, number, of, str(kinds))
