"""Answers on disk: analyses/QUESTION.json and QUESTION.parquet, covered by analyses/manifest.json.

The same atlas gives the same bytes. Asking again replaces what was written. Answers are computed first and written
after, so that an atlas that lacks a table keeps the answers it has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.schema import ANSWER_COLUMNS, TABLES
from mnemoscope.atlas.side import cover, covered, written_beside
from mnemoscope.atlas.store import file_hash, write_free_table, write_json
from mnemoscope.errors import AtlasUnfinished
from mnemoscope.progress import Progress
from mnemoscope.questions.registry import QUESTIONS, answer, judgements_hash, list_cases, load_question
from mnemoscope.questions.sources import projection, refuse_part, seed

Document = dict[str, Any]

SIDE = "analyses"


@dataclass(frozen=True)
class Answers:
    """The documents that were written, and of the questions that the atlas cannot answer, why."""

    documents: dict[str, Document]
    unanswered: dict[str, str]


def document(atlas: Atlas, question: str, found: pl.DataFrame, *, judgements: str | None = None) -> Document:
    """The answer as JSON has it: question, projections, interval, paper, layers, totals.

    `judgements`, where there is one, is the hash of those that were counted.
    """
    asked = load_question(question)
    rows = found.select([field.name for field in ANSWER_COLUMNS])
    return {
        "question": question,
        "projections": projection(atlas, *asked.projections),
        "interval": asked.interval.format(seed=seed(atlas)),
        "paper": asked.paper.document(),
        "layers": rows.filter(pl.col("layer").is_not_null()).to_dicts(),
        "totals": rows.filter(pl.col("layer").is_null()).drop("layer").to_dicts(),
        **({} if judgements is None else {"judgements": judgements}),
    }


def write(atlas: Atlas, questions: Sequence[str]) -> dict[str, Document]:
    """Answers the questions, writes them into the atlas, and returns the documents that were written.

    Raises what `answer` raises (nothing is written then), AtlasBusy while another process writes or if another atlas
    was mined there meanwhile, and StoreFailed.
    """
    # Taken before the answers: what people say meanwhile makes them outdated, and they are made again when asked for.
    judged = {question: judgements_hash(atlas, question) for question in questions}
    answers = {question: answer(atlas, question) for question in questions}
    listed = {question: list_cases(atlas, question) for question in questions}
    documents = {
        question: document(atlas, question, found, judgements=judged[question]) for question, found in answers.items()
    }
    with written_beside(atlas):
        for question, found in answers.items():
            _write(atlas, question, documents[question], found, listed[question])
    return documents


def _write(atlas: Atlas, question: str, said: Document, found: pl.DataFrame, listed: pl.DataFrame | None) -> None:
    origin = atlas.manifest.provenance
    written = files(question)
    write_json(atlas.path / written[0], said)
    path = atlas.path / written[1]
    write_free_table(path, found.to_arrow(), name=question, provenance=origin, columns=ANSWER_COLUMNS)
    if listed is not None:
        write_free_table(atlas.path / written[2], listed.to_arrow(), name=f"{question}.cases", provenance=origin)
    cover(atlas, SIDE, written)


def files(question: str) -> list[str]:
    """The files of one answer, relative to the atlas: the document, the table, and the listed cases if it has any."""
    cases = [f"{SIDE}/{question}.cases.parquet"] if load_question(question).lists_cases else []
    return [f"{SIDE}/{question}.json", f"{SIDE}/{question}.parquet", *cases]


def write_all(atlas: Atlas, *, progress: Progress | None = None) -> Answers:
    """Answers and writes every question that the atlas has the tables for; patterns are made where they are missing.

    Raises AtlasUnfinished if it can answer none, and what `write` raises.
    """
    atlas = with_patterns(atlas, QUESTIONS, progress=progress)
    documents: dict[str, Document] = {}
    unanswered: dict[str, str] = {}
    for done, question in enumerate(QUESTIONS):
        if progress is not None:
            progress("questions", done, len(QUESTIONS), "questions")
        try:
            documents |= write(atlas, [question])
        except AtlasUnfinished as lacking:
            unanswered[question] = str(lacking)
    if progress is not None:
        progress("questions", len(QUESTIONS), len(QUESTIONS), "questions")
    if not documents:
        raise AtlasUnfinished(next(iter(unanswered.values())))
    return Answers(documents, unanswered)


def with_patterns(
    atlas: Atlas, questions: Sequence[str], *, anew: bool = False, progress: Progress | None = None
) -> Atlas:
    """The atlas, opened again if its patterns had to be made for these questions, or were to be made `anew`.

    Raises AtlasBusy while another process writes, and what `write_patterns` raises.
    """
    refuse_part(atlas)
    missing = not _vouched_for(atlas)
    if not anew and not (missing and any(load_question(question).needs_patterns for question in questions)):
        return atlas
    from mnemoscope.patterns import write_patterns

    with written_beside(atlas):
        write_patterns(atlas, progress=progress)
    return open_atlas(atlas.path)


def _vouched_for(atlas: Atlas) -> bool:
    """Whether patterns.parquet is there as it was written: a run killed before it covered the table leaves doubt."""
    path = TABLES["patterns"].path()
    said = covered(atlas, SIDE).get(path)
    return said is not None and (atlas.path / path).is_file() and file_hash(atlas.path / path) == said.get("sha256")


def outdated_by_patterns(atlas: Atlas) -> tuple[str, ...]:
    """The questions whose answers lie in the atlas and depend on its patterns."""
    return tuple(
        question
        for question in QUESTIONS
        if load_question(question).needs_patterns and (atlas.path / files(question)[0]).is_file()
    )
