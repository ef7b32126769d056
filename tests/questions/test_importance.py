"""B6: concentration and rank correlations of effects and size, counted by hand."""

from pathlib import Path

import numpy as np
import pytest

from mnemoscope.foundation.intervals import wilson
from mnemoscope.questions import answer
from mnemoscope.questions.beyond.importance import part_of_sum, rank_correlation, share_for_half
from mnemoscope.show.figures.sections import chart
from support.handbuilt_answers import build_answers, numbers

LAYERS = {
    0: [(4, 1, 8, 0), (3, 1, 0, 0), (2, 1, 0, 4), (1, 1, 0, 0)],
    1: [(0, 2, 0, 1), (0, 0, 0, 0), (10, 8, 1, 2), (0, 6, 0, 8)],
}
NORMS = (1.0, 1.0, 5.0, 7.0)
"""Mean coefficients are 0.25, 0.05, 0.01, 0: so sizes are 0.25, 0.05, 0.05, 0."""


def test_shares_halves_and_correlations(tmp_path: Path) -> None:
    values = {layer: [(6, 6, 0, 0.5, norm, -1.0) for norm in NORMS] for layer in LAYERS}
    atlas = build_answers(tmp_path, triggers={0: [(0, 1)], 1: [(0, 1)]}, values=values, importance=LAYERS)
    found = answer(atlas, "importance")
    # The largest of four memories, of eight the largest.
    assert numbers(found, "direct_top") == pytest.approx({0: 0.4, 1: 1, None: 0.5})
    assert numbers(found, "attribution_top") == pytest.approx({0: 0.25, 1: 0.5, None: 0.4})
    assert numbers(found, "size_top") == pytest.approx({0: 5 / 7, 1: 5 / 7, None: 2.5 / 7})
    assert numbers(found, "direct_half") == {0: 0.5, 1: 0.25, None: 0.125}
    assert numbers(found, "attribution_half") == {0: 0.5, 1: 0.25, None: 0.25}
    assert numbers(found, "size_half") == {0: 0.25, 1: 0.25, None: 0.25}
    assert numbers(found, "direct_half", "low")[0] == pytest.approx(wilson(0.5, 4)[0])
    assert numbers(found, "direct_of_all") == pytest.approx({0: 0.5, 1: 0.5})
    assert numbers(found, "attribution_of_all") == pytest.approx({0: 0.2, 1: 0.8})
    assert numbers(found, "direct_ever") == {0: 0.25, 1: 0.25, None: 0.25}
    assert numbers(found, "attribution_ever") == {0: 0.25, 1: 0.75, None: 0.5}
    assert numbers(found, "size_attribution")[0] is None  # all alike
    assert numbers(found, "size_direct")[0] == pytest.approx(np.corrcoef([4, 2.5, 2.5, 1], [4, 3, 2, 1])[0, 1])
    assert numbers(found, "prefixes") == {None: 8}
    assert chart(atlas, "importance")


def test_a_rank_correlation_lies_in_its_interval_about_as_often_as_said() -> None:
    generator, inside = np.random.default_rng(3), 0
    true = 6 / np.pi * np.arcsin(0.6 / 2)  # of a normal distribution with a correlation of 0.6
    for _ in range(400):
        one, noise = generator.standard_normal((2, 60))
        found = rank_correlation(one, 0.6 * one + 0.8 * noise)
        inside += float(found.low or 0) <= true <= float(found.high or 0)
    assert 0.92 * 400 <= inside <= 0.98 * 400


def test_nothing_is_held_of_nothing() -> None:
    zeros = np.zeros(3)
    assert (part_of_sum(zeros, zeros == 0).value, share_for_half(zeros).value) == (None, None)
    assert rank_correlation(zeros[:1], zeros[:1]).value is None
    assert part_of_sum(np.array([3.0, 1.0]), np.array([True, False])).count == 2
