"""Answers questions from an atlas's tables, without the model. One module per question; atlas/schema.py lists them."""

from mnemoscope.atlas.schema import BEYOND, QUESTIONS
from mnemoscope.questions.answers import write, write_all
from mnemoscope.questions.question import Claim, Paper, Question
from mnemoscope.questions.registry import answer, load_question

__all__ = ["BEYOND", "QUESTIONS", "Claim", "Paper", "Question", "answer", "load_question", "write", "write_all"]
