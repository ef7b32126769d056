"""Text to token ids and back, for mining: no special tokens; special strings are plain text.

Uses a private copy of the tokenizer's Rust half, so the user's own tokenizer is never changed. The copy has no
post-processor (it would add special tokens and trim the offsets), no padding and no truncation.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from mnemoscope.errors import ModelDamaged, OptionError

_SPACE = "\u2581"
_BYTE = re.compile("<0x[0-9A-F]{2}>")
"""A piece that is one byte; SentencePiece writes capitals."""


@dataclass(frozen=True)
class Beginning:
    """The token before every sentence, and its `kind`; without a token the kind is `none`."""

    token: int | None
    kind: Literal["bos", "end-of-text", "chosen", "frame", "none"]

    @property
    def tokens(self) -> list[int]:
        return [] if self.token is None else [self.token]


class Reader(Protocol):
    """What a language model needs to read text; the fingerprint covers `description`."""

    description: dict[str, Any]

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The token ids of each text."""

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of every token of one text."""

    def vocabulary(self, rows: int) -> tuple[list[str], list[bytes]]:
        """Text and bytes of each of the first `rows` ids."""


class SpecialReader(Reader, Protocol):
    def special(self) -> set[int] | None:
        """The ids of the tokens that are marked special; None if unknown."""


class Tokens:
    def __init__(self, tokenizer: Any, *, special: bool = False) -> None:
        """`special`: special strings in a text are special tokens."""
        self.tokenizer = tokenizer
        backend = tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.backend_tokenizer
        self.description: dict[str, Any] = json.loads(backend.to_str()) | {"padding": None, "truncation": None}
        # Random splits are for training.
        if self.description["model"].get("dropout"):
            self.description["model"]["dropout"] = None
        self._plain = Tokenizer.from_str(json.dumps(self.description | {"post_processor": None}))
        self._plain.encode_special_tokens = not special

    def with_special(self) -> "Tokens":
        return Tokens(Tokenizer.from_str(json.dumps(self.description)), special=True)  # not as its owner changed it

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The token ids of each text."""
        with _named_failure():
            return [encoding.ids for encoding in self._plain.encode_batch_fast(texts, add_special_tokens=False)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        with _named_failure():
            return [(int(a), int(b)) for a, b in self._plain.encode(text, add_special_tokens=False).offsets]

    def vocabulary(self, rows: int) -> tuple[list[str], list[bytes]]:
        r"""Text and bytes of each of the first `rows` ids; empty for ids without a token.

        The text is the piece as in running text, with its space; bytes that are not UTF-8 by themselves are shown as in
        `\xe2`.
        """
        decode = _decoder(self.description)
        literal = {entry["content"] for entry in self.description.get("added_tokens") or []}
        pieces = [b""] * rows
        for piece, token in self._plain.get_vocab(with_added_tokens=True).items():
            if 0 <= token < rows:
                pieces[token] = piece.encode() if piece in literal else decode(piece)
        return [piece.decode("utf-8", errors="backslashreplace") for piece in pieces], pieces

    def special(self) -> set[int]:
        return {int(entry["id"]) for entry in self.description.get("added_tokens") or [] if entry.get("special")}


@contextmanager
def _named_failure() -> Iterator[None]:
    """Turns a bare Exception of tokenizers into one line."""
    try:
        yield
    except Exception as problem:
        if type(problem) is not Exception:
            raise
        reason = " ".join(str(problem).split())
        raise ModelDamaged(f"the tokenizer fails at a text ({reason}); take a complete copy of it") from None


def beginning_of(tokenizer: Any, config: Any, tokens: SpecialReader, *, rows: int) -> Beginning:
    """The beginning-of-sequence token, else the end-of-text token, else none."""
    kinds: tuple[tuple[str, Literal["bos", "end-of-text"]], ...] = (("bos", "bos"), ("eos", "end-of-text"))
    for name, kind in kinds:
        if stated := _token_ids(f"{name}_token_id", (tokenizer, config), tokens, rows=rows, most=1):
            return Beginning(stated[0], kind)
    return Beginning(None, "none")


def frame_of(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that a tokenizer of transformers puts before and after a text; none without a tokenizer."""
    if not callable(tokenizer):
        return (), ()
    made = tokenizer("a", return_special_tokens_mask=True)
    ids, added = [*made["input_ids"]], [*made["special_tokens_mask"]]
    own = added.index(0) if 0 in added else len(ids)
    return tuple(ids[:own]), tuple(ids[len(ids) - [*reversed(added)].index(0) :] if 0 in added else ())


def mask_of(tokenizer: Any, config: Any, *, rows: int) -> int | None:
    """The id of the token that hides another, stated by the tokenizer or, without one, by the configuration."""
    stated = (getattr(place, "mask_token_id", None) for place in (tokenizer, config))
    return next((token for token in stated if isinstance(token, int) and 0 <= token < rows), None)


def padding_of(tokenizer: Any, config: Any, tokens: SpecialReader, *, rows: int) -> int | None:
    return next(iter(_token_ids("pad_token_id", (tokenizer, config), tokens, rows=rows, most=1)), None)


def chosen_beginning(asked: str, usual: Beginning, tokens: Reader, *, rows: int) -> Beginning:
    """The beginning token that a user names by its text, or `none`."""
    if asked == "none":
        return Beginning(None, "none")
    texts, _ = tokens.vocabulary(rows)
    # Token ids are shown with the space before them.
    matches = [token for token, text in enumerate(texts) if text == asked]
    matches = matches or [token for token, text in enumerate(texts) if text.strip() == asked]
    if len(matches) != 1 or not asked:
        what = f"is the text of {len(matches)} tokens" if matches and asked else "is not a token of the vocabulary"
        raise OptionError(f"--beginning {asked!r} {what}; name one token as it is shown, or none")
    return usual if matches[0] == usual.token else Beginning(matches[0], "chosen")


def ends_of(tokenizer: Any, config: Any, generation: Any, tokens: SpecialReader, *, rows: int) -> frozenset[int]:
    """The end-of-text tokens of tokenizer, configuration and generation configuration."""
    return frozenset(_token_ids("eos_token_id", (tokenizer, config, generation), tokens, rows=rows))


def _token_ids(
    name: str, places: tuple[Any, ...], tokens: SpecialReader, *, rows: int, most: int | None = None
) -> list[int]:
    """The token ids in an entry of the tokenizer and of configurations, `most` of each. Configurations, whose defaults
    may be of other vocabularies, count only for special tokens; without a tokenizer alone.
    """
    special, token_ids = tokens.special(), list[int]()
    for number, place in enumerate(places):
        value = getattr(place, name, None)
        several = value if isinstance(value, list | tuple) else [value]
        ids = [token for token in several if isinstance(token, int) and not isinstance(token, bool)][:most]
        token_ids += [token for token in ids if number == 0 or special is None or token in special]
    return [token for token in token_ids if 0 <= token < rows]


def _parts(description: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A component of the tokenizer as a flat list, with sequences expanded."""
    part = description.get(name)
    if part is None:
        return []
    for inner in ("pretokenizers", "decoders", "normalizers"):
        if part.get("type") == "Sequence" and inner in part:
            return [leaf for child in part[inner] for leaf in _parts({name: child}, name)]
    return [part]


def _decoder(description: dict[str, Any]) -> Callable[[str], bytes]:
    decoders = _parts(description, "decoder")
    types = {part["type"] for part in decoders + _parts(description, "pre_tokenizer")}
    model = description["model"]
    if "ByteLevel" in types:
        return decode_byte_level
    replacing = decoders + _parts(description, "normalizer")
    replaced = any(_SPACE in json.dumps(part, ensure_ascii=False) for part in replacing)
    if "Metaspace" in types or replaced or model.get("type") == "Unigram" or model.get("byte_fallback"):
        return decode_sentencepiece
    if "WordPiece" in types or model.get("type") == "WordPiece":
        prefix = model.get("continuing_subword_prefix") or "##"
        return lambda piece: (piece.removeprefix(prefix) if piece.startswith(prefix) else f" {piece}").encode()
    if suffix := model.get("end_of_word_suffix"):
        return lambda piece: (f"{piece.removesuffix(suffix)} " if piece.endswith(suffix) else piece).encode()
    spaced = {"Whitespace", "WhitespaceSplit", "BertPreTokenizer"} & types
    return lambda piece: (f" {piece}" if model.get("type") == "WordLevel" and spaced else piece).encode()


def decode_byte_level(piece: str) -> bytes:
    """The bytes of a piece in which each character stands for one, as in GPT-2's vocabulary."""
    table = byte_characters()
    return bytes(table[character] for character in piece) if table.keys() >= set(piece) else piece.encode()


def decode_sentencepiece(piece: str) -> bytes:
    r"""The bytes of a piece of SentencePiece: `\u2581` is a space, `<0xE2>` a byte."""
    if _BYTE.fullmatch(piece):
        return bytes([int(piece[3:5], 16)])
    return piece.replace(_SPACE, " ").encode()


@cache
def byte_characters() -> dict[str, int]:
    """The byte of each character in GPT-2's byte-level vocabularies."""
    return {character: byte for byte, character in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]
