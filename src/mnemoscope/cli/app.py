"""Assembles the verbs; does no work itself."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from mnemoscope.cli.look import analyze, attribute, audit, compare, diff, report, search, serve, show, trace
from mnemoscope.cli.runner import run
from mnemoscope.cli.scale import extend, lens, worker
from mnemoscope.cli.scale.fleet import name_ray
from mnemoscope.cli.start import bench, demo, inspect, mine, train

app = typer.Typer(
    name="mnemoscope",
    help="Read the feed-forward layers of a language model as key-value memories.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for verb in (
    demo.demo, inspect.inspect, mine.mine, analyze.analyze, report.report, serve.serve, show.show, search.search,
    trace.trace, attribute.attribute, diff.diff, compare.compare, mine.merge, extend.extend, lens.lens, audit.audit,
    worker.worker, worker.status, show.verify, train.train, bench.bench,
):  # fmt: skip
    app.command(verb.__name__)(verb)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"mnemoscope {version('mnemoscope')}")
        except PackageNotFoundError:
            typer.echo("mnemoscope (not installed)")
        raise typer.Exit


@app.callback(
    epilog="Example: mnemoscope mine builtin:pydocs builtin:pydocs --out atlas, then mnemoscope show atlas L3.M17",
)
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


_root.__doc__ = app.info.help


def run_verb(arguments: Sequence[str] | None = None) -> int:
    return run(app, name_ray(list(sys.argv[1:] if arguments is None else arguments)))
