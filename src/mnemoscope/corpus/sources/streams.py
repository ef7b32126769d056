"""The text of a file that may be compressed, in pieces, or one plain line about what is wrong with the file.

Reads gzip, xz and zstandard, UTF-8 with or without a byte order mark, and knows nothing of documents. Reads the file
once in blocks, so memory depends neither on its size nor on its compression ratio.
"""

import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import IncrementalNewlineDecoder
from itertools import chain
from pathlib import Path
from typing import IO, Any

import zstandard

from mnemoscope.errors import CorpusError, CorpusNotFound, CorpusUnreadable

COMPRESSED = (".gz", ".xz", ".zst")
LONGEST = 1 << 25
"""Most characters of a line read whole, or of a row's text; more means a damaged or hostile file."""
_OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {".gz": gzip.open, ".xz": lzma.open}
BLOCK = 1 << 18
"""Bytes of an unpacked file that are read at one time."""
_POINTERS = {b"version https://git-lfs.github.com/spec/": "git lfs pull", b"/annex/objects/": "git annex get"}
"""The beginnings of files that only point to another, and the command that fetches it."""
_PACKED = 1 << 10
"""Zstandard bytes unpacked at once: four of them can stand for 128 kB, so these for at most 32 MB."""


@dataclass(slots=True)
class Meter:
    """Bytes read of the files, and documents that were not drawn."""

    done: int = 0
    passed_over: int = 0


def text_blocks(path: Path, meter: Meter) -> Iterator[str]:
    """Yields the text of a file in blocks of a few hundred kilobytes."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line = 1
    # A character may span two blocks, so an error surfaces at most one line late.
    for block in chain(_bytes(path, meter), [b""]):
        if b"\0" in block:
            where = line + _line_ends(block[: block.index(b"\0")])
            raise CorpusUnreadable(f"{path}: NUL byte in line {where}, so this is not UTF-8 text; give a text file")
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            where, value = line + _line_ends(error.object[: error.start]), error.object[error.start]
            raise CorpusUnreadable(
                f"{path}: byte 0x{value:02x} in line {where} is not UTF-8; convert the text to UTF-8"
            ) from None
        line += _line_ends(block)
        if text:
            yield text


def lines(path: Path, meter: Meter, *, cut_after: int | None = None) -> Iterator[tuple[str, bool]]:
    r"""Yields the lines of a text without their end (`\n`, `\r\n`, or `\r` as on old Macs), each with True.

    With `cut_after`, a longer line comes in several pieces, cut after white space where possible, all but the last with
    False: a text without line ends must not fill the memory. No such piece is only white space. Without it, a line of
    more than `LONGEST` characters is CorpusUnreadable.
    """
    number = 1
    kept: list[str] = []
    size = 0
    # Holds back a block's last \r until the next block shows whether \n follows.
    ends = IncrementalNewlineDecoder(None, translate=True)
    blocks: Iterator[str | None] = chain(text_blocks(path, meter), [None])
    for block in blocks:
        first, *rest = ends.decode(block or "", final=block is None).split("\n")
        kept.append(first)
        size += len(first)
        for following in rest:
            yield "".join(kept), True
            kept, size, number = [following], len(following), number + 1
        if block is None:
            break
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
        yield "".join(kept), True


def too_long(place: str) -> CorpusUnreadable:
    return CorpusUnreadable(f"{place} is longer than {LONGEST:,} characters; cut the text into shorter rows or lines")


def check_fetched(path: Path, beginning: bytes) -> None:
    for mark, command in _POINTERS.items():
        if beginning.startswith(mark):
            raise CorpusUnreadable(f"{path} is a pointer, not the text itself; fetch the text with `{command}`")


def _line_ends(block: bytes) -> int:
    return block.count(b"\n") + block.count(b"\r") - block.count(b"\r\n")


def _bytes(path: Path, meter: Meter) -> Iterator[bytes]:
    before = meter.done
    try:
        with path.open("rb") as raw:
            check_fetched(path, raw.read(64))
            if raw.tell() == 0:
                return
            raw.seek(0)
            for block in _unpack(path, raw):
                meter.done = before + raw.tell()
                yield block
            meter.done = before + raw.tell()
    except CorpusError:
        raise
    except FileNotFoundError:
        raise CorpusNotFound(f"no such file: {path}") from None
    except EOFError:
        raise CorpusUnreadable(f"{path}: the compressed text ends too early; get the whole file") from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, zstandard.ZstdError) as error:
        raise CorpusUnreadable(f"{path}: damaged compression ({one_line(error)}); get the file again") from None
    except OSError as error:
        raise CorpusUnreadable(f"{path}: cannot be read ({error.strerror or one_line(error)})") from None


def _unpack(path: Path, raw: IO[bytes]) -> Iterator[bytes]:
    ending = path.suffix.lower()
    if ending == ".zst":
        yield from _unpack_zstandard(raw)
        return
    unpacked = _OPENERS[ending](raw) if ending in _OPENERS else raw
    while block := unpacked.read(BLOCK):
        yield block


def _unpack_zstandard(raw: IO[bytes]) -> Iterator[bytes]:
    """Yields the unpacked bytes of every frame; the library's own reader takes a truncated frame for the end."""
    unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame = unpacker.decompressobj()
    held = bytearray()
    while packed := raw.read(_PACKED):
        while packed:
            if frame.eof:
                frame = unpacker.decompressobj()
            held += frame.decompress(packed)
            packed = frame.unused_data if frame.eof else b""
            if len(held) >= BLOCK:
                for start in range(0, len(held), BLOCK):
                    yield bytes(held[start : start + BLOCK])
                held.clear()
    if held:
        yield bytes(held)
    if not frame.eof:
        raise EOFError


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
