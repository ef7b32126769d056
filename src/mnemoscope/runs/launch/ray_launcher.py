"""Workers as actors of Ray Core, on this machine or on a cluster.

Only a path, a name and options travel. The atlas folder must have the same path on every node; a worker opens
everything else itself. Ray does not restart an actor that dies: the driver notices, and starts another worker.
"""

import os
import platform
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError, OptionError
from mnemoscope.foundation.processes import usable_cores
from mnemoscope.runs.launch.ray_cluster import connect_to_ray, first_line

_PATIENCE = 120
"""Seconds that a worker asked to end may take to save."""
_NEWS = 2
"""Seconds that Ray may take to report a running worker."""


Work = Callable[..., object]
"""The loop of a worker, as a function of a module, which Ray can send by name: of a folder, a name, `stop` and options;
it works until the run is finished or `stop` returns True, then saves.
"""


class _WorkerActor:
    """The actor: `work` runs in one of its threads, `stop` is called in another."""

    def __init__(self) -> None:
        self._stop = threading.Event()

    def node(self) -> str:
        return platform.node()

    def work(self, work: Work, directory: str, here: str, name: str, options: dict[str, Any], node: str) -> str | None:
        """The reason why it ended, in one line; None: it was done, or had been asked to end. `node` is what that method
        gave, so that it is known, whatever ends the process.
        """
        if not os.path.isdir(directory):
            return (
                f"the folder {directory!r} is not on node {node}; put the atlas on a disk that all nodes share,"
                " under one path"
            )
        with suppress(OSError):  # so that a relative name of a model means the same
            os.chdir(here)
        try:
            work(Path(directory), name, stop=self._stop.is_set, **options)
        except MnemoscopeError as error:
            return f"{error} (on node {node})"
        except Exception as error:
            traceback.print_exc()
            return f"{type(error).__name__} on node {node}: {first_line(error)}"
        return None

    def stop(self) -> None:
        self._stop.set()


@dataclass
class _RunningActor:
    actor: Any
    node: Any
    result: Any


class RayLauncher:
    def __init__(
        self,
        directory: Path,
        *,
        address: str | None,
        threads: int,
        gpus_per_worker: float,
        worker_options: Mapping[str, Any],
        workers: int | None = None,
        work: Work,
        patience: float = _PATIENCE,
    ) -> None:
        """Starts Ray on this machine (`address` None or `local`), or joins `auto`, HOST:PORT, ray://HOST:PORT.

        Our own instance has room for `workers` of `threads` each; None: for as many as there are cores.
        `worker_options` are those of `work`; `patience` is how many seconds a worker may take to save. Raises
        OptionError (no ray, no such cluster, no node large enough), MiningError.
        """
        self._directory, self._work, self._options = os.path.abspath(directory), work, dict(worker_options)
        self._patience = patience
        self._needs = {"CPU": float(threads), "GPU": float(gpus_per_worker)}
        self._running: dict[str, _RunningActor] = {}
        own = address is None or address == "local"
        cpus = threads * workers if workers else max(threads, len(usable_cores()))
        with ExitStack() as stack:
            self._ray = stack.enter_context(connect_to_ray(None if own else address, cpus=cpus))
            self._check_room()
            self._connection = stack.pop_all()

    def capacity(self) -> int:
        """How many workers fit the cluster now, without those that wait for room."""
        free = self._ray.available_resources()
        whole = sum(self._fitting(node["Resources"]) for node in self._ray.nodes() if node["Alive"])
        return min(whole, self._fitting(free))

    def start(self, name: str) -> None:
        """Starts a worker, or queues it until there is room."""
        # Two threads: one for the work, and one by which it is told to stop.
        options = {"num_cpus": self._needs["CPU"], "num_gpus": self._needs["GPU"], "max_concurrency": 2}
        actor = self._ray.remote(_WorkerActor).options(**options).remote()
        node = actor.node.remote()
        result = actor.work.remote(self._work, self._directory, os.getcwd(), name, self._options, node)
        self._running[name] = _RunningActor(actor, node, result)

    def take_ended(self) -> dict[str, str | None]:
        names = {each.result: name for name, each in self._running.items()}
        ready = self._ray.wait(list(names), num_returns=len(names), timeout=0)[0] if names else []
        over = {names[result]: self._running.pop(names[result]) for result in ready}
        reasons = {name: self._reason(each) for name, each in over.items()}
        self._kill(over.values())  # their room is free at once
        return reasons

    def stop(self) -> None:
        try:
            nodes = {each.node: each for each in self._running.values()}
            # A worker that waits for room has nothing to save.
            up = self._ray.wait(list(nodes), num_returns=len(nodes), timeout=_NEWS)[0] if nodes else []
            results = [nodes[node].result for node in up]
            for node in up:
                nodes[node].actor.stop.remote()
            if results:
                self._ray.wait(results, num_returns=len(results), timeout=self._patience)
            self._kill(nodes.values())
            self._running.clear()
        finally:
            self._connection.close()

    def _kill(self, workers: Iterable[_RunningActor]) -> None:
        for each in workers:
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(each.actor)

    def _reason(self, each: _RunningActor) -> str | None:
        try:
            line = self._ray.get(each.result)
        except self._ray.exceptions.RayError as error:
            where = ""
            with suppress(self._ray.exceptions.RayError):
                where = f" on node {self._ray.get(each.node, timeout=1)}"
            return f"the worker's process{where} ended: {first_line(error)}"
        return None if line is None else str(line)

    def _fitting(self, resources: Mapping[str, float]) -> int:
        """How many workers these resources suffice for."""
        return min(int(resources.get(name, 0) // need) for name, need in self._needs.items() if need)

    def _check_room(self) -> None:
        """Raises OptionError if no worker could ever start."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(self._fitting(node) for node in nodes):
            has = "; ".join(sorted({_write_resources(node) for node in nodes})) or "no node"
            raise OptionError(
                f"a worker needs {_write_resources(self._needs)}, and no node of the Ray cluster has that (there:"
                f" {has}); set OMP_NUM_THREADS or --gpus-per-worker lower, or join another cluster"
            )


def _write_resources(resources: Mapping[str, float]) -> str:
    named = {"CPU": resources.get("CPU", 0), **({"GPU": resources["GPU"]} if resources.get("GPU") else {})}
    return " and ".join(f"{count:g} {name}" for name, count in named.items())
