"""Tokenizers without a Rust half: their tokens against what the format itself says, their texts, spans and refusals.

The references are written from the formats: ByT5's ids are bytes and 3, CTRL's are words merged pair by pair, a
character tokenizer's are its characters.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AddedToken, ByT5Tokenizer, CTRLTokenizer, PreTrainedTokenizer

from mnemoscope.corpus.sources.sentences import cut_windows
from mnemoscope.errors import ModelUnsupported, PromptError, TokenizerNotFound
from mnemoscope.models import load_model
from mnemoscope.models.opening.tokenizer_files import reader_of
from mnemoscope.models.tokens.model_tokens import byte_characters
from mnemoscope.models.tokens.python_tokens import PythonTokens
from models.conftest import build
from models.sentencepiece_file import sentencepiece_file

MERGES = [("t", "h"), ("th", "e</w>"), ("a", "t</w>"), ("c", "at</w>"), ("s", "at</w>"), ("th", "e")]
PIECES = ["the", "c@@", "at", "s@@", "<unk>", "th@@", "the@@", "cat", "sat", "m@@", "a@@", "t@@", "n", "t", "e", "h@@"]
BYTES = ByT5Tokenizer()
CHARACTERS = [*"abcdefghijklmnopqrstuvwxyz \u00e9\u65e5<>|", "<unk>"]


class Letters(PreTrainedTokenizer):
    """A tokenizer of single characters, as models of DNA and other alphabets have them."""

    def __init__(self, characters: Sequence[str] = tuple(CHARACTERS), unk_token: Any = "<unk>", **options: Any) -> None:
        self.ids = {character: number for number, character in enumerate(characters)}
        super().__init__(unk_token=unk_token, **options)

    @property
    def vocab_size(self) -> int:
        return len(self.ids)

    def get_vocab(self) -> dict[str, int]:
        return {**self.ids, **self.added_tokens_encoder}

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int | None:
        return self.ids.get(token, self.ids.get(str(self.unk_token)) if self.unk_token else None)

    def _convert_id_to_token(self, index: int) -> str:
        return list(self.ids)[index]


def test_tokens_that_its_owner_adds_later_are_none_of_a_loaded_model_s() -> None:
    own = Letters()
    tokens, texts = PythonTokens(own), ["the cat", "the<unk> cat"]
    before = tokens.encode(texts), tokens.with_special().encode(texts)
    assert before[0] != before[1]
    own.add_tokens(["cat"])
    assert (tokens.encode(texts), tokens.with_special().encode(texts)) == before
    assert PythonTokens(own).encode(texts) != before[0]


@pytest.fixture
def ctrl(tmp_path: Path) -> Any:
    (tmp_path / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(PIECES)}))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in MERGES), ""]
    (tmp_path / "merges.txt").write_text("\n".join(lines))
    return CTRLTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))


def merged(word: str) -> list[str]:
    """The pieces of a word by CTRL's merges: the pair that comes first in the list is joined first, wherever it is."""
    parts = [*word[:-1], f"{word[-1]}</w>"]
    for first, second in MERGES:
        place = 0
        while place + 1 < len(parts):
            if (parts[place], parts[place + 1]) == (first, second):
                parts[place : place + 2] = [first + second]
            place += 1
    return [*(f"{part}@@" for part in parts[:-1]), parts[-1].removesuffix("</w>")]


@given(st.text(max_size=30).filter(lambda text: "\0" not in text))
def test_bytes(text: str) -> None:
    tokens = PythonTokens(BYTES)
    assert tokens.encode([text]) == [[byte + 3 for byte in text.encode()]]
    texts, raw = tokens.vocabulary(260)
    assert b"".join(raw[token] for token in tokens.encode([text])[0]) == text.encode()
    # Each byte's span is its character's.
    assert tokens.offsets(text) == [(n, n + 1) for n, character in enumerate(text) for _ in character.encode()]
    assert (texts[3 + 0xC3], texts[3 + ord("a")], texts[0]) == ("\\xc3", "a", "<pad>")
    assert [raw[3 + byte] for byte in range(256)] == [bytes([byte]) for byte in range(256)]


