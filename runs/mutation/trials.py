"""Runs mutants against tests: `python runs/mutation/trials.py ROOM SEED [COUNT [SECONDS]]`, for runs/mutation.sh.

Works in a copy of the tree in a temporary folder. One warm process has imported everything but the package and its
tests; each mutant is written into the copy, and a fork of the process imports the package and runs the tests that
execute the mutated line, those of the cheapest files first, up to the first failure. Where importing executes the line
(constants, decorators, defaults), all of the room's tests run. A mutant that hangs counts as killed, one that no test
executes as a survivor.
"""

import contextlib
import gc
import importlib
import importlib.metadata
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import coverage
import pytest
from hypothesis import Phase, settings
from mutants import Mutant, draw_mutants, read_equivalents

HERE = Path(__file__).resolve().parents[2]
EQUIVALENTS = "runs/mutation/equivalent_mutants.txt"
WARM = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "polars",
    "pyarrow.parquet",
    "numpy.testing",
    "hypothesis",
    "pydantic",
    "fastapi.testclient",
    "safetensors.torch",
    "tokenizers",
    "typer.testing",
    "rich.table",
    "psutil",
    "zstandard",
    "sentencex",
    "altair",
)
TIMES_MEASURED, MORE_SECONDS = 3, 20
"""A mutant hangs when its tests take longer than so many times what they took without it, and so many seconds more."""


