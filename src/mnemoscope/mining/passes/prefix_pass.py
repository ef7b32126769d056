"""The prefixes of the validation text, and what passes share that ask the model about one position of many texts.

`Prefixes` follow from text and plan before any model runs. `plan_prefixes` sorts rows by length, packs them into steps,
and puts what a pass reads off each forward (`read`) at the rows' places among the prefixes.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import Tensor

from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.errors import AtlasDamaged, NotFinite
from mnemoscope.foundation.budget import BUDGET
from mnemoscope.foundation.reading import Reading
from mnemoscope.mining.steps import Answers, PlannedSteps, join_pieces, read_saved, run_piece
from mnemoscope.mining.text.batches import Ints, even_parts
from mnemoscope.mining.text.thread_team import ThreadTeam
from mnemoscope.mining.text.trigger_table import sentences_of
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.batches import pack, pad, sides
from mnemoscope.models.forward.hooks import Block, read_blocks, read_final
from mnemoscope.runs.workers.worker import Stage, Worker

PREFIXES = "prefixes.safetensors"
"""The list of prefixes: of a run in its work folder, of a finished part in its `state/`."""


@dataclass(frozen=True)
class Prefixes:
    """`tokens[0..position]` of each sentence, in order of sentence id; all `[prefix]`."""

    sentence: Ints
    document: Ints
    position: Ints
    next_token: Ints

    def save(self, worker: Worker) -> None:
        """Writes the list to the work folder."""
        worker.save(PREFIXES, save(vars(self)))

    @classmethod
    def of(cls, worker: Worker) -> Self:
        """The list in the work folder."""
        return cls(**read_saved(worker.run.work / PREFIXES, "the list of prefixes"))

    @classmethod
    def load(cls, path: Path) -> Self:
        """The list of a finished part."""
        try:
            return cls(**load_file(path))
        except (OSError, SafetensorError, TypeError) as error:
            raise AtlasDamaged(f"{path} does not hold a part's prefixes ({error}); mine that part again") from error

    @classmethod
    def choose(cls, copy: TokenizedCorpus, *, count: int, seed: int, reading: Reading) -> Self:
        """At most `count` prefixes from random sentences, one of each, at a random position whose state speaks of a
        token there is; where sentences are read whole, of two tokens or more.
        Sentences and documents of a separate validation text are numbered after those of the mined text.
        """
        validation = copy.validation
        if isinstance(validation, TokenizedCorpus):
            text, ids = validation, np.arange(validation.sentences)
            sentences, documents = copy.sentences, int(copy.counts["documents"])
        else:
            text, ids, sentences, documents = copy, np.array(validation, np.int64), 0, 0
        lengths = np.array(text.lengths[ids], np.int64)
        usable = np.flatnonzero(lengths >= reading.first + 2)
        generator = np.random.default_rng((seed, 4))
        drawn = np.sort(generator.permutation(usable)[:count])
        ends = lengths[drawn] - reading.causal
        position = generator.integers(reading.first, ends) if len(drawn) else np.empty(0, np.int64)
        pairs = zip(ids[drawn].tolist(), position.tolist(), strict=True)
        following = np.array([int(text.tokens(sentence)[reading.target(place)]) for sentence, place in pairs], np.int64)
        return cls(ids[drawn] + sentences, text.documents(ids[drawn]) + documents, position, following)


class PlannedPass(Protocol):
    """A pass of planned steps, which writes its tables when all are answered."""

    steps: PlannedSteps

    def write(self) -> Mapping[str, Any] | None:
        """Writes the tables; returns facts for the manifest, if any."""
        ...


PassKind = Callable[[Worker], PlannedPass]
Planned = TypeVar("Planned", bound=PlannedPass)


@dataclass(frozen=True)
class PrefixRows:
    """The prefixes of one forward: their numbers, padded ids, the `column` of each row that is read, and which of the
    steps' items they are.
    """

    prefixes: Ints
    ids: Tensor
    column: Tensor
    items: slice

    def at(self, tensor: Tensor) -> Tensor:
        """A tensor `[batch, position, ...]` at the rows' columns: `[batch, ...]`."""
        return tensor[torch.arange(len(self.column), device=tensor.device), self.column.to(tensor.device)]

    def run(self, model: LanguageModel, keep: Callable[[int, Block], None], layers: Sequence[int]) -> Tensor:
        """Runs the model and gives `keep` each of the layers' blocks; returns the final stream at the columns."""
        return self.at(run_blocks(model, self.ids, keep, layers))


def run_blocks(model: LanguageModel, ids: Tensor, keep: Callable[[int, Block], None], layers: Sequence[int]) -> Tensor:
    """Runs the model and gives `keep` each of the layers' blocks; returns the final stream `[batch, position,
    hidden]`.
    """
    final: list[Tensor] = []
    with read_blocks(model, keep, layers=layers, own_thread=True), read_final(model, final.append, own_thread=True):
        model.backbone(ids)
    return final[0]


def read_prefixes(worker: Worker, *names: str) -> list[Ints]:
    """These columns of the table `prefixes`, in order of prefix."""
    listed = pl.read_parquet(worker.path("prefixes"), columns=["prefix", *names], glob=False).sort("prefix")
    return [listed[name].cast(pl.Int64).to_numpy() for name in names]


