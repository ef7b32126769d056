"""The options of an export (sharing/export.py)."""

from pathlib import Path

from mnemoscope.foundation.options.declared import option
from mnemoscope.foundation.options.mining_options import AtlasArgument


class ExportOptions(AtlasArgument):
    to: str = option(
        help="The form: jsonl (a line a memory, the document of show --json) or neuronpedia (SAEDashboard's batches).",
        choices=("jsonl", "neuronpedia"),
    )
    out: Path = option(help="The folder to write.", metavar="FOLDER")
    memories: str | None = option(None, "The memories.", metavar="L3,L5.M0-19|@FILE", instead="all")
