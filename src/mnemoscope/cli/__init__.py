"""The command line: one file per verb, which imports its room only when it runs."""

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, 1 (a bug), 2 (a user error), 75 (SIGTERM) or 130 (Ctrl-C)."""
    from mnemoscope.cli.app import run_verb

    return run_verb(arguments)
