"""`mnemoscope worker`: one worker of a run, and `mnemoscope status`: the state of a run."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from threading import Event

import typer

from mnemoscope.cli.progress import spoken_time
from mnemoscope.cli.runner import TERMINATED, emit
from mnemoscope.foundation.options.declared import like, option
from mnemoscope.foundation.options.mining_options import AtlasArgument, LoadOptions
from mnemoscope.foundation.options.model_options import ModelOptions
from mnemoscope.foundation.progress import ENDING


@contextmanager
def _stopping_on_signals(requested: Event) -> Iterator[None]:
    """Sets `requested` on a signal to save and end."""
    before = {number: signal.signal(number, lambda *_: requested.set()) for number in (*ENDING, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class WorkerOptions(AtlasArgument):
    model: str | None = option(None, "The plan's model, if it has moved.")
    device: str | None = like(
        LoadOptions, "device", default=None, help="What it runs on here.", instead="the plan's kind"
    )
    text_only: bool = option(False, "End when the text has been read.")
    name: str | None = option(None, hidden=True)
    parent: int | None = option(None, hidden=True)
    without_model: bool = option(False, hidden=True)
    opening: ModelOptions


def worker(options: WorkerOptions, *, json: bool) -> None:
    """Work on a prepared run, beside other workers.

    As many of these as you like, on any machine that shares the folder. `mine --prepare` prepares a run; `mine` with
    the same options merges the results at the end. SIGTERM, SIGUSR1 and Ctrl-C save first; other workers take the rest.

    Example: mnemoscope worker atlas
    """
    atlas, parent = options.atlas, options.parent
    from mnemoscope.atlas.manifest import shared_run_of

    shared_run_of(atlas)
    from mnemoscope.runs.workers.joining import work, worker_name_from_environment
    from mnemoscope.runs.workers.worker import new_name

    requested = Event()

    def stop() -> bool:
        return requested.is_set() or (parent is not None and os.getppid() != parent)

    if options.without_model:
        from mnemoscope.runs.seal import PATTERN_STAGES as stages
    else:
        from mnemoscope.mining.stages import STAGES as stages
    name = options.name or new_name(worker_name_from_environment(os.environ) or "worker")
    with _stopping_on_signals(requested):
        finished = work(atlas, name, stages, opening=options.opening, stop=stop, **options.taken_by(work))
    if json:
        emit({"atlas": str(atlas), "worker": name, "finished": finished})
    elif not stop():
        rest = options.text_only or not finished
        more = "; `mnemoscope mine` with the options of --prepare does the rest" if rest else ""
        print(f"{name} has nothing left to do in {atlas}{more}")
    if stop() and not finished:
        raise typer.Exit(TERMINATED)


def status(options: AtlasArgument, *, json: bool) -> None:
    """Say where a run stands, and how long it will take.

    What is done, who works on it, and how fast.

    Example: mnemoscope status atlas
    """
    atlas = options.atlas
    from mnemoscope.runs.workers.status import advice, run_status

    run = run_status(atlas)
    if json:
        emit(asdict(run))
        return
    share = f", {run.done:,} of {run.batches:,} batches of the text" if run.batches else ""
    print(f"{atlas}: {run.state}{share}")
    if run.tokens_per_second and run.state == "mining":
        left = "" if run.seconds_left is None else f", {spoken_time(run.seconds_left)} left"
        print(f"  rate     {run.tokens_per_second:,.0f} tokens/s{left}")
    alive = sum(worker.alive for worker in run.workers)
    if run.workers:
        print(f"  workers  {alive} alive, {len(run.workers) - alive} not; {run.leases_lost} leases lost")
        for worker in run.workers:
            word = "alive" if worker.alive else "silent or gone"
            print(f"    {worker.name}  {word}, {worker.batches:,} batches, {worker.rate:,.0f} tokens/s")
    elif run.state != "finished":
        print("  no worker is running")
    if command := advice(atlas, run):
        print(f"  to go on: {command}")
