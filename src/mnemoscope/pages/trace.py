"""What the page of a trace draws besides the trace's own data: shades, marks, and the changes that one click makes.

Pure functions of the trace's data and its address; no number is worked out here, only chosen, shaded and linked.
"""

import math
from collections.abc import Sequence
from typing import Any

from mnemoscope.atlas.vocabulary import Vocabulary
from mnemoscope.errors import OptionError
from mnemoscope.formatting import format_value
from mnemoscope.pages.trace_address import TraceAddress

WIDE = 32
"""Positions that the heat map shows at one time."""
SHADES = 10
RANKS = ("more", "1.6k", "630", "250", "99", "38", "14", "5", "1", "0")
"""The highest rank of every shade."""
EVENTS = {
    "residual": "the residual's prediction stays, against the feed-forward update's",
    "agreement": "residual and feed-forward update say the same",
    "ffn": "the feed-forward update's prediction wins",
    "composition": "the output says what neither of them says",
}
STREAMS = {"residual": "residual", "ffn": "feed-forward update", "output": "output"}
Data = dict[str, Any]


def chosen_place(wanted: TraceAddress, trace: Data) -> tuple[int, int]:
    """Layer and position to look at: those asked for, else the last position and the layer that decides there.

    Raises OptionError for what is not in the trace.
    """
    layers, length = len(trace["layers"]), len(trace["positions"])
    position = wanted.position if isinstance(wanted.position, int) else length - 1
    if position >= length:
        raise OptionError(f"there is no position {position}: the prompt has positions 0 to {length - 1}")
    decided = trace["positions"][position]["output"]["decided"]
    layer = wanted.layer if isinstance(wanted.layer, int) else decided
    if layer is not None and layer >= layers:
        raise OptionError(f"there is no layer {layer}: the model has layers 0 to {layers - 1}")
    return layers - 1 if layer is None else layer, position


class TraceView:
    """A trace looked at from one layer and position: what the template asks of it."""

    events, streams = EVENTS, STREAMS

    def __init__(self, wanted: TraceAddress, data: Data, words: Vocabulary) -> None:
        self.wanted, self.trace, self.layer, self.position = wanted, data["trace"], data["layer"], data["position"]
        self.here = self.trace["positions"][self.position]
        self.place = self.trace["layers"][self.layer]["positions"][self.position]
        # The heat map shows some positions at one time.
        length = len(self.trace["positions"])
        self.windows = [range(first, min(first + WIDE, length)) for first in range(0, length, WIDE)]
        self.window = self.windows[self.position // WIDE]
        self._words = words

    def shown(self, one: Data) -> str:
        """A token as it is shown."""
        return self._words.shown(one["id"])

    def at(self, part: str, *, layer: int | None = None, position: int | None = None) -> str:
        """The page at a layer and a position, this one's unless others are named, from one of its parts on."""
        layer = self.layer if layer is None else layer
        return f"{self.wanted.address(layer=layer, position=self.position if position is None else position)}#{part}"

    def heat_map(self, heat: Data) -> list[list[Data]]:
        """A row of cells for each layer, a cell for each position of the window."""

        def cell(layer: int, position: int, place: Data) -> Data:
            final = self.shown(self.trace["positions"][position]["prediction"][0])
            probability, rank = heat["probability"][layer][position], heat["rank"][layer][position]
            top = self.shown(place[heat["stream"]][0])
            texts = {"probability": short_share(probability), "rank": short_rank(rank), "token": top}
            return {
                "position": position,
                "text": texts[self.wanted.cell],
                "shade": shade_of_rank(rank) if self.wanted.cell == "rank" else shade(probability),
                "top": rank == 0,
                "title": f"layer {layer}, position {position}: {final} has"
                f" {format_value(probability, 'share')}, rank {rank:,}; on top is {top}",
            }

        return [
            [cell(layer, position, found["positions"][position]) for position in self.window]
            for layer, found in enumerate(self.trace["layers"])
        ]

    def legend(self) -> Sequence[str]:
        """What the shades stand for."""
        return RANKS if self.wanted.cell == "rank" else [str(step * step) for step in range(SHADES)]

    def shifts(self, comparison: Data) -> list[Data]:
        """The tokens whose probability the changes moved at the position, the most probable first."""
        found = comparison["differences"][self.position]["shifts"]
        return sorted(found, key=lambda one: -max(one["before"], one["after"]))

    def marks(self, layer: int) -> list[str]:
        """Which streams have the final prediction on top in this layer first, or for good from it on."""
        return [
            f"{name} {'for good' if self.here[name]['decided'] == layer else 'first'}"
            for name in ("residual", "output")
            if layer in (self.here[name]["first"], self.here[name]["decided"])
        ]

    def clicks(self, one: Data) -> list[tuple[str, str, str]]:
        """The changes of a memory that one click makes: label, address and title of each."""
        name = one["memory"]
        now = f"{name}={one['coefficient']:.4g}"
        changes = (
            ("off", f"{name}=0", f"switch {name} off: coefficient 0"),
            ("half", f"{name}*0.5", f"halve the coefficient of {name}"),
            ("double", f"{name}*2", f"double the coefficient of {name}"),
            ("turn", f"{name}*-1", f"turn the sign of {name}"),
            ("set", now, f"set {name} to this coefficient everywhere; the number can be edited above"),
        )
        return [(label, self.wanted.with_change(change), title) for label, change, title in changes]


def shade(probability: float) -> int:
    """The shade of a probability, 0 to 9: its square root in tenths, so that small ones differ, too."""
    return min(SHADES - 1, int(SHADES * math.sqrt(max(0.0, probability))))


def shade_of_rank(rank: int) -> int:
    """The shade of a rank, 0 to 9: 9 for the first, and one less for each factor of about 2.5."""
    return max(0, SHADES - 1 - math.ceil(2.5 * math.log10(rank + 1)))


def short_share(probability: float) -> str:
    """A probability in percent in at most three characters."""
    return "0" if probability < 0.0005 else "<1" if probability < 0.01 else f"{100 * probability:.0f}"


def short_rank(rank: int) -> str:
    """A rank in at most four characters."""
    return str(rank) if rank < 1000 else f"{rank / 1000:.1f}k" if rank < 10_000 else f"{rank // 1000}k"
