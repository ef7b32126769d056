"""The target of a memory, by hand: the best followed trigger's next token, ties within 1e-5 to the lowest sentence."""

import polars as pl

from mnemoscope.mining.passes.vectors.values import targets


def triggers(rows: list[tuple[int, int, float, int, int | None]]) -> pl.DataFrame:
    """Rows of (memory, sign, coefficient, sentence, next token or None), in the order of the table."""
    schema = {"memory": pl.Int32, "sign": pl.Int8, "coefficient": pl.Float32, "sentence": pl.Int64}
    frame = pl.DataFrame(rows, schema={**schema, "next_token": pl.Int32}, orient="row")
    return frame.with_columns(rank=pl.int_range(pl.len()).over("memory", "sign"))


def test_coefficients_that_differ_by_rounding_are_tied() -> None:
    tied = [(0, 1, 0.500009, 8, 40), (0, 1, 0.5, 2, 41)]  # within 1e-5: the lower sentence wins
    apart = [(1, 1, 0.50002, 8, 42), (1, 1, 0.5, 2, 43)]
    large = [(2, 1, 200.001, 8, 44), (2, 1, 200.0, 2, 45)]  # a tie grows with the coefficient: 2e-3 here
    twice = [(3, 1, 5.0, 6, 46), (3, 1, 5.0, 6, 47)]  # one sentence, two places: the higher rank
    found = targets(triggers([*tied, *apart, *large, *twice]), 4)
    assert found.target.tolist() == [41, 42, 45, 46]
    assert found.literal.tolist() == [40, 42, 44, 46]  # the paper's: of the first trigger, whatever ties with it


def test_a_first_trigger_at_the_end_of_its_sentence_has_no_literal_target() -> None:
    found = targets(triggers([(0, 1, 2.0, 0, None), (0, 1, 1.0, 1, 40), (1, 1, 1.0, 1, 41)]), 2)
    assert (found.target.tolist(), found.literal.tolist()) == ([40, 41], [-1, 41])
