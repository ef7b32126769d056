"""The verbs, put together; nothing here does any work."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from mnemoscope.cli import analyze, bench, demo, inspect, merge, mine, report, search, serve, show, trace, train, verify
from mnemoscope.cli.frame import run

app = typer.Typer(
    name="mnemoscope",
    help="Read the feed-forward layers of a language model as key-value memories.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command("demo")(demo.demo)
app.command("inspect")(inspect.inspect)
app.command("mine")(mine.mine)
app.command("analyze")(analyze.analyze)
app.command("report")(report.report)
app.command("serve")(serve.serve)
app.command("show")(show.show)
app.command("search")(search.search)
app.command("trace")(trace.trace)
app.command("merge")(merge.merge)
app.command("verify")(verify.verify)
app.command("train")(train.train)
app.command("bench")(bench.bench)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0, 1 (a bug), 2 (to be mended by the user) or 130 (Ctrl-C)."""
    return run(app, list(sys.argv[1:] if arguments is None else arguments))
