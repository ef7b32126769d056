"""The skeleton of every pass that asks the model about one position in each of many texts.

Rows are sorted by length and packed; what is read of each is kept where it stands among the prefixes. `plan_prefixes`
makes steps of that, which `run_piece` takes, saves and resumes, and `join_pieces` puts together. A pass says what it
reads off a forward (`read`), and makes its table of the answers.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.steps import Answers, PlannedSteps, digest, join_pieces, run_piece
from mnemoscope.mining.text.batches import even_parts, pack, pad
from mnemoscope.mining.text.thread_team import ThreadTeam
from mnemoscope.models.proof.company import sides

ROWS = 128
"""Prefixes in one forward: bounds the rows of scores that exist at one time."""
SCORES = 1 << 24
"""Scores of one stream that exist at one time in a pass that reads streams one by one."""

Ints = NDArray[np.int64]


class PlannedPass(Protocol):
    """A pass of planned steps, which writes its tables once all was answered."""

    steps: PlannedSteps

    def __init__(self, run: MiningRun) -> None: ...

    def write(self) -> Mapping[str, Any]:
        """Writes the tables; returns what the manifest says of them."""
        ...


@dataclass(frozen=True)
class PrefixBatch:
    """The prefixes of one forward: their places among all, padded ids, and the `column` of each row that is read."""

    chosen: Ints
    ids: Tensor
    column: Tensor

    def at(self, tensor: Tensor) -> Tensor:
        """A tensor `[batch, position, ...]` at the rows' columns: `[batch, ...]`."""
        return tensor[torch.arange(len(self.column), device=tensor.device), self.column.to(tensor.device)]


def plan_prefixes(
    run: MiningRun,
    sentence: Ints,
    position: Ints,
    read: Callable[[PrefixBatch], Mapping[str, NDArray[Any]]],
    answers: Answers,
    *,
    stage: str,
    inputs: Sequence[object],
    weights: int | None = None,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> PlannedSteps:
    """Steps that fill `answers [prefix, ...]` with what `read` says of `tokens[0..position]` of each sentence.

    `read` returns arrays `[row, ...]` by the answers' names. `inputs` are what it reads beside the sentences. At most
    `weights` attention weights of one head exist at one time: they grow with the square of a prefix's length.
    """
    model, sentences = run.model, run.sentences
    extra = model.beginning.length
    order = np.argsort(position, kind="stable")
    lengths = position[order] + 1 + extra
    cuts = cut_prefixes(lengths, area=run.plan.batch_tokens, weights=weights, apart=sides(model, lengths))

    def step(items: slice) -> None:
        chosen = order[items]
        places = zip(sentence[chosen].tolist(), position[chosen].tolist(), strict=True)
        ids = pad([sentences.of(one)[: last + 1] for one, last in places], model)
        with torch.inference_mode():
            found = read(PrefixBatch(chosen, ids, torch.from_numpy(position[chosen] + extra)))
        for name, values in found.items():
            answers[name][chosen] = values

    return PlannedSteps(
        step, cuts, answers, stage=stage, unit="prefixes", team=ThreadTeam.of(model), around=around,
        inputs=digest(run.plan.hash(), sentence, position, *sentences.arrays(), *inputs),
    )  # fmt: skip


def cut_prefixes(
    lengths: Ints, *, area: int, weights: int | None = None, apart: Ints | None = None
) -> list[slice]:
    """The prefixes, in order of length, in batches of at most ROWS that also bound the attention weights."""
    cuts = []
    for items in pack(lengths, area=area, rows=ROWS, apart=apart):
        rows = items.stop - items.start
        squares = rows * int(lengths[items.stop - 1]) ** 2
        cuts += [items] if weights is None else even_parts(items, min(rows, -(-squares // weights)))
    return cuts


def ask(run: MiningRun, kind: type[PlannedPass], piece: int) -> None:
    """Answers one piece of a pass; raises Interrupted, NotFinite, StoreFailed."""
    run_piece(run.context, _pass_of(run, kind).steps, piece, of=run.pieces)


def answer(run: MiningRun, kind: type[PlannedPass], stage: str) -> None:
    """Puts the answers of all pieces together, writes the pass's tables, and notes what the manifest says of them.

    Raises MiningError where a piece is missing, StoreFailed.
    """
    asked = _pass_of(run, kind)
    halved = join_pieces(run.context, asked.steps, of=run.pieces)
    run.note(stage, {**asked.write(), "halved": halved})


def _pass_of(run: MiningRun, kind: type[PlannedPass]) -> PlannedPass:
    return run.keep(kind, lambda: kind(run))