def plan_prefixes(
    worker: Worker,
    sentence: Ints,
    position: Ints,
    read: Callable[[PrefixRows], Answers],
    answers: Answers,
    *,
    stage: str,
    unit: str = "prefixes",
    readouts: int = 0,
    weights: int | None = None,
    area: int | None = None,
    seen: bool = False,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> PlannedSteps:
    """Steps that fill `answers [prefix, ...]` with what `read` returns for `tokens[0..position]` of each sentence; of
    a model that reads sentences whole for the sentence with the position masked, or `seen`.
    `read` returns arrays `[row, ...]` by the answers' names, and projects `readouts` vectors of a prefix on the
    vocabulary, each of which takes about as long as a token (SmolLM2). At most `weights` attention weights of one head
    exist at a time: they grow with the square of a prefix's length. A forward has at most `area` tokens, or the plan's
    number.
    """
    model, sentences = worker.model, sentences_of(worker)
    reading = model.reading
    lengths = reading.columns(reading.context_length(position, sentences.lengths_of(sentence)))
    sources = sentences.source_lengths_of(sentence)
    order = np.lexsort((sources, lengths))
    lengths, sources = lengths[order], sources[order]
    apart = sides(model, lengths) * (1 + sources.max(initial=0)) + sources
    cuts = cut_prefixes(lengths, area=area or worker.plan.batch_tokens, weights=weights, apart=apart)

    def step(items: slice) -> None:
        prefixes = order[items]
        places = zip(sentence[prefixes].tolist(), position[prefixes].tolist(), strict=True)
        texts = [reading.context(sentences.of(one), last, seen=seen) for one, last in places]
        ids = pad(texts, model, sentences.sources(sentence[prefixes]))
        rows = PrefixRows(prefixes, ids, torch.from_numpy(reading.column(position[prefixes])), items)
        with torch.inference_mode():
            columns = read(rows)
        for name, values in columns.items():
            answers[name][prefixes] = values

    tokens = [(cut.stop - cut.start) * (int(lengths[cut.stop - 1]) + readouts) for cut in cuts]
    return PlannedSteps(step, cuts, tokens, answers, stage, unit, ThreadTeam.of(model), around)


def check_finite(values: NDArray[Any], sentences: Ints, what: str, layers: Sequence[int]) -> None:
    """Raises NotFinite for a NaN or infinity in values of the final stream `[row]`, or `[row, layer, ...]`."""
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        where = "the final stream" if values.ndim == 1 else f"layer {layers[wrong[0][1]]}"
        raise NotFinite(
            f"{where} has NaN or infinite {what} on sentence {sentences[wrong[0][0]]}; "
            "try --dtype float32, or check the model's weights"
        )


def plan_rows(
    worker: Worker,
    step: Callable[[slice], None],
    lengths: Ints,
    answers: Answers,
    *,
    stage: str,
    unit: str,
    parts: Ints | int = 0,
    forwards: Ints | None = None,
    area: int | None = None,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> PlannedSteps:
    """Steps over rows of these lengths, in order; `parts` ascend. The rows of a step are of one part, on one side of a
    boundary of the model, and of at most `area` tokens, or the plan's number. A row is run so many `forwards` times
    (None: once).
    """
    model, area = worker.model, area or worker.plan.batch_tokens
    cuts = pack(lengths, area=area, rows=area, apart=parts * (1 + len(model.boundaries)) + sides(model, lengths))
    work = lengths if forwards is None else lengths * forwards
    tokens = [(cut.stop - cut.start) * int(work[cut].max()) for cut in cuts]
    return PlannedSteps(step, cuts, tokens, answers, stage, unit, ThreadTeam.of(model), around)


def cut_prefixes(lengths: Ints, *, area: int, weights: int | None = None, apart: Ints | None = None) -> list[slice]:
    """Prefixes, in order of length, in batches of at most 128 that also bound the attention weights."""
    cuts = []
    for items in pack(lengths, area=area, rows=BUDGET.prefixes, apart=apart):
        rows = items.stop - items.start
        squares = rows * int(lengths[items.stop - 1]) ** 2
        cuts += [items] if weights is None else even_parts(items, min(rows, -(-squares // weights)))
    return cuts


def planned_pass(worker: Worker, kind: Callable[[Worker], Planned]) -> Planned:
    return worker.keep(kind, lambda: kind(worker))


def ask(worker: Worker, kind: PassKind, piece: int) -> None:
    """Answers one piece of a pass."""
    steps = planned_pass(worker, kind).steps
    worker.made.append(run_piece(worker.run.work, steps, piece, progress=worker.progress))


def answer(worker: Worker, kind: PassKind, stage: str) -> None:
    """Joins the pieces' answers, writes the tables, notes facts for the manifest. Raises MiningError, StoreFailed."""
    asked = planned_pass(worker, kind)
    halved = join_pieces(worker.run.work, asked.steps)
    worker.note(stage, {**(asked.write() or {}), "halved": halved})


def pass_stages(
    name: str, kind: PassKind, *, table: str | None = None, mined: Literal["always", "asked", "never"] = "always"
) -> tuple[Stage, Stage]:
    """The two stages of a planned pass: its pieces, and joining them."""

    def count(worker: Worker) -> int:
        return len(planned_pass(worker, kind).steps.pieces)

    join = f"{name} together"
    pieces = Stage(name, "piece", lambda worker, piece: ask(worker, kind, piece), table, mined=mined)
    return (
        replace(pieces, count_pieces=count, joined=join),
        Stage(join, "run", lambda worker, _: answer(worker, kind, name), table, mined=mined),
    )