def test_words_merged_pair_by_pair(ctrl: Any) -> None:
    tokens = PythonTokens(ctrl)
    for text in ("the cat sat", "that  the cat", "thethe matcat", "xyz the", "t", "the"):
        pieces = [piece for word in text.split() for piece in merged(word)]
        expected = [PIECES.index(piece) if piece in PIECES else PIECES.index("<unk>") for piece in pieces]
        assert tokens.encode([text]) == [expected], text
    assert tokens.encode(["the", "", "cat"]) == [[0], [], [7]]
    texts, _ = tokens.vocabulary(18)
    assert (texts[0], texts[1], texts[4], texts[17]) == ("the ", "c", "<unk>", "")
    assert tokens.offsets("the  cat") == [(0, 3), (5, 8)]
    assert tokens.offsets("the\u00e9 xx mat") == spans_of("the\u00e9 xx mat", tokens)


def spans_of(text: str, tokens: PythonTokens) -> list[tuple[int, int]]:
    """What spans must be whatever the tokens: in order, within the text, one for each token."""
    spans = tokens.offsets(text)
    assert len(spans) == len(tokens.encode([text])[0])
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert spans == sorted(spans)
    return spans


class Bare(Letters):
    """Takes accents off."""

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return ["e" if character == "\u00e9" else character for character in text]


def test_characters() -> None:
    tokens = PythonTokens(Letters())
    text = "a caf\u00e9 \u65e5<unk>|"
    assert tokens.encode([text]) == [[CHARACTERS.index(character) for character in text]]
    assert tokens.offsets(text) == [(place, place + 1) for place in range(len(text))]
    assert tokens.encode(["a!b"]) == [[0, CHARACTERS.index("<unk>"), 1]]
    assert tokens.offsets("a!b") == [(0, 1), (1, 2), (2, 3)]
    # A piece that is not in the text covers what its neighbours leave.
    bare = PythonTokens(Bare())
    assert bare.encode(["a\u00e9b"]) == [[CHARACTERS.index(character) for character in "aeb"]]
    assert bare.offsets("a\u00e9bc") == [(0, 1), (1, 2), (2, 3), (3, 4)]
    with pytest.raises(PromptError, match="'!' is not in the vocabulary of the tokenizer, which has no unknown token"):
        PythonTokens(Letters(CHARACTERS[:-1], unk_token=None)).encode(["a!"])


@given(st.text("abc \u00e9\u65e5!\u0130", max_size=30))
def test_windows_put_together_are_the_text(text: str) -> None:
    tokens = PythonTokens(Letters())
    ids = tokens.encode([text])[0]
    cut = cut_windows(text, ids, offsets=spans_of(text, tokens), longest=4)
    assert ("".join(part for part, _ in cut), [token for _, own in cut for token in own]) == (text, ids)


def test_special_strings_are_plain_text_and_other_added_tokens_are_found() -> None:
    tokenizer = Letters(eos_token="<end>")
    tokenizer.add_tokens([AddedToken("abc", special=False, normalized=False)])
    tokens = PythonTokens(tokenizer)
    end, abc = tokenizer.convert_tokens_to_ids(["<end>", "abc"])
    assert end in tokenizer("a<end>", add_special_tokens=False)["input_ids"]
    plain = [CHARACTERS.index(character) for character in "a<end>"]
    assert tokens.encode(["a<end>", "<end>", "xabcx"]) == [plain, plain[1:], [23, abc, 23]]
    assert end in tokens.special()
    assert abc not in tokens.special()
    assert tokens.offsets("xabcx") == [(0, 1), (1, 4), (4, 5)]
    greedy = {"xyz": {"lstrip": True}, "word": {"single_word": True}}
    tokenizer.add_tokens([AddedToken(name, special=False, **how) for name, how in greedy.items()])
    with pytest.raises(ModelUnsupported, match="added token 'xyz' takes white space along, or is matched only as a"):
        PythonTokens(tokenizer)


