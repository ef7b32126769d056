"""Figure 8: votes laid out prefix by prefix."""

from pathlib import Path

from mnemoscope.questions import answer
from support.handbuilt_answers import build_answers, numbers

# (document, position, next token, final top): ` the` (1), `Of` (2) and `'s` (5) are stop words, 3 is ` cat`, 4 `.`
PREFIXES = [(0, 3, 1, 6), (0, 4, 3, 6), (1, 3, 4, 6), (2, 5, 2, 6)]


def test_zero_agreement_and_what_the_agreeing_cases_are_like(tmp_path: Path) -> None:
    predictions = {
        # layer 0: prefixes 0, 1, 2 have an agreeing memory; with 90 % of the contribution only 0; the output only 3
        (0, 0): {"votes_ffn": 2, "votes_ffn_major": 1, "ffn_vote_top": 5},
        (1, 0): {"votes_ffn": 1, "ffn_vote_top": 3},
        (2, 0): {"votes_ffn": 1, "ffn_vote_top": 2},
        (3, 0): {"votes_output": 1, "ffn_vote_top": 1},
        # layer 1: only prefix 3 has one
        (0, 1): {},
        (1, 1): {},
        (2, 1): {},
        (3, 1): {"votes_ffn": 4, "votes_ffn_major": 4, "votes_output": 4, "ffn_vote_top": 7},
    }
    found = answer(build_answers(tmp_path, prefixes=PREFIXES, predictions=predictions), "layer_composition")
    assert numbers(found, "zero_agreement") == {0: 1 / 4, 1: 3 / 4, None: 4 / 8}
    assert numbers(found, "zero_agreement_major") == {0: 3 / 4, 1: 3 / 4, None: 6 / 8}
    assert numbers(found, "zero_agreement_output") == {0: 3 / 4, 1: 3 / 4, None: 6 / 8}
    # Targets of the agreeing cases: ` the`, ` cat`, `.`; then `Of`.
    assert numbers(found, "agreeing_stop_word") == {0: 1 / 3, 1: 1.0, None: 2 / 4}
    # What the layer says there: `'s`, ` cat`, `Of`; then ` w7`.
    assert numbers(found, "agreeing_stop_word_top") == {0: 2 / 3, 1: 0.0, None: 2 / 4}
    # Prefixes of 4, 5, 4 tokens; then of 6.
    assert numbers(found, "agreeing_short") == {0: 2 / 3, 1: 0.0, None: 2 / 4}
    assert numbers(found, "agreeing_short", "count") == {0: 3, 1: 1, None: 4}
    assert numbers(found, "zero_agreement_least_layer") == {None: 1 / 4}
    assert numbers(found, "zero_agreement_least_layer", "at_layer") == {None: 0}
    # Of all four prefixes, each once: ` the` and `Of`; two of 4 tokens.
    assert (numbers(found, "all_stop_word"), numbers(found, "all_stop_word", "count")) == ({None: 2 / 4}, {None: 4})
    assert numbers(found, "all_short") == {None: 2 / 4}


def test_no_agreeing_case_at_all(tmp_path: Path) -> None:
    """Nor a memory that fires: every share of the agreeing cases is of nothing."""
    predictions: dict[tuple[int, int], dict[str, float]] = {(prefix, 0): {} for prefix in range(4)}
    found = answer(build_answers(tmp_path, prefixes=PREFIXES, predictions=predictions), "layer_composition")
    assert numbers(found, "zero_agreement") == {0: 1.0, None: 1.0}
    for name in ("agreeing_stop_word", "agreeing_stop_word_top", "agreeing_short"):
        assert (numbers(found, name), numbers(found, name, "count")) == ({0: None, None: None}, {0: 0, None: 0})
