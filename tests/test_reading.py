"""Where positions lie in what a model is run on, with a beginning token and without one."""

import numpy as np
import pytest

from mnemoscope.foundation.reading import Reading


@pytest.mark.parametrize("before", [(), (7,)])
def test_positions_and_columns(before: tuple[int, ...]) -> None:
    reading, sentences = Reading.of(before[0] if before else None), [[3, 1, 4, 1], [5, 9]]
    framed = [reading.frame(tokens) for tokens in sentences]
    assert [row[reading.own(len(tokens))] for row, tokens in zip(framed, sentences, strict=True)] == sentences
    assert [len(row) for row in framed] == [reading.columns(4), reading.columns(2)]
    for first in (0, reading.first):
        marked = reading.inside(np.array([4, 2]), reading.columns(5), first=first)
        assert [np.flatnonzero(row).tolist() for row in marked] == [
            [reading.columns(position) for position in range(first, len(tokens))] for tokens in sentences
        ]
    assert reading.first == 1 - len(before)  # an attention sink does not count
    asked = reading.context(sentences[0], 1)
    assert (asked, len(asked), sentences[0][reading.target(1)]) == ([3, 1], reading.context_length(1), 4)
    assert [row[reading.last] for row in framed] == [1, 9]  # there the next token is predicted
