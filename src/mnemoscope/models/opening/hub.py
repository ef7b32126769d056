"""Where transformers and peft search for a name, and one-line versions of their failures.

Without a network only the local cache is searched. The libraries are silent meanwhile.
"""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants as hub
from transformers import dynamic_module_utils

from mnemoscope.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported, StoreFailed
from mnemoscope.models.loaded_parts import first_line
from mnemoscope.models.modules.quiet import suppress_output
from mnemoscope.models.modules.weight_layouts import damaged_file

_FAILURES = (
    (
        "Weights only load failed",
        ModelUnsupported,
        ": its weights are a pickle that would run code; save them as safetensors",
    ),
    (
        "`tiktoken` is required",
        ModelUnsupported,
        ": its tokenizer needs sentencepiece and protobuf (or tiktoken); pip install sentencepiece protobuf tiktoken",
    ),
    ("the SentencePiece library", ModelUnsupported, ": its tokenizer needs SentencePiece; pip install sentencepiece"),
    ("TorchScript", ModelUnsupported, ": its weights are a compiled program (TorchScript); save its state_dict()"),
    ("trust_remote_code", ModelUnsupported, " brings its own code; pass --trust-remote-code if you trust it"),
)
"""Where the library's own line would mislead, or speaks of a report that it printed. All others are passed on."""
_COMPLETE = "take a complete copy"

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOSPC, errno.EDQUOT)


def where(place: str, revision: str | None, trust: bool) -> dict[str, Any]:
    """Transformers' search arguments; without a network only the cache, since the hub's client would retry long."""
    cached = not Path(place).expanduser().is_dir() and not getproxies() and not _reachable()
    return {"revision": revision, "trust_remote_code": trust, "local_files_only": cached}


def _reachable() -> bool:
    address = urlsplit(hub.ENDPOINT)
    try:
        with socket.create_connection((address.hostname or "", address.port or 443), timeout=5):
            return True
    except OSError:
        return False


@contextmanager
def one_line_errors(source: str, *, what: str = "model", folder: Path | None = None) -> Iterator[None]:
    """Turns failures of transformers and peft into one-line errors. `what` is the kind of `source`, `folder` the place
    of its weights.
    """
    named, place = f"{what} {source!r}", Path(source).expanduser()
    try:
        with suppress_output():
            yield
    except ModelError:
        raise
    except OSError as error:
        _refuse_cache(error, place)
        if place.is_dir():
            _check_files(folder, named)
            raise ModelDamaged(f"{named} cannot be read: {first_line(error)}; {_COMPLETE}") from None
        raise ModelNotFound(
            f"no {named} on this machine or the hub ({first_line(error)}); check the name and the network"
        ) from None
    except Exception as error:
        _check_files(folder, named)
        for sign, failure, rest in _FAILURES:
            if sign in str(error):
                raise failure(f"{named}{rest}") from None
        failed = f"{named} cannot be read: {type(error).__name__}: {first_line(error)}"
        if type(error) is ValueError or isinstance(error, ImportError | NotImplementedError):
            raise ModelUnsupported(failed) from None
        raise ModelDamaged(f"{failed}; {_COMPLETE}") from None


def _refuse_cache(error: BaseException | None, source: Path) -> None:
    """Raises StoreFailed for a file outside of the model: the libraries' folder is not writable."""
    while error is not None:
        place = Path(str(getattr(error, "filename", None))).absolute()
        modules = Path(vars(dynamic_module_utils)["HF_MODULES_CACHE"]).absolute()
        nowhere = modules.is_relative_to(place) or place.is_relative_to(modules)  # ENOENT where no folder can be made
        if isinstance(error, OSError) and error.filename and (error.errno in _REFUSED or nowhere):
            if place.is_relative_to(source.absolute()):
                return
            raise StoreFailed(
                f"cannot use {error.filename}: {error.strerror}; the libraries keep what they fetch and models'"
                " own code there (HF_HOME, HF_MODULES_CACHE): set HF_HOME to a folder that can be written"
            ) from None
        error = error.__cause__ or error.__context__


def _check_files(folder: Path | None, named: str) -> None:
    damaged = None if folder is None else damaged_file(folder)
    if damaged is not None:
        raise ModelDamaged(f"{named}: {damaged} is cut off or damaged; {_COMPLETE}") from None
