"""The files that pages load: one stylesheet, our scripts, one icon. Read once; looked up by name, never by path."""

import hashlib
from functools import lru_cache
from importlib.resources import files

TYPES = {
    "style.css": "text/css",
    "script.js": "text/javascript",
    "annotate.js": "text/javascript",
    "annotate_keys.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@lru_cache(maxsize=len(TYPES))
def content(name: str) -> bytes:
    """The bytes of one of TYPES."""
    return files("mnemoscope.web").joinpath("static", name).read_bytes()


def address(name: str) -> str:
    """Where a page finds the file; another content has another address, so browsers may keep it for ever."""
    return f"/static/{hashlib.sha256(content(name)).hexdigest()[:12]}/{name}"
