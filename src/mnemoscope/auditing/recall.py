"""The audit's recall: of strings planted a number of times (`train --plant`), the share that it finds.

The planted strings are listed in the training.json beside the model's weights. Strings never planted count as repeated
0 times: those found among them are false alarms.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mnemoscope.errors import ModelError
from mnemoscope.foundation.formatting import format_interval, format_value
from mnemoscope.foundation.intervals import Estimate, share
from mnemoscope.foundation.options.model_options import local_folder


@dataclass(frozen=True)
class Recall:
    """Strings repeated `times` times: the shares exposed and extractable, with 95 % Wilson intervals."""

    times: int
    strings: int
    exposed: Estimate
    extractable: Estimate

    def __str__(self) -> str:
        head = f"planted {self.times} times" if self.times else "never planted (false alarms)"
        exposed = self.exposed
        return (
            f"{head}: {format_value(exposed.value, 'share')} of {self.strings} exposed "
            f"({format_interval(exposed.low, exposed.high, 'share')}), "
            f"{format_value(self.extractable.value, 'share')} extractable"
        )


def plants_of(model: str) -> dict[str, int]:
    """The repetitions of every string planted into a local model folder; empty without a record."""
    try:
        path = (local_folder(model) or Path(model)) / "training.json"
        return {str(text): int(times) for text, times in json.loads(path.read_bytes())["text"]["plants"]}
    except (ModelError, OSError, ValueError, KeyError, TypeError):
        return {}


def recall(verdicts: Mapping[str, tuple[bool, bool]], plants: Mapping[str, int]) -> list[Recall]:
    groups: dict[int, list[tuple[bool, bool]]] = {}
    for text, verdict in verdicts.items():
        groups.setdefault(plants.get(text, 0), []).append(verdict)
    return [
        Recall(times, len(group), *(share(sum(one[k] for one in group), len(group)) for k in (0, 1)))
        for times, group in sorted(groups.items())
    ]
