"""The answers of an atlas, read from it, and made where they are missing.

An answer lies in `analyses/` and is believed only if the manifest of that folder covers it with the right hash: one of
another atlas, or one that was changed, or that counts other judgements than there are now, is made again. A question
that the atlas cannot answer keeps the reason.
"""

import hashlib
import json
import shlex
from dataclasses import dataclass, replace

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.derived_manifest import recorded_hashes
from mnemoscope.errors import AtlasBusy, AtlasUnfinished, StoreFailed
from mnemoscope.progress import Progress, ignore_progress
from mnemoscope.questions.question import EMPTY, Answer
from mnemoscope.questions.registry import QUESTIONS, judgements_hash, load_question
from mnemoscope.questions.sources import model_layers
from mnemoscope.questions.writing import SIDE, AnswerFiles, answer_files, make_answer, with_patterns, write

COMPOSITIONS = "refinement_events"
"""The question whose listed cases a report shows."""


@dataclass(frozen=True)
class LoadedAnswers:
    """The answers by question, in the paper's order; `made` are those that were not in the atlas before."""

    answers: dict[str, Answer]
    cases: pl.DataFrame | None
    made: tuple[str, ...]
    atlas: Atlas


def load_answers(atlas: Atlas, *, keep: bool = True, progress: Progress = ignore_progress) -> LoadedAnswers:
    """Every answer of the atlas; those that are missing or older than people's judgements are made and written into it.

    With `keep` False, answers that cannot be written into the atlas (a read-only folder) are made all the same. Raises
    AtlasUnfinished for a part, AnnotationError for judgements of another atlas, AtlasDamaged, AtlasBusy, StoreFailed.
    """
    stored = {question: _read(atlas, question) for question in QUESTIONS}
    lacking = [question for question in QUESTIONS if not _counts_judgements(atlas, question, stored[question])]
    reasons: dict[str, str] = {}
    try:
        atlas = with_patterns(atlas, lacking, progress=progress)
    except StoreFailed:
        if keep:
            raise
    for done, question in enumerate(lacking):
        progress("questions", done, len(lacking), "questions")
        try:
            stored[question] = _make(atlas, question, keep=keep)
        except AtlasUnfinished as unfinished:
            stored[question], reasons[question] = None, str(unfinished)
    answers = {question: _answer(atlas, question, own, reasons.get(question, "")) for question, own in stored.items()}
    compositions = stored[COMPOSITIONS]
    made = tuple(question for question in lacking if question not in reasons)
    return LoadedAnswers(answers, None if compositions is None else compositions.cases, made, atlas)


def stored_answers(atlas: Atlas) -> dict[str, Answer]:
    """The answers that lie in the atlas, by question, in the paper's order; nothing is made and nothing is written.

    What people have said since an answer was made is not in it.
    """
    remedy = f"make it with `mnemoscope analyze {shlex.quote(str(atlas.path))}`"
    return {question: _answer(atlas, question, _read(atlas, question), remedy) for question in QUESTIONS}


def is_current(atlas: Atlas, question: str) -> bool:
    """Whether the answer lies in the atlas, and counts what people say now; raises what `judgements_hash` raises."""
    return _counts_judgements(atlas, question, _read(atlas, question))


def _counts_judgements(atlas: Atlas, question: str, stored: AnswerFiles | None) -> bool:
    return stored is not None and bool(stored.document.get("judgements") == judgements_hash(atlas, question))


def _read(atlas: Atlas, question: str) -> AnswerFiles | None:
    """The answer as the folder's manifest covers it; None where a file is missing or another.

    Its files are read once, so that what is shown is what was compared.
    """
    covering, contents = recorded_hashes(atlas, SIDE), []
    for path in answer_files(question):
        try:
            contents.append((atlas.path / path).read_bytes())
        except OSError:
            return None
        if path not in covering or hashlib.sha256(contents[-1]).hexdigest() != covering[path].get("sha256"):
            return None
    document, table, *cases = contents
    return AnswerFiles(json.loads(document), pl.read_parquet(table), pl.read_parquet(cases[0]) if cases else None)


def _make(atlas: Atlas, question: str, *, keep: bool) -> AnswerFiles:
    """The answer, written into the atlas; where that cannot be and need not be, only made."""
    try:
        write(atlas, [question])
    except StoreFailed:
        if keep:
            raise
        return make_answer(atlas, question)
    if stored := _read(atlas, question):
        return stored
    raise AtlasBusy(f"{atlas.path}: the answer {question} changed while it was read; run the same command again")


def _answer(atlas: Atlas, question: str, stored: AnswerFiles | None, missing: str) -> Answer:
    """The answer; `missing` says why there is none where nothing is stored."""
    asked, depth = load_question(question), model_layers(atlas)
    if stored is None:
        return Answer(asked, EMPTY, "", missing, atlas.layers, depth)
    answer = Answer(asked, stored.table, str(stored.document.get("interval", "")), "", atlas.layers, depth)
    return answer if answer.rows(asked.main) else replace(answer, missing=asked.nothing)
