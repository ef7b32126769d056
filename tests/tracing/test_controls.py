"""Controls of one layer and position, by hand."""

import numpy as np
import pytest

from mnemoscope.tracing.controls import draw_control


def drawn(sizes: list[float], memory: int, barred: tuple[int, ...] = ()) -> set[int | None]:
    """What forty draws give."""
    generator = np.random.default_rng(3)
    return {draw_control(sizes, memory, barred=barred, generator=generator) for _ in range(40)}


@pytest.mark.parametrize(
    ("sizes", "barred", "expected"),
    [
        # 0.8 and 1.25 are within the factor, 0.79 and 1.26 are not; silent ones never are.
        ([1.0, 0.801, 1.249, 0.79, 1.26, 0.0], (), {1, 2}),
        ([1.0, 0.801, 1.249, 0.79, 1.26, 0.0], (1,), {2}),
        ([1.0, 0.5, 2.1, 0.0], (), {1}),  # none within: the nearest by factor, whichever side
        ([1.0, 0.4, 2.1, 0.0], (), {2}),
        ([1.0, 0.4, 2.1, 0.0], (1, 2), {None}),  # what is left is silent
        ([1.0], (), {None}),
        ([0.0, 1.0], (), {None}),  # a silent memory has nothing as strong
    ],
)
def test_a_control_is_as_strong_as_the_memory(
    sizes: list[float], barred: tuple[int, ...], expected: set[int | None]
) -> None:
    assert drawn(sizes, 0, barred) == expected


def test_a_draw_is_that_of_its_seed() -> None:
    sizes = np.ones(100)
    first, again, other = (
        [draw_control(sizes, 5, barred=(), generator=generator) for _ in range(5)]
        for generator in map(np.random.default_rng, (1, 1, 2))
    )
    assert first == again != other
    assert 5 not in first