class Chooser:
    """A pytest plugin: only the tests asked for, in their order, and the first that fails is written down."""

    def __init__(self, tests: list[str], failed: Path) -> None:
        self._rank = {test: rank for rank, test in enumerate(tests)}
        self._failed = failed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # The first failure is enough; hypothesis need not look for a simpler one.
        settings.register_profile("first failure", settings.default, phases=[Phase.explicit, Phase.generate])
        settings.load_profile("first failure")
        items[:] = sorted((i for i in items if i.nodeid in self._rank), key=lambda item: self._rank[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._failed.exists():
            self._failed.write_text(report.nodeid, encoding="utf-8")


class Recorder:
    """A pytest plugin: which test runs which lines, and how long each takes.

    What a fixture of a wider scope runs counts for every test that asks for it; what is cached by a function of the
    package or of the tests is forgotten before each test, so that the second test is seen to need it too.
    """

    def __init__(self, recorder: coverage.Coverage, out: Path, root: Path) -> None:
        self._recorder, self._out, self._root = recorder, out, str(root)
        self._seconds: dict[str, float] = defaultdict(float)
        self._fixtures: dict[str, list[str]] = defaultdict(list)
        self._failed: list[str] = []
        self._context = ""

    def _switch(self, context: str) -> None:
        self._context = os.environ["MUTATION_TEST"] = context
        self._recorder.switch_context(context)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        for name, module in list(sys.modules.items()):
            if name.startswith("mnemoscope") or str(getattr(module, "__file__", "")).startswith(self._root + "/tests"):
                for value in list(vars(module).values()):
                    if callable(getattr(value, "cache_clear", None)) and getattr(value, "__module__", "") == name:
                        value.cache_clear()
        for definitions in item._fixtureinfo.name2fixturedefs.values():  # type: ignore[attr-defined]
            for one in definitions:
                if one.scope != "function":
                    self._fixtures[f"fixture {one.baseid}::{one.argname}"].append(item.nodeid)
        self._switch(item.nodeid)
        answer = yield
        self._switch("between tests")
        return answer

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        if fixturedef.scope == "function":
            return (yield)
        before = self._context
        self._switch(f"fixture {fixturedef.baseid}::{fixturedef.argname}")
        try:
            return (yield)
        finally:
            self._switch(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        said = {"seconds": self._seconds, "fixtures": self._fixtures, "failed": self._failed}
        self._out.write_text(json.dumps(said), encoding="utf-8")


class Tree:
    """A copy of the tree to put mutants in, and forks of this process that run tests there."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self._folder, self._written = folder, 0
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=HERE,
            check=True,
            capture_output=True,
        )
        for name in listed.stdout.decode().split("\0"):
            if name and (HERE / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(HERE / name, self.root / name)

    def write(self, path: str, text: str) -> None:
        """Puts the text there, and makes sure that no compiled copy of another text is taken for it."""
        target = self.root / path
        self._written += 1
        target.write_text(text, encoding="utf-8")
        os.utime(target, (10**9 + self._written, 10**9 + self._written))

    def fork(self, run: Any, *, seconds: float) -> int | None:
        """The exit code of `run()` in a child; None where it had to be stopped after so many seconds."""
        child = os.fork()
        if child == 0:
            code = 70
            try:
                os.setsid()
                os.chdir(self.root)
                sink = os.open(self._folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(sink, 1)
                os.dup2(sink, 2)
                code = int(run())
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(code)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                self._end(child)
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        self._end(child)
        os.waitpid(child, 0)
        return None

    @staticmethod
    def _end(child: int) -> None:
        """Ends the child and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)

    def run_tests(self, tests: list[str], *, seconds: float) -> tuple[str, str]:
        """How it went (`survived`, `killed` or `hung`), and the first test that failed."""
        failed = self._folder / "failed"
        failed.unlink(missing_ok=True)
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        asked = [*PYTEST, "-x", *files]
        code = self.fork(lambda: pytest.main(asked, plugins=[Chooser(tests, failed)]), seconds=seconds)
        if code is None:
            return "hung", ""
        if code == 0:
            return "survived", ""
        return "killed", failed.read_text(encoding="utf-8") if failed.exists() else "collection"

    def output(self) -> str:
        """What the last child printed."""
        return (self._folder / "output").read_text(encoding="utf-8", errors="replace")


CHOSEN = "not slow and not real" + ("" if os.environ.get("FULL") else " and not full")
PYTEST = ["-q", "-p", "no:cacheprovider", "-m", CHOSEN, "-W", "ignore::pytest.PytestAssertRewriteWarning"]


class Lines:
    """Which tests run which lines of the room, and how long each test takes."""

    def __init__(self, tree: Tree, folder: Path, tests: str) -> None:
        data, out, source = folder / "lines", folder / "tests.json", tree.root / "src" / "mnemoscope"
        os.environ.update(MUTATION_DATA=str(data), MUTATION_SOURCE=str(source))

        def measure() -> int:
            recorder = coverage.Coverage(data_file=str(data), source=[str(source)], config_file=False, messages=False)
            recorder.start()
            code = pytest.main([*PYTEST, tests], plugins=[Recorder(recorder, out, tree.root)])
            recorder.stop()
            recorder.save()
            return int(code)

        tree.fork(measure, seconds=7200)
        del os.environ["MUTATION_DATA"]
        if not out.exists():
            sys.exit(f"the tests did not run:\n{tree.output()[-3000:]}")
        said = json.loads(out.read_text(encoding="utf-8"))
        self.failed = sorted(set(said["failed"]))
        self.seconds = {test: time for test, time in said["seconds"].items() if test not in self.failed}
        self._tests: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._imported: set[tuple[str, int]] = set()
        for part in sorted(folder.glob("lines*")):
            self._read(coverage.CoverageData(str(part)), said["fixtures"], tree.root)
        self._of_file: dict[str, set[str]] = defaultdict(set)
        for (path, _), some in self._tests.items():
            self._of_file[path] |= some

    def _read(self, data: coverage.CoverageData, fixtures: dict[str, list[str]], root: Path) -> None:
        data.read()
        for path in data.measured_files():
            for line, contexts in data.contexts_by_lineno(path).items():
                spot = str(Path(path).relative_to(root)), line
                if not {"", "between tests"}.isdisjoint(contexts):
                    self._imported.add(spot)
                for context in contexts:
                    some = fixtures.get(context, [context])
                    self._tests[spot].update(test for test in some if test in self.seconds)

    def choose(self, mutant: Mutant) -> list[str]:
        """Tests to run, cheapest files first: those that run its statement, or all where the import runs it."""
        spots = [(mutant.path, line) for line in mutant.statement()]
        if any(spot in self._imported for spot in spots):
            near = self._of_file[mutant.path]
            return self._cheapest(near) + self._cheapest(set(self.seconds) - near)
        return self._cheapest(set().union(*(self._tests[spot] for spot in spots)))

    def within(self, tests: list[str], seconds: float) -> list[str]:
        """The first of these tests, as many as together took no longer than that; at least one."""
        sums = itertools.accumulate(self.seconds[test] for test in tests)
        return [test for test, spent in zip(tests, sums, strict=True) if spent <= seconds] or tests[:1]

    def _cheapest(self, tests: set[str]) -> list[str]:
        files: dict[str, float] = defaultdict(float)
        for test in tests:
            files[test.split("::")[0]] += self.seconds[test]
        order = {test: rank for rank, test in enumerate(self.seconds)}
        return sorted(tests, key=lambda test: (files[test.split("::")[0]], test.split("::")[0], order[test]))


def main(room: str, seed: int, count: int, most_seconds: float) -> None:
    """Draws, runs, and prints the score and every survivor."""
    began = time.monotonic()
    source = HERE / "src" / "mnemoscope"
    tests = f"tests/{room}" if (HERE / "tests" / room).is_dir() else f"tests/test_{room}.py"
    with tempfile.TemporaryDirectory(prefix="mutation-") as name:
        folder = Path(name)
        tree = Tree(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(tree.root / "src"), str(HERE / "runs" / "mutation")])
        sys.path.insert(0, str(tree.root / "src"))
        warm_up()
        copied = tree.root / "src" / "mnemoscope"
        paths = sorted((copied / room).rglob("*.py")) if (source / room).is_dir() else [copied / f"{room}.py"]
        mutants, places = draw_mutants(tree.root, paths, count=count, seed=seed)
        lines = Lines(tree, folder, tests)
        print(
            f"{room}: {len(lines.seconds)} tests, {len(mutants)} of {places} places, seed {seed}; measured in "
            f"{time.monotonic() - began:.0f} s"
        )
        for test in lines.failed:
            print(f"fails without a mutant, left out: {test}")
        prove(tree, mutants[0], lines)
        print(f"{(time.monotonic() - began) / 60:.1f} minutes so far", flush=True)
        outcomes = [try_mutant(tree, mutant, lines, most_seconds) for mutant in mutants]
    print(summarize(mutants, outcomes, read_equivalents(HERE / EQUIVALENTS)))
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")


def warm_up() -> None:
    """Imports what tests need and is not the package's, as the tests' conftest sets it up."""
    os.environ.update(OMP_NUM_THREADS="1", RAYON_NUM_THREADS="1", POLARS_MAX_THREADS="1", CUDA_VISIBLE_DEVICES="")
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    warnings.simplefilter("ignore")
    for name in WARM:
        importlib.import_module(name)
    for plugin in importlib.metadata.entry_points(group="pytest11"):
        plugin.load()
    gc.freeze()
    assert not any(name.split(".")[0] == "mnemoscope" for name in sys.modules)


def prove(tree: Tree, mutant: Mutant, lines: Lines) -> None:
    """Makes sure that the mutated file is the one that tests run: one that cannot be imported must be noticed."""
    tests = list(lines.seconds)
    how, test = tree.run_tests(tests[:1], seconds=600)
    if how != "survived":
        sys.exit(f"tests do not pass without a mutant: {how} {test}\n{tree.output()[-3000:]}")
    tree.write(mutant.path, "raise RuntimeError('mutated')\n")
    how, _ = tree.run_tests(tests, seconds=600)
    tree.write(mutant.path, mutant.source)
    if how != "killed" or "mutated" not in tree.output():
        sys.exit(f"a file that cannot be imported is not noticed: {how}\n{tree.output()[-3000:]}")


def try_mutant(tree: Tree, mutant: Mutant, lines: Lines, most_seconds: float) -> tuple[str, str]:
    """What became of it, and the test that noticed; only the tests within `most_seconds` run."""
    old, new = mutant.changed_lines()
    tests = lines.within(lines.choose(mutant), most_seconds)
    if not tests:
        print(f"survived: no test runs it  {mutant.path}:{mutant.line} {mutant.operator}: {old} -> {new}", flush=True)
        return "survived", ""
    tree.write(mutant.path, mutant.mutated)
    limit = TIMES_MEASURED * sum(lines.seconds[test] for test in tests) + MORE_SECONDS
    began = time.monotonic()
    how, test = tree.run_tests(tests, seconds=limit)
    tree.write(mutant.path, mutant.source)
    print(
        f"{how:8} {time.monotonic() - began:5.1f} s, {len(tests):3} tests  "
        f"{mutant.path}:{mutant.line} {mutant.operator}: {old} -> {new}{'  by ' * bool(test)}{test}",
        flush=True,
    )
    return how, test


def summarize(
    mutants: list[Mutant], outcomes: list[tuple[str, str]], equivalents: dict[tuple[str, str, str], str]
) -> str:
    """The score with its 95 % interval, and every survivor that is not known to be equivalent."""
    from mnemoscope.foundation.intervals import wilson

    same, alive = [], []
    for mutant, (how, _) in zip(mutants, outcomes, strict=True):
        if how == "survived":
            known = (mutant.path, *mutant.changed_lines()) in equivalents
            (same if known else alive).append(mutant)
    counted = len(mutants) - len(same)
    killed = counted - len(alive)
    low, high = wilson(killed / counted, counted)
    hung = sum(how == "hung" for how, _ in outcomes)
    said = [
        "",
        f"killed {killed} of {counted}: {100 * killed / counted:.0f} % ({100 * low:.0f} to {100 * high:.0f}); "
        f"{hung} of them hung; {len(same)} more are equivalent",
    ]
    for mutant in alive:
        old, new = mutant.changed_lines()
        said += ["", f"survived: {mutant.path}:{mutant.line} {mutant.operator}", f"- {old}", f"+ {new}"]
    return "\n".join(said)


if __name__ == "__main__":
    asked = [*sys.argv[1:], *("100", "inf")[len(sys.argv) - 3 :]]
    main(asked[0], int(asked[1]), int(asked[2]), float(asked[3]))
