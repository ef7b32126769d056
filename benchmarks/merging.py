"""Measure what merging saved states as a tree costs: seconds, resident memory, bytes and files, by number of states.

Two models' states, made up: of 1,000 memories in all (both signs), and of the built-in model's shape. Every trigger
table is full, every batch is counted once. A tree is merged by fresh processes of one thread; the figure of memory is
their VmHWM, the most that was ever resident (Linux), with torch and the mapped pieces of files. `alone` is one process
that takes in one state after the other, as `mnemoscope merge` does; its result is the same file, which is checked.

A fleet is simulated: of a tree over N states of N workers every worker merges one node at most. `longest path` is the
sum over levels of the slowest node: the time with as many workers as nodes. It and `work` are seconds of a processor,
since the machine may do other things, too. Bytes are those of the files.

    python benchmarks/merging.py --folder FOLDER --draw docs/merging.svg

takes some minutes and about 6 GB in FOLDER (a temporary one where it is left out). `--states 100 20` is a short trial.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FANS = (2, 4, 8, 16, 64)
FLEETS = (2, 8, 64, 1000)
TABLES = ("sizes", "fleets", "fans")
PLAN = "made up"


@dataclass(frozen=True)
class Model:
    """Whose states: memories of each of its layers, triggers kept, signs."""

    name: str
    layers: int
    memories: int
    keep: int
    signs: tuple[int, ...]

    def shape(self) -> Any:
        """Return the shape of its states."""
        from mnemoscope.mining.state import StateShape

        return StateShape(dict.fromkeys(range(self.layers), self.memories), self.keep, self.signs)


SMALL = Model("1,000 memories", 2, 500, 50, (1, -1))
BUILTIN = Model("built-in", 6, 512, 50, (1,))


@dataclass(frozen=True)
class Cost:
    """What one node cost, or a tree: seconds on the clock and of a processor, bytes, files, most resident memory."""

    seconds: float
    work: float
    read: int
    written: int
    files: int
    peak: int


def resident_peak() -> int:
    """Return the most bytes that this process ever had in memory."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/self/status has no VmHWM; this needs Linux")


def start_process() -> None:
    """Import what merging needs."""
    import torch

    import mnemoscope.mining.state  # noqa: F401

    torch.set_num_threads(1)


def make_state(model: Model, number: int, path: Path) -> None:
    """Write a state whose tables are full: magnitudes fall off exponentially, as the best of many do."""
    import torch

    from mnemoscope.mining.state import MiningState

    chance = torch.Generator().manual_seed(number)
    state = MiningState(model.shape())
    for triggers in state.triggers.values():
        tensors = triggers.state()
        size = tensors["magnitude"].shape
        found = 1 - torch.rand(size, generator=chance).log()
        tensors["magnitude"].copy_(found.sort(1, descending=True).values)
        tensors["sentence"].copy_(torch.randint(1_000_000, size, generator=chance) + number * 1_000_000)
        tensors["position"].copy_(torch.randint(60, size, generator=chance))
        triggers.load(tensors)
    for activity in state.activity.values():
        for tensor in activity.state().values():
            tensor.copy_(torch.randint(1_000_000, tensor.shape, generator=chance))
    state.finished, state.device = [(50 * number, 50 * number + 50)], "made up"
    state.save(path, plan=PLAN)


def do_node(model: Model, inputs: list[Path], output: Path) -> Cost:
    """Merge one node in this process."""
    from mnemoscope.mining.merge_tree import merge_node

    began, worked = time.perf_counter(), time.process_time()
    merge_node(inputs, output, model.shape(), PLAN)
    seconds, work = time.perf_counter() - began, time.process_time() - worked
    read = sum(path.stat().st_size for path in inputs)
    return Cost(seconds, work, read, output.stat().st_size, len(inputs) + 1, resident_peak())


def do_alone(model: Model, inputs: list[Path], output: Path) -> Cost:
    """Take one state after the other into one that is whole in memory, and save it."""
    from mnemoscope.mining.state import MiningState

    began, worked = time.perf_counter(), time.process_time()
    state = MiningState(model.shape())
    for path in inputs:
        state.absorb(path, plan=PLAN)
    peak = resident_peak()  # before it is saved: `merge` writes tables instead
    state.save(output, plan=PLAN)
    read = sum(path.stat().st_size for path in inputs)
    seconds, work = time.perf_counter() - began, time.process_time() - worked
    return Cost(seconds, work, read, output.stat().st_size, len(inputs) + 1, peak)


