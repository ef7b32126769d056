"""Workers as processes of this machine: on a CPU they divide the threads, otherwise each has its cards.

A worker is the command `mnemoscope worker` in its own session, so that Ctrl-C reaches the driver alone, which then asks
the workers to save and end. A worker ends when its driver is gone.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

_PATIENCE = 120
"""Seconds that a worker asked to end may take to save."""
_PREFIX = "mnemoscope: "


@dataclass
class _RunningProcess:
    process: subprocess.Popen[bytes]
    said: IO[bytes]
    card: int


class LocalLauncher:
    """`words` are more words of every worker's command; `cards` the cards of the machine, `each` those per worker."""

    def __init__(self, directory: Path, *, threads: int, words: Sequence[str], cards: int = 0, each: int = 1) -> None:
        self._directory, self._threads, self._words = directory, threads, list(words)
        self._cards, self._each = cards, each
        self._running: dict[str, _RunningProcess] = {}

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "mnemoscope", "worker", str(self._directory), "--name", name]
        command += ["--parent", str(os.getpid()), *self._words]
        environment = {**os.environ, "OMP_NUM_THREADS": str(self._threads), "MKL_NUM_THREADS": str(self._threads)}
        taken = {each.card for each in self._running.values()}
        card = next((card for card in range(0, self._cards, self._each) if card not in taken), 0)
        if self._cards:
            given = os.environ.get("CUDA_VISIBLE_DEVICES")
            cards = given.split(",") if given else [str(number) for number in range(self._cards)]
            own = [cards[(card + i) % len(cards)] for i in range(self._each)]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        said = TemporaryFile()  # noqa: SIM115 - closed when the worker has ended
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        self._running[name] = _RunningProcess(process, said, card)

    def take_ended(self) -> dict[str, str | None]:
        over = {name: each for name, each in self._running.items() if each.process.poll() is not None}
        for name in over:
            del self._running[name]
        return {name: _reason(each) for name, each in over.items()}

    def stop(self) -> None:
        for each in self._running.values():
            with suppress(ProcessLookupError):
                each.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + _PATIENCE
        for each in self._running.values():
            try:
                each.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()
            each.said.close()
        self._running.clear()


def _reason(ended: _RunningProcess) -> str | None:
    """Why a worker ended, in one line; None if it was done, or had been asked to end."""
    code = ended.process.returncode
    with ended.said as file:
        file.seek(0)
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    if code in (0, 75):
        return None
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    last = lines[-1] if lines else ""
    return last.removeprefix(_PREFIX) or f"ended with code {code}"
