"""The command line: one file per verb, each importing its room only when it runs."""

from mnemoscope.cli.app import main

__all__ = ["main"]
