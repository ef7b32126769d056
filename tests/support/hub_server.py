"""A hub on 127.0.0.1, as much of its protocol as huggingface_hub speaks about data sets. Not a test itself.

It keeps commits as whole listings of files, large files by their hash, and counts what it sends and receives. A file
may be answered oddly (`Odd`): as a stranger, or a bad line, would.
"""

import base64
import hashlib
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

TOKEN = "hf_" + "secretsecretsecret" * 2
USER = "user"
_PIECE = 1 << 16


@dataclass
class Odd:
    """How a file is answered: with another size announced, without an end, or cut after so many bytes, once."""

    announced: int | None = None
    endless: bool = False
    cut_after: int | None = None


@dataclass
class Repository:
    private: bool
    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)
    odd: dict[str, Odd] = field(default_factory=dict)
    entries: list[dict[str, Any]] = field(default_factory=list)
    """What the listing names besides."""

    def commit(self, files: dict[str, bytes]) -> str:
        salt = os.urandom(8) + b"".join(hashlib.sha1(data).digest() for data in files.values())
        self.commits.append((hashlib.sha1(salt).hexdigest(), dict(files)))
        return self.head

    @property
    def head(self) -> str:
        return self.commits[-1][0]

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[-1][1]

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if revision == "main":
            return self.commits[-1]
        return next((one for one in self.commits if one[0] == revision), None)


