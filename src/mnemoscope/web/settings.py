"""The settings of a server: what it serves, and where. Imports no pages, so a wrong one is refused at once."""

import errno
import re
import socket
from dataclasses import field
from pathlib import Path
from urllib.parse import urlsplit

from mnemoscope.errors import OptionError, ServeError
from mnemoscope.foundation.options.declared import DeclaredOptions, like, option
from mnemoscope.foundation.options.mining_options import AtlasArgument, LoadOptions
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelOptions
from mnemoscope.foundation.options.prompt_options import DiffOptions

LOCAL = ("127.0.0.1", "localhost", "::1")


def is_prefix(path: str) -> bool:
    dots = any(part in (".", "..") for part in path.split("/"))
    return re.fullmatch(r"(/[A-Za-z0-9._~-]+)*", path) is not None and not dots


class Settings(DeclaredOptions, kw_only=False):
    """What is served, and where: the options of `serve`, and the access token, without which no request is answered.
    `root_path` is without a trailing slash, and the path of `public_url` if there is one.
    """

    atlas: Path = like(AtlasArgument, "atlas")
    model: str | None = option(None, "The model that was mined: for traces, changes and audits.")
    force_model: bool = option(False, "Use a model that is not the one mined; every page says so.")
    other: str | None = option(None, "A second model: a page shows what differs on a prompt.", metavar="MODEL")
    other_adapter: str | None = like(DiffOptions, "other_adapter")
    device: str = like(LoadOptions, "device")
    opening: ModelOptions = AS_USUAL
    host: str = option(
        "127.0.0.1",
        "Any but this machine's own address needs an access token, which is generated.",
        metavar="ADDRESS",
    )
    port: int = option(8765, "0: any free port.", least=0, most=65_535)
    annotations: str | None = option(
        None, "The file of judgements.", metavar="FILE", instead="ATLAS/annotations.sqlite"
    )
    root_path: str = option("", "The path under which a proxy shows the pages.", metavar="PATH")
    public_url: str | None = option(
        None, "Where readers find the pages behind a proxy: https://HOST/PATH.", metavar="URL"
    )
    trust_proxy: bool = option(False, "Trust the path that a proxy sends (X-Forwarded-Prefix).")
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.other is not None and self.other_adapter is not None:
            raise OptionError("--other and --other-adapter both name the second model; give one of them")
        if self.model is None:
            needing = {"--force-model": self.force_model, "--other": self.other, "--other-adapter": self.other_adapter}
            if words := [flag for flag, given in needing.items() if given] + self.opening.words():
                raise OptionError(f"{words[0]} needs --model; name the model that was mined")
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
