"""An hour of a served atlas: readers, annotators, and the verbs that write. For runs/soak.sh; not a test itself.

Mines a model of GPT-2 small's size (random weights) on the standard library's documentation, serves the atlas as a
process, and runs `analyze`, `report` and `mine --force` on it in turn until the time is over. While it is mined anew
its pages say so in one sentence, and a search may say that its index is being built; any other refusal is an error.
In the end every judgement that the server said is stored must be there once, and the server's memory, open files and
threads and the files of the folder must not have grown between the second third of the time and the last.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError, URLError

import psutil
import torch
from serve import READERS, Reader, report
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from mnemoscope.annotate.campaigns.import_export import rows
from mnemoscope.annotations import open_store
from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.manifest import MANIFEST
from mnemoscope.foundation.files import file_hash
from mnemoscope.models.opening.huggingface import builtin_folder
from web.judging import Visitor

ANNOTATORS, PAUSE = 5, 5.0
"""Who judge, and seconds between two judgements of one."""
MINED = ["--max-tokens", "6000", "--prefixes", "100", "--removals", "1", "--split", "line"]
SAMPLED_EVERY, TOLD_EVERY = 10.0, 300.0
GROWTH = 1.1
"""How much larger the server may be in the last third than in the second."""
MORE_HANDLES = 10
"""How many more files and threads it may have open then: pages are made side by side."""


@dataclass
class Sample:
    """What the server holds at one time: seconds from the start, bytes, open files, threads."""

    at: float
    resident: int
    handles: int
    threads: int


@dataclass
class Watch:
    """What happens while the server runs."""

    folder: Path
    began: float = field(default_factory=time.perf_counter)
    mined: list[tuple[float, float]] = field(default_factory=list)
    """From when to when the atlas was being mined anew, by perf_counter; the end is infinite while it lasts."""
    verbs: Counter[str] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)
    """Keys of judgements that the server said it has."""

    def excused(self, asked: float, status: int, text: str) -> bool:
        """Whether a reader may see this refusal: the atlas was being mined, or an index is being built."""
        now = time.perf_counter()
        while_mined = status == 409 and any(first <= now and asked <= last for first, last in self.mined)
        allowed = "bug" not in text and (while_mined or (status == 503 and "index" in text))
        self.refused[status] += allowed
        return allowed

    def run_verb(self, *arguments: str) -> float:
        """Runs one command to its end; seconds. What does not end with 0 is a fault."""
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "mnemoscope", *arguments], capture_output=True, text=True)
        if done.returncode:
            self.faults.append(f"{arguments[0]} ended with {done.returncode}: {done.stderr[-500:]}")
        self.verbs[arguments[0]] += 1
        return time.perf_counter() - began


def mine(watch: Watch, *more: str) -> float:
    """Mines the model's atlas; seconds."""
    paths = [str(watch.folder / "model"), "builtin:pydocs", "--out", str(watch.folder / "atlas")]
    return watch.run_verb("mine", *paths, *MINED, *more)


def write_model(folder: Path) -> None:
    """A model of GPT-2 small's size with random weights, and the built-in model's tokenizer."""
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(builtin_folder("pydocs"))).save_pretrained(folder)


def files_of(atlas: Path) -> set[str]:
    """Every file of the atlas; generations of the search index count as one, and SQLite's log comes and goes."""
    found = (path.relative_to(atlas) for path in atlas.rglob("*") if path.is_file())
    return {str(path) for path in found if path.parts[0] != "search" and not path.match("*.sqlite-*")}


def write_and_write_again(watch: Watch, end: float) -> None:
    """analyze, report, mine --force, and so on until the time is over; the same atlas must come out each time."""
    atlas = watch.folder / "atlas"
    manifest, expected = file_hash(atlas / MANIFEST), files_of(atlas)
    while time.perf_counter() < end:
        watch.run_verb("analyze", str(atlas))
        watch.run_verb("report", str(atlas))
        if more := files_of(atlas) ^ expected:
            watch.faults.append(f"files that came or went: {sorted(more)[:5]}")
        if time.perf_counter() > end:
            break
        watch.mined.append((time.perf_counter(), float("inf")))
        mine(watch, "--force")
        watch.mined[-1] = (watch.mined[-1][0], time.perf_counter())
        if file_hash(atlas / MANIFEST) != manifest:
            watch.faults.append("the atlas that was mined anew has another manifest")
    # The next hour begins where this one did.
    if not (atlas / "report").exists():
        watch.run_verb("analyze", str(atlas))
        watch.run_verb("report", str(atlas))


def judge(watch: Watch, url: str, token: str, number: int, end: float) -> None:
    """One annotator: judgement after judgement; what is refused because the atlas is being mined is sent again."""
    visitor: Visitor | None = None
    codes: list[str] = []
    count, tries = 0, 0
    while time.perf_counter() < end:
        asked, key = time.perf_counter(), f"person-{os.getpid()}-{number}-judgement-{count:05}"
        try:
            visitor = visitor or Visitor(url, token)
            codes = codes or visitor.codes()
            tries += 1
            if visitor.save(codes[count % len(codes)], key, f"number {count}")["again"] and tries == 1:
                watch.faults.append(f"{key} was there before it was sent")
            watch.stored.append(key)
            count, tries = count + 1, 0
        except HTTPError as problem:
            if not watch.excused(asked, problem.code, problem.read().decode()):
                watch.faults.append(f"{key}: {problem.code}")
        except (URLError, OSError) as problem:
            watch.faults.append(f"{key}: {problem}")
        time.sleep(PAUSE)


