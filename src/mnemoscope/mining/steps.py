"""Work in numbered steps whose results are arrays of a known size: saved now and then, and gone on from.

The passes that follow the pass over the text (removals, predictions) know beforehand what they will ask, so their
state is the answers so far and the number of the next step. Nothing here knows what the steps do.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from mnemoscope.atlas.store import write_bytes
from mnemoscope.errors import Interrupted
from mnemoscope.interruption import CtrlC

Answers = dict[str, NDArray[Any]]


def take_steps(
    step: Callable[[int], None],
    weights: NDArray[np.int64],
    answers: Answers,
    *,
    checkpoint: Path,
    every: float,
    progress: Callable[[float, float], None],
) -> None:
    """Fills `answers` by calling `step(k)` for every k that no earlier run has done, in order.

    `weights [step]` is the work in each step, for the progress. `answers` is changed in place and saved in
    `checkpoint` at most `every` seconds apart; a checkpoint of other arrays is not believed and the work begins anew.
    Raises Interrupted after Ctrl-C with the state saved, StoreFailed.
    """
    done = _taken_up(answers, checkpoint)
    total = float(weights.sum())
    saved = time.monotonic()
    with CtrlC() as ctrl_c:
        for k in range(done, len(weights)):
            progress(float(weights[:k].sum()), total)
            step(k)
            if ctrl_c.pressed or time.monotonic() - saved >= every:
                write_bytes(checkpoint, save({**answers, "next_step": np.array([k + 1])}))
                saved = time.monotonic()
            if ctrl_c.pressed:
                raise Interrupted("stopped after saving; run the same command again to go on from here")
    write_bytes(checkpoint, save({**answers, "next_step": np.array([len(weights)])}))
    progress(total, total)


def _taken_up(answers: Answers, checkpoint: Path) -> int:
    """The first step that is not done; the answers before it are filled in."""
    try:
        found = load_file(checkpoint)
    except (OSError, SafetensorError):
        return 0
    shapes = {name: (array.shape, array.dtype) for name, array in found.items() if name != "next_step"}
    if shapes != {name: (array.shape, array.dtype) for name, array in answers.items()} or "next_step" not in found:
        return 0
    for name, array in answers.items():
        array[...] = found[name]
    return int(found["next_step"][0])


def packed(lengths: NDArray[np.int64], *, area: int, rows: int, apart: NDArray[np.int64] | None = None) -> list[slice]:
    """Neighbouring items cut into batches of at most `rows` items whose padded area is at most `area`.

    One item that is larger than `area` is a batch of its own; items with different `apart` share no batch.
    """
    batches: list[slice] = []
    start, longest = 0, 0
    for k, length in enumerate(lengths.tolist()):
        wider = max(longest, length)
        full = (k + 1 - start) * wider > area or k - start >= rows
        if k > start and (full or (apart is not None and apart[k] != apart[k - 1])):
            batches.append(slice(start, k))
            start, wider = k, length
        longest = wider
    if len(lengths):
        batches.append(slice(start, len(lengths)))
    return batches
