"""Finds fields of meaning: words that the model takes for alike (the table similar_words), of which a memory's triggers
hold some more often than random prefixes do: as the last word, or among the last content words.

A field is a word of the triggers and the words like it. Every such field is tested (significance.py), and p-values are
corrected for their number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import log10

import numpy as np
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.errors import AtlasDamaged
from mnemoscope.patterns.prefixes import PrefixBatch
from mnemoscope.patterns.significance import COMPANY, FEWEST, LEVEL, Candidate, Groups, lift, log10_tail, mask_of
from mnemoscope.patterns.surface import FAMILY_SHIFT, Bools, Feature
from mnemoscope.patterns.word_lists import CLASS_OF
from mnemoscope.patterns.words import Integers, Lexicon, ranges

WINDOWS = (0, 4, 12)
"""Where a field's word may stand: at the end (0), or among so many last content words."""
_STEM = 4
"""Words that begin with the same so many letters are forms of one word, which surface patterns find."""
_RARE = 3.0
"""A field's share of the triggers over that of random prefixes, at least; spares tests that cannot succeed."""
_SAMPLED = 5_000
"""So many of a layer's prefixes stand for all."""
_TOGETHER = 256
"""Prefixes whose fields are counted at once."""
FIRST_KEY = 1 << 40
"""Keys of fields begin here, above the numbers of words."""


@dataclass(frozen=True)
class FieldPattern:
    window: int
    words: tuple[str, ...]
    """Those that the triggers hold, the most frequent first."""
    candidate: Candidate
    tests: int


@dataclass(frozen=True)
class WordPlaces:
    """The known words of prefixes: prefix `prefix[i]` holds the word of row `row[i]` in `window[i]` and those above."""

    prefix: Integers
    """Ascending."""
    row: Integers
    window: Integers
    words: Integers
    """[window, prefix]: the number of words there, known or not."""

    def within(self, window: int) -> Bools:
        """The last word may be none of content, so it counts for itself alone."""
        return self.window == 0 if window == 0 else (self.window > 0) & (self.window <= window)


@dataclass(frozen=True)
class Reference:
    """Prefixes that a memory's are compared with."""

    size: int
    shown: Sequence[Integers]
    """By window: how many show the field of each row."""
    words: NDArray[np.float64]
    """By window: the words of a prefix there, on average."""

    def alike(self, window: int, words: float) -> float:
        """The number of prefixes, as if they were fewer where those compared have more `words` on average."""
        return self.size / max(1.0, words / max(float(self.words[window]), 1e-9))


