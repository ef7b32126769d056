"""Computes answers, stores them as analyses/QUESTION.json and QUESTION.parquet, and reads them.

The same atlas gives the same bytes. A stored answer is used only if analyses/manifest.json has its hash and it counts
the present judgements.
"""

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import polars as pl

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.derived_manifest import record_hashes, write_beside
from mnemoscope.atlas.manifest import ANALYSES
from mnemoscope.atlas.schema import ANSWER_COLUMNS, QUESTIONS, TABLES
from mnemoscope.atlas.store import write_free_table
from mnemoscope.atlas.tables import rebuild_command
from mnemoscope.errors import AtlasUnfinished, ModelUnsupported, StoreFailed
from mnemoscope.foundation.files import write_json
from mnemoscope.foundation.processes import refuse_forked
from mnemoscope.foundation.progress import Progress, ignore_progress
from mnemoscope.patterns import write_patterns
from mnemoscope.questions.question import EMPTY, Answer
from mnemoscope.questions.registry import answer, load_question
from mnemoscope.questions.sources import is_switched_off, model_layers, plan_seed, projection, refuse_part

Document = dict[str, Any]
_Result = TypeVar("_Result")

COMPOSITIONS = "refinement_events"


@dataclass(frozen=True)
class AnswerFiles:
    document: Document
    table: pl.DataFrame
    cases: pl.DataFrame | None


@dataclass(frozen=True)
class Answers:
    """The documents written, and the reason for each question without an answer."""

    documents: dict[str, Document]
    unanswered: dict[str, str]


@dataclass(frozen=True)
class LoadedAnswers:
    """All answers in the paper's order; `made` lists those computed by this call."""

    answers: dict[str, Answer]
    cases: pl.DataFrame | None
    made: tuple[str, ...]
    atlas: Atlas


def make_answer(atlas: Atlas, question: str) -> AnswerFiles:
    # The hash comes before the answer, so that a judgement saved in between makes the answer outdated.
    declared, judgements = load_question(question, atlas.reading.words), judgements_hash(atlas, question)
    table = answer(atlas, question)
    rows = table.select([field.name for field in ANSWER_COLUMNS])
    document = {
        "question": question,
        "projections": projection(atlas, *declared.projections),
        "interval": declared.interval.format(seed=plan_seed(atlas)),
        "paper": declared.paper.document(),
        "layers": rows.filter(pl.col("layer").is_not_null()).to_dicts(),
        "totals": rows.filter(pl.col("layer").is_null()).drop("layer").to_dicts(),
        "made_by": table.made_by,
        **({} if judgements is None else {"judgements": judgements}),
    }
    return AnswerFiles(document, table, declared.cases(atlas) if declared.cases else None)


def judgements_hash(atlas: Atlas, question: str) -> str | None:
    """The sha256 of the present judgements; None without any."""
    read = load_question(question).judgements
    rows = None if read is None else read(atlas)
    return None if rows is None else hashlib.sha256(json.dumps(rows.rows(), default=str).encode()).hexdigest()


def write(atlas: Atlas, questions: Sequence[str]) -> dict[str, Document]:
    """Writes answers into the atlas and returns their documents; computes all before it writes the first."""
    answers = {question: make_answer(atlas, question) for question in questions}
    _store(atlas, answers)
    return {question: made.document for question, made in answers.items()}


def _store(atlas: Atlas, answers: Mapping[str, AnswerFiles]) -> None:
    origin = atlas.manifest.provenance
    with write_beside(atlas):
        for question, made in answers.items():
            paths = answer_files(question)
            document, table, *cases = map(atlas.local, paths)
            write_json(document, made.document)
            rows = made.table.to_arrow()
            write_free_table(table, rows, name=question, provenance=origin, columns=ANSWER_COLUMNS)
            if made.cases is not None:
                rows = made.cases.to_arrow()
                write_free_table(cases[0], rows, name=f"{question}.cases", provenance=origin)
            record_hashes(atlas, ANALYSES, paths)


