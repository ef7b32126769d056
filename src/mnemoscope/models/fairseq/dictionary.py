"""fairseq's `dict.txt`: the words of a word-level language model, and text to ids as fairseq splits it.

Ids 0-3 are `<s>`, `<pad>`, `</s>`, `<unk>`; the first line of the file is id 4. Text is split at white space, unknown
words are `<unk>`. A special string in a text is plain text, so it is an unknown word too.
"""

import re
from pathlib import Path
from typing import Any

from mnemoscope.errors import ModelDamaged, ModelNotFound

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
END, UNKNOWN = 2, 3

_PADDING = re.compile(r"madeupword\d{4,}")
_WORD = re.compile(r"\S+")


class Dictionary:
    """Word-level tokens; `words` are those of the file, in order."""

    def __init__(self, words: list[str]) -> None:
        self.description: dict[str, Any] = {"type": "fairseq dictionary", "words": words}
        self._words = words
        self._ids = {word: id for id, word in enumerate(words, len(SPECIAL)) if not _PADDING.fullmatch(word)}
        self._ids[SPECIAL[UNKNOWN]] = UNKNOWN

    def __len__(self) -> int:
        return len(SPECIAL) + len(self._words)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The token ids of each text; nothing is appended."""
        ids = self._ids
        return [[ids.get(word, UNKNOWN) for word in text.split()] for text in texts]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of every token of `encode([text])[0]`."""
        return [found.span() for found in _WORD.finditer(text)]

    def vocabulary(self, rows: int) -> tuple[list[str], list[bytes]]:
        """Text and bytes of each of the first `rows` ids: words with the space before them, padding empty."""
        words = ["" if _PADDING.fullmatch(word) else f" {word}" for word in self._words]
        texts = [*SPECIAL[:UNKNOWN], f" {SPECIAL[UNKNOWN]}", *words][:rows]
        texts += [""] * (rows - len(texts))
        return texts, [text.encode() for text in texts]


def read_dictionary(path: Path) -> Dictionary:
    """The dictionary in a file; raises ModelNotFound, ModelDamaged."""
    if not path.is_file():
        raise ModelNotFound(f"no dictionary {str(path)!r}; put the checkpoint's dict.txt there, or name it (--dict)")
    try:
        # Only the line feed ends a line: words may hold any other character that Unicode calls a line's end.
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as problem:
        where = f"{problem.reason} at byte {problem.start}"
        raise ModelDamaged(f"dictionary {str(path)!r} is not UTF-8 text ({where})") from None
    if lines[-1] == "":
        del lines[-1]
    words = []
    for number, line in enumerate(lines, 1):
        word, space, count = line.rpartition(" ")
        if not space or not count.strip().isdecimal():
            raise ModelDamaged(
                f"dictionary {str(path)!r}, line {number}: {line[:60]!r} is not a word, a space and a count"
            )
        words.append(word)
    return Dictionary(words)
