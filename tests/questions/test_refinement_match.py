"""Figure 9: where the residual's top token is the model's."""

from pathlib import Path

import pytest

from mnemoscope.questions import answer
from support.handbuilt_answers import build_answers, numbers

PREFIXES = [(0, 1, 6, 7), (0, 1, 6, 8), (1, 1, 6, 9), (2, 1, 6, 9)]


def test_match_by_layer_and_at_the_ends(tmp_path: Path) -> None:
    """Six layers, of which 1, 2 and 5 were mined: the bottom third ends with layer ceil(6 / 3) - 1 = 1."""
    tops = {1: (7, 0, 0, 0), 2: (7, 8, 0, 0), 5: (7, 8, 9, 0)}
    predictions = {(prefix, layer): {"residual_top": top[prefix]} for layer, top in tops.items() for prefix in range(4)}
    atlas = build_answers(tmp_path, model_layers=6, prefixes=PREFIXES, predictions=predictions)
    found = answer(atlas, "refinement_match")
    assert numbers(found, "match") == {1: 0.25, 2: 0.5, 5: 0.75}
    assert numbers(found, "match", "count") == {1: 4, 2: 4, 5: 4}
    assert (numbers(found, "match_lower_third"), numbers(found, "match_last")) == ({None: 0.25}, {None: 0.75})
    assert numbers(found, "match_last", "at_layer") == {None: 5}
    # Layer 2: document 0 has 2 of 2, documents 1 and 2 none of 1. Once in 27 resamples all are document 0.
    assert (numbers(found, "match", "low")[2], numbers(found, "match", "high")[2]) == (0.0, 1.0)


def test_layers_that_were_not_mined_say_nothing(tmp_path: Path) -> None:
    predictions = {(prefix, 3): {"residual_top": 7} for prefix in range(4)}
    atlas = build_answers(tmp_path, model_layers=6, prefixes=PREFIXES, predictions=predictions)
    found = answer(atlas, "refinement_match")
    assert (numbers(found, "match"), numbers(found, "match_lower_third")) == ({3: 0.25}, {None: None})
    assert numbers(found, "match_last", "count") == {None: 0}


def test_growth_a_layer_above_the_first_upper_one_and_below(tmp_path: Path) -> None:
    """Layers 0, 5 and 7 of eight, 5 the first upper one: 1, 2 and 4 of 4 match, in both documents alike."""
    tops = {0: (7, 0, 0, 0), 5: (7, 8, 0, 0), 7: (7, 8, 9, 9)}
    prefixes = [(document, *rest) for document in (0, 1) for _, *rest in PREFIXES]
    predictions = {(p, layer): {"residual_top": top[p % 4]} for layer, top in tops.items() for p in range(8)}
    atlas = build_answers(tmp_path, model_layers=8, prefixes=prefixes, predictions=predictions)  # type: ignore[arg-type]
    found = answer(atlas, "refinement_match")
    # 50 points in two layers, 25 in five; every resample says the same.
    for column in ("value", "low", "high"):
        assert numbers(found, "match_growth_upper_minus_lower", column) == {None: pytest.approx(0.5 / 2 - 0.25 / 5)}
    assert numbers(found, "match_growth_upper_minus_lower", "count") == {None: 8}
    assert numbers(found, "documents") == {None: 2}


@pytest.mark.parametrize("layers", [(5, 7), (0, 5), (0, 4)], ids=["no lower", "one upper", "no upper"])
def test_growth_needs_a_lower_and_two_upper_layers(layers: tuple[int, ...], tmp_path: Path) -> None:
    predictions = {(prefix, layer): {"residual_top": 7} for layer in layers for prefix in range(4)}
    atlas = build_answers(tmp_path, model_layers=8, prefixes=PREFIXES, predictions=predictions)
    assert numbers(answer(atlas, "refinement_match"), "match_growth_upper_minus_lower") == {None: None}


def test_one_document_has_no_interval(tmp_path: Path) -> None:
    prefixes = [(5, 1, 6, 7), (5, 1, 6, 8)]
    atlas = build_answers(tmp_path, prefixes=prefixes, predictions={(p, 0): {"residual_top": 7} for p in range(2)})
    (row,) = answer(atlas, "refinement_match").filter(name="match").to_dicts()
    assert (row["value"], row["count"], row["low"], row["high"]) == (0.5, 2, None, None)