@dataclass
class Hub:
    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    """Large files that were received, by sha256."""
    sent: dict[str, int] = field(default_factory=dict)
    """Bytes of files that were sent, by path."""
    received: list[str] = field(default_factory=list)
    """The large files, by sha256, in the order in which they came."""
    asked: list[str] = field(default_factory=list)
    """Every request: its method and path."""
    ranges: list[tuple[str, int]] = field(default_factory=list)
    """Files that were asked for from a later byte on."""
    refuse_upload_after: int | None = None
    """From that many large files on, the line is cut."""
    echo: bool = False
    """A failure repeats the token that was sent."""

    def add(self, name: str, folder: Path, *, private: bool = False, **changed: bytes | None) -> Repository:
        """A repository with the files of a folder; `changed` ones by their names in it, None for one left out."""
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        repository = self.repositories[name] = Repository(private)
        repository.commit({path: data for path, data in {**files, **changed}.items() if data is not None})
        return repository

    @property
    def bytes_sent(self) -> int:
        return sum(self.sent.values())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    do_GET = do_POST = do_PUT = do_HEAD

    def _answer(self) -> None:
        self.path = urlsplit(self.path).path
        self.hub.asked.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._read_chunks()
        for pattern, method in _ROUTES.items():
            if match := re.fullmatch(pattern, self.path):
                getattr(self, method)(
                    body, **{key: unquote(value or "main") for key, value in match.groupdict().items()}
                )
                return
        self._fail(404, "NotFound")

    def _read_chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _say(self, data: Any, status: int = 200, **headers: str) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _fail(self, status: int, code: str, message: str = "") -> None:
        if self.hub.echo:
            message = f"{message} {self.headers.get('Authorization', '')}".strip()
        self._say({"error": message or code}, status, X_Error_Code=code, X_Error_Message=message or code)

    @property
    def _is_user(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _found(self, name: str, *, write: bool = False) -> Repository | None:
        repository = self.hub.repositories.get(name)
        if repository is None or ((repository.private or write) and not self._is_user):
            self._fail(404 if self._is_user else 401, "RepoNotFound", "Repository not found")
            return None
        return repository

    def resolve(self, _: bytes, name: str, revision: str, path: str) -> None:
        if (repository := self._found(name)) is None:
            return
        if (commit := repository.at(revision)) is None:
            return self._fail(404, "RevisionNotFound")
        if path not in commit[1]:
            return self._say({"error": "no"}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit[0])
        data, odd = commit[1][path], repository.odd.get(path, Odd())
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        if start and self.command == "GET":
            self.hub.ranges.append((path, start))
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", commit[0])
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        size = len(data) if odd.announced is None else odd.announced
        if odd.endless and self.command == "GET":
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(size - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.end_headers()
        if self.command != "HEAD":
            self._send_file(path, data[start:], odd)

    def _send_file(self, path: str, data: bytes, odd: Odd) -> None:
        try:
            for piece in self._pieces(data, odd):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if odd.endless else piece)
                self.hub.sent[path] = self.hub.sent.get(path, 0) + len(piece)
        except OSError:  # the reader has had enough
            pass
        if odd != Odd():
            self.close_connection = True

    def _pieces(self, data: bytes, odd: Odd) -> Iterator[bytes]:
        if odd.cut_after is not None:
            cut, odd.cut_after = odd.cut_after, None
            yield data[:cut]
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError
        yield from (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))
        while odd.endless:
            yield b"x" * _PIECE

    def about(self, _: bytes, name: str, revision: str) -> None:
        if (repository := self._found(name)) is None:
            return
        if (commit := repository.at(revision)) is None:
            return self._fail(404, "RevisionNotFound")
        self._say({"id": name, "sha": commit[0], "private": repository.private, "siblings": []})

    def tree(self, _: bytes, name: str, revision: str) -> None:
        if (repository := self._found(name)) is None:
            return
        if (commit := repository.at(revision)) is None:
            return self._fail(404, "RevisionNotFound")
        listed = [{"type": "file", "path": path, "size": len(data), "oid": "0"} for path, data in commit[1].items()]
        self._say(listed + repository.entries)

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        if not self._is_user:
            return self._fail(401, "Unauthorized", "Invalid credentials in Authorization header")
        name = f"{asked.get('organization') or USER}/{asked['name']}"
        if not name.startswith(f"{USER}/"):
            return self._fail(403, "Forbidden", f"You don't have the rights to create {name}")
        if name in self.hub.repositories:
            return self._fail(409, "Conflict", "You already created this repo")
        private = asked.get("visibility") == "private" or asked.get("private") is True
        self.hub.repositories[name] = Repository(private)
        self.hub.repositories[name].commit({".gitattributes": b"*.parquet filter=lfs\n"})
        self._say({"url": f"{self.hub.address}/datasets/{name}", "id": name})

    def preupload(self, body: bytes, name: str, revision: str) -> None:
        if self._found(name, write=True) is None:
            return
        modes = [
            {
                "path": one["path"],
                "uploadMode": "lfs" if one["path"].endswith(".parquet") else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for one in json.loads(body)["files"]
        ]
        self._say({"files": modes})

    def batch(self, body: bytes, name: str) -> None:
        if self._found(name, write=True) is None:
            return
        objects = [
            {"oid": one["oid"], "size": one["size"]}
            if one["oid"] in self.hub.large
            else one | {"actions": {"upload": {"href": f"{self.hub.address}/large/{one['oid']}"}}}
            for one in json.loads(body)["objects"]
        ]
        self._say({"transfer": "basic", "objects": objects})

    def put(self, body: bytes, oid: str) -> None:
        if self.hub.refuse_upload_after is not None and len(self.hub.received) >= self.hub.refuse_upload_after:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if hashlib.sha256(body).hexdigest() != oid:
            return self._fail(400, "BadHash")
        self.hub.large[oid] = body
        self.hub.received.append(oid)
        self._say({})

    def commit(self, body: bytes, name: str, revision: str) -> None:
        if (repository := self._found(name, write=True)) is None:
            return
        files = dict(repository.files)
        for line in body.splitlines():
            said = json.loads(line)
            key, value = said["key"], said["value"]
            if key == "header" and value.get("parentCommit") not in (None, repository.head):
                return self._fail(412, "PreconditionFailed", "A commit has happened since")
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
        self._say({"commitUrl": f"{self.hub.address}/datasets/{name}", "commitOid": repository.commit(files)})

    def validate(self, body: bytes) -> None:
        front = json.loads(body)["content"].partition("---\n")[2].partition("---\n")[0]
        wrong = [] if re.search(r"^license: [a-z0-9.-]+$", front, re.MULTILINE) else [{"message": "license"}]
        self._say({"errors": wrong, "warnings": []}, 400 if wrong else 200)


_NAME = "(?P<name>[^/]+/[^/]+?)"
_ROUTES = {
    rf"/datasets/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)": "resolve",
    rf"/api/datasets/{_NAME}(/revision/(?P<revision>[^/]+))?": "about",
    rf"/api/datasets/{_NAME}/tree/(?P<revision>[^/]+)/?": "tree",
    "/api/repos/create": "create",
    rf"/api/datasets/{_NAME}/preupload/(?P<revision>[^/]+)": "preupload",
    rf"/datasets/{_NAME}\.git/info/lfs/objects/batch": "batch",
    "/large/(?P<oid>[0-9a-f]{64})": "put",
    rf"/api/datasets/{_NAME}/commit/(?P<revision>[^/]+)": "commit",
    "/api/validate-yaml": "validate",
}


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub without a repository."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OfHub", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def environment(address: str, home: Path, *, token: str | None = TOKEN) -> dict[str, str]:
    """The variables of a process that asks this hub."""
    said = {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    rest = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    return rest | said | ({} if token is None else {"HF_TOKEN": token})


def ask_here(patch: pytest.MonkeyPatch, address: str, home: Path, *, token: str | None = TOKEN) -> Path:
    """Lets this process ask the hub at the address, and returns its cache."""
    from huggingface_hub import close_session, constants

    cache = home / "hub"
    changed = {"ENDPOINT": address, "HF_HUB_OFFLINE": False, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_XET": True}
    changed |= {"HUGGINGFACE_CO_URL_TEMPLATE": address + "/{repo_id}/resolve/{revision}/{filename}"}
    changed |= {"HF_TOKEN_PATH": str(home / "token"), "AGENT_HARNESSES_PATH": str(home / "agents.json")}
    for name, value in changed.items():
        patch.setattr(constants, name, value, raising=False)
    patch.delenv("HF_TOKEN", raising=False)
    if token is not None:
        patch.setenv("HF_TOKEN", token)
    close_session()
    return cache
