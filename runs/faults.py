"""Fails every call that changes a disk once, and cuts the power after it; prints what was tried and what held.

Everything is done in children forked from this process, which has imported what the verbs need, and in which
faulty_disk.c sees and refuses calls. A place holds when the verb ends with one plain line and exit code 2, nothing in
the folder says that it is whole which is not, and the next run makes the bytes that an undisturbed one makes. After a
power cut there is no line, but all the rest, and every judgement that the server has acknowledged is there.
Run by tests/test_faults.py on one place of each kind, by runs/faults.sh on all.

    python runs/faults.py [VERB ...] [--sample N | --few] [--seed S] [--only PATTERN] [--folder DIR] [--out FILE]
"""

import os

# A forked child has no threads but one, so nothing may have started a pool before.
os.environ.update(
    OMP_NUM_THREADS="1",
    RAYON_NUM_THREADS="1",
    POLARS_MAX_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
)

import argparse
import errno
import hashlib
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import faulty_disk
from faulty_verbs import VERBS, Verb
from support.power_cut import WAYS, Disk, Tree, write_tree

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
LONGEST = 120
"""Seconds after which a child has hung."""


@dataclass(frozen=True)
class Place:
    """A call that fails, or the last before a power cut: its number among all, what fails it or how the cut is."""

    verb: str
    number: int
    kind: str
    file: str
    how: str


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code (None: it hung), and what it printed."""

    code: int | None
    out: str
    err: str


class Walk:
    """The places of one verb, in a folder of its own."""

    def __init__(self, verb: Verb, base: Path) -> None:
        """Makes what the verb begins with, runs it undisturbed and writes down its calls."""
        self.verb = verb
        self.base = base
        self.root = base / "now"
        base.mkdir(parents=True)
        self._ok(lambda: verb.prepare(base) or 0, "prepare")
        self._begin()
        self.start = Disk(self.root)
        self._ok(lambda: self._recorded(verb.run), "run")
        self.calls = faulty_disk.read(base / "diary", self.root)
        self.expected = verb.kept(self.root)
        self.places = [call for call in self.calls if call.kind != "note"]

    def _begin(self, tree: Tree | None = None) -> None:
        """The folder as it is before the run, or as a cut left it."""
        shutil.rmtree(self.root, ignore_errors=True)
        if tree is not None:
            write_tree(tree, self.root)
        elif (self.base / "start").exists():
            shutil.copytree(self.base / "start", self.root)
        else:
            self.root.mkdir()

    def _recorded(self, work: Callable[[Path], int], *, fail_at: int | None = None, error: int = 0) -> int:
        faulty_disk.begin(self.root, self.base / "diary", fail_at=fail_at, error=error)
        try:
            return work(self.root)
        finally:
            faulty_disk.end()

    def child(self, work: Callable[[], int]) -> Ended:
        """Works in a forked process."""
        out, err = self.base / "out", self.base / "err"
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for path, handle in ((out, 1), (err, 2)):
                    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), handle)
                code = work()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        until, status = time.monotonic() + LONGEST, None
        while status is None and time.monotonic() < until:
            done, found = os.waitpid(pid, os.WNOHANG)
            status = found if done else None
            time.sleep(0.002)
        if status is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return Ended(None, out.read_text(), err.read_text())
        return Ended(os.waitstatus_to_exitcode(status), out.read_text(), err.read_text())

    def _ok(self, work: Callable[[], int], what: str) -> None:
        ended = self.child(work)
        if ended.code != 0:
            raise SystemExit(f"{self.verb.name}: {what} ended with {ended.code}: {ended.err}")

    def fail(self, number: int, error: str) -> tuple[Place | None, str]:
        """Fails call `number`; returns the place that was met (None: the run had fewer) and what is wrong, or ""."""
        self._begin()
        ended = self.child(lambda: self._recorded(self.verb.run, fail_at=number, error=ERRORS[error]))
        calls = faulty_disk.read(self.base / "diary", self.root)
        met = next((call for call in calls if call.failed), None)
        if met is None:
            return None, ""
        place = Place(self.verb.name, number, *met.where, error)
        wrong = self.verb.refused(met, ended.code, ended.out, ended.err)
        notes = [call.data.decode() for call in calls if call.kind == "note"]
        return place, wrong or self._afterwards(notes, whole=ended.code == 0)

    def _afterwards(self, notes: list[str], *, whole: bool = False) -> str:
        """What is wrong with the folder as it is left and with the next run, or "". `whole`: it was said to be done."""
        if whole and (differs := self._differences()):
            return f"exit 0, but {differs}"
        ended = self.child(lambda: self.verb.claims(self.root, notes, self.expected))
        if ended.code != 0:
            return f"claims: {ended.code} {ended.out} {ended.err[-1500:]}"
        ended = self.child(lambda: self.verb.again(self.root))
        if ended.code != 0:
            return f"the next run ended with {ended.code}: {ended.err[-1500:]}"
        return self._differences()

    def _differences(self) -> str:
        found = self.verb.kept(self.root)
        wrong = sorted(path for path in found | self.expected if found.get(path) != self.expected.get(path))
        return f"these differ: {', '.join(wrong)}" if wrong else ""

    def cuts(self) -> list[tuple[Place, Tree, list[str]]]:
        """What power cuts may leave, every state once: where it came from, the folder, and the notes until then."""
        seen: set[str] = set()
        found = []
        notes: list[str] = []
        number = -1
        for call in self.calls:
            self.start.make(call)
            if call.kind == "note":
                notes.append(call.data.decode())
            else:
                number += 1
            for way in WAYS:
                tree = self.start.left(way)
                state = _hash(tree, notes)
                if state not in seen:
                    seen.add(state)
                    found.append((Place(self.verb.name, number, *call.where, f"cut: {way}"), tree, [*notes]))
        return found

    def cut(self, tree: Tree, notes: list[str]) -> str:
        """What is wrong after a power cut that left this, or ""."""
        self._begin(tree)
        return self._afterwards(notes)


def _hash(tree: Tree, notes: Sequence[str]) -> str:
    digest = hashlib.sha256(repr(notes).encode())
    for path, data in tree.items():
        digest.update(path.encode() + b"\0")
        digest.update(b"folder" if data is None else hashlib.sha256(data).digest())
    return digest.hexdigest()


@dataclass(frozen=True)
class Wanted:
    """Which places are tried: all, so many at random, or a `few`: of every kind of call and of file at least one."""

    sample: int | None = None
    few: bool = False
    seed: int = 0
    only: str = ""
    """What the kind of call, the kind of file and what fails it must match."""

    def chosen(self, places: Sequence[Place]) -> list[int]:
        """The numbers of the places to try."""
        there = [
            number
            for number, place in enumerate(places)
            if re.search(self.only, f"{place.kind} {place.file} {place.how}")
        ]
        chance = random.Random(f"{self.seed} {len(places)}")
        if not self.few:
            return sorted(chance.sample(there, min(len(there), self.sample or len(there))))
        met: set[str] = set()
        found = []
        for number in chance.sample(there, len(there)):
            place = places[number]
            kinds = {_sort_of(place.file)} if place.how.startswith("cut") else {place.kind, _sort_of(place.file)}
            if not kinds <= met:
                met |= kinds
                found.append(number)
        return sorted(found)


def _sort_of(file: str) -> str:
    """The kind of a file, broadly: all tables are of one, all figures, the working copy of a text."""
    ending = Path(file).suffix
    return {".svg": "figure", ".png": "figure", ".pdf": "figure", "": "folder"}.get(ending, ending)


def walk(verb: Verb, base: Path, wanted: Wanted, say: Callable[[Place, str], None]) -> dict[str, int]:
    """Tries the places of a verb; `say` is told of each and what is wrong. Returns how many there are of each sort."""
    there = Walk(verb, base)
    calls = enumerate(there.places)
    every = [Place(verb.name, number, *call.where, error) for number, call in calls for error in ERRORS]
    for which in wanted.chosen(every):
        place, wrong = there.fail(every[which].number, every[which].how)
        if place is not None:
            say(place, wrong)
    cuts = there.cuts()
    for which in wanted.chosen([place for place, _, _ in cuts]):
        place, tree, notes = cuts[which]
        say(place, there.cut(tree, notes))
    return {"calls": len(there.places), "failures": len(every), "cuts": len(cuts)}


def table(tried: Counter[tuple[str, ...]], held: Counter[tuple[str, ...]]) -> str:
    """Lines of tried and held."""
    rows = [("verb", "how", "call", "file", "tried", "held")]
    rows += [(*key, str(tried[key]), str(held[key])) for key in sorted(tried)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> int:
    """Walks, prints the table; 1 where something did not hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verbs", nargs="*", metavar="VERB", help=", ".join(VERBS))
    parser.add_argument("--sample", type=int, help="so many failures and so many cuts of every verb, at random")
    parser.add_argument("--few", action="store_true", help="of every kind of call and kind of file at least one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="PATTERN", default="", help="of 'CALL FILE HOW', as the table has them")
    parser.add_argument("--folder", type=Path, help="where to work; what did not hold is told, not kept")
    parser.add_argument("--out", type=Path, help="a line of JSON for every place")
    given = parser.parse_args()
    wanted = Wanted(given.sample, given.few, given.seed, given.only)
    if unknown := {*given.verbs} - {*VERBS}:
        parser.error(f"no verb: {', '.join(sorted(unknown))}")
    # In memory where there is any: what a flush is worth, power_cut.py knows, and nobody need wait for it.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    base = given.folder or Path(tempfile.mkdtemp(prefix="faults-", dir=memory))
    tried: Counter[tuple[str, ...]] = Counter()
    held: Counter[tuple[str, ...]] = Counter()
    totals: dict[str, dict[str, int]] = {}
    for name in given.verbs or VERBS:
        began = time.perf_counter()

        def say(place: Place, wrong: str) -> None:
            key = (place.verb, place.how, place.kind, place.file)
            tried[key] += 1
            held[key] += not wrong
            if wrong:
                print(f"NOT HELD {place}: {wrong}", file=sys.stderr, flush=True)
            if given.out is not None:
                with given.out.open("a") as file:
                    file.write(json.dumps(asdict(place) | {"wrong": wrong}) + "\n")

        totals[name] = walk(VERBS[name], base / name, wanted, say)
        for sort in ("failures", "cuts"):
            mine = [key for key in tried if key[0] == name and key[1].startswith("cut") == (sort == "cuts")]
            totals[name][f"{sort} tried"] = sum(tried[key] for key in mine)
            totals[name][f"{sort} held"] = sum(held[key] for key in mine)
        shutil.rmtree(base / name)
        print(f"{name}: {json.dumps(totals[name])} in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    if given.folder is None:
        shutil.rmtree(base)
    print(table(tried, held))
    print(json.dumps(totals))
    return 0 if tried == held else 1


if __name__ == "__main__":
    faulty_disk.begin_again_preloaded()
    sys.exit(main())
