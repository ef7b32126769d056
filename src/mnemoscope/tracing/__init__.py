"""One prompt: what vectors say about the vocabulary, what every layer predicts, and what changing memories does."""

from mnemoscope.tracing.causal import CausalCheck, causal_check
from mnemoscope.tracing.comparison import Comparison, Difference, Generated, Shift, compare, written
from mnemoscope.tracing.generation import Step, generate
from mnemoscope.tracing.interventions import Intervention, as_python, intervene, interventions_of
from mnemoscope.tracing.prompts import Guess, Token
from mnemoscope.tracing.reading import trace
from mnemoscope.tracing.records import Decision, Dominant, Place, Position
from mnemoscope.tracing.trace import Trace
from mnemoscope.tracing.vocabulary import Distribution, distribution, rank_of, top

__all__ = [
    "CausalCheck",
    "Comparison",
    "Decision",
    "Difference",
    "Distribution",
    "Dominant",
    "Generated",
    "Guess",
    "Intervention",
    "Place",
    "Position",
    "Shift",
    "Step",
    "Token",
    "Trace",
    "as_python",
    "causal_check",
    "compare",
    "distribution",
    "generate",
    "intervene",
    "interventions_of",
    "rank_of",
    "top",
    "trace",
    "written",
]
