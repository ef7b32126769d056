"""One prompt: vectors projected onto the vocabulary, every layer's predictions, and the effect of changed memories."""

from mnemoscope.foundation.formatting import for_terminal
from mnemoscope.foundation.memory_changes import Intervention, interventions_of
from mnemoscope.tracing.causal import CausalCheck, causal_check
from mnemoscope.tracing.comparison import Comparison, Difference, Generated, Shift, compare, continuation_lines
from mnemoscope.tracing.interventions import as_python, intervene
from mnemoscope.tracing.masked import mask_each
from mnemoscope.tracing.predictions import Step, generate
from mnemoscope.tracing.records import Token
from mnemoscope.tracing.scoring.distributions import max_probability, read_scores
from mnemoscope.tracing.scoring.ranking import rank_of, rank_tokens, top
from mnemoscope.tracing.scoring.scores import adopt_votes, norms_of
from mnemoscope.tracing.trace import Trace, trace

__all__ = [
    "CausalCheck",
    "Comparison",
    "Difference",
    "Generated",
    "Intervention",
    "Shift",
    "Step",
    "Token",
    "Trace",
    "adopt_votes",
    "as_python",
    "causal_check",
    "compare",
    "continuation_lines",
    "for_terminal",
    "generate",
    "intervene",
    "interventions_of",
    "mask_each",
    "max_probability",
    "norms_of",
    "rank_of",
    "rank_tokens",
    "read_scores",
    "top",
    "trace",
]
