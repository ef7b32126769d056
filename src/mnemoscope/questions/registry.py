"""The ten questions, in the paper's order: which module answers which, and the answer to one of them.

Writes nothing; writing.py does.
"""

import hashlib
import json
from pathlib import Path
from types import ModuleType

import polars as pl

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.errors import OptionError
from mnemoscope.questions import (
    key_patterns,
    key_removals,
    layer_activity,
    layer_composition,
    refinement_confidence,
    refinement_events,
    refinement_match,
    value_agreement,
    value_confidence,
    value_rank,
)
from mnemoscope.questions.answers import Paper

_MODULES: dict[str, ModuleType] = {
    module.QUESTION: module
    for module in (
        key_patterns,
        key_removals,
        value_agreement,
        value_rank,
        value_confidence,
        layer_activity,
        layer_composition,
        refinement_match,
        refinement_confidence,
        refinement_events,
    )
}
QUESTIONS: tuple[str, ...] = tuple(_MODULES)
"""The names of the ten questions, in the paper's order."""
WITH_PATTERNS: tuple[str, ...] = (key_patterns.QUESTION, key_removals.QUESTION, layer_activity.QUESTION)
"""Those that need patterns.parquet."""
WITH_JUDGEMENTS: tuple[str, ...] = (key_patterns.QUESTION, refinement_events.QUESTION)
"""Those that also count what people say; their modules have `judgements`."""


def module(question: str) -> ModuleType:
    """The module that answers a question (PAPER, HEADLINE, PROJECTIONS, INTERVAL, answer); raises OptionError."""
    if question not in _MODULES:
        raise OptionError(f"{question!r} is not a question; the questions are {', '.join(QUESTIONS)}")
    return _MODULES[question]


def paper(question: str) -> Paper:
    """Where the paper asks the question, and what it states; raises OptionError."""
    found = module(question).PAPER
    assert isinstance(found, Paper)
    return found


def answer(atlas: Atlas | str | Path, question: str) -> pl.DataFrame:
    """The answer to one question: layer (null for totals), name, value, count, low, high, and own key columns.

    Writes nothing. Raises OptionError for an unknown question, AtlasUnfinished if the atlas lacks a table that the
    question needs, AtlasDamaged, and what `open_atlas` raises.
    """
    asked = module(question)
    found = asked.answer(atlas if isinstance(atlas, Atlas) else open_atlas(atlas))
    assert isinstance(found, pl.DataFrame)
    return found


def judgements_hash(atlas: Atlas, question: str) -> str | None:
    """The sha256 of the judgements that the question counts now, so that an answer can tell whether it counted them.

    None where there are none, or the question counts none. Raises AnnotationError for judgements of another atlas,
    AtlasDamaged, AtlasTooNew, AtlasBusy.
    """
    rows: pl.DataFrame | None = module(question).judgements(atlas) if question in WITH_JUDGEMENTS else None
    if rows is None:
        return None
    return hashlib.sha256(json.dumps(rows.rows(), default=str).encode()).hexdigest()
