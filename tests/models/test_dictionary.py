"""fairseq's dict.txt: ids, spans and texts, and what is refused; each answer is read by eye."""

from collections import OrderedDict
from pathlib import Path

import pytest

from mnemoscope.errors import ModelDamaged, ModelNotFound
from mnemoscope.models import load_model
from mnemoscope.models.opening.fairseq.checkpoint import Dictionary, read_dictionary
from models.checkpoints import KINDS, ROWS, WORDS, args_of, weights_of, write


def written(tmp_path: Path, content: bytes) -> Dictionary:
    (tmp_path / "dict.txt").write_bytes(content)
    return read_dictionary(tmp_path / "dict.txt")


@pytest.mark.parametrize(
    ("words", "text", "ids"),
    [
        (["the", "cat", "sat"], "the cat sat", [4, 5, 6]),
        (["the", "cat", "sat"], "the dog sat", [4, 3, 6]),
        (["the"], "", []),
        (["the"], "  \n", []),
        (["cat", "madeupword0000"], "cat <s> <pad> </s> <S> madeupword0000 Cat cat.", [4, *[3] * 7]),
        (["cat"], "<unk> cat", [3, 4]),
        (["<unk>", "cat"], "<unk> cat", [3, 5]),  # whatever the file says
    ],
)
def test_the_first_line_is_id_4_and_unknown_and_special_words_are_3(
    words: list[str], text: str, ids: list[int]
) -> None:
    assert (len(Dictionary(words)), Dictionary(words).encode([text, text])) == (4 + len(words), [ids, ids])


def test_white_space_of_any_kind_separates_and_is_nothing_else() -> None:
    words = Dictionary(["the", "cat"])
    text = "  the\tcat\n\nthe\u2028cat\xa0the\x85 cat\x1c"
    assert words.encode([text]) == [[4, 5, 4, 5, 4, 5]]
    assert [text[a:b] for a, b in words.offsets(text)] == ["the", "cat"] * 3


def test_the_text_of_a_word_begins_with_its_space() -> None:
    words = Dictionary(["the", "naïve", "madeupword0000"])
    texts, raw = words.vocabulary(9)
    assert texts == ["<s>", "<pad>", "</s>", " <unk>", " the", " naïve", "", "", ""]
    assert (raw, words.vocabulary(2)[0]) == ([text.encode() for text in texts], ["<s>", "<pad>"])
    ids = words.encode(["the naïve cat"])[0]
    assert b"".join(raw[id] for id in ids).decode() == " the naïve <unk>"


def test_only_a_line_feed_ends_a_line_and_the_count_comes_last(tmp_path: Path) -> None:
    words = written(tmp_path, "1 1/2 9\nline\u2028end 8\nnext\x85line 7\n\x0b 6\nlast 5".encode())
    texts, _ = words.vocabulary(9)
    assert texts[4:] == [" 1 1/2", " line\u2028end", " next\x85line", " \x0b", " last"]
    assert words.encode(["last"]) == [[8]]
    assert written(tmp_path, b"the 9\r\ncat 8\r\n").encode(["the cat"]) == [[4, 5]]
    # The last of two equal words counts, as in fairseq.
    words = written(tmp_path, b"the 9\ncat 8\nthe 7\n")
    assert (len(words), words.encode(["the cat"])) == (7, [[6, 5]])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"the 9\ncat\n", "line 2: 'cat' is not a word, a space and a count"),
        (b"the 9\n\ncat 8\n", "line 2: '' is not a word, a space and a count"),
        (b"the nine\n", "line 1: 'the nine' is not"),
        (b"the 9 #fairseq:overwrite\n", "line 1: 'the 9 #fairseq:overwrite' is not"),
        (b"the 9\n\xff\xfe 3\n", "is not UTF-8 text (invalid start byte at byte 6)"),
    ],
)
def test_a_file_of_another_form_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(ModelDamaged) as caught:
        written(tmp_path, content)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_reads_with_the_dictionary_beside_it_or_the_one_that_is_named(tmp_path: Path) -> None:
    kind = KINDS["tied"]
    name = write(tmp_path / "model", args_of(kind), weights_of(kind))
    model = load_model(name)
    assert model.encode(["the cat <unk> zebra @-@ naïve 東京"]) == [[4, 5, 3, 3, 19, 20, 21]]
    assert model.offsets("the  cat") == [(0, 3), (5, 8)]
    texts, raw = model.vocabulary()
    assert len(texts) == len(raw) == ROWS
    assert (texts[4:10], texts[-2:]) == ([" the", " cat", " sat", " on", " a", " mat"], ["", ""])

    (tmp_path / "model" / "dict.txt").rename(tmp_path / "other.txt")
    with pytest.raises(ModelNotFound, match=r"no dictionary '.*/model/dict.txt'; .* or name it \(dict\)"):
        load_model(name)
    assert load_model(name, dict=str(tmp_path / "other.txt")).fingerprint == model.fingerprint


@pytest.mark.parametrize("words", [WORDS[:-1], (*WORDS, "more")], ids=["too few", "too many"])
def test_a_dictionary_that_does_not_fit_is_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    kind = KINDS["tied"]
    name = write(tmp_path, args_of(kind), OrderedDict(weights_of(kind)), words=words)
    said = rf"has {4 + len(words)} words \(its 4 special ones counted\), the checkpoint has rows for {ROWS}; give"
    with pytest.raises(ModelDamaged, match=said):
        load_model(name)
