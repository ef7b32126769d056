"""Strongly active, and which feature promotes a token, against definitions.md written again in plain loops."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.atlas.features import FEATURE_COLUMNS, clear_columns, features_of, strongly_active
from mnemoscope.foundation.memory_names import HISTOGRAM_EDGES as EDGES

POSITIVE = [edge for edge in EDGES if edge > 0]


def activity(coefficients: list[float]) -> dict[str, Any]:
    histogram = np.histogram(coefficients, bins=[-np.inf, *EDGES, np.inf])[0]
    ends = {"min": min(coefficients), "max": max(coefficients)}
    return ends | {"sampled": len(coefficients), "histogram": histogram.tolist()}


def slowly(coefficients: list[float]) -> tuple[float | None, float | None]:
    """Counts the coefficients themselves: m >= e above zero, m < -e below, e from the extreme of that sign."""
    found: list[float | None] = []
    for sign in (1, -1):
        extreme = max(sign * value for value in coefficients)
        if extreme < 2**-7 or extreme > 512:
            found.append(None)
            continue
        edge = [one for one in POSITIVE if one <= extreme / 8][-1]
        strong = [value for value in coefficients if (value >= edge if sign == 1 else value < -edge)]
        found.append(len(strong) / len(coefficients))
    return found[0], found[1]


NUMBERS = st.floats(-600, 600, width=32) | st.sampled_from([0.0, *EDGES, *(8 * edge for edge in EDGES)])


@given(st.lists(NUMBERS, min_size=1, max_size=30))
def test_strongly_active_is_what_the_definition_counts(coefficients: list[float]) -> None:
    assert strongly_active(pl.DataFrame([activity(coefficients)])).row(0) == slowly(coefficients)


def test_strongly_active_at_the_edges_of_many_rows() -> None:
    known = [
        ([8.0, 1.0, 0.999, 0.0], (0.5, None)),  # the edge is 1, and belongs to it
        ([15.9, 1.0, 0.5, 0.1], (0.5, None)),  # an eighth is 1.99: the edge below it is 1
        ([0.0, 0.0], (None, None)),
        ([2.0**-7, 2.0**-10, 0.0, -0.001], (0.5, None)),
        ([513.0, 1.0], (None, None)),
        ([-8.0, -1.0, -1.001, 4.0], (0.25, 0.5)),  # below zero the edge itself does not count
    ]
    found = strongly_active(pl.DataFrame([activity(one) for one, _ in known])).rows()
    assert found == [expected for _, expected in known] == [slowly(one) for one, _ in known]


@pytest.mark.parametrize("negative", [None, 1.0])
@pytest.mark.parametrize("positive", [None, 1.0])
@pytest.mark.parametrize(("top", "bottom"), [(6.0, 3.0), (4.0, 4.5), (2.0, 1.0)])
def test_columns_and_single_rows_say_the_same(
    top: float, bottom: float, positive: float | None, negative: float | None
) -> None:
    row = dict(zip(FEATURE_COLUMNS, (top, bottom, 4.0, positive, negative), strict=True))
    kinds = dict.fromkeys(FEATURE_COLUMNS, pl.Float64)
    promotes, promotes_negative, clear = pl.DataFrame([row], schema=kinds).select(clear_columns()).row(0)
    single = {feature.sign: feature for feature in features_of(row)}
    for sign, said in ((1, promotes), (-1, promotes_negative)):
        assert said == (single[sign].promotes if sign in single else None)
    beyond = [feature.distance - feature.clear for feature in single.values()]
    assert clear == max(beyond, default=None)


def test_an_old_atlas_has_no_features() -> None:
    row = dict.fromkeys(FEATURE_COLUMNS)
    assert features_of(row) == []
    kinds = dict.fromkeys(FEATURE_COLUMNS, pl.Float64)
    assert pl.DataFrame([row], schema=kinds).select(clear_columns()).row(0) == (None, None, None)
