"""How tokens spell words, which words are content words, and which surface classes they have; read by eye."""

import numpy as np
import polars as pl
import pytest

from mnemoscope.atlas.vocabulary import Vocabulary
from mnemoscope.patterns.surface import Feature, Spelling, affixes_of, classes_of, read_spelling, split_key
from mnemoscope.patterns.word_lists import NAME, STOP_WORDS, is_stop_word
from mnemoscope.patterns.words import Lexicon, cut_runs, is_content_word, words_in


def spelling_of(texts: list[bytes], text: str = "", tokens: tuple[int, ...] = ()) -> Spelling:
    readable = [raw.decode("utf-8", "backslashreplace") for raw in texts]
    return read_spelling(Vocabulary(readable, texts), pl.DataFrame({"text": [text], "tokens": [list(tokens)]}))


def runs_of(texts: list[bytes], tokens: list[int], begins: list[int] | None = None) -> list[str]:
    """The text of every run, where it ends."""
    spelling = spelling_of(texts)
    runs = cut_runs(np.array(tokens, dtype=np.int32), np.array(begins or [0, len(tokens)]), spelling=spelling)
    ends = np.flatnonzero(runs.last)
    return [spelling.vocabulary.text(runs.tokens[runs.start[end] : end + 1].tolist()) for end in ends]


def test_runs_are_words_whatever_their_pieces() -> None:
    texts = [b" dis", b"eas", b"e", b",", b" The", b"\n", b" 19", b"84"]
    assert runs_of(texts, [0, 1, 2, 3, 4, 6, 7, 5, 2]) == [" disease", ",", " The", " 1984", "\n", "e"]
    assert runs_of([b"a", b"b"], [0, 1, 0, 1, 1], [0, 2, 5]) == ["ab", "abb"]
    assert runs_of([b" caf", b"\xc3", b"\xa9", b"."], [0, 1, 2, 3]) == [" café", "."]
    assert runs_of(["日本".encode(), "語".encode(), b" a", "ไทย".encode()], [0, 1, 2, 3]) == ["日本", "語", " a", "ไทย"]


def test_equal_runs_have_equal_names_wherever_they_stand() -> None:
    spelling = spelling_of([b" a", b"b", b"c"])
    runs = cut_runs(np.array([0, 1, 2, 0, 1, 0, 2, 1], dtype=np.int32), np.array([0, 3, 8]), spelling=spelling)
    assert runs.name[0] == runs.name[3] == runs.name[5]
    assert runs.name[1] == runs.name[4]
    assert len({*runs.name[[2, 4, 7]].tolist()}) == 3  # abc, ab, acb


def test_tokens_that_bring_no_space_or_no_text() -> None:
    spelling = spelling_of([b"the", b"cat", b"sat"], "the cat sat", (0, 1, 2))
    assert not spelling.opens.any()
    with_spaces = spelling_of([b"the", b" cat", b" sat"], "the cat sat", (0, 1, 2))
    assert with_spaces.opens.tolist() == [True, False, False]
    spelling = spelling_of([b"", b"a"])
    assert not spelling.opens[0]
    assert not spelling.closes[0]


def test_brackets_open_and_close_and_are_counted_as_far_as_a_byte_goes() -> None:
    spelling = spelling_of([b"(", b"))", b" [x", b'"', "“".encode(), b'""'])
    assert spelling.depth.T.tolist() == [
        *([1, 0, 0, 0, 0], [-2, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]),
    ]
    spelling = spelling_of([b"(" * 300, b"]" * 300])
    assert spelling.depth[:, 0].tolist() == [100, 0, 0, 0, 0]
    assert spelling.depth[:, 1].tolist() == [0, -100, 0, 0, 0]


def test_a_lexicon_numbers_words_in_the_order_in_which_it_meets_them() -> None:
    lexicon = Lexicon(spelling_of([b" Dog", b" the", b" cat"]), ["cat", "a capitalised word"])
    runs = cut_runs(np.array([0, 1, 2, 0], dtype=np.int32), np.array([0, 4]), spelling=lexicon.spelling)
    places, numbers = lexicon.contents(runs)
    assert (places.tolist(), numbers.tolist()) == ([0, 2], [2, 0])
    assert lexicon.words == ["cat", "a capitalised word", "dog"]
    assert [lexicon.number(text) for text in ("dog", "new", "cat", "new")] == [2, 3, 0, 3]

    def said(ends: list[int], *, before: bool) -> list[tuple[int, Feature, str]]:
        index, keys = lexicon.features(runs, np.array(ends), before=before)
        parts = [split_key(key) for key in keys.tolist()]
        return [(place, family, lexicon.words[value]) for place, (family, _, value) in zip(index, parts, strict=True)]

    article = "an article or determiner"
    before = [(0, Feature.CLASS_BEFORE, "a capitalised word"), (1, Feature.CLASS_BEFORE, article)]
    assert said([0, 1], before=True) == before
    assert said([1, 0, 0], before=False) == [
        (0, Feature.CLASS, article),
        (0, Feature.WORD, "the"),
        (0, Feature.ENDING, "e"),
        (0, Feature.START, "t"),
        *(
            row
            for place in (1, 2)
            for row in (
                (place, Feature.CLASS, "a capitalised word"),
                (place, Feature.WORD, "dog"),
                (place, Feature.ENDING, "g"),
                (place, Feature.START, "d"),
            )
        ),
    ]


