"""A connection to Ray: an instance that this command starts and ends, or an existing cluster.

Ray waits for minutes for an address that does not answer, writes the reasons on stderr from C++, and may end the
process. So a child process tries first, for some seconds, and its output becomes one plain line.
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from mnemoscope.errors import MiningError, OptionError

_KNOCK_SECONDS = 30
"""Seconds an address may take to answer; 1 to 3 are usual, 10 by ray://."""
_CONNECT_SECONDS = 5
_STORE_BYTES = 100 * 2**20
"""Shared memory of our own instance: paths and names travel, never tensors."""
_LONGEST_FOLDER = 39
"""Ray's sockets lie up to 68 characters below it, and a socket's path has at most 107."""
_SET_BY_US = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
"""Ray sets the mode when it starts an instance."""
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "CRITICAL"}

_KNOCK = """
import sys
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="CRITICAL")
    ray.shutdown()
except Exception as error:
    print(type(error).__name__, error, sep=": ", file=sys.stderr)
    sys.exit(1)
"""


@contextmanager
def connect_to_ray(address: str | None, *, cpus: int) -> Iterator[Any]:
    """Connects to Ray inside the block, and yields its module: to our own instance with `cpus` (None), or to that
    cluster. A process that already uses Ray keeps its connection. Raises OptionError (no ray, no such cluster, a wrong
    token or version), MiningError (an instance that does not start).
    """
    # Ray prints events of its processes on stdout at any log level. Lines to skip it learns when it is imported.
    with _restoring("RAY_DEDUP_LOGS_SKIP_REGEX"):
        os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = "^"
        try:
            import ray
        except ImportError:
            raise OptionError("--ray needs ray, which is not installed; pip install 'mnemoscope[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    with _own_instance(ray, cpus) if address is None else _cluster(ray, address):
        yield ray


@contextmanager
def _restoring(*names: str) -> Iterator[None]:
    """Gives these environment variables the values from before the block again."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


@contextmanager
def _own_instance(ray: Any, cpus: int) -> Iterator[None]:
    parent = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="mnemoscope-ray-", dir=parent if len(parent) + 24 <= _LONGEST_FOLDER else "/tmp")
    with _restoring(*_SET_BY_US, "RAY_TMPDIR"):
        os.environ["RAY_TMPDIR"] = folder
        if not any(os.environ.get(name) for name in (*_SET_BY_US, "RAY_AUTH_TOKEN_PATH")):
            os.environ["RAY_AUTH_TOKEN"] = _own_token()
        try:
            with _signals_as_before():
                ray.init(
                    address="local", num_cpus=cpus, include_dashboard=False, object_store_memory=_STORE_BYTES, **_QUIET
                )
            yield
        except (OSError, RuntimeError) as error:
            if ray.is_initialized():
                raise
            raise MiningError(f"Ray does not start on this machine: {first_line(error)}; use --workers") from None
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _cluster(ray: Any, address: str) -> Iterator[None]:
    check_answer(address)
    try:
        with _signals_as_before():
            ray.init(address=address, **_QUIET)
        yield
    finally:
        ray.shutdown()


@contextmanager
def _signals_as_before() -> Iterator[None]:
    """Ray replaces the handler of SIGTERM; restores it, and delivers a signal that came meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:
        signal.signal(signal.SIGTERM, before)
        signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def check_answer(address: str) -> None:
    """Raises OptionError unless a cluster answers."""
    if address != "auto":
        _check_port(address)
    with tempfile.TemporaryFile() as said:
        command = [sys.executable, "-P", "-c", _KNOCK, address]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said)
        try:
            code, text = _wait(child, lambda: os.pread(said.fileno(), 1 << 20, 0).decode(errors="replace"))
        finally:
            child.kill()
            child.wait()
    if code != 0:
        raise OptionError(_reason(address, text))


def _wait(child: subprocess.Popen[bytes], read: Any) -> tuple[int | None, str]:
    """The child's exit code and output; ends early once it is refused."""
    end = time.monotonic() + _KNOCK_SECONDS
    while time.monotonic() < end:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(0.1), read()
        if "Unauthenticated" in read():
            break
    return None, read()


def _check_port(address: str) -> None:
    """Raises OptionError for a malformed address, or if nothing listens there."""
    found = re.fullmatch(r"(?:ray://)?\[?([^\s/\[\]]+?)\]?:([0-9]{1,5})", address)
    if found is None or not 0 < int(found[2]) < 65536:
        raise OptionError(f"--ray {address!r} is not an address; write auto, HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((found[1], int(found[2])), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise OptionError(
            f"no Ray cluster answers at {address!r} ({reason}); start one with `ray start --head`, see `ray status`"
        ) from None


def _reason(address: str, text: str) -> str:
    """Why joining a cluster failed, in one line, from the child's output."""
    where = f"the Ray cluster at {address!r}"
    if "Unauthenticated" in text or "AuthenticationError" in text:
        return f"{where} {_missing_token(text)}"
    if "Version mismatch" in text:
        versions = re.findall(r"Ray: *(\S+)\s+Python: *(\S+)", text)
        there, here = (f"Ray {ray} and Python {python}" for ray, python in [*versions, ("?", "?"), ("?", "?")][:2])
        return f"{where} runs {there}, this process {here}; install the same versions on both sides"
    if "ray[client]" in text:
        return "a ray:// address needs more of Ray; pip install 'ray[client]', or join by HOST:PORT from a node"
    if address == "auto" and "ConnectionError" in text:
        return "--ray auto found no Ray instance on this machine; start one with `ray start --head`, or give HOST:PORT"
    lines = [line for line in text.splitlines() if re.match(r"[A-Za-z.]+(Error|Exception|Exit): ", line)]
    said = lines[-1].split(": ", 1)[1] if lines else f"no answer from Ray within {_KNOCK_SECONDS} s"
    # By ray:// a refused token looks like silence.
    token = ", and whether RAY_AUTH_TOKEN is its token" if address.startswith("ray://") else ""
    return f"{where} cannot be joined ({said.strip()}); see `ray status` there{token}"


def _missing_token(text: str) -> str:
    """What is wrong with the token, and what to set. Ray sends one only if its mode says so."""
    file = os.environ.get("RAY_AUTH_TOKEN_PATH")
    if "AuthenticationError" in text and file:
        return f"asks for a token, and RAY_AUTH_TOKEN_PATH={file} is missing or empty; give the cluster's token there"
    if "AuthenticationError" in text or os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return (
            "asks for a token, and there is none here; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a file with"
            " the cluster's token (or put it into ~/.ray/auth_token)"
        )
    names = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    source = next((name for name in names if os.environ.get(name)), "~/.ray/auth_token")
    return f"refuses the token of {source}; put the cluster's token there"


@cache
def _own_token() -> str:
    """The token of our own instances, so that Ray writes none to the user's home; Ray reads it once."""
    return secrets.token_hex(32)


def first_line(error: BaseException) -> str:
    """The first non-empty line of an error's text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".:") if lines else type(error).__name__
