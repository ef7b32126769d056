"""Which batches of a plan have been counted: sorted, disjoint ranges `(first, end)`, end excluded."""

from collections.abc import Iterable, Iterator
from itertools import chain

Range = tuple[int, int]


def join_ranges(ranges: Iterable[Range]) -> list[Range]:
    """The union as few ranges, ascending; ranges may overlap, empty ones vanish."""
    joined: list[Range] = []
    for first, end in sorted(run for run in ranges if run[0] < run[1]):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((first, end))
    return joined


def count_numbers(ranges: Iterable[Range]) -> int:
    return sum(end - first for first, end in ranges)


def leave_out(run: Range, ranges: Iterable[Range]) -> list[Range]:
    """The part of `run` that is in none of the ranges, ascending."""
    first, end = run
    left: list[Range] = []
    for begin, stop in join_ranges(ranges):
        if begin > first:
            left.append((first, min(begin, end)))
        first = max(first, stop)
    left.append((first, end))
    return [one for one in left if one[0] < one[1]]


def numbers_of(ranges: Iterable[Range]) -> Iterator[int]:
    return chain.from_iterable(range(first, end) for first, end in ranges)


def shared_ranges(some: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """The intersection, ascending."""
    mine, theirs = join_ranges(some), join_ranges(others)
    if count_numbers(mine) + count_numbers(theirs) == count_numbers(join_ranges([*mine, *theirs])):
        return []  # the usual case, without comparing every pair
    return join_ranges((max(first, begin), min(end, stop)) for first, end in mine for begin, stop in theirs)
