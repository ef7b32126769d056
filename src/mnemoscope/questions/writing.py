"""Answers on disk: analyses/QUESTION.json and QUESTION.parquet, covered by analyses/manifest.json.

The same atlas gives the same bytes. Asking again replaces what was written. Answers are computed first and written
after, so that an atlas that lacks a table keeps the answers it has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.derived_manifest import record_hashes, recorded_hashes, write_beside
from mnemoscope.atlas.schema import ANSWER_COLUMNS, TABLES
from mnemoscope.atlas.store import write_free_table
from mnemoscope.errors import AtlasUnfinished
from mnemoscope.files import file_hash, write_json
from mnemoscope.patterns import write_patterns
from mnemoscope.progress import Progress, ignore_progress
from mnemoscope.questions.registry import QUESTIONS, answer, judgements_hash, list_cases, load_question
from mnemoscope.questions.sources import plan_seed, projection, refuse_part

Document = dict[str, Any]

SIDE = "analyses"


@dataclass(frozen=True)
class AnswerFiles:
    """What is stored of one answer: the document, the table, and the listed cases if the question lists any."""

    document: Document
    table: pl.DataFrame
    cases: pl.DataFrame | None


@dataclass(frozen=True)
class Answers:
    """The documents that were written, and of the questions that the atlas cannot answer, why."""

    documents: dict[str, Document]
    unanswered: dict[str, str]


def make_answer(atlas: Atlas, question: str) -> AnswerFiles:
    """Answers the question; the document has the hash of the judgements counted. Raises what `answer` raises."""
    # Taken before the answer: what people say meanwhile makes it outdated, and it is made again when asked for.
    judgements = judgements_hash(atlas, question)
    asked, table = load_question(question), answer(atlas, question)
    rows = table.select([field.name for field in ANSWER_COLUMNS])
    document = {
        "question": question,
        "projections": projection(atlas, *asked.projections),
        "interval": asked.interval.format(seed=plan_seed(atlas)),
        "paper": asked.paper.document(),
        "layers": rows.filter(pl.col("layer").is_not_null()).to_dicts(),
        "totals": rows.filter(pl.col("layer").is_null()).drop("layer").to_dicts(),
        **({} if judgements is None else {"judgements": judgements}),
    }
    return AnswerFiles(document, table, list_cases(atlas, question))


def write(atlas: Atlas, questions: Sequence[str]) -> dict[str, Document]:
    """Answers the questions, writes them into the atlas, and returns the documents that were written.

    Raises what `answer` raises (nothing is written then), AtlasBusy while another process writes or if another atlas
    was mined there meanwhile, and StoreFailed.
    """
    answers = {question: make_answer(atlas, question) for question in questions}
    with write_beside(atlas):
        for question, made in answers.items():
            _write(atlas, question, made)
    return {question: made.document for question, made in answers.items()}


def _write(atlas: Atlas, question: str, made: AnswerFiles) -> None:
    origin, paths = atlas.manifest.provenance, answer_files(question)
    write_json(atlas.path / paths[0], made.document)
    table = made.table.to_arrow()
    write_free_table(atlas.path / paths[1], table, name=question, provenance=origin, columns=ANSWER_COLUMNS)
    if made.cases is not None:
        write_free_table(atlas.path / paths[2], made.cases.to_arrow(), name=f"{question}.cases", provenance=origin)
    record_hashes(atlas, SIDE, paths)


def answer_files(question: str) -> list[str]:
    """The files of one answer, relative to the atlas: the document, the table, and the listed cases if it has any."""
    cases = [f"{SIDE}/{question}.cases.parquet"] if load_question(question).lists_cases else []
    return [f"{SIDE}/{question}.json", f"{SIDE}/{question}.parquet", *cases]


def write_all(atlas: Atlas, *, progress: Progress = ignore_progress) -> Answers:
    """Answers and writes every question that the atlas has the tables for; patterns are made where they are missing.

    Raises AtlasUnfinished if it can answer none, and what `write` raises.
    """
    atlas = with_patterns(atlas, QUESTIONS, progress=progress)
    documents: dict[str, Document] = {}
    unanswered: dict[str, str] = {}
    for done, question in enumerate(QUESTIONS):
        progress("questions", done, len(QUESTIONS), "questions")
        try:
            documents |= write(atlas, [question])
        except AtlasUnfinished as lacking:
            unanswered[question] = str(lacking)
    progress("questions", len(QUESTIONS), len(QUESTIONS), "questions")
    if not documents:
        raise AtlasUnfinished(next(iter(unanswered.values())))
    return Answers(documents, unanswered)


def with_patterns(
    atlas: Atlas, questions: Sequence[str], *, anew: bool = False, progress: Progress = ignore_progress
) -> Atlas:
    """The atlas, opened again if its patterns had to be made for these questions, or were to be made `anew`.

    Raises AtlasBusy while another process writes, and what `write_patterns` raises.
    """
    refuse_part(atlas)
    needed = any(load_question(question).needs_patterns for question in questions)
    if not anew and not (needed and not _is_covered(atlas)):
        return atlas
    with write_beside(atlas):
        write_patterns(atlas, progress=progress)
    return open_atlas(atlas.path)


def _is_covered(atlas: Atlas) -> bool:
    """Whether patterns.parquet is there as it was written: a run killed before it covered the table leaves doubt."""
    path = TABLES["patterns"].path()
    entry = recorded_hashes(atlas, SIDE).get(path)
    return entry is not None and (atlas.path / path).is_file() and file_hash(atlas.path / path) == entry.get("sha256")


def outdated_by_patterns(atlas: Atlas) -> tuple[str, ...]:
    """The questions whose answers lie in the atlas and depend on its patterns."""
    dependent = (question for question in QUESTIONS if load_question(question).needs_patterns)
    return tuple(question for question in dependent if (atlas.path / answer_files(question)[0]).is_file())
