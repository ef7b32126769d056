"""The command that makes a missing table, as the error about it says it.

Builds a line of text from what the manifest says; runs nothing and reads no file.
"""

import shlex
from pathlib import Path
from typing import Any

from mnemoscope.mining_options import MiningOptions

_NAMED = (
    *("revision", "text_field", "validation", "split", "triggers", "per_sentence"),
    *("max_sentences", "max_tokens", "dtype", "device", "seed"),
)
"""Entries of a plan that are options of `mine` of the same name."""


def remedy(directory: Path, table: str, manifest: dict[str, Any]) -> str:
    """The command, in backquotes, that makes a table of the atlas in `directory`: analyze for patterns, else mine."""
    place = shlex.quote(str(directory))
    if table == "patterns":
        return f"`mnemoscope analyze {place} --patterns`"
    plan: dict[str, Any] = manifest.get("plan") or {}
    words = [shlex.quote(str(plan[name])) if name in plan else name.upper() for name in ("model", "corpus")]
    words += ["--out", place]
    for name in _NAMED:
        usual = getattr(MiningOptions, name)
        if name == "per_sentence":
            usual = str(usual)  # as a plan writes it
        if (value := plan.get(name, usual)) != usual:
            words += [f"--{name.replace('_', '-')}", shlex.quote(str(value))]
    words += _layers(manifest)
    if part := manifest.get("part"):
        words += ["--part", f"{part['index']}/{part['of']}"]
    return f"`mnemoscope mine {' '.join(words)} --force`"


def _layers(manifest: dict[str, Any]) -> list[str]:
    """The option that names the mined layers; nothing where they are all layers of the model."""
    mined = [int(layer) for layer in manifest.get("layers", [])]
    if mined == list(range(len(manifest["model"]["sizes"]["memories"]))):
        return []
    return ["--layers", ",".join(map(str, mined))]
