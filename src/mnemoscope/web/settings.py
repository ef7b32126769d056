"""The settings of a server: what it serves, and where. Imports no pages, so a wrong one is refused at once."""

import errno
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from mnemoscope.errors import OptionError, ServeError
from mnemoscope.foundation.options.mining_options import AUTO
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelOptions

LOCAL = ("127.0.0.1", "localhost", "::1")
PORT = 8765


def is_prefix(path: str) -> bool:
    dots = any(part in (".", "..") for part in path.split("/"))
    return re.fullmatch(r"(/[A-Za-z0-9._~-]+)*", path) is not None and not dots


@dataclass(frozen=True)
class Settings:
    """The atlas and optionally the model, and a second one (`other`, or the model with `other_adapter`) to compare it
    with; the address; the access token, without which no request is answered.

    `annotations` is the file of judgements, by default `annotations.sqlite` in the atlas. `device` is the model's,
    `opening` its options. `root_path` is the path under which a proxy serves it, without a trailing slash; `public_url`
    the readers' address behind a proxy: its path is the `root_path`. `trust_proxy` accepts the path from the proxy's
    X-Forwarded-Prefix. Raises OptionError.
    """

    atlas: Path
    model: str | None = None
    force_model: bool = False
    host: str = "127.0.0.1"
    port: int = PORT
    token: str | None = field(default=None, repr=False)
    annotations: str | None = None
    device: str = AUTO
    opening: ModelOptions = AS_USUAL
    root_path: str = ""
    public_url: str | None = None
    trust_proxy: bool = False
    other: str | None = None
    other_adapter: str | None = None

    def __post_init__(self) -> None:
        if "://" in (self.annotations or ""):  # not shown: it may hold a password
            raise OptionError("--annotations names an address; judgements are kept in a file, so give the path of one")
        parts = urlsplit(self.public_url or "")
        if self.public_url is not None:
            plain = parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.fragment
            if not plain or "@" in parts.netloc:
                raise OptionError(f"--public-url {self.public_url!r} is not an address such as https://HOST/PREFIX")
            if self.root_path and self.root_path.rstrip("/") != parts.path.rstrip("/"):
                raise OptionError("--root-path and the path of --public-url differ; give one of them")
        path = (self.root_path or parts.path).rstrip("/")
        if not is_prefix(path):
            raise OptionError(f"--root-path {path!r} is not a path such as /user/me/proxy/8765")
        object.__setattr__(self, "root_path", path)

    @property
    def public_host(self) -> str | None:
        return None if self.public_url is None else urlsplit(self.public_url).netloc.lower()

    @property
    def secure(self) -> bool:
        return urlsplit(self.public_url or "").scheme == "https"

    @property
    def local(self) -> bool:
        return self.host in LOCAL

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        place = f"http://{host}:{self.port}{self.root_path}" if self.public_url is None else self.public_url.rstrip("/")
        return f"{place}/" + ("" if self.token is None else f"?token={self.token}")


def listen(settings: Settings) -> socket.socket:
    """A socket that is bound to the address of the settings."""
    elsewhere = f"host {settings.host!r} is not an address of this machine; leave --host out"
    try:
        family, kind, _, _, place = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as problem:
        raise ServeError(elsewhere) from problem
    sock = socket.socket(family, kind)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(place)
        # On some systems only listening detects another server.
        sock.listen(1)
    except OSError as problem:
        sock.close()
        where = f"port {settings.port} of {settings.host}"
        reasons = {
            errno.EADDRINUSE: f"{where} is in use; choose another with --port, or --port 0 for any that is free",
            errno.EADDRNOTAVAIL: elsewhere,
        }
        other = f"{where} cannot be used ({problem.strerror}); choose another with --port"
        raise ServeError(reasons.get(problem.errno or 0, other)) from problem
    return sock