@dataclass(frozen=True)
class Merged:
    """A tree that was merged: the whole, its nodes level by level, its result's hash, what processes had at first."""

    whole: Cost
    levels: list[list[Cost]]
    digest: str
    base: int

    @property
    def nodes(self) -> list[Cost]:
        """All nodes."""
        return [node for level in self.levels for node in level]

    @property
    def path(self) -> float:
        """The processor's seconds of the longest path."""
        return sum(max(node.work for node in level) for level in self.levels)


def processes(count: int) -> ProcessPoolExecutor:
    """Return fresh processes that have imported what they need."""
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=start_process)
    list(pool.map(time.sleep, [0.5] * count))
    return pool


@cache
def merge_tree(model: Model, states: tuple[Path, ...], work: Path, *, fan: int, workers: int = 1) -> Merged:
    """Merge the states as a tree by so many processes."""
    from mnemoscope.mining.merge_tree import plan_tree

    shutil.rmtree(work, ignore_errors=True)
    levels: list[list[Cost]] = []
    with processes(workers) as pool:
        base = pool.submit(resident_peak).result()
        began = time.perf_counter()
        for level in plan_tree(len(states), fan):
            waiting = [pool.submit(do_node, model, node.paths(states, work), work / node.name) for node in level]
            levels.append([one.result() for one in waiting])
        seconds = time.perf_counter() - began
    output = work / level[0].name
    digest = hashlib.sha256(output.read_bytes()).hexdigest()
    nodes = [node for level in levels for node in level]
    shutil.rmtree(work)
    whole = Cost(
        seconds, sum(node.work for node in nodes),
        sum(node.read for node in nodes), sum(node.written for node in nodes),
        sum(node.files for node in nodes), max(node.peak for node in nodes),
    )  # fmt: skip
    return Merged(whole, levels, digest, base)


def merge_alone(model: Model, states: tuple[Path, ...], work: Path) -> tuple[Cost, str]:
    """Merge the states in one process, one after the other; return what it cost, and the result's hash."""
    with processes(1) as pool:
        cost = pool.submit(do_alone, model, [*states], work / "alone").result()
    digest = hashlib.sha256((work / "alone").read_bytes()).hexdigest()
    (work / "alone").unlink()
    return cost, digest


