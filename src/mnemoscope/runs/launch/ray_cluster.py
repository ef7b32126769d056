"""A connection to Ray: an instance that this command starts and ends, or an existing cluster.

Ray waits for minutes for an address that does not answer, writes the reasons on stderr from C++, and may end the
process. So a child process tries first, for some seconds, and the first line of what it says is passed on.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from mnemoscope.errors import MiningError, OptionError

_KNOCK_SECONDS = 30
"""Seconds an address may take to answer; 1 to 3 are usual, 10 by ray://."""
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
    print(*str(error).split(), file=sys.stderr)
    sys.exit(1)
"""


@contextmanager
def connect_to_ray(address: str | None, *, cpus: int) -> Iterator[Any]:
    """Connects to Ray inside the block, and yields its module: to our own instance with `cpus` (None), or to that
    cluster. A process that already uses Ray keeps its connection.
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


def check_answer(address: str, *, seconds: float = _KNOCK_SECONDS) -> None:
    """Raises OptionError unless a cluster answers."""
    command, code = [sys.executable, "-P", "-c", _KNOCK, address], None
    with tempfile.TemporaryFile() as said:
        with suppress(subprocess.TimeoutExpired):
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                timeout=seconds,
                check=False,
            ).returncode
        text = os.pread(said.fileno(), 1 << 20, 0).decode(errors="replace")
    if code != 0:
        line = re.sub(r"^\[.*?\] \S+: ", "", text.strip().partition("\n")[0])  # without the place in Ray's source
        reason = line or f"no answer within {seconds:g} s"
        raise OptionError(f"--ray {address!r}: {reason}; see `ray status` there, and what docs/scale.md says of Ray")


@cache
def _own_token() -> str:
    """The token of our own instances, so that Ray writes none to the user's home; Ray reads it once."""
    return secrets.token_hex(32)


def first_line(error: BaseException) -> str:
    """The first non-empty line of an error's text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".:") if lines else type(error).__name__