def test_words_in_a_text() -> None:
    assert words_in("don't re-do snake_case 3.5") == ["don", "t", "re", "do", "snake_case", "3", "5"]
    assert words_in("naïve हिन्दी 日本x") == ["naïve", "हिन्दी", "日", "本", "x"]
    assert words_in(" .") == []


@pytest.mark.parametrize(
    ("word", "content"),
    [("disease", True), ("the", False), ("t", False), ("x", False), ("1984", False), ("w17", True), ("日", True)],
)
def test_content_words(word: str, content: bool) -> None:
    assert is_content_word(word) is content


def test_content_words_are_listed_where_they_first_end() -> None:
    texts = [b" the", b" vir", b"us", b" Virus", b" cell"]
    lexicon = Lexicon(spelling_of(texts))
    runs = cut_runs(np.array([0, 1, 2, 3, 4, 4, 3], dtype=np.int32), np.array([0, 6, 7]), spelling=lexicon.spelling)
    places, numbers = lexicon.contents(runs)
    assert [(place, lexicon.words[number]) for place, number in zip(places, numbers, strict=True)] == [
        (2, "virus"),  # not again at 3, in the same sentence
        (4, "cell"),
        (6, "virus"),
    ]


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        (" 1984", ("a number", "a year")),
        (" 42", ("a number", "a two-digit number")),
        ("90210", ("a number",)),
        ("7", ("a number", "a one-digit number")),
        ("123", ("a number", "a three-digit number")),
        *((year, ("a number", "a year")) for year in ("1000", "1999", "2000", "2099")),
        *((number, ("a number",)) for number in ("0999", "2100", "3021", "19990")),
        ("a_1", ("letters with digits",)),
        ("No", ("an article or determiner", "a negation", "a capitalised word")),
        ("NO", ("an article or determiner", "a negation", "a word in capitals")),
        ("mIxed", ("a word of mixed case",)),
        ("É", ("a single capital letter", "a word with an accented letter")),
        ("é", ("a word with an accented letter",)),
        ("x日", ("CJK script",)),
        *(
            (mark, ("punctuation", kind))
            for mark, kind in (
                *((".", "a sentence-ending mark"), ("?!", "a sentence-ending mark"), (";", "a colon or semicolon")),
                *((")", "a closing bracket"), ("--", "a dash"), ("/", "a slash"), ("+=", "a mathematical sign")),
                *(("€", "a currency sign"), ("'", "a quotation mark")),
            )
        ),
        ("#", ("punctuation",)),
        (" \t\n", ("a line break",)),
        (" Paris", ("a capitalised word",)),
        ("NASA", ("a word in capitals",)),
        (" A", ("an article or determiner", "a single capital letter")),
        (" iPhone", ("a word of mixed case",)),
        (" x2", ("letters with digits",)),
        ("snake_case", ("a name with an underscore",)),
        (" of", ("a preposition",)),
        (" May", ("a modal verb", "a month", "a capitalised word")),
        (" q", ("a single small letter",)),
        (" house", ()),
        (" café", ("a word with an accented letter",)),
        (" Москва", ("a capitalised word", "Cyrillic script")),
        ("日", ("CJK script",)),
        (",", ("punctuation", "a comma")),
        (".”", ("punctuation", "a quotation mark")),
        (" (", ("punctuation", "an opening bracket")),
        ("\n\n", ("a line break",)),
        ("  ", ("white space",)),
        ("", ()),
    ],
)
def test_classes(text: str, classes: tuple[str, ...]) -> None:
    assert classes_of(text) == classes


def test_affixes_leave_two_letters() -> None:
    assert affixes_of("Walking") == (("g", "ng", "ing", "king"), ("w", "wa", "wal", "walk"))
    assert affixes_of("its") == (("s",), ("i",))
    assert affixes_of("is") == ((), ())
    assert affixes_of("x25") == ((), ())


def test_stop_words() -> None:
    for word in ("the", " The", "of\n", "'s", "n't", "would", "upon", "don't", "AND"):
        assert is_stop_word(word), word
    for word in ("disease", ".", ",", "", " ", "7", "time", "new", "first", "said"):
        assert not is_stop_word(word), word
    assert all(word == word.strip().lower() and any(c.isalpha() for c in word) for word in STOP_WORDS)
    assert NAME
