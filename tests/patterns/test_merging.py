"""Which of several overlapping patterns stay; every case is small enough to be decided by eye."""

import numpy as np

from mnemoscope.patterns.significance import Candidate, log10_tail, merge

GROUPS, BACKGROUND, LIMIT = 25, 1_000, -4.0


def candidate(key: int, groups: range, background: range, tokens: int = 1) -> Candidate:
    """A pattern that these groups and these background prefixes show."""
    mask = sum(1 << group for group in groups)
    log10_p = log10_tail(len(groups), GROUPS, len(background), float(BACKGROUND))
    assert log10_p <= LIMIT
    return Candidate(key, mask, log10_p, 1.0, tokens, np.arange(background.start, background.stop, background.step))


def kept(*candidates: Candidate, first: tuple[Candidate, ...] = ()) -> list[int]:
    found = merge(candidates, groups=GROUPS, background=BACKGROUND, limit=LIMIT, first=first)
    return [one.key for one in found]


def test_of_patterns_that_explain_the_same_triggers_the_most_specific_stays() -> None:
    the = candidate(1, range(20), range(50))
    of_the = candidate(2, range(20), range(10), 2)
    part_of_the = candidate(3, range(20), range(2), 3)
    assert kept(the, of_the, part_of_the) == [3]
    # Equally rare in the background: the one that says more.
    assert kept(part_of_the, candidate(4, range(20), range(2), 4)) == [4]


def test_a_broader_pattern_stays_if_it_explains_more() -> None:
    part_of, of = candidate(1, range(12), range(2), 2), candidate(2, range(20), range(40))
    assert sorted(kept(part_of, of)) == [1, 2]
    # Two triggers more are no pattern.
    assert kept(part_of, candidate(2, range(14), range(40))) == [1]


def test_a_narrower_pattern_stays_if_it_is_unlikely_even_inside_the_broader() -> None:
    of = candidate(1, range(25), range(40))
    assert kept(of, candidate(2, range(12), range(2), 2)) == [1, 2]
    # Half of the prefixes that end in "of" end in "part of" anyway.
    assert kept(of, candidate(2, range(12), range(20), 2)) == [1]


def test_patterns_of_different_triggers_stay() -> None:
    assert kept(candidate(1, range(10), range(5)), candidate(2, range(10, 20), range(5, 10))) == [1, 2]


def test_what_kept_patterns_explain_together_goes() -> None:
    walking, talking = candidate(1, range(12), range(1)), candidate(2, range(12, 25), range(1, 2))
    assert sorted(kept(walking, talking, candidate(3, range(25), range(300)))) == [1, 2]


def test_those_put_first_stay() -> None:
    topic, word = candidate(-1, range(25), range(100), 0), candidate(1, range(12), range(1))
    assert kept(word, first=(topic,)) == [-1, 1]
    assert kept(candidate(2, range(12), range(40)), first=(topic,)) == [-1]


def test_nothing_gives_nothing() -> None:
    assert kept() == []