@pytest.mark.parametrize(
    ("pieces", "running"),
    [
        (["\u2581the", "cat", "s"], [b" the", b"cat", b"s"]),
        (["the</w>", "c", "at</w>"], [b"the ", b"c", b"at "]),
        (["the", "c@@", "at@@"], [b"the ", b"c", b"at"]),
        (["the", "##cat", "##s"], [b" the", b"cat", b"s"]),
        (["the", "cat", "s"], [b"the", b"cat", b"s"]),
        ([*map(chr, range(256)), "caf\u00e9"], [bytes([n]) for n in range(256)] + ["caf\u00e9".encode()]),
        ([*byte_characters(), "\u0120the"], [bytes([n]) for n in byte_characters().values()] + [b" the"]),
    ],
    ids=["sentencepiece", "end of word", "goes on", "goes back", "bare", "bytes", "byte level"],
)
def test_what_pieces_are_in_running_text_their_marks_tell(pieces: list[str], running: list[bytes]) -> None:
    assert PythonTokens(Letters(pieces, unk_token=None)).vocabulary(len(pieces))[1] == running


def test_what_decides_the_tokens_is_in_the_description(ctrl: Any, tmp_path: Path) -> None:
    first = PythonTokens(ctrl).description
    assert PythonTokens(ctrl).description == first
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("vocab.json", "merges.txt"):
        (elsewhere / name).write_text((tmp_path / name).read_text())
    again = CTRLTokenizer(str(elsewhere / "vocab.json"), str(elsewhere / "merges.txt"))
    assert PythonTokens(again).description == first
    again.init_kwargs |= {"name_or_path": "some/model", "is_local": False, "local_files_only": True}
    assert PythonTokens(again).description == first  # where it lies decides nothing
    (elsewhere / "merges.txt").write_text("#version: 0.2\nt h\n")
    other = CTRLTokenizer(str(elsewhere / "vocab.json"), str(elsewhere / "merges.txt"))
    assert PythonTokens(other).description != first
    assert PythonTokens(Letters()).description != PythonTokens(Letters("ab")).description


def folder_of(path: Path, kind: str | None, family: str = "llama", **files: str | bytes) -> Path:
    """The folder of a tiny model with these files (`vocab_json` is `vocab.json`) of a tokenizer of this class."""
    build(family).save_pretrained(path)
    for name, content in files.items():
        file = path / name.replace("_", ".")
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    if kind is not None:
        (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    return path


VOCABULARY = json.dumps({piece: number for number, piece in enumerate([*"thecatsm", "\u0120", "th", "the", "\u0120c"])})
PAIRS = "#version: 0.2\nt h\nth e\n\u0120 c\n"


def test_folders_of_tokenizers_without_a_fast_file(tmp_path: Path) -> None:
    model = load_model(str(folder_of(tmp_path / "bytes", "ByT5Tokenizer")))
    assert model.encode(["caf\u00e9"]) == [[byte + 3 for byte in "caf\u00e9".encode()]]
    assert (model.beginning.token, model.beginning.kind) == (1, "end-of-text")
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in MERGES), ""])
    words = json.dumps({piece: number for number, piece in enumerate(PIECES)})
    model = load_model(str(folder_of(tmp_path / "c", "CTRLTokenizer", vocab_json=words, merges_txt=merges)))
    assert model.encode(["the cat"]) == [[0, 7]]
    # Of these two transformers makes a Rust half itself: "the", " c", "a", "t".
    files = {"vocab_json": VOCABULARY, "merges_txt": PAIRS}
    for kind, family in (("GPT2Tokenizer", "llama"), (None, "gpt2"), (None, "gpt_neox")):
        model = load_model(str(folder_of(tmp_path / f"{kind}-{family}", kind, family, **files)))
        assert model.encode(["the cat"]) == [[10, 11, 4, 5]]