class FieldFinder:
    """Holds the words that are alike, and how many random prefixes show each word's field.

    A layer's triggers differ from random prefixes in kind, whatever the memory. So a field must be unlikely among both
    random prefixes and a sample of the triggers of all the layer's memories.
    """

    def __init__(self, atlas: Atlas, background: PrefixBatch, *, lexicon: Lexicon) -> None:
        table = atlas.table("similar_words") if atlas.has("similar_words") else None
        self.words: list[str] = [] if table is None else table["word"].to_list()
        lists = [] if table is None else table["similar"].to_list()
        self._rows = {word: row for row, word in enumerate(self.words)}
        self._lexicon = lexicon
        # Each word's field begins with itself; -1 fills up.
        self._fields = np.full((len(lists), 1 + max(map(len, lists), default=0)), -1, np.int64)
        for row, similar in enumerate(lists):
            self._fields[row, : 1 + len(similar)] = [row, *similar]
        if self._fields.size and self._fields.max() >= len(self.words):
            raise AtlasDamaged(f"{atlas.path}: similar_words names row {self._fields.max()} of {len(self.words)}")
        if not self.words:
            return
        centre, place = np.nonzero(self._fields >= 0)
        self._centres = self._by_row(self._fields[centre, place], centre)
        places = self._read(background)
        self._random = self._refer(places, np.arange(background.end.size))
        there = [places.within(window) for window in range(len(WINDOWS))]
        self._holding = [self._by_row(places.row[held], places.prefix[held]) for held in there]

    def of_layer(self, groups: Groups, prefixes: PrefixBatch) -> Iterator[tuple[int, list[FieldPattern]]]:
        """The index of each memory with fields, and these, the least probable first."""
        if not self.words or not prefixes.end.size:
            return
        places = self._read(prefixes)
        references = [self._random]
        if groups.memories.size >= COMPANY:
            sample = np.unique(np.linspace(0, prefixes.end.size - 1, _SAMPLED).astype(np.int64))
            references.append(self._refer(places, sample))
        starts = np.searchsorted(places.prefix, np.arange(prefixes.end.size + 1))
        for memory, (begin, end) in enumerate(zip(groups.starts, groups.starts[1:], strict=False)):
            members = groups.prefix[begin:end]
            group, flat = ranges(starts[members], np.diff(starts)[members])
            held = WordPlaces(group, places.row[flat], places.window[flat], places.words[:, members])
            if patterns := self._of_memory(held, groups.counts[begin:end], references):
                yield memory, patterns

    def _of_memory(self, held: WordPlaces, counts: Bools, references: Sequence[Reference]) -> list[FieldPattern]:
        rows, which = np.unique(held.row, return_inverse=True)
        tried = int(counts.sum())
        if tried < FEWEST or rows.size < 2:
            return []
        fields = self._fields[rows]
        at = np.minimum(np.searchsorted(rows, fields), rows.size - 1)
        inside = rows[at] == fields
        alike = np.zeros((rows.size, rows.size), np.float32)
        alike[np.nonzero(inside)[0], at[inside]] = 1
        held_in = np.zeros((len(WINDOWS), rows.size, counts.size), np.bool_)
        for window, words in enumerate(held_in):
            there = held.within(window)
            words[which[there], held.prefix[there]] = True
        shows_in = (alike @ held_in) > 0
        numbers = shows_in[:, :, counts].sum(axis=2)
        tests = int(np.count_nonzero(numbers))
        limit = log10(LEVEL / max(1, tests))
        likely: list[tuple[float, int, int, float]] = []
        for window, number_of in enumerate(numbers):
            words_there = float(held.words[window, counts].mean())
            compared = [(one.shown[window][rows], one.alike(window, words_there)) for one in references]
            share = np.max([shown / size for shown, size in compared], axis=0)
            for place in np.flatnonzero((number_of >= FEWEST) & (number_of > _RARE * tried * share)).tolist():
                number, log10_p = int(number_of[place]), -np.inf
                for shown, size in reversed(compared):  # the layer's own, which most fail
                    log10_p = max(log10_p, log10_tail(number, tried, int(shown[place]), size))
                    if log10_p > limit:
                        break
                else:
                    shown, size = compared[0]
                    likely.append((log10_p, window, place, lift(number, tried, int(shown[place]), size)))
        patterns: list[FieldPattern] = []
        masks: set[int] = set()
        for log10_p, window, place, lifted in sorted(likely):
            mask = mask_of(shows_in[window, place])
            if mask in masks:
                continue
            masks.add(mask)
            words = held_in[window, alike[place] > 0]
            names = [self.words[row] for row in rows[alike[place] > 0]]
            ordered = sorted((-n, name) for name, n in zip(names, words.sum(axis=1).tolist(), strict=True) if n)
            held_names = tuple(name for _, name in ordered)
            classes = [set(CLASS_OF.get(name, ())) for name in held_names]
            # Where the words are of one class, a surface pattern names what they have in common.
            if not _is_of_meaning(names, words) or (window == 0 and set.intersection(*classes)):
                continue
            row = int(rows[place])
            key = FIRST_KEY + window * len(self.words) + row
            starts, prefixes = self._holding[window]  # of the background
            members = self._fields[row][self._fields[row] >= 0]
            _, flat = ranges(starts[members], np.diff(starts)[members])
            candidate = Candidate(key, mask, log10_p, lifted, 0, np.unique(prefixes[flat]))
            patterns.append(FieldPattern(window, held_names, candidate, tests))
        return patterns

    def _read(self, prefixes: PrefixBatch) -> WordPlaces:
        """The last word, and the last content words in the order of their first occurrence."""
        row_of = np.array([self._rows.get(word, -1) for word in self._lexicon.words], np.int64)
        features = prefixes.features
        last = features.keys >> np.uint64(FAMILY_SHIFT) == Feature.WORD
        numbers = (features.keys[last] & np.uint64((1 << FAMILY_SHIFT) - 1)).astype(np.int64)
        of_last = prefixes.words.prefix
        ago = prefixes.words.starts[of_last + 1] - np.arange(of_last.size)  # 1: the last content word
        near = ago <= WINDOWS[-1]
        prefix = np.concatenate([features.prefix[last], of_last[near]])
        row = row_of[np.concatenate([numbers, prefixes.words.keys[near].astype(np.int64)])]
        window = np.concatenate([np.zeros(numbers.size, np.int64), np.searchsorted(WINDOWS, ago[near])])
        words = np.minimum(np.diff(prefixes.words.starts), np.array(WINDOWS)[:, None])
        words[0] = np.bincount(features.prefix[last], minlength=words.shape[1])
        order = np.argsort(prefix, kind="stable")
        order = order[row[order] >= 0]
        return WordPlaces(prefix[order], row[order], window[order], words)

    def _refer(self, places: WordPlaces, sample: Integers) -> Reference:
        """Of the prefixes in the `sample`."""
        parts = [places.within(window) & np.isin(places.prefix, sample) for window in range(len(WINDOWS))]
        shown = [self._count_shown(places.prefix[there], places.row[there]) for there in parts]
        return Reference(sample.size, shown, places.words[:, sample].mean(axis=1))

    def _count_shown(self, prefix: Integers, row: Integers) -> Integers:
        """How many prefixes show each word's field; prefix `prefix[i]` (ascending) holds the word of `row[i]`."""
        counts = np.zeros(len(self.words), np.int64)
        starts, centres = self._centres
        last = int(prefix.max(initial=-1))
        for first in range(0, last + 1, _TOGETHER):
            part = slice(*np.searchsorted(prefix, [first, first + _TOGETHER]))
            index, flat = ranges(starts[row[part]], np.diff(starts)[row[part]])
            shows = np.zeros((_TOGETHER, len(self.words)), np.bool_)
            shows[prefix[part][index] - first, centres[flat]] = True
            counts += shows.sum(axis=0)
        return counts

    def _by_row(self, row: Integers, values: Integers) -> tuple[Integers, Integers]:
        """Starts and values in order: the values that stand beside a row are `ordered[starts[row]:starts[row + 1]]`."""
        order = np.argsort(row, kind="stable")
        return np.searchsorted(row[order], np.arange(len(self.words) + 1)), values[order]


def _is_of_meaning(names: Sequence[str], words: Bools) -> bool:
    """Whether two or more groups hold the field by others than the forms of its commonest word."""
    stems: dict[str, Bools] = {}
    for name, groups in zip(names, words, strict=True):
        stem = name[:_STEM]
        stems[stem] = stems[stem] | groups if stem in stems else groups
    most = max(stems.values(), key=lambda groups: int(groups.sum()))
    others = [groups for groups in stems.values() if groups is not most]
    return bool(others) and int((reduce(np.logical_or, others) & ~most).sum()) >= 2
