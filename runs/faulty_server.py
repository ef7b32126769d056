"""A server whose disk fails while people use it: what faults.py does for annotate and serve. Not a test itself.

A server does not end with an exit code: a refusal is one sentence, and the same thing sent again must be stored. Every
answer that says that something is stored is noted in the diary, and must be true after a power cut.
"""

import json
import sqlite3
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import faulty_disk
from mnemoscope.web import site
from web.judging import GOOD, JSON, Reader, annotated_atlas, served

PEOPLE = ("Ada", "Ben")
ITEMS = 2
"""How many items everybody judges."""
TABLES = {
    "judgements": "SELECT author, key, kind, description, pattern FROM judgements ORDER BY author, key",
    "people": "SELECT name, role FROM annotators ORDER BY name",
    "finishes": "SELECT author, key, finished FROM finishes ORDER BY author, key",
    "campaign": "SELECT seed, keys_per_layer, controls, cases FROM campaigns",
}
"""What people said, without times and secrets."""


def prepare(base: Path) -> None:
    """The atlas that is judged."""
    annotated_atlas(base / "start" / "atlas")


def _answer(web: Any, path: str, data: dict[str, Any] | None = None) -> Any:
    """The answer to a post, or with no data to a get; a refusal is told, and once more is asked."""
    for last in (False, True):
        told = web.get(path, headers=JSON) if data is None else web.post(path, data=data, headers=JSON)
        if told.status_code < 400:
            return told
        sentence = told.json()["message"]
        print(f"{told.status_code}: {sentence}", file=sys.stderr)
        if told.status_code == 500 or "\n" in sentence or last:
            raise SystemExit(1)
    raise AssertionError("unreachable")


def _form(reader: Reader, path: str) -> None:
    """Reads a page for its forms' token."""
    _answer(reader.web, path)
    reader.page(path)


def session(root: Path) -> int:
    """Begins a campaign, invites people and has them judge; what is there already is sent again."""
    site.RETRY_AFTER_SECONDS = 0.0
    app = served(root / "atlas")
    try:
        boss = Reader(app)
        _form(boss, "/annotate")
        found = _answer(boss.web, "/annotate/campaign", {"csrf": boss.csrf, "keys_per_layer": 3}).json()
        faulty_disk.note("campaign")
        known = {one["name"] for one in found["people"]}
        for name in PEOPLE:
            how = "renew" if name in known else "invite"
            link = _invitation(boss, how, name)
            faulty_disk.note(f"people {name}")
            reader = Reader(app)
            reader.web.get(link)
            _form(reader, "/annotate/work")
            _judge(reader, name)
    finally:
        app.state.site.close()
    return 0


def _invitation(boss: Reader, how: str, name: str) -> str:
    told = boss.web.post(f"/annotate/{how}", data={"csrf": boss.csrf, "name": name}, headers=JSON)
    if told.status_code >= 400:
        print(f"{told.status_code}: {told.json()['message']}", file=sys.stderr)
        people = [one["name"] for one in _answer(boss.web, "/annotate.json").json()["people"]]
        how = "renew" if name in people else "invite"
        told = _answer(boss.web, f"/annotate/{how}", {"csrf": boss.csrf, "name": name})
    return str(told.json()["link"])


def _judge(reader: Reader, name: str) -> None:
    places = _answer(reader.web, "/annotate/work.json").json()["items"]
    for number, code in enumerate([one["code"] for one in places if one["kind"] == "key"][:ITEMS]):
        key = f"{name}-judgement-{number}"
        sent = {"csrf": reader.csrf, **GOOD, "pattern": "0", "key": key}
        _answer(reader.web, f"/annotate/items/{code}/save", sent)
        faulty_disk.note(f"judgements {key}")
        key = f"{name}-finish-{number}"
        _answer(reader.web, f"/annotate/items/{code}/finish", {"csrf": reader.csrf, "key": key})
        faulty_disk.note(f"finishes {key}")


def kept(root: Path) -> dict[str, bytes]:
    """What people said."""
    with closing(sqlite3.connect(root / "atlas" / "annotations.sqlite")) as database:
        return {name: repr(database.execute(asked).fetchall()).encode() for name, asked in TABLES.items()}


def claims(root: Path, notes: list[str], expected: Mapping[str, bytes]) -> int:
    """0 if the database is sound and holds everything that was said to be stored."""
    path = root / "atlas" / "annotations.sqlite"
    if not path.exists():
        print(f"the database is gone, and with it {notes}" if notes else "")
        return 1 if notes else 0
    with closing(sqlite3.connect(path)) as database:
        if (sound := database.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
            print(sound)
            return 1
        there = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        held = {f"people {name}" for (name,) in database.execute("SELECT name FROM annotators")} if there else set()
        for table in ("judgements", "finishes") if there else ():
            held |= {f"{table} {key}" for (key,) in database.execute(f"SELECT key FROM {table}")}
        if there and database.execute("SELECT 1 FROM campaigns").fetchone():
            held.add("campaign")
    lost = [note for note in notes if note not in held]
    print(f"acknowledged and lost: {lost}" if lost else "")
    return 1 if lost else 0


def browse(root: Path) -> int:
    """Searches over the server, which makes the index, until it is there."""
    app = served(root / "atlas")
    try:
        reader, refused = Reader(app), 0
        while True:
            told = reader.web.get("/search.json", params={"q": "w1"})
            if told.status_code < 400:
                json.loads(told.text)
                return 0
            building = "being built" in told.json()["message"]
            print(f"{told.status_code}: {told.json()['message']}", file=sys.stderr)
            refused += not building
            if told.status_code == 500 or refused > 1:
                return 1
            time.sleep(0.01)
    finally:
        app.state.site.close()


def answered(call: faulty_disk.Call, code: int | None, out: str, err: str) -> str:
    """A server goes on after a refusal, each of which is one sentence."""
    return "" if code == 0 and "Traceback" not in err else f"exit {code}: {out} {err[-1500:]}"
