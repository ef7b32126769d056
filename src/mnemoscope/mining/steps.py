"""The steps of a pass that are known beforehand, cut into pieces of about equal work, and taken in halves when memory
runs out.

A pass after the text plans all its steps (`PlannedSteps`). A piece is a run of neighbouring steps, cut by the plan
alone, which any process takes in any order (`run_piece`); `join_pieces` puts the answers together. Of a piece nothing
is saved before its end. Nothing here knows what the steps do.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from mnemoscope.errors import MiningError
from mnemoscope.foundation.files import write_bytes
from mnemoscope.foundation.progress import Progress, ignore_progress
from mnemoscope.mining.text.batches import even_parts, halves_of, run_in_halves
from mnemoscope.mining.text.thread_team import ThreadTeam

Answers = dict[str, NDArray[Any]]

PIECE_TOKENS = 32_768
"""Tokens through the model, about, in a piece of a pass: half a minute to a minute of SmolLM2 on two cores."""
_HALVED = "halved"
"""In a piece's file beside its answers and their rows: the steps that were halved."""


@dataclass(frozen=True)
class PlannedSteps:
    """Steps known beforehand: `step(items)` fills `answers` for the items of one of the `cuts`, inside `around()`.
    `answers` come from `empty_answers` and are changed in place. `tokens` says how much work each cut is, in tokens
    through the model.
    """

    step: Callable[[slice], None]
    cuts: Sequence[slice]
    tokens: Sequence[int]
    answers: Answers
    stage: str
    unit: str
    team: ThreadTeam
    around: Callable[[], AbstractContextManager[object]] = nullcontext

    @cached_property
    def pieces(self) -> list[range]:
        """The numbers of each piece's cuts: as many as begin within `PIECE_TOKENS`."""
        tokens = np.array(self.tokens, np.int64)
        piece = (np.cumsum(tokens) - tokens) // PIECE_TOKENS
        edges = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(tokens)]
        return [range(first, end) for first, end in pairwise(edges) if first < end]

    def piece_of(self, item: int) -> int:
        """The piece in which an item is taken."""
        return next(n for n, numbers in enumerate(self.pieces) if item < self.cuts[numbers[-1]].stop)

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


def run_piece(work: Path, steps: PlannedSteps, number: int, *, progress: Progress = ignore_progress) -> Path:
    """Takes the steps of piece `number` (0-based) and writes their answers into a file in the folder `work`; drops what
    `steps.answers` held. Two processes may do one piece at the same time.
    """
    steps.forget()
    halved, numbers, end = [], steps.pieces[number], float(steps.cuts[-1].stop)
    with steps.around():
        for k in numbers:
            progress(steps.stage, float(steps.cuts[k].start), end, steps.unit)
            if not steps.take(k):
                halved.append(k)
    progress(steps.stage, float(steps.cuts[numbers[-1]].stop), end, steps.unit)
    arrays: Answers = {_HALVED: np.array(halved, np.int64)}
    for name, array in steps.answers.items():
        rows = np.flatnonzero(~is_unanswered(array).all(tuple(range(1, array.ndim))))
        arrays |= {f"{name} rows": rows, name: array[rows]}
    path = _piece_path(work, steps, number)
    write_bytes(path, save(arrays))
    return path


def join_pieces(work: Path, steps: PlannedSteps) -> list[int]:
    """Fills `steps.answers` from the files of all pieces; returns the numbers of the steps that were halved. Raises
    MiningError for a piece that is missing, and for an entry without an answer.
    """
    halved: list[int] = []
    steps.forget()
    for number in range(len(steps.pieces)):
        saved = read_saved(_piece_path(work, steps, number), f"piece {number + 1} of the {steps.stage}")
        halved += saved[_HALVED].tolist()
        for name, array in steps.answers.items():
            rows, part = saved[f"{name} rows"], saved[name]
            array[rows] = np.where(is_unanswered(part), array[rows], part)
    for name, array in steps.answers.items():
        if empty := int(is_unanswered(array).sum()):
            raise MiningError(f"{empty} of {array.size} entries of {name} were never filled by the {steps.stage}")
    return halved


def read_saved(path: Path, what: str) -> Answers:
    """The arrays of a file that an earlier unit of this run has made."""
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        raise MiningError(f"{what} is missing ({path}); run the same command again, which makes it") from None


def _piece_path(work: Path, steps: PlannedSteps, number: int) -> Path:
    return work / f"{steps.stage.replace(' ', '-')}-{number + 1}.safetensors"
