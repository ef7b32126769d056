"""Asks the tools as an agent does, by the official client in this process. Not a test itself."""

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import anyio
from mcp.client.client import Client

from mnemoscope.agents.server import make_server
from mnemoscope.agents.tools import SECONDS, Tools
from mnemoscope.atlas import Atlas
from mnemoscope.models import LanguageModel

Call = tuple[str, dict[str, Any]]


def done(value: Any) -> "Future[Any]":
    future = Future[Any]()
    future.set_result(value)
    return future


def tools_over(*atlases: Atlas, model: LanguageModel | None = None, seconds: float = SECONDS) -> Tools:
    """The atlases as `a`, `b` and so on."""
    return Tools(dict(zip("abc", atlases, strict=False)), None if model is None else done(model), seconds)


def answers(tools: Tools, calls: Iterable[Call]) -> list[tuple[bool, str]]:
    """Whether each call failed, and the text of its answer."""

    async def ask() -> list[tuple[bool, str]]:
        async with Client(make_server(tools)) as client:
            given = [await client.call_tool(name, asked) for name, asked in calls]
        return [(bool(one.is_error), "".join(part.text for part in one.content)) for one in given]

    return anyio.run(ask)


def answer(tools: Tools, name: str, **asked: Any) -> dict[str, Any]:
    """The document of an answer that is no error."""
    ((failed, text),) = answers(tools, [(name, asked)])
    assert not failed, text
    document: dict[str, Any] = json.loads(text)
    return document


def texts(value: Any, *, trusted: bool = True) -> Iterator[str]:
    """The texts of a document that stand outside, or inside of what is marked as untrusted."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from texts(one, trusted=trusted)
    elif isinstance(value, dict):
        for name, one in value.items():
            if name == "untrusted_text":
                yield from () if trusted else texts(one)
            else:
                yield from texts(one, trusted=trusted) if trusted or not isinstance(one, str) else ()
