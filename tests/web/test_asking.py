"""The application asked without a socket: with the access token or not, and early, in the background."""

import asyncio
import threading
from pathlib import Path

from mnemoscope.web import Settings
from mnemoscope.web.app import create_app
from mnemoscope.web.asking import asked, warming
from reports.reported_atlas import reported


def test_it_asks_as_a_reader_does(tmp_path: Path) -> None:
    app = create_app(Settings(reported(tmp_path).path, host="0.0.0.0", token="a token of the test"))
    assert asyncio.run(asked(app, "/layers"))[0] == 401
    status, body = asyncio.run(asked(app, "/layers/0?kind=none", token="a token of the test"))
    assert status == 200
    assert b"<h1>Layer 0</h1>" in body
    assert asyncio.run(asked(app, "/layers/7", token="a token of the test"))[0] == 404


def test_the_background_ends_with_the_server(tmp_path: Path) -> None:
    settings = Settings(reported(tmp_path).path)
    app = create_app(settings)
    with warming(app, app.state.site, settings):
        (thread,) = [one for one in threading.enumerate() if one.name == "warming"]
    # It ends by itself after the page in hand, however long that takes.
    thread.join()
    assert asyncio.run(asked(app, "/questions"))[0] == 200