def answer_files(question: str) -> list[str]:
    endings = ("json", "parquet", *(["cases.parquet"] if load_question(question).cases else []))
    return [f"{ANALYSES}/{question}.{ending}" for ending in endings]


def write_all(atlas: Atlas, *, progress: Progress = ignore_progress) -> Answers:
    """Answers every question whose tables exist. Raises AtlasUnfinished if there is none, and what `write` raises."""
    atlas = with_patterns(atlas, QUESTIONS, progress=progress)
    written, unanswered = _try_each(QUESTIONS, lambda question: write(atlas, [question])[question], progress)
    progress("questions", len(QUESTIONS), len(QUESTIONS), "questions")
    if not written:
        raise AtlasUnfinished(next(iter(unanswered.values())))
    return Answers(written, unanswered)


def read_only_answers(atlas: Atlas, questions: Sequence[str], *, anew: bool = False) -> Answers:
    """The stored answers of an atlas that cannot be written."""
    refuse_part(atlas)
    stored = _read_answers(atlas)
    lacking = [question for question in questions if anew or not _is_current(atlas, question, stored[question])]
    if made := [question for question in lacking if not lacking_table(atlas, question)]:
        raise StoreFailed(
            f"{atlas.path} cannot be written, so no answer to {made[0]} can be stored; read all answers with"
            f" `mnemoscope report {shlex.quote(str(atlas.path))} --out DIR`"
        )
    unanswered = _try_each(lacking, lambda question: make_answer(atlas, question), ignore_progress)[1]
    documents = {one: files.document for one in questions if one not in unanswered and (files := stored[one])}
    if not documents:
        raise AtlasUnfinished(next(iter(unanswered.values())))
    return Answers(documents, unanswered)


def _try_each(
    questions: Sequence[str], make: Callable[[str], _Result], progress: Progress
) -> tuple[dict[str, _Result], dict[str, str]]:
    made: dict[str, _Result] = {}
    unanswered: dict[str, str] = {}
    for done, question in enumerate(questions):
        progress("questions", done, len(questions), "questions")
        try:
            made[question] = make(question)
        except (AtlasUnfinished, ModelUnsupported) as lacking:
            unanswered[question] = str(lacking)
    return made, unanswered


def with_patterns(
    atlas: Atlas, questions: Sequence[str], *, anew: bool = False, progress: Progress = ignore_progress
) -> Atlas:
    """Finds patterns if `anew`, or if a question needs them and patterns.parquet is missing or without its hash in the
    manifest; returns the atlas, reopened if so.
    """
    refuse_part(atlas)
    needed = any(load_question(question).needs_patterns for question in questions)
    if not anew and not (needed and atlas.read_listed(TABLES["patterns"].path(), atlas.made_later(ANALYSES)) is None):
        return atlas
    with write_beside(atlas):
        write_patterns(atlas, progress=progress)
    return open_atlas(atlas.path)


def outdated_by_patterns(atlas: Atlas) -> tuple[str, ...]:
    dependent = (question for question in QUESTIONS if load_question(question).needs_patterns)
    return tuple(question for question in dependent if atlas.local(answer_files(question)[0]).is_file())


def load_answers(atlas: Atlas, *, keep: bool = True, progress: Progress = ignore_progress) -> LoadedAnswers:
    """Every answer; missing and outdated ones are computed and stored. With `keep` False, one that cannot be stored
    (read-only folder) is still returned.
    """
    stored = _read_answers(atlas)
    without = [question for question in stored if lacking_table(atlas, question)]
    outdated = [question for question, files in stored.items() if not _is_current(atlas, question, files)]
    lacking = [question for question in outdated if question not in without]
    try:
        atlas = with_patterns(atlas, lacking, progress=progress)
    except StoreFailed:
        if keep:
            raise

    def make(question: str) -> AnswerFiles:
        made = make_answer(atlas, question)
        try:
            _store(atlas, {question: made})
        except StoreFailed:
            if keep:
                raise
        return made

    made, reasons = _try_each(lacking, make, progress)
    reasons |= _try_each([question for question in outdated if question in without], make, ignore_progress)[1]
    answered = stored | {one: made.get(one) for one in lacking}
    answers = {one: _answer(atlas, one, files, reasons.get(one, "")) for one, files in answered.items()}
    compositions = answered[COMPOSITIONS]
    return LoadedAnswers(answers, compositions.cases if compositions else None, tuple(made), atlas)


