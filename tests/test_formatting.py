"""How numbers are written for people: never as 0 what is not, and never with a row of zeros."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.foundation.formatting import format_value, plain_percent


@pytest.mark.parametrize(
    ("share", "said"),
    [
        *((0.0, "0 %"), (1.0, "100 %"), (-1.0, "-100 %"), (0.345, "34.5 %"), (0.9999, "99.9 %"), (1.51, "151.0 %")),
        *((0.0035, "0.35 %"), (0.000004, "0.00040 %"), (0.0000011, "0.00011 %"), (1.2e-7, "1.2e-05 %")),
        *((-3e-8, "-3e-06 %"), (3.14e-12, "3.1e-10 %"), (5e-300, "5e-298 %")),
    ],
)
def test_a_share_has_two_significant_figures_however_small(share: float, said: str) -> None:
    assert plain_percent(share) == said


@given(st.floats(0, 1, exclude_min=True))
def test_only_0_is_written_as_0(share: float) -> None:
    said = format_value(share, "share").removesuffix("\N{NO-BREAK SPACE}%")
    assert float(said) > 0 or share < 1e-300
    assert "0.0000" not in said
