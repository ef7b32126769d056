"""Prepares a `.gguf` file for transformers: alone in a folder, with every weight widened.

Configuration, weights and tokenizer come from the file. Files beside it may belong to another model, and transformers
would take its tokenizer from them; hence the separate folder.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import modeling_gguf_pytorch_utils

from mnemoscope.errors import ModelDamaged

SUFFIX = ".gguf"
_MAGIC = b"GGUF"


@contextmanager
def lone_file(path: Path) -> Iterator[tuple[str, set[str]]]:
    """A temporary folder that holds only this file, and, once it is loaded, the names of its tensors that have a place
    (none: transformers' newer reader tells what it left).
    """
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ModelDamaged(f"{str(path)!r} is not a GGUF file: it does not begin with GGUF; take an undamaged copy")
    with tempfile.TemporaryDirectory(prefix="mnemoscope-") as folder, _watch_names() as places:
        (Path(folder) / path.name).symlink_to(path.resolve())
        yield folder, places


@contextmanager
def _watch_names() -> Iterator[set[str]]:
    """Suppresses transformers' bar for widening tensors, which has no switch; keeps its map of names, long to make."""
    library: Any = modeling_gguf_pytorch_utils
    places, usual, mapped = set[str](), library.tqdm, library.get_gguf_hf_weights_map

    def keep(*given: Any, **named: Any) -> Any:
        names = mapped(*given, **named)
        places.update(names)
        return names

    library.tqdm, library.get_gguf_hf_weights_map = lambda tensors, **_: tensors, keep
    try:
        yield places
    finally:
        library.tqdm, library.get_gguf_hf_weights_map = usual, mapped
