"""How fast the pages of a GPT-2-small-sized atlas come.

    python benchmarks/serve.py [FOLDER] [SECONDS] [analyze]
    python benchmarks/serve.py FOLDER starts COUNT [OTHER/src]

Makes the atlas of search.py (12 layers of 3,072 memories, 50 triggers of each sign, 700,000 sentences; removed
afterwards unless FOLDER is given) and its index, starts `mnemoscope serve` as a process, and lets 20 readers each ask
for one page a second over kept connections: memories, layers, searches, tokens, the overview, half as JSON. Prints the
time to start, median and p99 of every kind, errors, and the server's processor time for a page. With `analyze` that
verb runs on the atlas all the while, again and again.

With `starts` the server is started so many times, and asked for its first pages; with the sources of another version
both are, in turn. Templates stay compiled only where Python may write what it compiles, so that is allowed.
"""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from urllib.parse import quote

import psutil
from made_up import LAYERS, MEMORIES, VOCABULARY

from mnemoscope.search import build_index
from search import build

READERS = 20
KINDS = ("memory", "memory", "memory", "layer", "search", "tokens", "overview")
"""What is asked for, as often as it stands here."""
FIRST = ("/L0.M0", "/", "/search?q=a")
"""What is asked for first after a start."""


def address(kind: str, draw: random.Random, words: list[str]) -> str:
    """A page of the kind; common words are asked for more often than rare ones."""
    end = draw.choice(("", ".json"))

    def word() -> str:
        return quote(words[int(len(words) ** draw.random())].strip())

    return {
        "memory": lambda: f"/L{draw.randrange(LAYERS)}.M{draw.randrange(MEMORIES)}{end}",
        "layer": lambda: f"/layers/{draw.randrange(LAYERS)}{end}?sort={draw.choice(['memory', 'rate', 'confidence'])}",
        "search": lambda: f"/search{end}?q={word()}",
        "tokens": lambda: f"/tokens/{int(VOCABULARY ** draw.random())}{end}",
        "overview": lambda: "/" if not end else "/index.json",
    }[kind]()


class Reader(threading.Thread):
    """Asks for one page a second until the end, and keeps how long each took.

    `excused`, given when a page was asked for, its status and its text, says whether a refusal is no error.
    """

    def __init__(
        self,
        number: int,
        place: str,
        words: list[str],
        end: float,
        *,
        excused: Callable[[float, int, str], bool] = lambda asked, status, text: False,
    ) -> None:
        super().__init__()
        self._draw = random.Random(number)
        self._place, self._words, self._end, self._excused = place, words, end, excused
        self.seconds: list[tuple[str, float]] = []
        self.errors: list[str] = []

    def run(self) -> None:
        """Reads."""
        time.sleep(self._draw.random())
        connection = http.client.HTTPConnection(self._place, timeout=30)
        while (began := time.perf_counter()) < self._end:
            kind = self._draw.choice(KINDS)
            asked = address(kind, self._draw, self._words)
            try:
                connection.request("GET", asked)
                answer = connection.getresponse()
                text = answer.read().decode()
                if answer.status != 200 and not self._excused(began, answer.status, text):
                    self.errors.append(f"{asked}: {answer.status} {text[-300:]}")
            except OSError as problem:
                self.errors.append(f"{asked}: {problem}")
                connection.close()
            taken = time.perf_counter() - began
            self.seconds.append((kind, taken))
            time.sleep(max(0.0, 1 - taken))
        connection.close()


@contextmanager
def run_beside(verb: str, atlas: Path) -> Iterator[None]:
    """Inside the block the verb runs on the atlas, again and again; says how often it ended."""
    over, ended = threading.Event(), 0

    def run() -> None:
        nonlocal ended
        while not over.is_set():
            subprocess.run([sys.executable, "-m", "mnemoscope", verb, str(atlas)], check=True, capture_output=True)
            ended += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    print(f"{verb} ended {ended} times")


