"""`mnemoscope serve` as a process: it starts without torch, says where, ends at Ctrl-C; and what it refuses."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.atlas.manifest import begin
from mnemoscope.cli import main
from mnemoscope.web import Settings
from mnemoscope.web.serving import prewarm
from mnemoscope.web.site import Site
from support.handbuilt_atlas import build_atlas

Capture = pytest.CaptureFixture[str]


def begun(*arguments: str, **options: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "mnemoscope", "serve", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.full
def test_with_json_one_document_says_where_it_is(handbuilt: Path) -> None:
    with begun(str(handbuilt), "--port", "0", "--host", "0.0.0.0", "--json") as process:
        assert process.stdout is not None
        lines = []
        while not lines or lines[-1] != "}\n":
            lines.append(process.stdout.readline())
        said = json.loads("".join(lines))
        local = f"http://127.0.0.1:{said['port']}/index.json"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(local, timeout=30)
        asked = urllib.request.Request(local, headers={"Authorization": f"Bearer {said['token']}"})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert json.load(answer)["model"]["spec"] == "handbuilt"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.splitlines()[-1]) == (130, "", "mnemoscope: stopped by Ctrl-C")
    assert said["url"] == f"http://0.0.0.0:{said['port']}/?token={said['token']}"
    assert len(said["token"]) >= 32
    assert (said["atlas"], said["model"]) == (str(handbuilt), None)


def test_json_names_the_file_of_judgements(handbuilt: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemoscope.web.serving.serve", lambda settings, ready: ready(settings))
    assert main(["serve", str(handbuilt), "--annotations", "team.sqlite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["annotations"] == "team.sqlite"


@pytest.mark.parametrize("given", ["postgresql://team:hunter2@db.example/judge", "sqlite:///hunter2.sqlite"])
def test_an_address_is_no_file_and_is_not_repeated(handbuilt: Path, given: str, capsys: Capture) -> None:
    said = refused(capsys, str(handbuilt), "--annotations", given)
    assert "--annotations names an address; judgements are kept in a file" in said
    assert "hunter2" not in said


def refused(capsys: Capture, *arguments: str) -> str:
    assert main(["serve", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def test_a_port_in_use_is_one_line(handbuilt: Path, capsys: Capture) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        said = refused(capsys, str(handbuilt), "--port", str(port))
    assert said.startswith(f"mnemoscope: port {port} of 127.0.0.1 is in use")


def test_what_cannot_be_served_is_one_line(handbuilt: Path, tmp_path: Path, capsys: Capture) -> None:
    build_atlas(tmp_path / "part", part=(1, 2))
    begin(tmp_path / "half", plan={"plan": {"model": "m"}, "part": None})
    for atlas, options, said in (
        (tmp_path / "none", [], "does not exist"),
        (tmp_path / "part", [], "is part 1 of 2"),
        (tmp_path / "half", [], "is not finished"),
        (handbuilt, ["--host", "192.0.2.1"], "not an address of this machine"),
        (handbuilt, ["--port", "70000"], "0 to 65535"),
        (handbuilt, ["--force-model"], "needs --model"),
        (handbuilt, ["--model", str(tmp_path / "none")], "no folder"),
        (handbuilt, ["--model", "handmade:worked-example"], "worked-example is not the model"),
    ):
        assert said in refused(capsys, str(atlas), "--port", "0", *options)


def test_the_background_ends_with_the_server(handbuilt: Path) -> None:
    begun = threading.Event()
    with prewarm(Site(Settings(handbuilt)), begun.set, after=0.0):
        (thread,) = [one for one in threading.enumerate() if one.name == "prewarm"]
        assert begun.wait(20)
    # It ends by itself after the page in hand, however long that takes.
    thread.join()


def test_nothing_is_made_ahead_while_somebody_waits(handbuilt: Path) -> None:
    site, asked, answered = Site(Settings(handbuilt)), threading.Event(), threading.Event()

    def make() -> None:
        asked.set()
        answered.wait(20)

    reader = threading.Thread(target=lambda: site.read(make))
    reader.start()
    asked.wait(20)
    assert site.busy
    begun = threading.Event()
    with prewarm(site, begun.set, after=0.0):
        (thread,) = [one for one in threading.enumerate() if one.name == "prewarm"]
        thread.join(0.5)
        assert thread.is_alive()
        assert not begun.is_set()
        assert site.edition().tables.find("overview", None) is None
        answered.set()
        reader.join()
        thread.join(20)
        assert begun.is_set()
        assert site.edition().tables.find("overview", None) is not None
    assert not site.busy


@pytest.mark.full
def test_browsing_needs_neither_torch_nor_the_drawing_library(handbuilt: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom mnemoscope.web import Settings\n"
        "from mnemoscope.web.app import create_app\nfrom starlette.testclient import TestClient\n"
        f"reader = TestClient(create_app(Settings(Path({str(handbuilt)!r}))), base_url='http://127.0.0.1')\n"
        "assert reader.get('/L0.M0').status_code == reader.get('/layers/0').status_code == 200\n"
        "heavy = {'torch', 'transformers', 'altair', 'vl_convert'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.full
def test_open_shows_the_pages_in_the_browser_there_is(handbuilt: Path, tmp_path: Path) -> None:
    browser, shown = tmp_path / "browser", tmp_path / "shown"
    browser.write_text(f'#!/bin/sh\necho "$1" > {shown}.new && mv {shown}.new {shown}\n')
    browser.chmod(0o755)
    shown_at = {**os.environ, "BROWSER": str(browser)}
    with begun(str(handbuilt), "--port", "0", "--open", env=shown_at) as process:
        url = process.stdout.readline().split()[1]
        while not shown.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert shown.read_text().strip() == url


@pytest.mark.full
def test_open_is_harmless_without_a_browser(handbuilt: Path) -> None:
    none = {name: value for name, value in os.environ.items() if name not in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")}
    with begun(str(handbuilt), "--port", "0", "--open", env=none) as process:
        url = process.stdout.readline().split()[1]
        with urllib.request.urlopen(f"{url}index.json", timeout=30) as answer:
            assert json.load(answer)["model"]["spec"] == "handbuilt"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert "no browser is opened" in err
    assert process.returncode == 130
