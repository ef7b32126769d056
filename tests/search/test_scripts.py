"""Words of scripts whose vowels are marks, of those whose marks may be left out, and of characters typed in parts."""

# ruff: noqa: RUF001

import unicodedata

import pytest

from mnemoscope.errors import SearchError
from mnemoscope.search.text import Part, find_matches, highlight, parse_query

FOUR_WORDS = {  # words that differ in a vowel sign, a point below or a tone mark alone
    **{"Hindi": "की को का के", "Marathi": "मी मा मे मु", "Nepali": "छु छौ छे छि", "Bengali": "কি কী কে কো"},
    **{"Gujarati": "કી કો કા કે", "Punjabi": "ਕੀ ਕੋ ਕਾ ਕੇ", "Odia": "କି କୁ କେ କା", "Telugu": "కీ కో కా కే"},
    **{"Kannada": "ಕೀ ಕೋ ಕಾ ಕೇ", "Malayalam": "കീ കോ കാ കേ", "Tamil": "கீ கோ கா கே", "Sinhala": "කී කෝ කා කේ"},
    **{"Thai": "กี กื กู ก้", "Lao": "ກີ ກື ກູ ກ້", "Khmer": "គី គុ គេ គោ", "Burmese": "ကီ ကု ကေ ကဲ"},
    **{"Tibetan": "གི གུ གེ གོ", "Dhivehi": "ކި ކު ކެ ކޮ", "Javanese": "ꦏꦶ ꦏꦸ ꦏꦺ ꦏꦼ", "Japanese": "は ば ぱ ハ"},
}


def holding(query: str, texts: list[str]) -> list[str]:
    return [texts[number] for number in find_matches(texts, parse_query(query))]


def marks(parts: tuple[Part, ...]) -> str:
    return "".join(f"[{text}]" if matched else text for text, matched in parts)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("language", FOUR_WORDS)
def test_a_vowel_sign_makes_another_word(language: str, form: str) -> None:
    words = FOUR_WORDS[language].split()
    texts = [unicodedata.normalize("NFC", f"{word} 1") for word in words]
    for word, text in zip(words, texts, strict=True):
        typed = unicodedata.normalize(form, word)  # type: ignore[arg-type]
        assert holding(typed, texts) == [text]
        assert marks(highlight([text], parse_query(typed))[0]) == f"[{text[:-2]}] 1"


@pytest.mark.parametrize(
    ("query", "text", "shown"),
    [
        ("سلام", "سَلامٌ عليكم", "[سَلامٌ] عليكم"),  # Arabic without its points, and with them
        ("سَلامٌ", "سلام عليكم", "[سلام] عليكم"),
        ("احمد", "قال أحمد", "قال [أحمد]"),
        ("שלום", "אמר שָׁלוֹם לך", "אמר [שָׁלוֹם] לך"),  # Hebrew
        ("בראשית", "בְּרֵאשִׁ֖ית ברא", "[בְּרֵאשִׁ֖ית] ברא"),  # with cantillation
        ("שׁלום", "\ufb2aלום", "[\ufb2aלום]"),  # a letter and its point as one character
        ("ܫܠܡܐ", "ܫܠܳܡܳܐ", "[ܫܠܳܡܳܐ]"),  # Syriac
        ("cafe", "un cafe\u0301 noir", "un [cafe\u0301] noir"),
        ("cafe\u0301", "un CAFÉ noir", "un [CAFÉ] noir"),
        ("nguoi Viet", "người Việt", "[người] [Việt]"),
        ("Αθηνα", "στην Αθήνα", "στην [Αθήνα]"),
        ("еще", "ещё раз", "[ещё] раз"),
        ("москва", "Москва\u0301 слезам", "[Москва\u0301] слезам"),  # the stress of a dictionary
        ("한국어", unicodedata.normalize("NFD", "나 한국어 말"), unicodedata.normalize("NFD", "나 [한국어] 말")),
        (unicodedata.normalize("NFD", "한국어"), "나 한국어 말", "나 [한국어] 말"),
        ("한국*", unicodedata.normalize("NFD", "한국어 말"), unicodedata.normalize("NFD", "[한국어] 말")),
        ("क\u093cलम", "\u0958लम से", "[\u0958लम] से"),  # a consonant and its dot
        ("কো", "ক\u09c7\u09be না", "[ক\u09c7\u09be] না"),  # a vowel sign of two parts
        ("หิว", "เขาหิวข้าว", "เขา[หิว]ข้าว"),
        ("ข้าว", "เขาหิวข้าว", "เขาหิว[ข้าว]"),
        ("भारत*", "यह भारतीय है।", "यह [भारतीय] है।"),
        ("है", "यह भारतीय है।", "यह भारतीय [है]।"),
        ("क्ष", "क्\u200dष त्र", "[क्\u200dष] त्र"),  # a joiner says how it is drawn
        ("می‌خواهم", "من می\u200cخواهم", "من [می\u200cخواهم]"),
        ("coop", "a co\u00adop", "a [co\u00adop]"),  # a soft hyphen
        ("❤", "a ❤\ufe0f b", "a [❤\ufe0f] b"),
        ("👩", "a 👩\u200d🚀 b", "a [👩\u200d]🚀 b"),
        ("b", "\u0301a “b”", "\u0301a “[b]”"),
    ],
)
def test_what_stands_there_is_shown_as_it_is(query: str, text: str, shown: str) -> None:
    assert holding(query, [text, "nothing"]) == [text]
    (parts,) = highlight([text], parse_query(query))
    assert marks(parts) == shown


