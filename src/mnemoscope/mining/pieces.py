"""The steps of a pass cut into pieces, which any process takes in any order, and whose answers are put together.

A piece is a run of neighbouring steps. Its file in the work folder holds the answers that its steps gave and no others.
Every step is taken as in a run that takes all of them, so its answers are the same bytes.
"""

from pathlib import Path

import numpy as np
from safetensors.numpy import save

from mnemoscope.errors import MiningError
from mnemoscope.foundation.files import write_bytes
from mnemoscope.mining.steps import Answers, PlannedSteps, RunContext, digest, is_unanswered, read_saved

_ROWS, _HALVED = "rows", "halved"
"""Entries of a piece's file beside its answers: their places along the first axis, and the steps that were halved."""


def run_piece(context: RunContext, steps: PlannedSteps, number: int, *, of: int) -> None:
    """Takes the steps of one of so many pieces (0-based) and saves their answers, unless that is done.

    All that `steps.answers` held is forgotten. Raises StoreFailed, MiningError (an item that does not fit alone).
    """
    path, inputs = _file(context, steps, number), _inputs(steps, number, of)
    if read_saved(path, inputs) is not None:
        return
    steps.forget()
    mine = range(number * len(steps.cuts) // of, (number + 1) * len(steps.cuts) // of)
    items = [steps.cuts[k] for k in mine]
    begin, end = (float(items[0].start), float(items[-1].stop)) if items else (0.0, 0.0)
    halved = []
    for k in mine:
        context.progress(steps.stage, steps.cuts[k].start - begin, end - begin, steps.unit)
        if not steps.take(k):
            halved.append(k)
        context.heap.check()
    context.progress(steps.stage, end - begin, end - begin, steps.unit)
    rows = _answered_rows(steps.answers)
    found = {name: array[rows] for name, array in steps.answers.items()}
    found |= {_ROWS: rows, _HALVED: np.array(halved, np.int64)}
    write_bytes(path, save(found, {"inputs": inputs}))


def join_pieces(context: RunContext, steps: PlannedSteps, *, of: int) -> list[int]:
    """Fills `steps.answers` from the files of all pieces; returns the numbers of the steps that were halved.

    Raises MiningError for a piece that is missing or of other inputs, and for an answer that no step gave.
    """
    halved: list[int] = []
    steps.forget()
    paths = [_file(context, steps, number) for number in range(of)]
    for number, path in enumerate(paths):
        found = read_saved(path, _inputs(steps, number, of))
        if found is None:
            raise MiningError(
                f"piece {number + 1} of {of} of the {steps.stage} is missing, or is one of another run ({path}); "
                "run the same command again, which makes it"
            )
        for name, array in steps.answers.items():
            array[found[_ROWS]] = found[name]
        halved += found[_HALVED].tolist()
    steps.check_filled(*paths)
    return halved


def _file(context: RunContext, steps: PlannedSteps, number: int) -> Path:
    return context.work / f"{steps.stage}-piece-{number}.safetensors"


def _inputs(steps: PlannedSteps, number: int, of: int) -> str:
    """What the file of a piece must have been made of: another number of pieces cuts otherwise."""
    return digest(steps.inputs, number, of)


def _answered_rows(answers: Answers) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The places along the first axis, which all arrays share, at which any array has an answer."""
    there = [(~is_unanswered(array)).any(axis=tuple(range(1, array.ndim))) for array in answers.values()]
    return np.flatnonzero(np.logical_or.reduce(there))
