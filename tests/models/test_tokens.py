"""Text to ids, offsets and readable vocabularies, for the kinds of tokenizers that language models have."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers import models as pieces
from transformers import PreTrainedTokenizerFast

from mnemoscope.errors import ModelDamaged, ModelUnsupported
from mnemoscope.models.opening.tokenizer_files import reader_of
from mnemoscope.models.tokens.model_tokens import (
    Beginning,
    Tokens,
    beginning_of,
    byte_characters,
    decode_sentencepiece,
    ends_of,
)
from models.small_tokenizers import byte_fallback, byte_level, unigram, wordpiece

CHARACTERS = st.integers(1, 0x2FFFF).filter(lambda code: not 0xD800 <= code < 0xE000).map(chr)


def test_special_strings_are_plain_text_in_a_byte_level_vocabulary(tokenizer):
    tokens = Tokens(tokenizer)
    text = "the<|endoftext|> cat"
    assert 0 in tokenizer.encode(text)
    ids = tokens.encode([text])[0]
    assert 0 not in ids
    assert (tokenizer.decode(ids), tokens.encode(["", text, "the"])) == (text, [[], ids, tokens.encode(["the"])[0]])


def test_a_chat_is_read_by_the_tokenizer_as_it_was_when_the_model_was_loaded():
    """Its description, which the fingerprint covers, is of then; its owner may change the tokenizer in place."""
    own = byte_level()
    tokens = Tokens(own)
    text = "the<|endoftext|> cat"
    before = tokens.with_special().encode([text])
    assert 0 in before[0]
    own.add_tokens(["the<|endoftext|>"])
    assert tokens.with_special().encode([text]) == before
    assert tokens.with_special().description == tokens.description != Tokens(own).description


def test_a_text_that_the_tokenizer_fails_at_is_named():
    """A vocabulary without the token for unknown words opens, and fails at the first of them."""
    broken = Tokenizer(pieces.WordPiece({"the": 0}, unk_token="[UNK]"))
    tokens = Tokens(broken)
    assert tokens.encode(["the"]) == [[0]]
    for read in (lambda: tokens.encode(["cat"]), lambda: tokens.offsets("cat")):
        with pytest.raises(ModelDamaged, match=r"fails at a text \(.*\[UNK\]"):
            read()


@given(st.lists(CHARACTERS, max_size=30).map("".join))
def test_a_byte_level_text_is_the_join_of_its_tokens_bytes(tokenizer, text):
    tokens = Tokens(tokenizer)
    _, raw = tokens.vocabulary(280)
    ids = tokens.encode([text])[0]
    assert b"".join(raw[token] for token in ids) == text.encode()


@given(st.text(alphabet="the cat—sé日<|endoftext|>\n", max_size=30))
def test_offsets_agree_with_encode_and_cover_the_text(tokenizer, text):
    tokens = Tokens(tokenizer)
    spans = tokens.offsets(text)
    assert len(spans) == len(tokens.encode([text])[0])
    assert {place for start, end in spans for place in range(start, end)} == set(range(len(text)))
    if text.isascii():  # transformers' own offsets trim the space that belongs to a token
        texts, _ = tokens.vocabulary(280)
        assert [text[start:end] for start, end in spans] == [texts[token] for token in tokens.encode([text])[0]]
    assert spans == sorted(spans)


def test_padded_rows_and_ids_without_token_are_empty(tokenizer):
    texts, raw = Tokens(tokenizer).vocabulary(280)
    assert len(texts) == len(raw) == 280
    size = len(tokenizer)
    assert (texts[size:], raw[size:], texts[0]) == ([""] * (280 - size), [b""] * (280 - size), "<|endoftext|>")
    assert " cat" in texts or " the" in texts
    assert len(Tokens(tokenizer).vocabulary(10)[0]) == 10


def test_readable_pieces_of_each_kind_of_vocabulary():
    texts, raw = Tokens(byte_fallback()).vocabulary(267)
    assert (texts[:3], texts[3 + 0xE2], raw[3 + 0xE2]) == (["<unk>", "<s>", "</s>"], "\\xe2", b"\xe2")
    assert (texts[3 + 0x41], texts[262]) == ("A", " a")
    ids = Tokens(byte_fallback()).encode(["<s>a é"])[0]  # special strings are plain text
    assert [texts[token] for token in ids] == [" ", "<", "s", ">", "a", " ", "\\xc3", "\\xa9"]
    assert [decode_sentencepiece(piece) for piece in ("<0x41>", "<0xZZ>", "<0x4f>")] == [b"A", b"<0xZZ>", b"<0x4f>"]
    assert Tokens(unigram()).vocabulary(5)[0] == ["<unk>", " the", " ", "c", "at"]
    assert Tokens(wordpiece()).vocabulary(6)[0] == ["[UNK]", "[CLS]", " play", "ing", " the", " ."]
    word = Tokenizer(pieces.WordLevel({"the": 0, "cat": 1}, unk_token="the"))
    word.pre_tokenizer = pre_tokenizers.Whitespace()
    assert Tokens(word).vocabulary(3)[0] == [" the", " cat", ""]
    suffixed = Tokenizer(pieces.BPE({"the</w>": 0, "ca": 1, "t</w>": 2}, [], end_of_word_suffix="</w>"))
    assert Tokens(suffixed).vocabulary(3)[0] == ["the ", "ca", "t "]


def test_the_users_tokenizer_is_left_as_it_was():
    own = PreTrainedTokenizerFast(tokenizer_object=byte_fallback(), bos_token="<s>", padding_side="left")
    own.backend_tokenizer.enable_truncation(3)
    own.backend_tokenizer.enable_padding(length=9)
    before = own.backend_tokenizer.to_str()
    assert (len(Tokens(own).encode(["a a a a a a a"])[0]), own.backend_tokenizer.to_str()) == (7, before)
    assert own.backend_tokenizer.encode_special_tokens is False
    assert json.loads(before)["truncation"] is not None


def test_what_is_no_tokenizer_is_refused():
    with pytest.raises(ModelUnsupported, match=r"a SimpleNamespace is not a tokenizer of transformers or tokenizers"):
        reader_of(SimpleNamespace(bos_token_id=0))


@pytest.mark.parametrize(
    ("own", "config", "expected"),
    [
        ({"bos_token": "<s>", "eos_token": "</s>"}, {}, Beginning(1, "bos")),
        # Qwen2's way: the tokenizer names none, the configuration one that the tokenizer knows as special.
        ({"eos_token": "</s>"}, {"bos_token_id": 1}, Beginning(1, "bos")),
        # A default of somebody else's vocabulary: id 100 is an ordinary token here, 5000 none at all.
        ({"eos_token": "</s>"}, {"bos_token_id": 100}, Beginning(2, "end-of-text")),
        ({"eos_token": "</s>"}, {"bos_token_id": 5000}, Beginning(2, "end-of-text")),
        ({}, {"eos_token_id": [2, 1]}, Beginning(2, "end-of-text")),
        ({}, {"bos_token_id": None}, Beginning(None, "none")),
        ({}, {}, Beginning(None, "none")),
    ],
)
def test_the_beginning_token(own, config, expected):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_fallback(), **own)
    given = tokenizer, SimpleNamespace(**config), Tokens(tokenizer)
    assert (beginning_of(*given, rows=267), beginning_of(*given, rows=1).kind) == (expected, "none")


@pytest.mark.parametrize(
    ("own", "config", "generation", "expected"),
    [
        ({"bos_token": "<s>", "eos_token": "</s>"}, 2, None, {2}),
        # The configurations may say several, and count where the tokenizer knows the ids as special.
        ({"bos_token": "<s>", "eos_token": "</s>"}, None, [2, 0], {2, 0}),
        ({"bos_token": "<s>"}, [0, 2], 2, {0, 2}),
        ({"bos_token": "<s>", "eos_token": "</s>"}, 100, [5000, 100], {2}),
        ({"bos_token": "<s>"}, None, None, set()),
    ],
)
def test_the_tokens_that_end_a_text(own, config, generation, expected):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_fallback(), **own)
    given = SimpleNamespace(eos_token_id=config), generation and SimpleNamespace(eos_token_id=generation)
    assert ends_of(tokenizer, *given, Tokens(tokenizer), rows=267) == expected
    assert ends_of(tokenizer, *given, Tokens(tokenizer), rows=1) == expected & {0}


def of_words():
    return Tokenizer(pieces.WordLevel({"<unk>": 0, "▁a": 1}, unk_token="<unk>"))


def with_part(**parts):
    plain = of_words()
    for name, part in parts.items():
        setattr(plain, name, part)
    return plain


@pytest.mark.parametrize(
    "plain",
    [
        with_part(pre_tokenizer=pre_tokenizers.Metaspace()),
        with_part(decoder=decoders.Metaspace()),
        with_part(normalizer=normalizers.Replace(" ", "▁")),
        with_part(decoder=decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])),
        Tokenizer(pieces.Unigram([("<unk>", 0.0), ("▁a", -1.0)], 0, False)),
        Tokenizer(pieces.BPE({"<unk>": 0, "▁a": 1}, [], unk_token="<unk>", byte_fallback=True)),
    ],
    ids=["pre-tokenizer", "decoder", "normalizer", "replaced back", "unigram", "byte fallback"],
)
def test_one_sign_of_sentencepiece_is_enough_and_without_any_the_mark_is_a_character(plain):
    assert Tokens(of_words()).vocabulary(2)[0] == ["<unk>", "▁a"]
    assert Tokens(plain).vocabulary(2) == (["<unk>", " a"], [b"<unk>", b" a"])


def test_every_byte_has_the_character_that_byte_level_vocabularies_give_it():
    table = byte_characters()
    assert (sorted(table.values()), table.keys()) == (list(range(256)), set(pre_tokenizers.ByteLevel.alphabet()))
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for character in ("A", "\0", " ", "~", "\x7f"):  # and of two bytes, the first of which is 0xC2 or 0xC3
        assert plain.pre_tokenize_str(character)[0][0] == next(c for c, byte in table.items() if byte == ord(character))
    for character in ("\xa0", "\xad", "\xff"):
        pieces_of = plain.pre_tokenize_str(character)[0][0]
        assert bytes(table[piece] for piece in pieces_of) == character.encode()


def test_the_tokens_of_texts_are_a_sequence_of_lists(tokenizer):
    texts = ["the cat", "", "a dog"]
    found, alone = Tokens(tokenizer).encode(texts), [Tokens(tokenizer).encode([text])[0] for text in texts]
    assert len(found) == 3
    assert list(found) == [found[place] for place in range(3)] == found[:] == alone
    assert (found[1:], found[-1], found) == (alone[1:], alone[-1], alone)
    assert found != alone[:2]


def test_words_are_not_split_at_random():
    """As `dropout` kept in tokenizer.json does; the user's own object goes on doing so."""
    plain, dropped = byte_level(), byte_level()
    dropped.model.dropout = 0.5
    text = "the cat sat on the mat " * 20
    for one in (dropped, PreTrainedTokenizerFast(tokenizer_object=dropped)):
        reader = reader_of(one)
        assert list(reader.encode([text] * 2)) == [plain.encode(text).ids] * 2
        assert reader.description["model"] == reader_of(plain).description["model"]
    assert dropped.model.dropout == 0.5
    assert len({tuple(dropped.encode(text).ids) for _ in range(5)}) > 1
