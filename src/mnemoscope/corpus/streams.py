"""Text out of a file that may be compressed: pieces of text, or one plain line saying what is wrong with the file.

Knows gzip, xz and zstandard, UTF-8 with or without a byte order mark, and nothing about documents. The file is read
once from front to back in blocks, so memory depends neither on its size nor on how much a few packed bytes stand for.
"""

from __future__ import annotations

import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import zstandard

from mnemoscope.errors import CorpusError, CorpusNotFound, CorpusUnreadable

COMPRESSED: Final = (".gz", ".xz", ".zst")
LONGEST: Final = 1 << 25
"""Characters that a line read whole, or the text of a row, has at most; more is a damaged or a hostile file."""
_BLOCK: Final = 1 << 18
_PACKED: Final = 1 << 10
"""Zstandard bytes unpacked at once: four of them can stand for 128 kB, so these for at most 32 MB."""


@dataclass(slots=True)
class Meter:
    """How many bytes of the files (as they lie on disk) have been read."""

    done: int = 0


def text_blocks(path: Path, meter: Meter) -> Iterator[str]:
    """Yield the text of a file in blocks of a few hundred kilobytes.

    Raises:
        CorpusNotFound: there is no such file.
        CorpusUnreadable: damaged or truncated compression, NUL bytes, or not UTF-8 (with the line).
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line = 1
    # A character may begin in one block and end in the next, so an error can surface one line late at most.
    for block in _bytes(path, meter):
        if b"\0" in block:
            where = line + block[: block.index(b"\0")].count(b"\n")
            raise CorpusUnreadable(f"{path}: NUL byte in line {where}, so this is no UTF-8 text; give a text file")
        try:
            text = decoder.decode(block)
        except UnicodeDecodeError as problem:
            raise _not_utf8(path, line, problem) from None
        line += block.count(b"\n")
        if text:
            yield text
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as problem:
        raise _not_utf8(path, line, problem) from None


def lines(path: Path, meter: Meter, *, cut_after: int | None = None) -> Iterator[tuple[str, bool]]:
    r"""Yield the lines of a text without their end (`\n` or `\r\n`), each with True.

    With `cut_after`, a line that is longer comes in several pieces, cut after white space where there is any, all but
    the last with False: a text without line ends must not fill the memory. No such piece is only white space.

    Raises:
        CorpusNotFound, CorpusUnreadable: as `text_blocks`; without `cut_after` also a line of more than `LONGEST`
            characters.
    """
    number = 1
    kept: list[str] = []
    size = 0
    for block in text_blocks(path, meter):
        first, *rest = block.split("\n")
        kept.append(first)
        size += len(first)
        for following in rest:
            yield "".join(kept).removesuffix("\r"), True
            kept, size, number = [following], len(following), number + 1
        if cut_after is None and size > LONGEST:
            raise too_long(f"{path}: line {number}")
        if cut_after is not None and size > cut_after:
            whole = "".join(kept)
            cut = whole.rfind(" ") + 1 or len(whole) - 1
            if whole[:cut].isspace():
                continue
            yield whole[:cut], False
            kept, size = [whole[cut:]], len(whole) - cut
    if size:
        yield "".join(kept).removesuffix("\r"), True


def too_long(place: str) -> CorpusUnreadable:
    """The error of a line or a text of more than `LONGEST` characters."""
    return CorpusUnreadable(f"{place} is longer than {LONGEST:,} characters; cut the text into shorter rows or lines")


def _not_utf8(path: Path, line: int, problem: UnicodeDecodeError) -> CorpusUnreadable:
    where = line + problem.object[: problem.start].count(b"\n")
    value = problem.object[problem.start]
    return CorpusUnreadable(f"{path}: byte 0x{value:02x} in line {where} is not UTF-8; convert the text to UTF-8")


def _bytes(path: Path, meter: Meter) -> Iterator[bytes]:
    """Yield the unpacked bytes of a file, metering what is read from disk."""
    before = meter.done
    try:
        with path.open("rb") as raw:
            if raw.seek(0, 2) == 0:
                return
            raw.seek(0)
            for block in _unpacked(path, raw):
                meter.done = before + raw.tell()
                yield block
            meter.done = before + raw.tell()
    except CorpusError:
        raise
    except FileNotFoundError:
        raise CorpusNotFound(f"no such file: {path}") from None
    except EOFError:
        raise CorpusUnreadable(f"{path}: the compressed text ends too early; get the whole file") from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, zstandard.ZstdError) as problem:
        raise CorpusUnreadable(f"{path}: damaged compression ({_one_line(problem)}); get the file again") from None
    except OSError as problem:
        raise CorpusUnreadable(f"{path}: cannot be read ({problem.strerror or _one_line(problem)})") from None


def _unpacked(path: Path, raw: IO[bytes]) -> Iterator[bytes]:
    ending = path.suffix.lower()
    if ending == ".zst":
        yield from _unpacked_zstandard(raw)
        return
    openers: dict[str, Callable[[IO[bytes]], gzip.GzipFile | lzma.LZMAFile]] = {
        ".gz": lambda file: gzip.GzipFile(fileobj=file),
        ".xz": lzma.LZMAFile,
    }
    opened = openers[ending](raw) if ending in openers else raw
    while block := opened.read(_BLOCK):
        yield block


def _unpacked_zstandard(raw: IO[bytes]) -> Iterator[bytes]:
    """Yield the unpacked bytes of every frame; the library's own reader takes a truncated frame for the end."""
    unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame = unpacker.decompressobj()
    untouched = True
    held = bytearray()
    while packed := raw.read(_PACKED):
        while packed:
            if frame.eof:
                frame, untouched = unpacker.decompressobj(), True
            held += frame.decompress(packed)
            untouched = False
            packed = frame.unused_data if frame.eof else b""
            if len(held) >= _BLOCK:
                for start in range(0, len(held), _BLOCK):
                    yield bytes(held[start : start + _BLOCK])
                held.clear()
    if held:
        yield bytes(held)
    if not (untouched or frame.eof):
        raise EOFError


def _one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__