@pytest.mark.parametrize(
    ("query", "text"),
    [("क", "की बात"), ("कि", "की बात"), ("भारती", "भारतीय"), ("ห", "หิว"), ("หี", "หิว"), ("한", "한국"), ("は", "ば")],
)
def test_a_part_or_a_misspelling_is_not_found(query: str, text: str) -> None:
    assert holding(query, [text]) == []


@pytest.mark.parametrize(
    "forms",
    [
        *("month months", "day days", "city cities", "box boxes", "church churches", "class classes", "house houses"),
        *("bus buses", "lens lenses", "KING kings", "tree Trees", "boy boys", "wish wishes"),
        *("woman women", "child children", "foot feet", "wife wives"),
    ],
)
def test_a_plural_finds_what_its_singular_finds(forms: str) -> None:
    one, several = forms.split()
    texts = [f"the {one}, here", f"the {several}, here", "the others"]
    for typed in (one, several, one.upper()):
        assert holding(typed, texts) == texts[:2]
        shown = [marks(parts) for parts in highlight(texts[:2], parse_query(typed))]
        assert shown == [f"the [{one}], here", f"the [{several}], here"]
    assert holding(f'"{one}"', texts) == texts[:1], "in quotes what is written"
    assert holding(f'"{several}"', texts) == texts[1:2]
    assert holding(f'"{one} here"', texts) == texts[:1]


@pytest.mark.parametrize(
    ("query", "other"),
    [
        ("four", "for"),
        ("hours", "hors"),
        ("this", "thi"),
        ("as", "a"),
        ("its", "it"),
        ("virus", "viru"),
        ("glass", "glas"),
        ("os", "o"),
    ],
)
def test_what_is_no_plural(query: str, other: str) -> None:
    assert holding(query, [query, other]) == [query]
    assert holding(other, [query, other]) == [other]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        *(("red OR blue", "red river|blue river|red house"), ("red OR blue river", "red river|blue river")),
        *(("river red OR blue", "red river|blue river"), ('"red river" OR house', "red river|red house")),
        *(("red AND river", "red river"), ("hou* OR or", "red house|this or that"), ("that or this", "this or that")),
        *(('"OR"', "this or that"), ("OR this", "this or that"), ("red OR (( blue", "red river|blue river|red house")),
    ],
)
def test_either_of_two_words(query: str, found: str) -> None:
    texts = ["red river", "blue river", "red house", "this or that"]
    assert holding(query, texts) == found.split("|")


def test_british_and_american_spelling_find_each_other() -> None:
    texts = ["a colour", "the colors", "two colours", "one color", "coloured"]
    for typed in ("colour", "color", "COLOURS", "colors"):
        assert holding(typed, texts) == texts[:4]
    assert holding('"colour"', texts) == texts[:1]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("red OR blue", ["OR is read as an operator: either"]),
        ("red AND blue OR green", ["AND is read as an operator: both", "OR is read as an operator"]),
        ("red or blue", ["or is read as a word; only OR and AND in capitals"]),
        ("OR red", ["OR is read as a word"]),
        ("red OR", ["OR is read as a word"]),
        ("red NOT blue NOT NEAR", ["NOT is read as a word", "NEAR is read as a word"]),
        *((quiet, []) for quiet in ('red "OR" blue', '"red or blue"', "red blue", "north of", "red OR ((", "near not")),
    ],
)
def test_how_operators_are_read_is_told(query: str, said: list[str]) -> None:
    notes = parse_query(query).notes
    assert [note.startswith(begin) for note, begin in zip(notes, said, strict=True)] == [True] * len(said)


def test_words_between_no_two_words_and_marks_of_their_own_are_words() -> None:
    assert holding("red OR", ["red river", "red or blue"]) == ["red or blue"]
    assert holding("AND river", ["red river", "and a river"]) == ["and a river"]
    assert holding("ी", ["ी 1", "की"]) == ["ी 1"]
    for nothing in ("\u0301", "\u064e", "\u200d", "\ufe0f"):
        with pytest.raises(SearchError, match="holds no letter"):
            parse_query(nothing)
