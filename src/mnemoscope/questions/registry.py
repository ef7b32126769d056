"""Finds the module of a question by its name, and answers it."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.schema import THE_PAPERS, question_named
from mnemoscope.atlas.tables import MadeFrame
from mnemoscope.errors import ModelUnsupported
from mnemoscope.foundation.words import NEXT, Words, in_words
from mnemoscope.questions.question import Question


def room_of(question: str) -> str:
    """The subfolder of a question here and among the figures."""
    return "paper" if question in THE_PAPERS else "beyond"


def question_module(question: str) -> ModuleType:
    """The module with QUESTION and `answer`."""
    question = question_named(question)
    return import_module(f"mnemoscope.questions.{room_of(question)}.{question}")


def load_question(question: str, words: Words = NEXT) -> Question:
    """Its declaration, in the words for how a model reads."""
    declared: Question = in_words(question_module(question).QUESTION, words)
    return declared


def answer(atlas: Atlas | str | Path, question: str) -> MadeFrame:
    """The answer to one question: layer (null for totals), name, value, count, low, high, and own key columns; the
    frame's `made_by` says where it comes from. Raises OptionError for an unknown question, AtlasUnfinished without a
    table that it needs, ModelUnsupported for a model of which it is not asked, AtlasDamaged, and what `open_atlas`
    raises.

    Args:
        atlas: An atlas, or its folder.
        question: The name of a question, such as value_agreement.
    """
    module, opened = question_module(question), atlas if isinstance(atlas, Atlas) else open_atlas(atlas)
    if refusal := module.QUESTION.refusal(opened):
        raise ModelUnsupported(refusal)
    frame = MadeFrame(module.answer(opened))
    frame.made_by = opened.made_by(question=question_named(question))
    return frame