def look(watch: Watch, server: psutil.Process, end: float) -> None:
    """Notes what the server holds, and tells now and then."""
    told = time.perf_counter()
    while (now := time.perf_counter()) < end:
        with server.oneshot():
            found = Sample(now - watch.began, server.memory_info().rss, server.num_fds(), server.num_threads())
        watch.samples.append(found)
        if now - told >= TOLD_EVERY:
            told = now
            tell(watch, found)
        time.sleep(SAMPLED_EVERY)


def tell(watch: Watch, found: Sample) -> None:
    """One line of how it stands."""
    done = ", ".join(f"{verb} {count}" for verb, count in watch.verbs.items())
    print(
        f"{found.at / 60:5.1f} min: {found.resident / 1e6:.0f} MB, {found.handles} files, {found.threads} threads;"
        f" {len(watch.stored)} judgements; {done}; {len(watch.faults)} faults",
        flush=True,
    )


def check_flat(watch: Watch) -> None:
    """Compares the last third of the samples with the second, largest with largest."""
    third = len(watch.samples) // 3
    for name, allowed in (("resident", None), ("handles", MORE_HANDLES), ("threads", MORE_HANDLES)):
        earlier, later = (
            max(getattr(one, name) for one in part)
            for part in (watch.samples[third : 2 * third], watch.samples[2 * third :])
        )
        print(f"{name}: at most {earlier} in the second third, {later} in the last")
        if later > (earlier * GROWTH if allowed is None else earlier + allowed):
            watch.faults.append(f"{name} grew from {earlier} to {later}")


def serve(watch: Watch, minutes: float, tokens: list[str]) -> None:
    """Starts the server and everybody, waits, and ends it as Ctrl-C does."""
    atlas = watch.folder / "atlas"
    # A text without a letter or digit cannot be searched, and a page says so.
    texts = open_atlas(atlas).table("vocabulary")["text"].to_list()
    words = [text for text in texts if any(map(str.isalnum, text))]
    command = [sys.executable, "-m", "mnemoscope", "serve", str(atlas), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        lines = ""
        while not lines.endswith("}\n"):
            lines += server.stdout.readline()
        place = f"127.0.0.1:{json.loads(lines)['port']}"
        watch.began = time.perf_counter()
        end = watch.began + 60 * minutes
        readers = [Reader(number, place, words, end, excused=watch.excused) for number in range(READERS)]
        others = [
            threading.Thread(target=judge, args=(watch, f"http://{place}", token, number, end))
            for number, token in enumerate(tokens)
        ]
        others.append(threading.Thread(target=look, args=(watch, psutil.Process(server.pid), end)))
        before = psutil.Process(server.pid).cpu_times()
        for thread in (*readers, *others):
            thread.start()
        write_and_write_again(watch, end)
        for thread in (*readers, *others):
            thread.join()
        after = psutil.Process(server.pid).cpu_times()
        report(readers, after.user + after.system - before.user - before.system)
        watch.faults += [error for reader in readers for error in reader.errors]
        server.send_signal(signal.SIGINT)
        if (code := server.wait(60)) not in (0, 130):
            watch.faults.append(f"serve ended with {code}")


def soak(folder: Path, minutes: float) -> list[str]:
    """Makes the atlas where it is missing, lets the time pass, and gives what did not hold."""
    watch, atlas = Watch(folder), folder / "atlas"
    if not (folder / "model").is_dir():
        write_model(folder / "model")
    if not (atlas / MANIFEST).is_file():
        print(f"mined in {mine(watch):.0f} s", flush=True)
    if not (atlas / "report").is_dir():
        print(f"analysed in {watch.run_verb('analyze', str(atlas)):.0f} s", flush=True)
        print(f"reported in {watch.run_verb('report', str(atlas)):.0f} s", flush=True)
    if watch.faults:
        return watch.faults
    with open_store(open_atlas(atlas)) as store:
        store.start_campaign()
        said = {row["key"] for row in rows(store)}
        tokens = [store.invite(f"person {os.getpid()}-{number}").token for number in range(ANNOTATORS)]
    serve(watch, minutes, tokens)
    with open_store(open_atlas(atlas)) as store:
        there = Counter(row["key"] for row in rows(store) if row["key"] not in said)
    if there != Counter(watch.stored):
        watch.faults.append(f"{len(watch.stored)} judgements were stored, {sum(there.values())} are there")
    check_flat(watch)
    tell(watch, watch.samples[-1])
    print(f"refusals that may be seen, by status: {dict(watch.refused)}")
    print(f"{len(watch.stored)} judgements said to be stored, {sum(there.values())} there")
    return watch.faults


def main() -> int:
    """Prints the figures and what did not hold."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[2] if len(sys.argv) > 2 else temporary)
        faults = soak(folder, minutes)
    for fault in faults[:20]:
        print(f"did not hold: {fault}")
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
