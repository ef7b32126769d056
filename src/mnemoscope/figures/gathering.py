"""The answers of an atlas, read from it, and made where they are missing.

An answer lies in `analyses/` and is believed only if the manifest of that folder covers it with the right hash: one of
another atlas, or one that was changed, or that counts other judgements than there are now, is made again. A question
that the atlas cannot answer keeps the reason.
"""

import hashlib
import io
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.side import covered
from mnemoscope.errors import AtlasBusy, AtlasUnfinished, StoreFailed
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
        listed = _table(_vouched(atlas, COMPOSITIONS)[files(COMPOSITIONS)[2]])
    return Gathered(answers, listed, made, atlas)


def at_hand(atlas: Atlas) -> dict[str, Answered]:
    """The answers that lie in the atlas, by question, in the paper's order; nothing is made and nothing is written.

    What people have said since an answer was made is not in it.
    """
    remedy = f"make it with `mnemoscope analyze {shlex.quote(str(atlas.path))}`"
    return {
        question: _answered(atlas, question, "", stored) if stored else _answered(atlas, question, remedy, None)
        for question, stored in ((question, _at_hand(atlas, question)) for question in QUESTIONS)
    }


def is_current(atlas: Atlas, question: str) -> bool:
    """Whether the answer lies in the atlas, and counts what people say now; raises what `judgements_hash` raises."""
    stored = _at_hand(atlas, question)
    if not stored:
        return False
    return bool(json.loads(stored[files(question)[0]]).get("judgements") == judgements_hash(atlas, question))


def _at_hand(atlas: Atlas, question: str) -> dict[str, bytes]:
    """The answer's files as the folder's manifest covers them; empty where one is missing or another.

    They are read once, so that what is shown is what was compared.
    """
    covering = covered(atlas, SIDE)
    found: dict[str, bytes] = {}
    for path in files(question):
        try:
            found[path] = (atlas.path / path).read_bytes()
        except OSError:
            return {}
        if path not in covering or hashlib.sha256(found[path]).hexdigest() != covering[path].get("sha256"):
            return {}
    return found


def _vouched(atlas: Atlas, question: str) -> dict[str, bytes]:
    """The files of an answer that was there or was made a moment ago; raises AtlasBusy where it has changed since."""
    if stored := _at_hand(atlas, question):
        return stored
    raise AtlasBusy(f"{atlas.path}: the answer {question} changed while it was read; run the same command again")


def _table(data: bytes) -> pl.DataFrame:
    return pl.read_parquet(io.BytesIO(data))


def _made(atlas: Atlas, question: str, *, keep: bool) -> dict[str, pl.DataFrame]:
    """Writes the answer into the atlas; where that cannot be and need not be, returns it."""
    try:
        write(atlas, [question])
    except StoreFailed:
        if keep:
            raise
        return {question: answer(atlas, question)}
    return {}


def _answered(
    atlas: Atlas, question: str, missing: str, table: pl.DataFrame | Mapping[str, bytes] | None
) -> Answered:
    """The answer, from its table or its files; None: those in the atlas."""
    asked, interval = load_question(question), ""
    if missing:
        table = EMPTY
    elif not isinstance(table, pl.DataFrame):
        stored = table or _vouched(atlas, question)
        saying, rows = files(question)[:2]
        interval = str(json.loads(stored[saying]).get("interval", ""))
        table = _table(stored[rows])
    else:
        interval = str(document(atlas, question, table)["interval"])
    depth = len(atlas.manifest.model.sizes.memories)
    found = Answered(asked, table, interval, missing, atlas.layers, depth)
    if not missing and not found.rows(asked.main):
        return Answered(asked, table, interval, asked.nothing, atlas.layers, depth)
    return found
