"""Fields of meaning: against a loop over the words of every prefix, and where fields are planted or there are none."""

from collections import Counter, defaultdict
from math import log10
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from mnemoscope.atlas import Atlas
from mnemoscope.errors import AtlasDamaged
from mnemoscope.patterns import PatternFinder
from mnemoscope.patterns.fields import FIRST_KEY, FieldFinder, FieldPattern
from mnemoscope.patterns.finding import Pattern
from mnemoscope.patterns.prefixes import PrefixBatch, read_prefixes
from mnemoscope.patterns.significance import groups_of, log10_tail
from mnemoscope.patterns.surface import read_spelling
from mnemoscope.patterns.words import Integers, Lexicon
from support.pattern_atlas import Place, build, random_places, real_sentences

KINDS = {
    "colour": ["amber", "blue", "crimson", "dun", "ecru", "fawn", "green", "hazel"],
    "beast": ["ape", "bear", "cow", "dog", "elk", "fox", "goat", "hen"],
    "metal": ["zinc", "tin", "steel", "lead", "iron", "gold", "copper", "brass"],
}
ALIKE = {word: [other for other in words if other != word] for words in KINDS.values() for word in words}
FILL = [f"{a}{b}{c}ix" for a in "bdfglmnprst" for b in "aeiou" for c in "dgklmt"]
"""Words that are like none."""


