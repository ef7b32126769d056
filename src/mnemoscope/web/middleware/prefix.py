"""The path prefix of a proxy: removed from incoming requests, prepended to every outgoing address.

jupyter-server-proxy, code-server and nginx show a server as `/user/me/proxy/8765/`; some keep that path in requests,
some strip it. Pages are written without it, so they are cached once; links, forms, files, redirects and cookies are
rewritten here. Wraps the whole application, including its security.
"""

import re
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mnemoscope.web.settings import Settings, is_prefix

_ADDRESS = re.compile(rb'([ :](?:href|src|action|formaction)=")/(?!/)')
"""A local address in one of our pages: values are escaped, so user text cannot contain such quotes."""


class AddressPrefix:
    """The outermost layer of the application; passes requests through if there is neither a prefix nor https."""

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        prefix, settings = "", self._settings
        if scope["type"] == "http":
            forwarded = Headers(scope=scope).get("x-forwarded-prefix", "").rstrip("/") if settings.trust_proxy else ""
            prefix = forwarded if forwarded and is_prefix(forwarded) else settings.root_path
        if scope["type"] != "http" or not (prefix or settings.secure):
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
                    if whole:  # for HEAD, keep the length of the omitted body
                        headers["content-length"] = str(len(whole))
                self._change(headers, prefix)
                await send(started[0])
                await send({"type": "http.response.body", "body": whole})

        below = {**scope, "path": path, "raw_path": quote(path).encode(), "root_path": prefix}
        await self._app(below, receive, send_below)

    def _change(self, headers: MutableHeaders, prefix: str) -> None:
        to = headers.get("location", "")
        if to.startswith("/") and not to.startswith("//"):
            headers["location"] = prefix + to
        secure = "; Secure" if self._settings.secure else ""
        cookies = headers.getlist("set-cookie")
        del headers["set-cookie"]
        for cookie in cookies:
            headers.append("set-cookie", re.sub(r"(?i)(;\s*path=)/(?=;|$)", rf"\g<1>{prefix}/", cookie) + secure)
