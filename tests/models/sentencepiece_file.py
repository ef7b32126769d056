"""A SentencePiece model (`tokenizer.model`) of a few pieces, written byte by byte as its protocol buffer has them."""

import struct

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_BPE = 2
_WORDS = ("\u2581the", "\u2581t", "he", "\u2581", "t", "h", "e", "c", "a", "s", "at", "\u2581c")


def sentencepiece_file() -> bytes:
    """Byte-pair pieces of "the", "cat" and "sat", with bytes for all else; ids 0 to 2 are `<unk>`, `<s>` and `</s>`."""
    pieces = [("<unk>", 0.0, _UNKNOWN), ("<s>", 0.0, _CONTROL), ("</s>", 0.0, _CONTROL)]
    pieces += [(f"<0x{byte:02X}>", 0.0, _BYTE) for byte in range(256)]
    pieces += [(word, -float(rank), _NORMAL) for rank, word in enumerate(_WORDS)]
    trainer = _number(3, _BPE) + _number(35, 1)  # byte pairs, with a fallback to bytes
    return b"".join(_block(1, _piece(*each)) for each in pieces) + _block(2, trainer)


def _piece(text: str, score: float, kind: int) -> bytes:
    return _block(1, text.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", score) + _number(3, kind)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _block(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])
