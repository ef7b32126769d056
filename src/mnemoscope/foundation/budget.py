"""How much one step works on at a time: bounds of the memory that it takes beside the model's own.

In numbers of elements, but where a line says otherwise. They are constants, never measured: sums of a batch of another
size differ in their last digits, and an atlas must have the same bytes on every machine.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    coefficients: int = 1 << 22
    """Coefficients of one layer and batch on a CPU: 16 MiB, which its allocator keeps for the next batch."""
    scores: int = 1 << 24
    """Scores of values, or of one stream of many prefixes."""
    stream_scores: int = 1 << 23
    """Scores of the three streams of a block, whose products share memory."""
    prompt_scores: int = 1 << 22
    """Scores of one prompt's streams: 16 MiB, which an allocator keeps, so products need no fresh memory."""
    shared_scores: int = 1 << 22
    """Scores from which on threads share them: of fewer, handing them over takes longer than it saves."""
    read_scores: int = 1 << 21
    """Scores that a thread of a CPU reads at a time: 8 MiB, which the last cache holds for every core."""
    weights: int = 1 << 22
    """Attention weights of one head, which grow with the square of a prefix's length."""
    cosines: int = 1 << 24
    resampled: int = 1 << 22
    """Weights of bootstrap draws in float64."""
    unit_vectors: int = 1 << 26
    """Entries of the unit vectors that a linear module is asked with, or of their outputs."""
    in_cache: int = 1 << 18
    """Numbers that a CPU sweeps several times: 1 MiB, which a core's second cache holds."""
    embedded_tokens: int = 1 << 14
    """Tokens whose embeddings are read in one call."""
    width_tokens: int = 4_096
    """Tokens of one forward that keeps every layer's residual, padding included; a stop loses one."""
    gradient_tokens: int = 1_024
    """Tokens of one forward that is differentiated, padding included: all that its layers computed is kept."""
    prefixes: int = 128
    """Prefixes of one forward: bounds the rows of scores."""
    lens_sentences: int = 64
    """Sentences of one forward of a lens."""
    ablations: int = 16
    """Memories that are set to zero in one forward, each in a row of its own."""


BUDGET = Budget()


def rows_within(elements: int, width: int) -> int:
    """How many rows of `width` elements fit, one at least."""
    return max(1, elements // width)
