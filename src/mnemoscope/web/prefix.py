"""The path under which a proxy puts the server: taken off what comes in, put before every address that goes out.

jupyter-server-proxy, code-server and nginx show a server as `/user/me/proxy/8765/`; some pass that path on, some take
it off. Pages are written as if there were none, so they are kept once; their links, forms and files, where redirects
lead and cookies go is changed here. Wraps the whole application, its security included.
"""

import re
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mnemoscope.web.settings import Settings, is_prefix

_ADDRESS = re.compile(rb'([ :](?:href|src|action|formaction)=")/(?!/)')
"""An address on this server, in a page of ours: values are escaped, so no text of a stranger's has such quotes."""


class AddressPrefix:
    """The outermost layer of the application; passes everything on where there is no prefix, and no https."""

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        prefix = self._prefix(Headers(scope=scope)) if scope["type"] == "http" else ""
        if scope["type"] != "http" or not (prefix or self._settings.secure):
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path == prefix or path.startswith(f"{prefix}/"):
            path = path[len(prefix) :] or "/"
        started: list[Message] = []
        body = bytearray()

        async def send_below(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.append(message)
                return
            body.extend(message.get("body", b""))
            if not message.get("more_body"):
                headers = MutableHeaders(scope=started[0])
                whole = bytes(body)
                if headers.get("content-type", "").startswith("text/html"):
                    whole = _ADDRESS.sub(rb"\1" + prefix.encode() + b"/", whole)
                    if whole:  # of HEAD, the length is that of the body which is not sent
                        headers["content-length"] = str(len(whole))
                self._change(headers, prefix)
                await send(started[0])
                await send({"type": "http.response.body", "body": whole})

        below = {**scope, "path": path, "raw_path": quote(path).encode(), "root_path": prefix}
        await self._app(below, receive, send_below)

    def _prefix(self, headers: Headers) -> str:
        told = headers.get("x-forwarded-prefix", "").rstrip("/") if self._settings.trust_proxy else ""
        return told if told and is_prefix(told) else self._settings.root_path

    def _change(self, headers: MutableHeaders, prefix: str) -> None:
        """Where redirects lead and cookies go."""
        to = headers.get("location", "")
        if to.startswith("/") and not to.startswith("//"):
            headers["location"] = prefix + to
        secure = "; Secure" if self._settings.secure else ""
        cookies = headers.getlist("set-cookie")
        del headers["set-cookie"]
        for cookie in cookies:
            headers.append("set-cookie", re.sub(r"(?i)(;\s*path=)/(?=;|$)", rf"\g<1>{prefix}/", cookie) + secure)
