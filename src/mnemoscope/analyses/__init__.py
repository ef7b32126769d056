"""What an atlas says when it is asked: tables in, a small table out; the model is never called."""

from mnemoscope.analyses.answers import Claim, Paper
from mnemoscope.analyses.questions import QUESTIONS, answer, paper
from mnemoscope.analyses.striking import striking
from mnemoscope.analyses.writing import write, write_all

__all__ = ["QUESTIONS", "Claim", "Paper", "answer", "paper", "striking", "write", "write_all"]