def made_up(
    directory: Path, planted: dict[int, tuple[str, int]], *, memories: int = 8, similar: bool = True, seed: int = 0
) -> Atlas:
    """Memories of 25 triggers, each a sentence and document of its own, of words without meaning. `planted`: a kind of
    word, and so many tokens before the last one it stands in half of a memory's triggers.
    """
    random = np.random.default_rng(seed)
    words = [*FILL, *ALIKE]
    chances = np.array([1.0] * len(FILL) + [0.5] * len(ALIKE))
    sentences = [list(random.choice(words, 16, p=chances / chances.sum())) for _ in range(4000)]
    layer: list[list[Place]] = []
    for memory in range(memories):
        own = range(25 * memory, 25 * (memory + 1))
        kind, ago = planted.get(memory, ("", 0))
        for number, sentence in enumerate(own):
            if kind and number % 2 == 0:
                sentences[sentence][11 - ago] = KINDS[kind][number // 2 % len(KINDS[kind])]
        layer.append([(sentence, 11) for sentence in own])
    background = [(sentence, int(random.integers(6, 16))) for sentence in range(25 * memories, 4000)]
    return build(directory, sentences, layers=[layer], background=background, similar=ALIKE if similar else None)


def patterns_of(atlas: Atlas) -> dict[int, list[Pattern]]:
    found: dict[int, list[Pattern]] = defaultdict(list)
    for pattern in PatternFinder(atlas).of_layer(0):
        found[pattern.memory].append(pattern)
    return found


@pytest.mark.parametrize(("ago", "says"), [(0, "last word is like: "), (2, "near the end: "), (7, "about: ")])
def test_words_of_one_meaning_are_found_where_they_stand(tmp_path: Path, ago: int, says: str) -> None:
    found = patterns_of(made_up(tmp_path / "atlas", {3: ("colour", ago), 5: ("beast", ago)}))
    for memory, kind in ((3, "colour"), (5, "beast")):
        own = [one for one in found[memory] if one.kind == "semantic"]
        assert len(own) == 1, own
        assert own[0].description.startswith(says)
        assert len(set(range(0, 25, 2)) - set(own[0].triggers)) <= 1  # a word that stood earlier, too, counts there
        named = own[0].description.removeprefix(says).removesuffix(", ...").split(", ")
        assert len(named) == 6
        assert set(named) <= set(KINDS[kind])
    assert sum(len(own) for memory, own in found.items() if memory not in (3, 5)) <= 1


def test_without_the_table_nothing_is_found_that_only_meaning_joins(tmp_path: Path) -> None:
    found = patterns_of(made_up(tmp_path / "atlas", {3: ("colour", 2)}, similar=False))
    assert not [one for one in found[3] if one.kind == "semantic"]


def test_forms_of_one_word_and_words_of_one_class_are_no_field(tmp_path: Path) -> None:
    """Surface patterns say what these have in common."""
    random = np.random.default_rng(1)
    alike = {"working": ["worked", "works"], "worked": ["working", "works"], "works": ["working", "worked"]}
    months = ["january", "march", "april", "june"]
    alike |= {month: [other for other in months if other != month] for month in months}
    sentences = [list(random.choice(FILL, 10)) for _ in range(3000)]
    for number in range(50):
        sentences[number][9] = (["working", "worked", "works"], months)[number // 25][number % 3]
    layer = [[(sentence, 9) for sentence in range(begin, begin + 25)] for begin in (0, 25)]
    background = [(sentence, 9) for sentence in range(50, 3000)]
    found = patterns_of(build(tmp_path / "a", sentences, layers=[layer], background=background, similar=alike))
    assert all(one.kind == "shallow" for own in found.values() for one in own)
    assert any("last word begins with w" in one.description for one in found[0])
    assert any("is a month" in one.description for one in found[1])


def test_what_one_document_repeats_is_no_pattern(tmp_path: Path) -> None:
    """The same memory, its triggers from 25 documents and from two."""
    random = np.random.default_rng(2)
    sentences = [list(random.choice(FILL, 10)) for _ in range(3000)]
    for number in range(12):
        sentences[number][9] = KINDS["metal"][number % 8]
    layer = [[(sentence, 9) for sentence in range(25)]]
    background = [(sentence, 9) for sentence in range(25, 3000)]
    for documents, stands in ((list(range(3000)), True), ([n // 12 if n < 24 else n for n in range(3000)], False)):
        given: dict[str, Any] = {"layers": [layer], "background": background, "documents": documents}
        atlas = build(tmp_path / str(stands), sentences, **given, similar=ALIKE)
        assert bool(patterns_of(atlas)) is stands


def slow_fields(atlas: Atlas, memory: int, background: list[Place]) -> dict[tuple[int, str], tuple[float, set[int]]]:
    """By window and word: log10 of the p-value, not corrected, and the ranks of the triggers that show its field."""

    texts = [text.split() for text in atlas.table("sentences").sort("sentence")["text"]]

    def words_of(place: Place) -> dict[int, set[str]]:
        sentence, position = place
        words = texts[sentence][: position + 1]
        first: dict[str, int] = {}
        for number, word in enumerate(words):
            first.setdefault(word, number)
        content = [word for word in sorted(first, key=first.__getitem__) if word not in common]
        return {0: {words[-1]}, 1: set(content[-4:]), 2: set(content[-12:])}

    counts = Counter(word for s, j in background for word in set(texts[s][: j + 1]))
    common = {word for word, count in counts.items() if count > 0.2 * len(background)}
    triggers = atlas.best_triggers(0).filter(memory=memory).sort("rank")
    own = [words_of(place) for place in triggers.select("sentence", "position").iter_rows()]
    random = [words_of(place) for place in background]
    found = {}
    for window in (0, 1, 2):
        mine, theirs = (np.mean([len(words[window]) for words in side]) for side in (own, random))
        size = len(random) / max(1.0, float(mine / theirs))
        for centre in ALIKE:
            field = {centre, *ALIKE[centre]}
            ranks = {rank for rank, words in enumerate(own) if words[window] & field}
            shown = sum(bool(words[window] & field) for words in random)
            if ranks and centre in set().union(*(words[w] for words in own for w in (0, 1, 2))):
                found[window, centre] = (log10_tail(len(ranks), len(own), shown, size), ranks)
    return found


def fields_of(atlas: Atlas) -> dict[int, list[FieldPattern]]:
    lexicon = Lexicon(read_spelling(atlas.vocabulary, atlas.sentences([*range(200)])))

    def read(sentence: Integers, position: Integers) -> PrefixBatch:
        return read_prefixes(atlas, sentence, position=position, lexicon=lexicon)

    rows = atlas.table("background")
    random = read(rows["sentence"].to_numpy().astype(np.int64), rows["position"].to_numpy().astype(np.int64))
    finder = FieldFinder(atlas, random, lexicon=lexicon)
    groups, sentence, position = groups_of(atlas.best_triggers(0))
    return dict(finder.of_layer(groups, read(sentence, position)))


def test_fields_are_those_of_a_loop(tmp_path: Path) -> None:
    atlas = made_up(tmp_path / "atlas", {0: ("metal", 0), 1: ("beast", 3), 2: ("colour", 9)}, memories=4, seed=3)
    background = [*atlas.table("background").select("sentence", "position").iter_rows()]
    found = fields_of(atlas)
    assert found.keys() >= {0, 1, 2}
    for memory in range(4):
        slow = slow_fields(atlas, memory, background)
        limit = log10(0.01 / max(1, len(slow)))
        least = min((one for one in slow.values()), key=lambda one: one[0])
        own = found.get(memory, [])
        assert bool(own) is (least[0] <= limit)
        assert len({one.candidate.mask for one in own}) == len(own)
        for one in own:
            word = centre_of(atlas, one)
            log10_p, ranks = slow[one.window, word]
            assert (one.tests, one.candidate.log10_p) == (len(slow), pytest.approx(log10_p))
            assert {rank for rank in range(25) if one.candidate.mask >> rank & 1} == ranks
        if own:
            assert own[0].candidate.log10_p == pytest.approx(least[0])


def centre_of(atlas: Atlas, one: FieldPattern) -> str:
    """The word at the middle of a field."""
    words = atlas.table("similar_words")["word"].to_list()
    return str(words[(one.candidate.key - FIRST_KEY) % len(words)])


@pytest.mark.fast(0, full=1)
@pytest.mark.parametrize("seed", [1])
def test_random_prefixes_of_real_text_have_fields_for_at_most_2_percent(tmp_path: Path, seed: int) -> None:
    """Words that stand in the same sentences are taken for alike, so fields differ in size and are correlated."""
    random = np.random.default_rng(seed)
    sentences = [list(words) for words in real_sentences()]
    beside: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for words in sentences:
        lower = sorted({word.lower() for word in words if word.isalpha() and len(word) > 2})
        for word in lower:
            for other in random.choice(lower, min(4, len(lower))):
                beside[word][str(other)] += word != other
    similar = {
        word: [other for other, _ in sorted(others.items(), key=lambda item: (-item[1], item[0]))[:20]]
        for word, others in beside.items()
    }
    memories = [random_places(sentences, 25, random=random, distinct=True) for _ in range(400)]
    background = random_places(sentences, 20_000, random=random)
    atlas = build(tmp_path / "atlas", sentences, layers=[memories], background=background, similar=similar)
    found = patterns_of(atlas)
    assert sum(bool(own) for own in found.values()) <= 12


def test_a_table_that_names_rows_it_lacks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    atlas = made_up(tmp_path / "atlas", {})
    table = Atlas.table

    def damaged(self: Atlas, name: str, **which: Any) -> pl.DataFrame:
        rows = table(self, name, **which)
        return rows.with_columns(similar=pl.lit([len(ALIKE)])) if name == "similar_words" else rows

    monkeypatch.setattr(Atlas, "table", damaged)
    with pytest.raises(AtlasDamaged, match="similar_words names row 24 of 24"):
        PatternFinder(atlas)