@contextmanager
def running_server(atlas: Path, *, sources: Path | None = None) -> Iterator[tuple[int, str, float]]:
    """The process, the place and the seconds until it was told of a server of the atlas, by this code or by other."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if sources is not None:
        kept["PYTHONPATH"] = str(sources.resolve())
    began = time.perf_counter()
    command = [sys.executable, "-m", "mnemoscope", "serve", str(atlas), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=kept) as server:
        assert server.stdout is not None
        lines = ""
        while not lines.endswith("}\n"):
            if not (line := server.stdout.readline()):
                raise SystemExit(f"the server ended with {server.wait()}")
            lines += line
        seconds = time.perf_counter() - began
        try:
            yield server.pid, f"127.0.0.1:{json.loads(lines)['port']}", seconds
        finally:
            server.send_signal(signal.SIGINT)


def first_pages(place: str) -> dict[str, float]:
    """The seconds that each of the first pages took, asked for one after the other."""
    connection = http.client.HTTPConnection(place, timeout=120)
    seconds = {}
    for path in FIRST:
        began = time.perf_counter()
        connection.request("GET", path)
        connection.getresponse().read()
        seconds[path] = time.perf_counter() - began
    connection.close()
    return seconds


def measure_starts(atlas: Path, count: int, other: Path | None) -> None:
    """Starts the server again and again, this code and the other in turn; prints a line for each, then medians."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    versions = {"now": None} if other is None else {"before": other, "now": None}
    for _ in range(count):
        for version, sources in versions.items():
            with running_server(atlas, sources=sources) as (_, place, started):
                seconds = {"start": started} | first_pages(place)
            print(version, *(f"{name} {taken:.2f}" for name, taken in seconds.items()), flush=True)
            for name, taken in seconds.items():
                found[version][name].append(taken)
    for version, times in found.items():
        print(f"{version}, medians:", *(f"{name} {median(taken):.2f}" for name, taken in times.items()))


def measure(atlas: Path, seconds: float, *, verb: str | None = None) -> None:
    """Starts the server, reads, prints."""
    import mnemoscope as ms

    words = [text for text in ms.open_atlas(atlas).table("vocabulary")["text"].to_list() if text.strip()]
    with running_server(atlas) as (pid, place, started):
        print(f"started in {started:.2f} s at load {os.getloadavg()[0]:.1f}")
        for path, taken in first_pages(place).items():
            print(f"first {path}: {taken:.2f} s")
        # What the server makes in the background after its start is not what is measured.
        time.sleep(5)
        process = psutil.Process(pid)
        before = process.cpu_times()
        end = time.perf_counter() + seconds
        readers = [Reader(number, place, words, end) for number in range(READERS)]
        with nullcontext() if verb is None else run_beside(verb, atlas):
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
        after = process.cpu_times()
        report(readers, after.user + after.system - before.user - before.system)
        print(f"{process.memory_info().rss / 1e6:.0f} MB resident; load {os.getloadavg()[0]:.1f}")


def report(readers: list[Reader], worked: float) -> None:
    """Prints a line for each kind of page, and one for all."""
    kinds: dict[str, list[float]] = defaultdict(list)
    for reader in readers:
        for kind, taken in reader.seconds:
            kinds[kind].append(taken)
            kinds["all"].append(taken)
    for kind, taken in sorted(kinds.items(), key=lambda pair: pair[0] == "all"):
        ordered = sorted(taken)
        median, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        print(f"{kind:10}{len(ordered):6} pages, median {1000 * median:6.1f} ms, p99 {1000 * p99:6.1f} ms")
    errors = [error for reader in readers for error in reader.errors]
    print(f"{len(errors)} errors{': ' + '; '.join(errors[:3]) if errors else ''}")
    print(f"{1000 * worked / max(1, len(kinds['all'])):.0f} ms of processor time for a page")


def main() -> None:
    """Builds the atlas and its index where they are missing, and measures."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        if not (directory / "manifest.json").is_file():
            build(directory)
        import mnemoscope as ms

        build_index(ms.open_atlas(directory))
        if sys.argv[2:3] == ["starts"]:
            measure_starts(directory, int(sys.argv[3]), Path(sys.argv[4]) if len(sys.argv) > 4 else None)
            return
        verb = sys.argv[3] if len(sys.argv) > 3 else None
        measure(directory, float(sys.argv[2]) if len(sys.argv) > 2 else 30.0, verb=verb)


if __name__ == "__main__":
    main()