def stored_answers(atlas: Atlas) -> dict[str, Answer]:
    """The stored answers, current or not, in the paper's order; computes nothing."""
    answers = {}
    for question, files in _read_answers(atlas).items():
        remedy = f"make it with `mnemoscope analyze {shlex.quote(str(atlas.path))}`"
        if lacking := lacking_table(atlas, question):
            remedy = f"make its table {lacking} with {rebuild_command(atlas.path, lacking, atlas.manifest)}"
        remedy = load_question(question).refusal(atlas) or remedy
        answers[question] = _answer(atlas, question, files, remedy)
    return answers


def answers_with(atlas: Atlas, question: str) -> dict[str, Answer]:
    """The stored answers with a current one of `question`, which is not stored."""
    stored = _read_answers(atlas)
    if not _is_current(atlas, question, stored.get(question)):
        stored[question] = make_answer(atlas, question)
    return {one: _answer(atlas, one, files, "not asked for") for one, files in stored.items()}


def all_are_current(atlas: Atlas) -> bool:
    """Whether every possible answer is stored and counts the present judgements."""
    return all(
        _is_current(atlas, question, files) or lacking_table(atlas, question)
        for question, files in _read_answers(atlas).items()
    )


def lacking_table(atlas: Atlas, question: str) -> str | None:
    """A table that the question needs and the atlas lacks; None if it has them all."""
    for name in load_question(question).may_lack:
        layer = atlas.layers[0] if TABLES[name].numbered else None
        if is_switched_off(atlas, name) or not atlas.has(name, layer=layer):
            return name
    return None


def _is_current(atlas: Atlas, question: str, stored: AnswerFiles | None) -> bool:
    return stored is not None and bool(stored.document.get("judgements") == judgements_hash(atlas, question))


def _read_answers(atlas: Atlas) -> dict[str, AnswerFiles | None]:
    listed = atlas.made_later(ANALYSES)
    return {question: _read_answer(atlas, question, listed) for question in QUESTIONS}


def _read_answer(atlas: Atlas, question: str, listed: Mapping[str, Any]) -> AnswerFiles | None:
    """A stored answer; None if one of its files is missing, has not the hash that is listed, or holds none."""
    files = [atlas.read_listed(path, listed) for path in answer_files(question)]
    contents = [data for data in files if data is not None]
    if len(contents) < len(files):
        return None
    refuse_forked()
    document, table, *cases = contents
    try:
        stored = AnswerFiles(json.loads(document), pl.read_parquet(table), pl.read_parquet(cases[0]) if cases else None)
    except (OSError, RecursionError, ValueError, pl.exceptions.PolarsError):
        return None
    is_named = isinstance(stored.document, dict) and stored.document.get("question") == question
    known = list(stored.table.schema.items())[: len(EMPTY.schema)] == list(EMPTY.schema.items())
    return stored if is_named and known else None


def _answer(atlas: Atlas, question: str, stored: AnswerFiles | None, missing: str) -> Answer:
    words = atlas.reading.words
    declared, depth, gated = load_question(question, words), model_layers(atlas), atlas.manifest.model.gated
    of = atlas.layers, depth, gated, words
    if stored is None:
        return Answer(declared, EMPTY, "", missing, *of)
    answer = Answer(declared, stored.table, str(stored.document.get("interval", "")), "", *of)
    return answer if answer.rows(declared.main) else replace(answer, missing=declared.nothing)
