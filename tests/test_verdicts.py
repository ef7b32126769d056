"""Few draws of what knows nothing, in which hardly a claim may say yes, and of planted effects, in which most must.

runs/verdicts.sh makes 200 of each, with 16 and 160 in place of these limits.
"""

from collections import Counter

import pytest

from verdict_draws import CREDITED, KINDS, Shared, draw

DRAWS, MOST, FEWEST = 8, 3, 4

pytestmark = pytest.mark.full


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == "shuffled" else kind for kind in KINDS]
)
def test_what_knows_nothing_hardly_ever_says_yes_and_what_is_planted_mostly_does(kind: str) -> None:
    found: Counter[str] = Counter()
    # Matched draws of one configuration share a network; others are of each in turn.
    numbers = range(0, 4 * DRAWS, 4) if kind == "matched" else range(DRAWS)
    with Shared() as shared:
        for number in numbers:
            found.update({name: int(yes) for name, yes in draw(kind, number, shared, width=False).items()})
    assert set(found) >= set(CREDITED)
    limits = {name: found[name] for name in CREDITED}
    if kind == "planted":
        assert min(limits.values()) >= FEWEST, limits
    else:
        assert max(limits.values()) <= MOST, limits
