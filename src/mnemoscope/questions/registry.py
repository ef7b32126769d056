"""The list of questions (the paper's ten in its order, then those beyond it), and the answer to one. A question is a
module of this room, with a figure of the same name.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import polars as pl

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.errors import OptionError
from mnemoscope.questions.question import Question

THE_PAPERS: tuple[str, ...] = (
    "key_patterns",
    "key_removals",
    "value_agreement",
    "value_rank",
    "value_confidence",
    "layer_activity",
    "layer_composition",
    "refinement_match",
    "refinement_confidence",
    "refinement_events",
)

BEYOND: tuple[str, ...] = (
    "attention_share",
    "key_agreement",
    "lenses",
    "memorised",
    "width",
)
"""Questions that the paper left open; each needs an optional table."""

QUESTIONS: tuple[str, ...] = (*THE_PAPERS, *BEYOND)


def room_of(question: str) -> str:
    """The subfolder here and among the figures."""
    return "paper" if question in THE_PAPERS else "beyond"


def question_module(question: str) -> ModuleType:
    """The module with QUESTION and `answer`. Raises OptionError."""
    if question not in QUESTIONS:
        raise OptionError(f"{question!r} is not a question; the questions are {', '.join(QUESTIONS)}")
    return import_module(f"mnemoscope.questions.{room_of(question)}.{question}")


def load_question(question: str) -> Question:
    declared: Question = question_module(question).QUESTION
    return declared


def answer(atlas: Atlas | str | Path, question: str) -> pl.DataFrame:
    """The answer to one question: layer (null for totals), name, value, count, low, high, and own key columns. Writes
    nothing. Raises OptionError for an unknown question, AtlasUnfinished if the atlas lacks a table that the question
    needs, AtlasDamaged, and what `open_atlas` raises.
    """
    module = question_module(question)
    frame: pl.DataFrame = module.answer(atlas if isinstance(atlas, Atlas) else open_atlas(atlas))
    return frame
