"""Pages of annotating as people use them: a host, and annotators who come by their links. Not a test itself."""

import json
import re
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI
from starlette.testclient import TestClient

from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.features import AT_WORK, FEATURE_COLUMNS
from mnemoscope.atlas.manifest import seal
from mnemoscope.web import Settings
from mnemoscope.web.app import create_app
from support.handbuilt_answers import write_patterns
from support.handbuilt_atlas import activity_columns, manifest
from support.judged_atlas import MEMORIES, judged_atlas, list_cases
from support.pattern_atlas import write

LOCAL = "http://127.0.0.1:8765"
JSON = {"accept": "application/json"}
LITERAL = ("literal_top", "literal_max_probability", "literal_target", "literal_target_rank")
GOOD = {"kind": "shallow", "description": "ends alike", "marks": [0, 1, 4]}


def annotated_atlas(directory: Path) -> Path:
    """The atlas of judged_atlas.py with all that the pages of memories show, patterns and four compositions."""
    old = judged_atlas(directory, cases=0, patterns=False).manifest
    best = [list(range(20))] * MEMORIES
    values = {
        "memory": range(MEMORIES),
        **{name: [1.0] * MEMORIES for name in ("key_norm", "value_norm", "max_probability", "entropy")},
        **{name: [None] * MEMORIES for name in ("up_norm", "target", "target_rank", "trigger_log_probability")},
        **dict.fromkeys((*AT_WORK, *FEATURE_COLUMNS, *LITERAL), [None] * MEMORIES),
        **dict.fromkeys(("top_tokens", "bottom_tokens"), best),
        **{name: [[0.0] * 20] * MEMORIES for name in ("top_scores", "bottom_scores")},
    }
    size = old["model"]["sizes"]["vocabulary"]
    counts = {name: [1] * size for name in ("count", "next_count", "first_count")}
    write("tokens", directory, {"token": range(size), **counts})
    names = ("memory", "rank", "other_layer", "other_memory", "cosine")
    for layer in range(2):
        write("values", directory, values, layer)
        write("activity", directory, activity_columns(MEMORIES), layer)
        write("neighbours", directory, {name: [] for name in names}, layer)
    seal(directory, manifest(model=old["model"], layers=old["layers"]))
    open_atlas(directory)
    write_patterns(directory, [(0, 0, "shallow", [0, 1, 2, 3, 4]), (0, 0, "semantic", [4, 5, 6])])
    list_cases(directory, 4)
    return directory


class Reader:
    """A browser of one person: its cookies, and the forms of the last page it read."""

    def __init__(self, app: FastAPI, *, base: str = LOCAL) -> None:
        self.web = TestClient(app, base_url=base, raise_server_exceptions=False, follow_redirects=False)
        self.csrf = ""

    def page(self, path: str, *, status: int = 200) -> str:
        """The page as text; its forms' token is kept."""
        answer = self.web.get(path)
        assert answer.status_code == status, (path, answer.status_code, answer.text[:300])
        found = re.search(r'name="csrf" value="([\w-]+)"', answer.text)
        self.csrf = found[1] if found else self.csrf
        return answer.text

    def json(self, path: str) -> Any:
        """The page's twin."""
        answer = self.web.get(f"{path}.json")
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()

    def post(self, path: str, fields: dict[str, Any] | None = None, *, status: int = 200, **more: Any) -> Any:
        """What a program is answered."""
        data = {"csrf": self.csrf, **(fields or {})}
        answer = self.web.post(path, data=data, headers=JSON, **more)
        assert answer.status_code == status, (path, answer.status_code, answer.text[:300])
        return answer.json()

    def sent(self, path: str, fields: dict[str, Any] | None = None) -> Any:
        """What a browser without script is answered."""
        return self.web.post(path, data={"csrf": self.csrf, **(fields or {})})


class Visitor:
    """An annotator's browser at the address of a server in another process; a refusal raises HTTPError."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._csrf = url, ""
        self._web = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        found = re.search(r'name="csrf" value="([\w-]+)"', self._read(f"/annotate/join?invitation={token}"))
        self._csrf = found[1]

    def _read(self, path: str, fields: dict[str, Any] | None = None) -> str:
        body = None if fields is None else urlencode(fields, doseq=True).encode()
        headers = {} if fields is None else {**JSON, "x-csrf-token": self._csrf}
        with self._web.open(urllib.request.Request(self._url + path, body, headers), timeout=60) as answer:
            return str(answer.read().decode())

    def codes(self) -> list[str]:
        """Of the keys to judge."""
        return [one["code"] for one in json.loads(self._read("/annotate/work.json"))["items"] if one["kind"] == "key"]

    def save(self, code: str, key: str, description: str) -> Any:
        """What the server says of a judgement that is sent with this key."""
        fields = {**GOOD, "description": description, "pattern": "", "key": key}
        return json.loads(self._read(f"/annotate/items/{code}/save", fields))


def served(atlas: Path, **settings: Any) -> FastAPI:
    return create_app(Settings(atlas, **settings))


def host(app: FastAPI, *, base: str = LOCAL, begin: bool = True, path: str = "/annotate") -> Reader:
    """The host's browser; with `begin`, of a campaign of three keys in either layer."""
    found = Reader(app, base=base)
    if "?" in path:
        found.web.get(path)
    found.page("/annotate")
    if begin:
        found.post("/annotate/campaign", {"keys_per_layer": 3})
    return found


def invited(app: FastAPI, by: Reader, name: str, *, base: str = LOCAL) -> Reader:
    """The browser of somebody who opened the link of their invitation."""
    link = by.post("/annotate/invite", {"name": name}, status=201)["link"]
    found = Reader(app, base=base)
    answer = found.web.get(link)
    assert (answer.status_code, answer.headers["location"]) == (303, "/annotate/work")
    found.page("/annotate/work")
    return found


def codes(reader: Reader, kind: str = "key") -> list[str]:
    return [one["code"] for one in reader.json("/annotate/work")["items"] if one["kind"] == kind]
