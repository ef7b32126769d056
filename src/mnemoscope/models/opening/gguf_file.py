"""Prepares a `.gguf` file for transformers: alone in a folder, with every weight widened.

Configuration, weights and tokenizer come from the file. Files beside it may belong to another model, and transformers
would take its tokenizer from them; hence the separate folder.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import modeling_gguf_pytorch_utils

from mnemoscope.errors import ModelDamaged, ModelUnsupported
from mnemoscope.foundation.options.model_options import display_name

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_TOKENIZER_KEY = b"tokenizer.ggml.model"
_NAME_KEY = (12).to_bytes(8, "little") + b"general.name" + (8).to_bytes(4, "little")  # key of 12 bytes; a text follows
_LOOK_AT = 1 << 26
"""Bytes of a file's head, which holds its metadata, that are searched for a tokenizer."""


@contextmanager
def lone_file(path: Path) -> Iterator[str]:
    """A temporary folder that holds only this file; raises ModelUnsupported without gguf, ModelDamaged."""
    if find_spec("gguf") is None:
        raise ModelUnsupported(f"{str(path)!r} needs gguf, which is not installed; pip install 'mnemoscope[gguf]'")
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ModelDamaged(f"{str(path)!r} is not a GGUF file: it does not begin with GGUF; take an undamaged copy")
    with tempfile.TemporaryDirectory(prefix="mnemoscope-") as folder, _without_bar():
        (Path(folder) / path.name).symlink_to(path.resolve())
        yield folder


@contextmanager
def _without_bar() -> Iterator[None]:
    """Suppresses transformers' progress bar for widening tensors, which has no switch."""
    library: Any = modeling_gguf_pytorch_utils
    usual = library.tqdm
    library.tqdm = lambda tensors, **_: tensors
    try:
        yield
    finally:
        library.tqdm = usual


def name_in(path: Path) -> str | None:
    """The model's name in the file's metadata (`general.name`; of a path its last part), or None."""
    with path.open("rb") as file:
        _, found, rest = file.read(_LOOK_AT).partition(_NAME_KEY)
    size = int.from_bytes(rest[:8], "little")
    name = display_name(rest[8 : 8 + size].decode("utf-8", errors="replace").strip()) if found and size < 1000 else ""
    return name if name.isprintable() and name else None


def has_tokenizer(path: Path) -> bool:
    with path.open("rb") as file:
        return _TOKENIZER_KEY in file.read(_LOOK_AT)
