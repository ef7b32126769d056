"""Figure 10 on probabilities that are eighths."""

from pathlib import Path

from mnemoscope.questions import answer
from support.handbuilt_answers import build_answers, numbers


def test_means_and_quartiles(tmp_path: Path) -> None:
    prefixes = [(document, 1, 6, 7) for document in range(5)]
    probabilities = [0.0, 0.125, 0.25, 0.5, 1.0]
    predictions = {
        (prefix, 0): {"residual_final_probability": p, "residual_top": 7 if p >= 0.5 else 3}
        for prefix, p in enumerate(probabilities)
    }
    predictions |= {(prefix, 1): {"residual_final_probability": 0.5, "residual_top": 3} for prefix in range(5)}
    found = answer(build_answers(tmp_path, prefixes=prefixes, predictions=predictions), "refinement_confidence")
    assert numbers(found, "probability") == {0: 0.375, 1: 0.5}
    assert numbers(found, "probability_matching") == {0: 0.75, 1: None}
    assert numbers(found, "probability_matching", "count") == {0: 2, 1: 0}
    quartiles = [numbers(found, f"probability_q{level}")[0] for level in (25, 50, 75)]
    assert (quartiles, numbers(found, "probability_q75", "quantile")) == ([0.125, 0.25, 0.5], {0: 0.75, 1: 0.75})
    assert numbers(found, "probability", "low")[1] == numbers(found, "probability_q50", "high")[1] == 0.5
    low, high = (numbers(found, "probability_q50", end)[0] for end in ("low", "high"))
    assert (low, high) == (0.0, 1.0)  # five documents say little
    # Layer 0 to layer 1, of five documents: one step, and no rise is sure.
    assert (numbers(found, "rise"), numbers(found, "rising_steps")) == ({1: 0.125, None: 0.125}, {None: 1.0})
    assert [numbers(found, "rising_steps", end)[None] for end in ("low", "high")] == [0.0, 1.0]
    assert numbers(found, "documents") == {None: 5}


def test_rises_of_documents_that_all_say_the_same(tmp_path: Path) -> None:
    """Layers 0, 2 and 3: up by 50 points, then down by 25; each step is clear, of the two one rises."""
    probabilities = {0: 0.25, 2: 0.75, 3: 0.5}
    predictions = {
        (prefix, layer): {"residual_final_probability": p, "residual_top": 3}
        for prefix in range(4)
        for layer, p in probabilities.items()
    }
    prefixes = [(document, 1, 6, 7) for document in range(4)]
    atlas = build_answers(tmp_path, prefixes=prefixes, predictions=predictions)
    found = answer(atlas, "refinement_confidence")
    for column in ("value", "low", "high"):
        assert numbers(found, "rise", column) == {2: 0.5, 3: -0.25, None: 0.25}
        assert numbers(found, "rising_steps", column) == {None: 0.5}
    assert numbers(found, "rise", "count") == {2: 4, 3: 4, None: 4}
    assert numbers(found, "rising_steps", "count") == {None: 2}
