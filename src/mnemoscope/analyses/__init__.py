"""What an atlas says when it is asked: tables in, a small table out; the model is never called."""

from mnemoscope.analyses.answers import Claim, Paper
from mnemoscope.analyses.questions import QUESTIONS
from mnemoscope.analyses.striking import striking

__all__ = ["QUESTIONS", "Claim", "Paper", "striking"]
