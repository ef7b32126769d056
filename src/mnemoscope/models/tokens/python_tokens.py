"""Tokenizers of transformers that are written in Python, without a Rust half, used only for plain text.

The class itself makes the tokens. The rest is inferred here: a piece's bytes in running text, from the marks that its
vocabulary uses, and the characters of each token.
"""

import copy
import hashlib
import inspect
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any

from mnemoscope.errors import ModelUnsupported, PromptError
from mnemoscope.models.tokens.model_tokens import byte_characters, decode_byte_level, decode_sentencepiece

REMOTE_CODE = "transformers_modules"
"""The package in which transformers imports code that comes with a model or a tokenizer."""

_PLACES = ("name_or_path", "auto_map", "is_local", "local_files_only")
"""Settings that say where a tokenizer lies."""
_SPACE = re.compile(rb"\s*")
_MARKED_SHARE = 50
"""A mark counts as the vocabulary's own if at least one piece in so many has it."""


class PythonTokens:
    """A Python tokenizer for plain text; special strings are plain text. Raises ModelUnsupported for added tokens that
    strip white space, or match only whole words.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._lock = RLock()
        # Copies: its owner may add tokens later, which are none of this reader's.
        self._added: dict[int, Any] = dict(tokenizer.added_tokens_decoder)
        # The class names some tokens special (end of text, padding) without marking them so.
        named = set(tokenizer.all_special_ids)
        self._special = {token for token, one in self._added.items() if one.special or token in named}
        self._split_at(special=False)
        self._pieces: dict[Any, int] = tokenizer.get_vocab()
        self.description = _description(tokenizer, self._pieces)

    def _split_at(self, *, special: bool) -> None:
        plain = {one.content: one for token, one in self._added.items() if special or token not in self._special}
        if greedy := [name for name, one in plain.items() if one.lstrip or one.rstrip or one.single_word]:
            raise ModelUnsupported(
                f"a {type(self.tokenizer).__name__} whose added token {greedy[0]!r} takes white space along, or is"
                " matched only as a whole word, cannot be read exactly; save it as a PreTrainedTokenizerFast, and give"
                " that as --tokenizer"
            )
        self._plain = plain.keys()
        longest_first = sorted(map(re.escape, plain), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(longest_first)})").split

    def with_special(self) -> "PythonTokens":
        other = copy.copy(self)
        other._split_at(special=True)
        return other

    def encode(self, texts: list[str]) -> list[list[int]]:
        # A Python tokenizer may not be thread-safe.
        with self._lock:
            return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> list[int]:
        tokens: list[Any] = []
        for part in self._split(text) if self._plain else [text]:
            pieces = [part] if part in self._plain else self.tokenizer.tokenize(part, split_special_tokens=True)
            tokens += pieces if part else []
        ids = self.tokenizer.convert_tokens_to_ids(tokens)
        if None in ids:
            unknown = tokens[ids.index(None)]
            raise PromptError(f"{unknown!r} is not in the vocabulary of the tokenizer, which has no unknown token")
        return list(map(int, ids))

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of every token of `encode([text])[0]`. Tokens whose bytes are not in the text share the
        gap between their neighbours.
        """
        [ids] = self.encode([text])
        _, raw = self.vocabulary(max(ids, default=-1) + 1)
        whole = text.encode()
        folded = whole.lower()
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        spans: list[tuple[int, int] | None] = []
        reached = 0
        for token in ids:
            piece = (raw[token].strip(b" ") or raw[token]).lower()
            start = reached if folded.startswith(piece, reached) else _SPACE.match(whole, reached).end()  # type: ignore[union-attr]
            if spans and spans[-1] is None:
                start = folded.find(piece, reached)
            if piece and token != unknown and start >= 0 and folded.startswith(piece, start):
                reached = start + len(piece)
                spans.append((start, reached))
            else:
                spans.append(None)
        # A character belongs to every token that has one of its bytes.
        of_byte = [number for number, character in enumerate(text) for _ in character.encode()] + [len(text)]
        return [
            (of_byte[start], of_byte[end - 1] + 1 if end > start else of_byte[start])
            for start, end in _fill_gaps(spans, len(whole))
        ]

    def vocabulary(self, rows: int) -> tuple[list[str], list[bytes]]:
        """Text and bytes of each of the first `rows` ids, as `Tokens` shows them; empty for ids without a token."""
        decode = _decoder(set(self._pieces))
        literal = {token: one.content for token, one in self._added.items()}
        texts = [b""] * rows
        for piece, token in self._pieces.items():
            if 0 <= token < rows:
                given = literal.get(token, piece)
                texts[token] = given if isinstance(given, bytes) else str(given).encode()
                if token not in literal and isinstance(piece, str):
                    texts[token] = decode(piece)
        return [piece.decode("utf-8", errors="backslashreplace") for piece in texts], texts

    def special(self) -> set[int]:
        return self._special


