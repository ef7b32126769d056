"""Generates docs/cli.md from the commands: `python -m mnemoscope.cli.reference > docs/cli.md`."""

import sys
from typing import Any

import typer
from typer.main import get_command

from mnemoscope.cli.app import app

_WIDTH = 100

_HEAD = """# The command line

Made by `python -m mnemoscope.cli.reference > docs/cli.md`; do not edit.

Exit codes: 0; 2 with one plain line last on stderr for anything that you can fix; 3 where `--fail-if` holds; 130 after
Ctrl-C, and 75 after SIGTERM or SIGUSR1, with the state saved where there is any; 1 for a bug. `--json` prints one JSON
document on stdout and nothing else there; progress goes to stderr.
"""


def page() -> str:
    group: Any = get_command(app)
    top = typer.Context(group, info_name="mnemoscope", terminal_width=_WIDTH)
    sections = [_HEAD, f"```\n{_help(group, top)}\n```\n"]
    for name in group.list_commands(top):
        command = group.get_command(top, name)
        inner = typer.Context(command, info_name=name, parent=top, terminal_width=_WIDTH)
        sections.append(f"## {name}\n\n```\n{_help(command, inner)}\n```\n")
    return "\n".join(sections)


def _help(command: Any, context: typer.Context) -> str:
    return "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())


if __name__ == "__main__":
    sys.stdout.write(page())
