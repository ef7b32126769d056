"""Integer sums of numbers of all sizes against fractions, and the laws by which parts merge to the byte."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mining.test_accumulators import add
from mnemoscope.foundation.memory_names import Numbering
from mnemoscope.mining.text.activity import Activity, Routing
from mnemoscope.mining.text.exact_sums import ROWS, add_sums, exact_sum, value_of
from mnemoscope.mining.text.measures import Measures
from mnemoscope.mining.text.triggers import Triggers

LEAST, MOST = 2.0**-298, 2.0**320
"""Sizes of float32 numbers' squares, and of many of the largest ones added up."""
SMALL = st.floats(-4, 4, width=32).filter(bool)
NUMBERS = st.one_of(st.just(0.0), st.floats(LEAST, MOST), st.floats(-MOST, -LEAST), SMALL)


def added(numbers: list[float]) -> torch.Tensor:
    found = torch.zeros(ROWS, 1, dtype=torch.int64)
    for number in numbers:
        found = add_sums(found, exact_sum(torch.tensor([number], dtype=torch.float64)))
    return found


@given(st.lists(NUMBERS, max_size=8), st.data())
def test_order_and_parts_change_no_bit_and_nothing_is_lost(numbers: list[float], data) -> None:
    whole = added(numbers)
    shuffled = data.draw(st.permutations(numbers))
    cut = data.draw(st.integers(0, len(numbers)))
    assert whole.equal(add_sums(added(shuffled[:cut]), added(shuffled[cut:])))
    exact = sum(map(Fraction, numbers), Fraction(0))
    size = max((abs(Fraction(number)) for number in numbers), default=Fraction(0))
    assert abs(Fraction(float(value_of(whole))) - exact) <= len(numbers) * size / 2**51


@given(NUMBERS)
def test_one_number_is_itself(number: float) -> None:
    assert float(value_of(exact_sum(torch.tensor([number], dtype=torch.float64)))) == number


@pytest.mark.parametrize("scale", [1e-20, 1e-9, 1e-3, 1.0, 4e5, 8e7, 1e18, 1e30])
def test_the_deviation_is_right_at_every_size_and_merges_to_the_byte(scale: float) -> None:
    generator = torch.Generator().manual_seed(1)
    # The last memory is steady: its deviation is a thousandth of its mean.
    blocks = [torch.randn(40, 5, 4, generator=generator) * torch.tensor([1, 3, 0.1, 0.001]) for _ in range(6)]
    blocks = [((block + torch.tensor([0.0, 0, 0, 1])) * scale).float() for block in blocks]
    whole, parts = Activity(4), (Activity(4), Activity(4))
    for number, block in enumerate(blocks):
        add(whole, block)
        add(parts[number % 2], block)
    parts[1].merge(parts[0])
    for name, tensor in whole.state().items():
        assert tensor.equal(parts[1].state()[name]), name
    every = torch.cat([block.double().reshape(-1, 4) for block in blocks]).numpy()
    np.testing.assert_allclose(whole.columns()["std"], every.std(0), rtol=1e-6)
    np.testing.assert_allclose(whole.columns()["mean"], every.mean(0), rtol=1e-6, atol=1e-9 * scale)


def test_sizes_may_differ_from_batch_to_batch() -> None:
    """Batches of 1e16, which cancel out, take nothing from those of 1, before or after; float64 would lose them."""
    ones, giants = torch.ones(2, 3, 1), torch.full((2, 3, 1), 1e16)
    activity = Activity(1)
    for block in (ones, giants, ones, -giants):
        add(activity, block)
    assert float(activity.columns()["mean"][0]) == 12 / 24
    assert float(activity.columns()["std"][0]) == pytest.approx(float(np.float32(1e16)) / np.sqrt(2), rel=1e-12)


def test_small_weights_of_a_router_are_not_lost() -> None:
    routing = Routing(0, Numbering((4, 4), 2))
    for _ in range(3):
        routing.update(Measures(weights=[torch.tensor([[1e-15, 0.0], [0.0, 5e13]])]))
    np.testing.assert_allclose(routing.columns()["weight_sum"], [3e-15, 1.5e14], rtol=1e-6)


def test_equal_triggers_stand_in_order_of_sentence_also_in_contexts_of_millions_of_tokens() -> None:
    triggers = Triggers(1, 2, (1,))
    one, zero = torch.ones(2), torch.zeros(2, dtype=torch.int64)
    sentences, positions = torch.tensor([8, 7]), torch.tensor([0, (1 << 20) + 5], dtype=torch.int32)
    triggers.update(Measures(candidates=[(zero, one, sentences, positions)]))
    assert triggers.state()["sentence"].tolist() == [[7, 8]]