def print_table(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print a table as Markdown has it."""
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def seconds_of(cost: Cost) -> tuple[str, str]:
    """Write seconds on the clock, and of a processor."""
    return f"{cost.seconds:.1f} s", f"{cost.work:.1f} s"


def mb(size: float) -> str:
    """Write bytes in megabytes."""
    return f"{size / 1e6:,.1f} MB"


def measure_size(model: Model, states: tuple[Path, ...], work: Path, fan: int) -> None:
    """Print what trees over more and more of the states cost."""
    rows = []
    for count in [n for n in (10, 100, 1000) if n <= len(states)]:
        one = merge_tree(model, states[:count], work, fan=fan)
        alone, digest = merge_alone(model, states[:count], work.parent)
        assert one.digest == digest, "the results differ"
        for how, cost in (("tree", one.whole), ("alone", alone)):
            rows.append((f"{count:,}", how, *seconds_of(cost), mb(one.base), mb(cost.peak)))
    two = merge_tree(model, states, work, fan=fan, workers=2)
    assert two.digest == merge_tree(model, states, work, fan=fan).digest, "the results differ"
    rows.append((f"{len(states):,}", "tree, 2 processes", *seconds_of(two.whole), mb(two.base), mb(two.whole.peak)))
    print_table(
        f"States of {model.name} ({mb(states[0].stat().st_size)} each), fan-in {fan}",
        ("states", "how", "on the clock", "of a processor", "memory before", "peak of a process"),
        rows,
    )


def measure_fleets(
    model: Model, states: tuple[Path, ...], work: Path, fan: int
) -> list[dict[str, Any]]:
    """Print what a tree asks of N workers; return it as the rows of a drawing."""
    rows, drawn = [], []
    for count in [n for n in FLEETS if n <= len(states)]:
        tree = merge_tree(model, states[:count], work, fan=fan)
        most = max(tree.nodes, key=lambda node: node.read)
        moved = tree.whole.read + tree.whole.written
        rows.append((
            f"{count:,}", f"{len(tree.nodes)} in {len(tree.levels)}", f"{tree.whole.work:.2f} s",
            f"{tree.path:.2f} s",
            mb(tree.whole.read), mb(tree.whole.written), mb(moved / count), mb(most.read + most.written),
            f"{tree.whole.files / count:.1f}", str(max(node.files for node in tree.nodes)),
        ))  # fmt: skip
        for what, everybody, busiest in (
            ("seconds", tree.whole.work, tree.path),
            ("megabytes", moved / 1e6, (most.read + most.written) / 1e6),
            ("files", tree.whole.files, max(node.files for node in tree.nodes)),
        ):
            drawn += [{"workers": count, "what": what, "of": "all nodes together", "value": everybody}]
            last = "longest path" if what == "seconds" else "busiest worker"
            drawn += [{"workers": count, "what": what, "of": last, "value": busiest}]
    print_table(
        f"N workers with a state each of {model.name} ({mb(states[0].stat().st_size)}), fan-in {fan}",
        ("N", "nodes in levels", "work of all", "longest path", "read by all", "written by all",
         "read and written by a worker: mean", "most", "files of a worker: mean", "most"),
        rows,
    )  # fmt: skip
    return drawn


def measure_fans(model: Model, states: tuple[Path, ...], work: Path) -> None:
    """Print what trees of several fan-ins cost."""
    rows = []
    for fan in FANS:
        one = merge_tree(model, states, work, fan=fan)
        rows.append((
            str(fan), f"{len(one.nodes)} in {len(one.levels)}", f"{one.whole.work:.1f} s", f"{one.path:.2f} s",
            mb(one.whole.read), mb(one.whole.written),
        ))  # fmt: skip
    print_table(
        f"Fan-ins, {len(states):,} states of {model.name}",
        ("fan-in", "nodes in levels", "work", "longest path", "read", "written"),
        rows,
    )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw what a tree asks of N workers."""
    import altair as alt

    from mnemoscope.figures.chart import BLUE, GREEN, ORANGE, STYLE
    from mnemoscope.reports.writing import export_figure

    names = ["all nodes together", "busiest worker", "longest path"]
    legend = alt.Legend(title=None, symbolType="stroke")
    colour = alt.Color("of:N", scale=alt.Scale(domain=names, range=[BLUE, ORANGE, GREEN]), legend=legend)
    dash = alt.StrokeDash("of:N", scale=alt.Scale(domain=names, range=[[1, 0], [6, 3], [2, 3]]), legend=legend)
    counts = sorted({row["workers"] for row in rows})
    across = alt.X(
        "workers:Q", title="workers, each with a state",
        scale=alt.Scale(type="log", domain=[counts[0], counts[-1]], nice=False), axis=alt.Axis(values=counts),
    )  # fmt: skip
    panels = []
    for what, title in (
        ("seconds", "work, in seconds of one process"),
        ("megabytes", "megabytes read and written"),
        ("files", "files read and written"),
    ):
        own = [row for row in rows if row["what"] == what]
        panels.append(
            alt.Chart(alt.Data(values=own))
            .mark_line(point=True)
            .encode(
                x=across,
                y=alt.Y("value:Q", title=title, scale=alt.Scale(type="log")),
                color=colour,
                strokeDash=dash,
            )
            .properties(width=240, height=220)
        )
    figure = alt.hconcat(*panels, title="Merging the states of N workers as a tree", config=STYLE, background="white")
    path.write_bytes(export_figure(figure.to_dict())["svg"])


def main() -> None:
    """Print the tables, and draw."""
    from mnemoscope.mining.merge_tree import FAN

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where states are kept, for the next time, too")
    parser.add_argument("--states", type=int, nargs=2, default=[1000, 100], help="of the small and the built-in model")
    parser.add_argument("--fan", type=int, default=FAN)
    parser.add_argument("--what", nargs="+", choices=TABLES, default=TABLES, help="the tables to measure; all")
    parser.add_argument("--draw", type=Path, metavar="SVG", help="draw the fleets")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        states = {}
        start_process()
        for model, count in zip((SMALL, BUILTIN), arguments.states, strict=True):
            own = folder / f"{model.layers}x{model.memories}x{model.keep}"
            states[model] = tuple(own / f"state-{number:05d}.safetensors" for number in range(count))
            for number, path in enumerate(states[model]):
                if not path.exists():
                    make_state(model, number, path)
        if "sizes" in arguments.what:
            for model, paths in states.items():
                measure_size(model, paths, folder / "work", arguments.fan)
        if "fleets" in arguments.what:
            rows = measure_fleets(SMALL, states[SMALL], folder / "work", arguments.fan)
            if arguments.draw:
                draw(rows, arguments.draw)
        if "fans" in arguments.what:
            measure_fans(SMALL, states[SMALL], folder / "work")


if __name__ == "__main__":
    main()
