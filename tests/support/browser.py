"""Chromium for tests of pages, driven by Playwright: what a page asked for, and what it complained about.

Needs Debian's `chromium` and the package playwright; without them a test skips and says so, but fails where CI=true.
No page reaches a network: no host name is known to the browser but this machine's own. Not a test itself.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING

from support.needed import refuse

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

FLAGS = (
    "--no-sandbox",  # a container's root has no user namespaces
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.0.0.1",
)
PHONE, DESK = 390, 1280
"""Widths of a window."""


@dataclass(frozen=True)
class Visit:
    """An open page: the addresses it asked for, and its warnings, errors and failed requests."""

    page: "Page"
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def wider_than_the_window(self) -> float:
        """By how many pixels the page, not one of its own scrolling parts, can be scrolled sideways."""
        # Not less innerWidth, which on a phone grows with the page.
        root = "document.documentElement"
        excess: float = self.page.evaluate(f"{root}.scrollWidth - {root}.clientWidth")
        return excess

    def barriers(self) -> list[str]:
        """What axe-core objects to with everything unfolded: the rule, and the element. Skips without."""
        self.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        self.page.evaluate(_axe())
        found = self.page.evaluate("axe.run().then(found => found.violations)")
        return [f"{one['help']}: {node['html'][:200]}" for one in found for node in one["nodes"]]


class Visits:
    """Opens pages, each in a window of its own without cookies or cache."""

    def __init__(self, browser: "Browser") -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []

    def __call__(self, address: str, *, width: int = DESK, height: int = 900, dark: bool = False) -> Visit:
        """The page at the address once it is loaded."""
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            is_mobile=width < 600,
            has_touch=width < 600,
        )
        self._contexts.append(context)
        visit = Visit(context.new_page())
        visit.page.on("request", lambda request: visit.requests.append(request.url))
        visit.page.on("requestfailed", lambda request: _failed(visit, request))
        visit.page.on("console", lambda message: _listen(visit, message))
        visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        visit.page.goto(address)
        return visit

    def close(self) -> None:
        """Closes every window."""
        while self._contexts:
            self._contexts.pop().close()


@cache
def _axe() -> str:
    """The source of axe-core, which a package for Playwright carries."""
    if find_spec("axe_playwright_python") is None:
        refuse("no axe-core in this environment (pip install -e '.[dev]')")
    return files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


def _failed(visit: Visit, request: "Request") -> None:
    # What the page still waited for when it was left was not refused by anybody.
    if request.failure != "net::ERR_ABORTED":
        visit.complaints.append(f"failed: {request.url} ({request.failure})")


def _listen(visit: Visit, message: "ConsoleMessage") -> None:
    if message.type in ("warning", "error"):
        visit.complaints.append(message.text)


@contextmanager
def chromium() -> "Iterator[Browser]":
    """A running browser. Only for the length of a module: its event loop keeps others from running in this thread."""
    program = shutil.which("chromium")
    if program is None:
        refuse("no chromium on this machine (Debian: apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        refuse("no playwright in this environment (pip install -e '.[dev]')")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()
