"""Which batches of a plan have been counted: runs of numbers, kept ascending and apart.

A run is `(first, end)`, its end left out. What several workers have counted must lie side by side: what overlaps was
counted twice.
"""

from collections.abc import Iterable, Iterator

Range = tuple[int, int]


def join_ranges(ranges: Iterable[Range]) -> list[Range]:
    """The same numbers in as few runs as possible, ascending; runs may overlap, and empty ones vanish."""
    joined: list[Range] = []
    for first, end in sorted(run for run in ranges if run[0] < run[1]):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((first, end))
    return joined


def count_numbers(ranges: Iterable[Range]) -> int:
    """How many numbers the runs hold, those of overlaps as often as they occur."""
    return sum(end - first for first, end in ranges)


def leave_out(run: Range, ranges: Iterable[Range]) -> list[Range]:
    """What of a run is in none of the others, ascending."""
    first, end = run
    left: list[Range] = []
    for begin, stop in join_ranges(ranges):
        if begin > first:
            left.append((first, min(begin, end)))
        first = max(first, stop)
    left.append((first, end))
    return [one for one in left if one[0] < one[1]]


def numbers_of(ranges: Iterable[Range]) -> Iterator[int]:
    """All numbers, run by run."""
    for first, end in ranges:
        yield from range(first, end)


def shared_ranges(some: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """The numbers that are in runs of both, ascending."""
    mine, theirs = join_ranges(some), join_ranges(others)
    if count_numbers(mine) + count_numbers(theirs) == count_numbers(join_ranges([*mine, *theirs])):
        return []
    return join_ranges((max(first, begin), min(end, stop)) for first, end in mine for begin, stop in theirs)
