"""What a server was asked to serve, and where."""

from dataclasses import dataclass, field
from pathlib import Path

from mnemoscope.mining_options import AUTO
from mnemoscope.model_options import AS_USUAL, ModelOptions

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine reaches."""
PORT = 8765


@dataclass(frozen=True)
class Settings:
    """The atlas and, perhaps, the model; the address; the access token, without which nothing is answered.

    `annotations` is a database URL; None means the file `annotations.sqlite` in the atlas.
    `device` is what the model runs on, `opening` how it is opened.
    """

    atlas: Path
    model: str | None = None
    force_model: bool = False
    host: str = "127.0.0.1"
    port: int = PORT
    token: str | None = field(default=None, repr=False)
    annotations: str | None = field(default=None, repr=False)
    device: str = AUTO
    opening: ModelOptions = AS_USUAL

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in LOCAL

    @property
    def url(self) -> str:
        """The address to open, with the access token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/" + ("" if self.token is None else f"?token={self.token}")
