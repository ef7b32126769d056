"""Assembles the verbs; does no work itself."""

import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mnemoscope.cli.command import as_command
from mnemoscope.cli.look import analyze, attribute, audit, compare, diff, report, search, serve, show, trace
from mnemoscope.cli.runner import run
from mnemoscope.cli.scale import extend, worker
from mnemoscope.cli.share import export, mcp
from mnemoscope.cli.start import demo, inspect, mine, train
from mnemoscope.foundation.options.fleet_options import RAY_HERE

GROUPS = {
    "Start": (demo.demo, inspect.inspect, mine.mine, train.train),
    "Look": (
        analyze.analyze,
        report.report,
        serve.serve,
        show.show,
        search.search,
        trace.trace,
        attribute.attribute,
        diff.diff,
        compare.compare,
        audit.audit,
        show.verify,
    ),
    "Share": (export.export, export.push, mcp.mcp),
    "At scale": (mine.merge, extend.extend, extend.lens, worker.worker, worker.status),
}
"""The verbs as `--help` lists them. The first line of each is at most 55 characters long, so that it is not cut."""


class _Verbs(TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                names = [verb.__name__ for verb in verbs]
                formatter.write_dl([(name, self.commands[name].get_short_help_str(60)) for name in names])


app = typer.Typer(
    cls=_Verbs,
    name="mnemoscope",
    help="Read the feed-forward layers of a language model as key-value memories.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for verbs in GROUPS.values():
    for verb in verbs:
        app.command(verb.__name__)(as_command(verb))


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


_ADDRESS = re.compile(r"auto|local|ray://\S+|[\w.-]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")


def name_ray(arguments: list[str]) -> list[str]:
    """The arguments with an address after every `--ray` without one."""
    words: list[str] = []
    for place, word in enumerate(arguments):
        following = arguments[place + 1] if place + 1 < len(arguments) else ""
        bare = word == "--ray" and not _ADDRESS.fullmatch(following)
        words += ["--ray", RAY_HERE] if bare else [word]
    return words


def run_verb(arguments: Sequence[str] | None = None) -> int:
    return run(app, name_ray(list(sys.argv[1:] if arguments is None else arguments)))
