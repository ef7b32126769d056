"""Reads the files of a fairseq model: a checkpoint's options and weights, and its `dict.txt`. Runs nothing in them.

Both containers of PyTorch (zip and legacy) are read with `weights_only`: beside tensors and plain values only
`argparse.Namespace` and three classes of training meters may occur, and the meters become empty shells. Any other class
or function is refused by name. opening.py interprets options and weights.

In a dictionary ids 0-3 are `<s>`, `<pad>`, `</s>`, `<unk>`; the first line of the file is id 4. Text is split at white
space; unknown words are `<unk>`. A special string in a text is plain text, so it is an unknown word, too.
"""

import argparse
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemoscope.errors import ModelDamaged, ModelNotFound, ModelUnsupported
from mnemoscope.models.modules.quiet import suppress_output

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
END, UNKNOWN = 2, 3

_PADDING = re.compile(r"madeupword[0-9]{4,}")
_WORD = re.compile(r"\S+")
_METERS = ("AverageMeter", "TimeMeter", "StopwatchMeter")
_NAMED = re.compile(r"GLOBAL (\S{1,100})")


class _Shell:
    """Replaces a training meter."""


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The options (`args`) and the weights (`model`) as stored, on the CPU."""
    if path.is_dir():
        raise ModelNotFound(f"{str(path)!r} is a folder; give the checkpoint file in it, as in fairseq:PATH.pt")
    if not path.is_file():
        raise ModelNotFound(f"no checkpoint file {str(path)!r}; give fairseq:PATH.pt")
    if path.stat().st_size == 0:
        raise ModelDamaged(f"checkpoint {str(path)!r} is empty; take an undamaged copy")
    where = f"checkpoint {str(path)!r}"
    whole = _unpickle(path, where)
    if not isinstance(whole, Mapping):
        raise ModelDamaged(f"{str(path)!r} holds a {type(whole).__name__}, not a checkpoint of fairseq")
    for name in ("args", "model"):
        if whole.get(name) is None:
            raise ModelUnsupported(f"{where} holds no {name!r}; only checkpoints of fairseq up to 0.10 can be read")
    options, weights = whole["args"], whole["model"]
    if not isinstance(options, argparse.Namespace) or not isinstance(weights, Mapping):
        kinds = f"{type(options).__name__} and {type(weights).__name__}"
        raise ModelDamaged(f"{where}: 'args' and 'model' are {kinds}, not options and weights")
    for name, weight in weights.items():
        if not isinstance(name, str) or not isinstance(weight, Tensor) or weight.layout != torch.strided:
            raise ModelDamaged(f"{where}: its weight {name!r} is not a plain tensor")
    return dict(vars(options)), dict(weights)


def _unpickle(path: Path, where: str) -> Any:
    allowed: list[Any] = [argparse.Namespace, *((_Shell, f"fairseq.meters.{name}") for name in _METERS)]
    try:
        # Mapped, not read: the optimiser's state, twice as large as the weights, is never used.
        mapped = zipfile.is_zipfile(path)
        with suppress_output(), torch.serialization.safe_globals(allowed):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        text = str(error)
        if named := _NAMED.search(text):
            raise ModelUnsupported(
                f"{where} holds {named[1]!r}, which is neither options nor weights; nothing was run, "
                "and only plain fairseq checkpoints can be read"
            ) from None
        if "Weights only load failed" in text and "Trying to" in text:
            raise ModelUnsupported(f"{where} is a pickle that would run code; nothing was run") from None
        # PyTorch's own advice, to load it unsafely, is left out.
        lines = [line.strip() for line in text.splitlines() if line.strip() and "weights_only" not in line]
        reason = f"{type(error).__name__}: {lines[0][:160].split('. ')[0]}" if lines else type(error).__name__
        raise ModelDamaged(
            f"{str(path)!r} is not a whole checkpoint of PyTorch ({reason}); take an undamaged copy"
        ) from None


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
        ids = self._ids
        return [[ids.get(word, UNKNOWN) for word in text.split()] for text in texts]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return [word.span() for word in _WORD.finditer(text)]

    def vocabulary(self, rows: int) -> tuple[list[str], list[bytes]]:
        """Text and bytes of each of the first `rows` ids: words with the space before them, padding empty."""
        words = ["" if _PADDING.fullmatch(word) else f" {word}" for word in self._words]
        texts = [*SPECIAL[:UNKNOWN], f" {SPECIAL[UNKNOWN]}", *words][:rows]
        texts += [""] * (rows - len(texts))
        return texts, [text.encode() for text in texts]


def read_dictionary(path: Path) -> Dictionary:
    """Raises ModelNotFound, ModelDamaged."""
    if not path.is_file():
        raise ModelNotFound(f"no dictionary {str(path)!r}; put the checkpoint's dict.txt there, or name it (--dict)")
    try:
        # Only the line feed ends a line: words may contain Unicode's other line separators.
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise ModelDamaged(f"dictionary {str(path)!r} is not UTF-8 text ({where})") from None
    if lines[-1] == "":
        del lines[-1]
    words = []
    for number, line in enumerate(lines, 1):
        word, space, count = line.rpartition(" ")
        if not space or not re.fullmatch(r"\s*[0-9]+\s*", count):
            raise ModelDamaged(
                f"dictionary {str(path)!r}, line {number}: {line[:60]!r} is not a word, a space and a count"
            )
        words.append(word)
    return Dictionary(words)
