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

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_TOKENIZER_KEY = b"tokenizer.ggml.model"
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


def has_tokenizer(path: Path) -> bool:
    with path.open("rb") as file:
        return _TOKENIZER_KEY in file.read(_LOOK_AT)