REFUSED: list[tuple[str | None, str, dict[str, str | bytes], type[Exception], str]] = [
    (None, "llama", {"vocab_json": VOCABULARY, "merges_txt": PAIRS}, ModelUnsupported, "backend tokenizer"),
    (None, "gpt2", {"vocab_json": VOCABULARY}, ModelUnsupported, "merges"),
    (None, "gpt2", {"vocab_txt": "the\ncat\n"}, TokenizerNotFound, "holds no tokenizer that transformers reads words"),
    (None, "gpt2", {"merges_txt": PAIRS}, TokenizerNotFound, "holds no tokenizer; name a folder or hub id"),
    ("NoSuchTokenizer", "llama", {"vocab_json": "{}"}, ModelUnsupported, "backend tokenizer"),
]


@pytest.mark.parametrize(("kind", "family", "files", "error", "line"), REFUSED)
def test_folders_of_which_no_tokenizer_can_be_made(
    kind: str | None, family: str, files: Any, error: type[Exception], line: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=line) as caught:
        load_model(str(folder_of(tmp_path / "model", kind, family, **files)))
    assert "\n" not in str(caught.value)


def test_libraries_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"vocab_json": json.dumps({"the</w>": 0, "<unk>": 1}), "merges_txt": "t h 1\n"}
    for kind, files, line in (
        ("BioGptTokenizer", words, "install sacremoses"),
        ("GPTSw3Tokenizer", {"tokenizer_model": sentencepiece_file()}, "pip install sentencepiece"),
        (None, {"tokenizer_model": sentencepiece_file()}, "pip install sentencepiece protobuf tiktoken"),
    ):
        package = "sacremoses" if "sacremoses" in line else "sentencepiece"
        try:
            __import__(package)
        except ImportError:
            with pytest.raises(ModelUnsupported, match=line) as caught:
                load_model(str(folder_of(tmp_path / f"{kind}", kind, **files)))  # type: ignore[arg-type]
            assert "\n" not in str(caught.value)


def test_a_sentencepiece_file_is_read_as_sentencepiece_reads_it(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    stated = folder_of(tmp_path / "stated", "LlamaTokenizer", tokenizer_model=sentencepiece_file())
    model = load_model(str(stated))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(stated / "tokenizer.model"))
    for text in ("the cat sat", "the th\u00e9 at", "cat"):
        assert model.encode([text]) == [processor.encode_as_ids(text)]
    silent = folder_of(tmp_path / "silent", None, tokenizer_model=sentencepiece_file())
    with pytest.raises(ModelUnsupported, match="differently from SentencePiece; state its class in"):
        load_model(str(silent))
    own = folder_of(tmp_path / "own", "GPTSw3Tokenizer", tokenizer_model=sentencepiece_file())
    assert load_model(str(own)).encode(["the cat"]) == [processor.encode_as_ids("the cat")]


class Sampled(Letters):
    """Sometimes one token for two letters, as SentencePiece's sampling and dropout of merges do."""

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return [letter for letter in text if self.chance.random() < 0.9]

    chance = random.Random(0)


def test_a_tokenizer_that_draws_its_tokens_at_random_is_refused(tokenizer: Any) -> None:
    found = [type(reader_of(one)).__name__ for one in (tokenizer, ByT5Tokenizer())]
    assert found == ["Tokens", "PythonTokens"]  # what has a Rust half is read by it
    assert reader_of(Letters()).encode(["abc"]) == [[0, 1, 2]]
    with pytest.raises(ModelUnsupported, match="a Sampled splits words at random: 'the cat sat on the mat' is "):
        load_model(build("gpt2-relu"), tokenizer=Sampled())
