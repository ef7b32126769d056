"""What stands for a worker in tests of launchers: says in files that it began and that it saved; waits in between."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from mnemoscope.errors import NotFinite


def wait_for_stop(directory: Path, name: str, *, stop: Callable[[], bool], deaf: bool = False) -> None:
    """Waits until it is asked to stop (never, if `deaf`) or until a file tells it to end, to raise or to fail."""
    process = f"{os.getpid()} {os.environ['OMP_NUM_THREADS']} {os.getcwd()} {os.getppid()} {socket.gethostname()}"
    (directory / f"{name}.new").write_text(process, encoding="utf-8")
    (directory / f"{name}.new").rename(directory / name)
    while deaf or not stop():
        time.sleep(0.02)
        if (directory / f"{name}-ends").exists():
            return
        if (directory / f"{name}-raises").exists():
            raise NotFinite("layer 3 has a NaN; load the model in float32")
        if (directory / f"{name}-fails").exists():
            raise ZeroDivisionError("division by zero")
    (directory / f"{name}-saved").touch()
