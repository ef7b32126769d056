"""Which of several overlapping patterns stay; every case is small enough to be decided by eye."""

from dataclasses import replace

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


def slow_merge(candidates: list[Candidate], first: list[Candidate]) -> list[int]:
    """The same with sets, one rule after the other."""
    groups = {one.key: {group for group in range(GROUPS) if one.mask >> group & 1} for one in [*candidates, *first]}
    shown = {one.key: set(one.shown.tolist()) for one in [*candidates, *first]}

    def likely(count: int, tried: int, held: int, background: int) -> bool:
        return log10_tail(count, tried, held, float(background)) > LIMIT

    rivals = [[one for one in candidates if one.mask == mask] for mask in {one.mask for one in candidates}]
    specific = [min(same, key=lambda one: (len(shown[one.key]), -one.tokens, one.key)) for same in rivals]
    stay = [one.key for one in first]
    for one in sorted(specific, key=lambda one: (one.log10_p, one.key)):
        overlapping = [key for key in stay if len(groups[key] & groups[one.key]) >= 3]
        explained = set().union(*(groups[key] for key in stay))
        anywhere = set().union(*(shown[key] for key in stay))
        beyond = groups[one.key] - explained
        nothing_new = len(beyond) < 3 or likely(
            len(beyond), GROUPS - len(explained), len(shown[one.key] - anywhere), BACKGROUND - len(anywhere)
        )
        likely_inside = any(
            likely(len(groups[k] & groups[one.key]), len(groups[k]), len(shown[k] & shown[one.key]), len(shown[k]))
            for k in overlapping
        )
        if not nothing_new or not likely_inside:
            stay.append(one.key)
    return stay


def test_what_stays_is_what_sets_say() -> None:
    random = np.random.default_rng(5)
    sizes = set()
    for _ in range(150):
        made: list[Candidate] = []
        for key in range(1, 9):
            begin, end = sorted(random.choice(GROUPS + 1, 2, replace=False).tolist())
            start = int(random.integers(20))
            mask = sum(1 << group for group in range(begin, end))
            shown = np.arange(start, start + int(random.choice([0, 2, 20, 60])))
            log10_p = log10_tail(end - begin, GROUPS, shown.size, float(BACKGROUND))
            if end - begin >= 3 and log10_p <= LIMIT:
                made.append(Candidate(key, mask, log10_p, 1.0, int(random.integers(3)), shown))
        first = [replace(made[0], key=-1)] if len(made) > 3 else []
        found = merge(made, groups=GROUPS, background=BACKGROUND, limit=LIMIT, first=first)
        assert [one.key for one in found] == slow_merge(made, first)
        sizes.add((len(found), len(made)))
    assert len(sizes) > 10
