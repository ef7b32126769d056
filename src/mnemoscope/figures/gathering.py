"""The answers of an atlas, read from it, and made where they are missing.

An answer lies in `analyses/` and is believed only if the manifest of that folder covers it with the right hash: one of
another atlas, or one that was changed, or that counts other judgements than there are now, is made again. A question
that the atlas cannot answer keeps the reason.
"""

import json
import shlex
from dataclasses import dataclass

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.side import covered
from mnemoscope.atlas.store import file_hash
from mnemoscope.errors import AtlasUnfinished, StoreFailed
from mnemoscope.progress import Progress
from mnemoscope.questions import QUESTIONS, answer, load_question
from mnemoscope.questions.answered import EMPTY, Answered
from mnemoscope.questions.registry import judgements_hash, list_cases
from mnemoscope.questions.writing import SIDE, document, files, with_patterns, write

COMPOSITIONS = "refinement_events"
"""The question whose listed cases a report shows."""


@dataclass(frozen=True)
class Gathered:
    """The answers by question, in the paper's order; `made` are those that were not in the atlas before."""

    answers: dict[str, Answered]
    cases: pl.DataFrame | None
    made: tuple[str, ...]
    atlas: Atlas


def gathered(atlas: Atlas, *, keep: bool = True, progress: Progress | None = None) -> Gathered:
    """Every answer of the atlas; those that are missing or older than people's judgements are made and written into it.

    With `keep` False, answers that cannot be written into the atlas (a read-only folder) are made all the same. Raises
    AtlasUnfinished for a part, AnnotationError for judgements of another atlas, AtlasDamaged, AtlasBusy, StoreFailed.
    """
    lacking = [question for question in QUESTIONS if not is_current(atlas, question)]
    reasons: dict[str, str] = {}
    loose: dict[str, pl.DataFrame] = {}
    try:
        atlas = with_patterns(atlas, lacking, progress=progress)
    except StoreFailed:
        if keep:
            raise
    for done, question in enumerate(lacking):
        if progress is not None:
            progress("questions", done, len(lacking), "questions")
        try:
            loose |= _made(atlas, question, keep=keep)
        except AtlasUnfinished as unfinished:
            reasons[question] = str(unfinished)
    answers = {
        question: _answered(atlas, question, reasons.get(question, ""), loose.get(question)) for question in QUESTIONS
    }
    made = tuple(question for question in lacking if question not in reasons)
    listed = None
    if COMPOSITIONS in loose:
        listed = list_cases(atlas, COMPOSITIONS)
    elif COMPOSITIONS not in reasons:
        listed = pl.read_parquet(atlas.path / files(COMPOSITIONS)[2])
    return Gathered(answers, listed, made, atlas)


def at_hand(atlas: Atlas) -> dict[str, Answered]:
    """The answers that lie in the atlas, by question, in the paper's order; nothing is made and nothing is written.

    What people have said since an answer was made is not in it.
    """
    remedy = f"make it with `mnemoscope analyze {shlex.quote(str(atlas.path))}`"
    return {
        question: _answered(atlas, question, "" if _at_hand(atlas, question) else remedy, None)
        for question in QUESTIONS
    }


def is_current(atlas: Atlas, question: str) -> bool:
    """Whether the answer lies in the atlas, and counts what people say now; raises what `judgements_hash` raises."""
    if not _at_hand(atlas, question):
        return False
    said = json.loads((atlas.path / files(question)[0]).read_bytes())
    return bool(said.get("judgements") == judgements_hash(atlas, question))


def _at_hand(atlas: Atlas, question: str) -> bool:
    said = covered(atlas, SIDE)
    paths = files(question)
    return all(
        path in said and (atlas.path / path).is_file() and file_hash(atlas.path / path) == said[path].get("sha256")
        for path in paths
    )


def _made(atlas: Atlas, question: str, *, keep: bool) -> dict[str, pl.DataFrame]:
    """Writes the answer into the atlas; where that cannot be and need not be, returns it."""
    try:
        write(atlas, [question])
    except StoreFailed:
        if keep:
            raise
        return {question: answer(atlas, question)}
    return {}


def _answered(atlas: Atlas, question: str, missing: str, table: pl.DataFrame | None) -> Answered:
    asked, interval = load_question(question), ""
    if missing:
        table = EMPTY
    elif table is None:
        path = atlas.path / files(question)[0]
        interval = str(json.loads(path.read_bytes()).get("interval", ""))
        table = pl.read_parquet(path.with_suffix(".parquet"))
    else:
        interval = str(document(atlas, question, table)["interval"])
    depth = len(atlas.manifest["model"]["sizes"]["memories"])
    found = Answered(asked, table, interval, missing, atlas.layers, depth)
    if not missing and not found.rows(asked.main):
        return Answered(asked, table, interval, asked.nothing, atlas.layers, depth)
    return found