def _description(tokenizer: Any, pieces: dict[Any, int]) -> dict[str, Any]:
    """What decides the tokens: class and code, vocabulary, its saved files, and its settings."""
    kind = type(tokenizer)
    files: dict[str, str] = {}
    # A foreign class may not support saving; its settings and pieces are available all the same.
    with suppress(NotImplementedError), tempfile.TemporaryDirectory(prefix="mnemoscope-") as folder:
        for name in tokenizer.save_vocabulary(folder) or ():
            files[Path(name).name] = hashlib.sha256(Path(name).read_bytes()).hexdigest()
    code = [inspect.getfile(each) for each in kind.__mro__ if each.__module__.split(".")[0] == REMOTE_CODE]
    # Not those of its location, or of the length of inputs.
    settings = {
        name: str(value)
        for name, value in tokenizer.init_kwargs.items()
        if not name.endswith(("_file", "_path", "_dir", "length")) and name not in _PLACES
    }
    return {
        "type": "python",
        "class": kind.__name__,
        "vocabulary": {str(piece): token for piece, token in pieces.items()},
        "files": files,
        "settings": settings,
        "added": {str(token): str(one.content) for token, one in tokenizer.added_tokens_decoder.items()},
        "code": sorted(hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in code),
    }


def _decoder(pieces: set[Any]) -> Callable[[str], bytes]:
    words = [piece for piece in pieces if isinstance(piece, str)]
    if pieces >= {chr(byte) for byte in range(256)}:
        return lambda piece: piece.encode("latin-1") if len(piece) == 1 and ord(piece) < 256 else piece.encode()
    if pieces >= byte_characters().keys():
        return decode_byte_level

    def has_marks(has_mark: Callable[[str], bool]) -> bool:
        return _MARKED_SHARE * sum(map(has_mark, words)) >= len(words) > 0

    if "\u2581" in words or has_marks(lambda piece: piece.startswith("\u2581")):
        return decode_sentencepiece
    if has_marks(lambda piece: piece.endswith("</w>")):
        return lambda piece: (f"{piece.removesuffix('</w>')} " if piece.endswith("</w>") else piece).encode()
    if has_marks(lambda piece: piece.endswith("@@")):
        return lambda piece: (piece.removesuffix("@@") if piece.endswith("@@") else f"{piece} ").encode()
    if has_marks(lambda piece: piece.startswith("##")):
        return lambda piece: (piece.removeprefix("##") if piece.startswith("##") else f" {piece}").encode()
    return str.encode


def _fill_gaps(spans: list[tuple[int, int] | None], length: int) -> list[tuple[int, int]]:
    """The spans, with the gap between its neighbours for each run of tokens without one."""
    ends = [0, *(span[1] for span in spans if span is not None)]
    starts = [*(span[0] for span in spans if span is not None), length]
    spans_before = 0
    filled: list[tuple[int, int]] = []
    for span in spans:
        spans_before += span is not None
        filled.append((ends[spans_before], starts[spans_before]) if span is None else span)
    return filled
