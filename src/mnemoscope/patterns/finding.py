"""Finds the patterns of an atlas layer by layer, and describes them in words. The same atlas gives the same rows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any

import numpy as np
import pyarrow as pa

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.experts import with_experts
from mnemoscope.atlas.read import BEST_TRIGGERS
from mnemoscope.atlas.schema import TABLES
from mnemoscope.foundation.progress import Progress, ignore_progress
from mnemoscope.patterns.fields import FieldFinder
from mnemoscope.patterns.memory_patterns import explained_tokens, semantic_patterns, shallow_patterns
from mnemoscope.patterns.prefixes import COMMON, PrefixBatch, number_words, read_background, read_prefixes
from mnemoscope.patterns.significance import Candidate, Documents, count_shared, groups_of
from mnemoscope.patterns.surface import BRACKETS, CLASSES_OF_MARKS, Feature, Spelling, read_spelling, split_key
from mnemoscope.patterns.words import Integers, Lexicon, quote

_SAMPLE_SIZE = 200
_NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
_MAX_WORDS = 6
_FIELDS = ("last word is like", "near the end", "about")


@dataclass(frozen=True)
class Pattern:
    layer: int
    memory: int
    pattern: int
    kind: str
    description: str
    triggers: list[int]
    lift: float
    log10_p: float


def columns_of(atlas: Atlas, patterns: Iterable[Pattern]) -> dict[str, Any]:
    rows = list(patterns)
    fields = TABLES["patterns"].columns
    columns = {field.name: pa.array([getattr(row, field.name) for row in rows], field.type) for field in fields}
    return with_experts(columns, atlas.numberings, None)


class PatternFinder:
    """Holds the background and the numbers of all words met so far. Words are numbered by first occurrence, and these
    numbers order ties. So a layer's patterns are reproducible only if all layers before it were read in order, or if
    `words` come from `words_of`.
    """

    def __init__(self, atlas: Atlas, words: Sequence[str] = ()) -> None:
        self.atlas, self._documents = atlas, Documents.read(atlas)
        sentence, position, self._lexicon = _read_background_places(atlas, words)
        random = read_prefixes(atlas, sentence, position=position, lexicon=self._lexicon)
        keys, counts = np.unique(random.words.keys, return_counts=True)
        self._common = keys[counts > COMMON * sentence.size]
        random = random.without_words(self._common)
        self._background = read_background(random)
        self._fields = FieldFinder(atlas, random, lexicon=self._lexicon)

    def of_layer(self, layer: int) -> Iterator[Pattern]:
        groups, sentence, position = groups_of(self.atlas.best_triggers(layer), self._documents)
        prefixes = read_prefixes(self.atlas, sentence, position=position, lexicon=self._lexicon)
        prefixes = prefixes.without_words(self._common)
        words = count_shared(groups, prefixes.words).per_memory(groups.memories.size)
        shallow = shallow_patterns(groups, prefixes, background=self._background, words=words)
        semantic = semantic_patterns(
            groups,
            prefixes,
            background=self._background,
            explained=explained_tokens(groups, shallow.unlikely),
            tried=shallow.tried,
            fields=dict(self._fields.of_layer(groups, prefixes)),
        )
        for place, memory in enumerate(groups.memories.tolist()):
            begin = int(groups.starts[place])
            correction = log10(max(1, int(shallow.tried[place])))
            rows: list[tuple[str, str, Candidate, float]] = []
            for candidate in shallow.kept.get(place, []):
                showing = groups.prefix[_group_indices(candidate, begin)].tolist()
                text = describe(candidate.key, prefixes, showing=showing, lexicon=self._lexicon)
                rows.append(("shallow", text, candidate, correction))
            for pattern in semantic.get(place, []):
                if pattern.field is not None:
                    text = f"{_FIELDS[pattern.field.window]}: {_first_words(pattern.field.words)}"
                    added = log10(pattern.field.tests)
                else:
                    text = describe_words([self._lexicon.words[word] for word in pattern.words])
                    added = 0.0 if pattern.candidate.key < 0 else correction  # a topic's key is negative
                rows.append(("semantic", text, pattern.candidate, added))
            # By groups explained, then by probability.
            rows.sort(key=lambda row: (-row[2].mask.bit_count(), row[2].log10_p + row[3], row[1]))
            for number, (kind, text, candidate, added) in enumerate(rows):
                ranks = groups.rank[_group_indices(candidate, begin)].tolist()
                yield Pattern(layer, memory, number, kind, text, ranks, candidate.lift, candidate.log10_p + added)


def words_of(atlas: Atlas, *, progress: Progress = ignore_progress) -> list[str]:
    """The words that a PatternFinder numbers while it reads all layers, in the order of their numbers."""
    sentence, position, lexicon = _read_background_places(atlas, ())
    number_words(atlas, sentence, position=position, lexicon=lexicon)
    for done, layer in enumerate(atlas.layers):
        progress("words", done, len(atlas.layers), "layers")
        _, sentence, position = groups_of(atlas.best_triggers(layer))
        number_words(atlas, sentence, position=position, lexicon=lexicon)
    progress("words", len(atlas.layers), len(atlas.layers), "layers")
    return lexicon.words


def _read_background_places(atlas: Atlas, words: Sequence[str]) -> tuple[Integers, Integers, Lexicon]:
    """The sentences and positions of the background, and a lexicon that starts with `words`."""
    rows = atlas.table("background")
    sample = atlas.sentences(rows["sentence"].head(_SAMPLE_SIZE).to_list(), columns=["sentence", "text", "tokens"])
    sentence, position = (rows[name].to_numpy().astype(np.int64) for name in ("sentence", "position"))
    return sentence, position, Lexicon(read_spelling(atlas.vocabulary, sample), words)


def _group_indices(candidate: Candidate, begin: int) -> list[int]:
    """The indices of the groups that show a candidate; its memory's groups start at `begin`."""
    return [begin + group for group in range(BEST_TRIGGERS) if candidate.mask >> group & 1]


