"""Where positions lie in what a model is run on: of causal models with a beginning token and without one, and of masked
models within a frame.
"""

import numpy as np
import pytest

from mnemoscope.errors import PromptError
from mnemoscope.foundation.reading import Reading

MASKED = Reading((7,), (8, 9), predicts="same", mask=6)


@pytest.mark.parametrize("reading", [Reading.of(None), Reading.of(7), MASKED])
def test_positions_and_columns(reading: Reading) -> None:
    sentences = [[3, 1, 4, 1], [5, 9]]
    framed = [reading.frame(tokens) for tokens in sentences]
    assert [row[reading.own(len(tokens))] for row, tokens in zip(framed, sentences, strict=True)] == sentences
    assert [len(row) for row in framed] == [reading.columns(4), reading.columns(2)]
    for first in (0, reading.first):
        marked = reading.inside(np.array([4, 2]), reading.columns(5), first=first)
        assert [np.flatnonzero(row).tolist() for row in marked] == [
            [reading.column(position) for position in range(first, len(tokens))] for tokens in sentences
        ]
    counted = reading.counted_columns(4)
    assert [*range(len(framed[0]))][counted] == [reading.column(position) for position in range(reading.first, 4)]


def test_a_causal_model_reads_a_prefix_and_speaks_of_what_follows() -> None:
    reading, tokens = Reading.of(7), np.array([3, 1, 4, 1])
    assert (reading.first, Reading.of(None).first) == (0, 1)  # without a beginning token position 0 is a sink
    asked = reading.context(tokens, 1)
    assert (asked.tolist(), tokens[reading.target(1)], reading.spoken_of) == ([3, 1], 4, "next_token")
    assert reading.context_length(1, 4) == len(asked)
    assert reading.asked_column(reading.frame(tokens.tolist())) == 4


def test_a_masked_model_reads_the_sentence_and_speaks_of_the_token_there() -> None:
    tokens = np.array([3, 1, 4, 1])
    asked = MASKED.context(tokens, 1)
    assert (asked.tolist(), tokens[MASKED.target(1)], MASKED.spoken_of) == ([3, 6, 4, 1], 1, "token")
    assert MASKED.context_length(1, 4) == len(asked)
    assert MASKED.context(tokens, 1, seen=True).tolist() == tokens.tolist() == [3, 1, 4, 1]
    assert MASKED.asked_column(MASKED.frame(asked.tolist())) == 2
    for wrong in ([3, 1], [6, 6, 1]):
        with pytest.raises(PromptError, match="masks, where this model is asked what stands at one"):
            MASKED.asked_column(MASKED.frame(wrong))
