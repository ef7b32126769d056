"""Near-duplicate prefixes (definitions.md section 3): those of a template differ in a name or a number only."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

Row = TypeVar("Row", bound=Mapping[str, Any])
COMPARED = 16
"""Tokens of a prefix that are compared, its last included."""
_TENTHS = 7
"""Of the trigrams of both, those that both must have."""


def fold_triggers(features: Sequence[Hashable], ranks: Sequence[int], prefixes: Sequence[Sequence[int]]) -> list[int]:
    """For each trigger the rank of the first of its fold. Triggers of different features never share one."""
    folds, rows = [0] * len(ranks), defaultdict(list)
    for at, feature in enumerate(features):
        rows[feature].append(at)
    for places in rows.values():
        places.sort(key=ranks.__getitem__)
        for at, first in zip(places, fold_prefixes([prefixes[at] for at in places]), strict=True):
            folds[at] = ranks[places[first]]
    return folds


def fold_prefixes(prefixes: Sequence[Sequence[int]]) -> list[int]:
    """For each prefix the index of the first of its fold; `prefixes` are tokens, best first. Each joins the fold of the
    first earlier one that it resembles. Prefixes without a trigram resemble equal ones only.
    """
    ends = [tuple(prefix[-COMPARED:]) for prefix in prefixes]
    trigrams: list[set[tuple[int, ...]]] = [set(zip(end, end[1:], end[2:], strict=False)) or {end} for end in ends]
    firsts: list[int] = []
    holders = defaultdict[tuple[int, ...], list[int]](list)
    for number, grams in enumerate(trigrams):
        shared = Counter(earlier for one in grams for earlier in holders[one])
        both = ((at, count, len(grams) + len(trigrams[at]) - count) for at, count in shared.items())
        similar = [at for at, count, of in both if 10 * count >= _TENTHS * of]
        firsts.append(firsts[min(similar)] if similar else number)
        for one in grams:
            holders[one].append(number)
    return firsts


def group_folds(triggers: Iterable[Row], sign: int) -> list[list[list[Row]]]:
    """The triggers of a sign, the best first: near-duplicates of a prefix stand behind it, equal prefixes together."""
    folds: dict[int, dict[int, list[Row]]] = {}
    for one in triggers:
        if one["sign"] == sign:
            folds.setdefault(one["fold"], {}).setdefault(one["prefix_group"], []).append(one)
    return [list(prefixes.values()) for prefixes in folds.values()]


def count_different(ranks: Iterable[int], best: Sequence[Mapping[str, Any]]) -> int:
    """How many of the folds of the `best` triggers (rank, prefix_group, fold) have their first one, or one of the same
    prefix, among these ranks.
    """
    groups = {one["rank"]: one["prefix_group"] for one in best}
    return len({groups[one["fold"]] for one in best} & {groups[rank] for rank in ranks if rank in groups})