def describe(key: int, prefixes: PrefixBatch, *, showing: Sequence[int], lexicon: Lexicon) -> str:
    family, kind, value = split_key(key)
    first, end = int(prefixes.first[showing[0]]), int(prefixes.end[showing[0]])
    if family == Feature.NGRAM:
        return f"ends {'with' if kind else 'in'} {_span(prefixes, end - kind, kind + 1, lexicon.spelling)}"
    if family in (Feature.DISTANCE, Feature.BEHIND):
        where, before = f"{_NUMBER_WORDS[kind + 1]} tokens" if kind else "just", family == Feature.DISTANCE
        token = _span(prefixes, end - kind - 1 if before else end + kind + 1, 1, lexicon.spelling)
        return f"{token} {where} {'before' if before else 'behind'} the last token"
    if family == Feature.BEGINNING:
        return f"begins with {_span(prefixes, first, kind + 1, lexicon.spelling)}"
    if family == Feature.INSIDE:
        inside = [f"{left} {right}" for left, right in BRACKETS] + ["quotation marks"]
        return f"inside {inside[kind]}"
    if family == Feature.LENGTH:
        return "only the first token" if value == 1 else f"at most the first {_NUMBER_WORDS[value]} tokens"
    if family == Feature.CONTINUES:
        return "the last token goes on with a word"
    if family == Feature.WORD:
        places = [(prefixes.runs.start[end], end + 1) for end in prefixes.end[list(showing)].tolist()]
        tokens = [prefixes.runs.tokens[begin:end].tolist() for begin, end in places]
        forms = {lexicon.spelling.vocabulary.text(each).strip() for each in tokens}
        least = min(forms)
        return f"ends in {quote(least)}" if len(forms) == 1 else f"ends in {quote(least.lower())} in any case"
    text = lexicon.words[value]
    if family == Feature.ENDING:
        return f"last word ends in -{text}"
    if family == Feature.START:
        return f"last word begins with {text}-"
    if family == Feature.CLASS:
        return f"last {'token' if text in CLASSES_OF_MARKS else 'word'} is {text}"
    return f"{text} just before the last word"


def describe_words(words: Sequence[str]) -> str:
    """`words` are one word, or those of a topic, the most significant first."""
    return f"mentions {quote(words[0])}" if len(words) == 1 else f"about: {_first_words(words)}"


def leading_words(description: str) -> str:
    """Of a list of words the first, of parts of a word none; another description whole."""
    if "…" in description or description.startswith(("last word ends in -", "last word begins with ")):
        return ""
    kind, colon, words = description.partition(": ")
    return words.split(", ")[0] if colon and kind in _FIELDS else description


def _first_words(words: Sequence[str]) -> str:
    return ", ".join(words[:_MAX_WORDS]) + (", ..." if len(words) > _MAX_WORDS else "")


def _span(prefixes: PrefixBatch, begin: int, size: int, spelling: Spelling) -> str:
    """Tokens of a sentence in quotation marks; dots stand for the earlier part of a word."""
    tokens = prefixes.runs.tokens[begin : begin + size].tolist()
    text = spelling.vocabulary.text(tokens)
    if "\ufffd" in text:  # a part of a character
        text = "".join(spelling.vocabulary.texts[token] for token in tokens)
    if not text:
        return " ".join(f"token {token}" for token in tokens)
    if not text.strip():
        return quote(text)
    dots = "…" if prefixes.runs.start[begin] < begin else ""
    return quote(dots + text.strip(" "))
