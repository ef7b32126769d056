"""The options of mining that are small languages: which layers, which part, how many memories.

The command line reads them before anything is loaded, `mine` again for callers of its own. Knows neither model nor
text, and needs no torch.
"""

import re
from collections.abc import Sequence

from mnemoscope.errors import OptionError


def parse_layers(layers: str | Sequence[int]) -> tuple[int, ...]:
    """The layers that `0-3,7` (or a sequence) names, each once, ascending; raises OptionError."""
    pieces = layers.split(",") if isinstance(layers, str) else [str(int(layer)) for layer in layers]
    chosen: set[int] = set()
    for piece in pieces:
        found = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", piece)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise OptionError(f"--layers {_spoken(layers)!r} does not name layers; write them as 0-3,7")
        chosen.update(range(first, last + 1))
    if not chosen:
        raise OptionError("--layers names no layer; write them as 0-3,7")
    return tuple(sorted(chosen))


def choose_layers(layers: str | Sequence[int] | None, count: int) -> tuple[int, ...]:
    """The layers named, of a model that has `count`; all of them for None. Raises OptionError."""
    if layers is None:
        return tuple(range(count))
    chosen = parse_layers(layers)
    if chosen[-1] >= count:
        beyond = next(layer for layer in chosen if layer >= count)
        raise OptionError(f"--layers {_spoken(layers)!r}: {beyond} is not within the model's layers 0-{count - 1}")
    return chosen


def parse_part(part: str | tuple[int, int]) -> tuple[int, int]:
    """The part (I, N) that `I/N` names; raises OptionError unless 1 <= I <= N."""
    text = part if isinstance(part, str) else f"{part[0]}/{part[1]}"
    found = re.fullmatch(r"\s*(\d{1,6})/(\d{1,6})\s*", text)
    if found and 1 <= int(found[1]) <= int(found[2]):
        return int(found[1]), int(found[2])
    raise OptionError(f"--part {text!r} is not a part; write 1/3, 2/3 or 3/3 for three parts")


def parse_removals(removals: str | int) -> int | str:
    """A number of memories per layer, or `all`; raises OptionError."""
    text = str(removals).strip()
    if text == "all":
        return text
    if re.fullmatch(r"\d{1,9}", text):
        return int(text)
    raise OptionError(f"--removals {text!r} is not a number of memories per layer, nor all")


def _spoken(layers: str | Sequence[int]) -> str:
    return layers if isinstance(layers, str) else ",".join(map(str, layers))
