"""A headless Chromium, driven over chromedriver's own HTTP interface: enough to open a page, look at it and listen.

Needs the programs `chromium` and `chromedriver` (Debian: chromium, chromium-driver) and no Python package.
"""

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
DRIVER = shutil.which("chromedriver")
MISSING = " and ".join(name for name, found in (("chromium", CHROMIUM), ("chromedriver", DRIVER)) if found is None)

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
)


class Browser:
    """One open window."""

    def __init__(self, address: str) -> None:
        self._address = address
        wanted = {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "goog:chromeOptions": {"binary": CHROMIUM, "args": list(_FLAGS)},
        }
        made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._address + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(error.read().decode()) from None

    def command(self, method: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        body = {"cmd": method, "params": parameters}
        return self._ask("POST", f"{self._session}/goog/cdp/execute", body)

    def see(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Sets the window's size and the wanted colour scheme."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path) -> None:
        """Opens a file and waits until the page says that its charts are drawn."""
        self._ask("POST", f"{self._session}/url", {"url": path.resolve().as_uri()})
        self.wait("return document.documentElement.dataset.charts === 'drawn'")

    def wait(self, script: str, *, seconds: float = 60) -> None:
        """Waits until the script gives something true."""
        end = time.monotonic() + seconds
        while not self.run(script):
            if time.monotonic() > end:
                raise TimeoutError(script)
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """What the script returns."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def complaints(self) -> list[str]:
        """What the page wrote to the console as a warning or an error."""
        lines = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        return [line["message"] for line in lines if line["level"] in ("WARNING", "SEVERE")]

    def requests(self) -> list[str]:
        """Every address that was asked for since the last call."""
        lines = self._ask("POST", f"{self._session}/se/log", {"type": "performance"})
        messages = [json.loads(line["message"])["message"] for line in lines]
        sent = [one["params"] for one in messages if one["method"] == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in sent]

    def picture(self, place: Path, *, selector: str | None = None) -> None:
        """Saves a picture of the whole page, or of one element."""
        script = "const b = (arguments[0] ? document.querySelector(arguments[0]) : document.documentElement)"
        script += ".getBoundingClientRect(); return [b.x + scrollX, b.y + scrollY, b.width, b.height]"
        asked = {"script": script, "args": [selector]}
        x, y, width, height = self._ask("POST", f"{self._session}/execute/sync", asked)
        clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        shot = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        place.write_bytes(base64.b64decode(shot["data"]))

    def printed(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self.command("Page.printToPDF", printBackground=True)["data"])

    def close(self) -> None:
        """Closes the window."""
        self._ask("DELETE", self._session)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that is gone, with its files, when the block ends."""
    assert DRIVER is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as home:
        process = subprocess.Popen(
            [DRIVER, f"--port={port}", "--log-level=OFF"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"HOME": home, "TMPDIR": home, "PATH": "/usr/bin:/bin"},
        )
        try:
            _wait_for(port)
            opened = Browser(f"http://127.0.0.1:{port}")
            try:
                yield opened
            finally:
                opened.close()
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(port: int) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
