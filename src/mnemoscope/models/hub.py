"""Where transformers and peft look for what a name means, and what they say when it fails, in one line.

Without a network only the local cache is asked. The libraries are silent meanwhile.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants as hub

from mnemoscope.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported
from mnemoscope.models.loaded_parts import first_line, suppress_output

_FAILURES = (
    ("Weights only load failed", ModelUnsupported,
     ": its weights are a pickle that wants to run code; save them as safetensors"),
    ("ignore_mismatched_sizes", ModelDamaged, ": its weights are not of the shapes that its config.json says"),
    ("trust_remote_code", ModelUnsupported,
     " brings its own code; pass trust_remote_code (--trust-remote-code) if you trust it"),
    ("GPU", ModelUnsupported, " is packed in a format that runs on a GPU only"),
)  # fmt: skip
"""What an error of transformers says, and what is said of the model in its place."""


_LIBRARIES = {
    "aqlm": "'aqlm[cpu,gpu]'", "auto-round": "auto-round", "awq": "gptqmodel",
    "compressed-tensors": "compressed-tensors", "gptq": "optimum gptqmodel", "hqq": "hqq", "quanto": "optimum-quanto",
    "vptq": "vptq",
}  # fmt: skip
"""What the formats of packed weights need that are in no extra of ours: all of it; transformers names one at a time."""
_UNKNOWN = ("does not recognize this architecture", "Unrecognized", "GGUF model with architecture")
"""What transformers says of a kind of model that it does not know."""


def where(place: str, revision: str | None, trust: bool) -> dict[str, Any]:
    """The arguments that tell transformers where to look.

    Without a network, only the local cache: the hub's client would retry for half a minute before it says so.
    """
    cached = not Path(place).expanduser().is_dir() and not getproxies() and not _reachable()
    return {"revision": revision, "trust_remote_code": trust, "local_files_only": cached}


def _reachable() -> bool:
    """Whether the hub's host answers a connection."""
    address = urlsplit(hub.ENDPOINT)
    try:
        with socket.create_connection((address.hostname or "", address.port or 443), timeout=5):
            return True
    except OSError:
        return False


@contextmanager
def one_line_errors(source: str, *, what: str = "model", packed: str | None = None) -> Iterator[None]:
    """Silences transformers and peft, and turns their own failures into one line of the project's.

    `what` is what `source` names, `packed` the format of its weights. Raises ModelNotFound, ModelUnsupported,
    ModelDamaged.
    """
    try:
        with suppress_output():
            yield
    except ModelError:
        raise
    except OSError as error:
        if Path(source).expanduser().is_dir():
            raise ModelDamaged(f"{what} {source!r} cannot be read: {first_line(error)}") from None
        raise ModelNotFound(
            f"no {what} {source!r} on this machine or the hub ({first_line(error)}); check the name and the network"
        ) from None
    except Exception as error:
        text = first_line(error)
        if isinstance(error, ImportError) and "GPU" not in text:
            install = _LIBRARIES.get(packed or "", "'mnemoscope[quantized]'")
            of = f"of its format {packed!r} " if packed in _LIBRARIES else ""
            raise ModelUnsupported(
                f"{what} {source!r} needs a library {of}that is not installed ({text}); pip install {install}"
            ) from None
        for sign, kind, rest in _FAILURES:
            if sign in str(error):
                raise kind(f"{what} {source!r}{rest}") from None
        if any(sign in str(error) for sign in _UNKNOWN):
            raise ModelUnsupported(f"{what} {source!r} is of a kind that transformers does not know ({text})") from None
        raise ModelDamaged(f"{what} {source!r} cannot be read: {type(error).__name__}: {text}") from None
