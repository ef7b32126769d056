"""How likely it is that randomly drawn prefixes share something as often as a memory's triggers do.

The test is the hypergeometric tail (Fisher's exact test): if `held` of the background's prefixes and `count` of the
memory's `tried` show a feature, and the memory's were drawn at random from both together, how probable are `count` or
more? What the background lacks gets no probability of zero, since the memory's own prefixes are in the urn too.
Knows nothing of what a feature is.
"""

from functools import lru_cache
from math import lgamma, log

LEVEL = 0.01
"""The largest corrected probability at which a pattern counts."""


@lru_cache(maxsize=1 << 18)
def log10_tail(count: int, tried: int, held: int, background: float) -> float:
    """log10 of the probability that `count` or more of `tried` random prefixes show what `held` of `background` show.

    `background` may be fractional (so many prefixes as long as these) and counts as at least `held`.
    """
    if count <= 0:
        return 0.0
    background = max(background, float(held))
    shown = held + count
    most = min(tried, shown)
    lacking = background - shown  # of the background, were all of `shown` drawn from it; below 0: X has a lower end
    if count + lacking < 0:
        return 0.0
    term = _log_choose(tried, count) + _log_choose(background, shown - count) - _log_choose(background + tried, shown)
    ratio = total = 1.0
    for drawn in range(count, most):
        # P(X = drawn + 1) / P(X = drawn)
        ratio *= (tried - drawn) * (shown - drawn) / ((drawn + 1) * (lacking + drawn + 1))
        total += ratio
        if ratio < 1e-12 * total:
            break
    return min(0.0, (term + log(total)) / log(10))


def _log_choose(n: float, k: float) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def lift(count: int, tried: int, held: int, background: float) -> float:
    """How much more often the memory's prefixes show it than the background's do; one more is added to the latter."""
    return (count / tried) / ((held + 1) / (background + 1))
