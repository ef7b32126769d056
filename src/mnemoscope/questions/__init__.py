"""What an atlas says when it is asked: tables in, a small table out; the model is never called."""

from mnemoscope.questions.answers import Claim, Paper
from mnemoscope.questions.registry import QUESTIONS, answer, paper
from mnemoscope.questions.striking import striking
from mnemoscope.questions.writing import write, write_all

__all__ = ["QUESTIONS", "Claim", "Paper", "answer", "paper", "striking", "write", "write_all"]
