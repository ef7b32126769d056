"""A PostgreSQL server for tests, from Debian's packages, run as user postgres in its own folder. Not a test itself.

Without the packages a test skips and says so, but fails where CI=true. The server listens on this machine only, and is
stopped when the tests end.
"""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from support.needed import refuse

USER = "postgres"


@dataclass(frozen=True)
class Server:
    """A running server: where its socket is, its port on 127.0.0.1, and the password that one needs there."""

    folder: Path
    port: int
    password: str

    def database(self) -> str:
        """The address of a new, empty database."""
        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(host=str(self.folder), port=self.port, user=USER, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/{name}"


@contextmanager
def postgresql() -> Iterator[Server]:
    """A server with an empty folder."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        refuse("no PostgreSQL on this machine (Debian: apt-get install postgresql)")
    bin = programs[-1].parent
    root = os.geteuid() == 0
    folder = Path(tempfile.mkdtemp(prefix="mnemoscope-pg-"))
    password = secrets.token_hex(8)
    port = _free_port()
    (folder / "password").write_text(password, encoding="ascii")
    if root:  # the server refuses to run as root
        for path in (folder, folder / "password"):
            shutil.chown(path, USER, USER)

    def run(*command: str | Path) -> None:
        asked = ["runuser", "-u", USER, "--", *map(str, command)] if root else [*map(str, command)]
        done = subprocess.run(asked, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        log = folder / "log"
        told = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        assert done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}{told}"

    data = folder / "data"
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=60"
    try:
        run(bin / "initdb", "-D", data, "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync", "--auth-local=trust",
            "--auth-host=scram-sha-256", f"--pwfile={folder / 'password'}")  # fmt: skip
        run(bin / "pg_ctl", "-D", data, "-l", folder / "log", "-o", options, "-w", "-s", "start")
        try:
            yield Server(folder, port, password)
        finally:
            run(bin / "pg_ctl", "-D", data, "-m", "immediate", "-w", "-s", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
