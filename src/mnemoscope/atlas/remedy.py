"""The command that makes a missing table, as the error about it says it.

Builds a line of text from what the manifest says; runs nothing and reads no file.
"""

import shlex
from pathlib import Path

from mnemoscope.atlas.manifest import Manifest
from mnemoscope.mining_options import MiningOptions

_NAMED = (
    *("revision", "text_field", "validation", "split", "triggers", "per_sentence"),
    *("max_sentences", "max_tokens", "dtype", "device", "seed"),
)
"""Entries of a plan that are options of `mine` of the same name."""


def patterns_command(directory: Path) -> str:
    """The command, in backquotes, that makes the patterns of a finished atlas."""
    return f"`mnemoscope analyze {shlex.quote(str(directory))} --patterns`"


def remedy(directory: Path, table: str, manifest: Manifest) -> str:
    """The command, in backquotes, that makes a table of the atlas in `directory`: analyze for patterns, else mine."""
    if table == "patterns":
        return patterns_command(directory)
    place = shlex.quote(str(directory))
    plan = manifest.plan
    words = [shlex.quote(str(plan[name])) if name in plan else name.upper() for name in ("model", "corpus")]
    words += ["--out", place]
    for name in _NAMED:
        usual = getattr(MiningOptions, name)
        if name == "per_sentence":
            usual = str(usual)  # as a plan writes it
        if (value := plan.get(name, usual)) != usual:
            words += [f"--{name.replace('_', '-')}", shlex.quote(str(value))]
    if list(manifest.layers) != list(range(len(manifest.model.sizes.memories))):
        words += ["--layers", ",".join(map(str, manifest.layers))]
    if part := manifest.part:
        words += ["--part", f"{part.index}/{part.of}"]
    return f"`mnemoscope mine {' '.join(words)} --force`"
