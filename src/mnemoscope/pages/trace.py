"""What the page of a trace draws: the heat map, the layers at a position, one layer's memories, before and after.

Pure functions of the trace's data and its address; no number is worked out here, only chosen, shaded and linked.
"""

import math
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
    position = length - 1 if wanted.position is None else wanted.position
    if position >= length:
        raise OptionError(f"there is no position {position}: the prompt has positions 0 to {length - 1}")
    decided = trace["positions"][position]["output"]["decided"]
    layer = decided if wanted.layer is None else wanted.layer
    if layer is not None and layer >= layers:
        raise OptionError(f"there is no layer {layer}: the model has layers 0 to {layers - 1}")
    return layers - 1 if layer is None else layer, position


def trace_view(wanted: TraceAddress, data: Data, words: Vocabulary) -> Data:
    """All that the template draws."""
    trace, layer, position = data["trace"], data["layer"], data["position"]
    view = TraceView(wanted, trace, words, layer, position)
    place = trace["layers"][layer]["positions"][position]
    length = len(trace["positions"])
    return {
        "head": view.head(),
        "heat_map": view.heat_map(data["heat"]),
        "rows": view.layers(),
        "streams": [
            {"name": name, "title": title, "guesses": [view.guess(one) for one in place[name]]}
            for name, title in (("residual", "Residual"), ("ffn", "Feed-forward update"), ("output", "Output"))
        ],
        "place": place | {"vote": words.shown(place["ffn_vote"]["id"]), "means": EVENTS[place["event"]]},
        "memories": [view.memory(one) for one in place["memories"]],
        "change": view.change(data["comparison"]),
        "continuing": view.continuing(data["following"]),
        "written": view.written(data["generation"]),
        "pages": [
            {
                "name": f"{other} to {min(other + WIDE, length) - 1}",
                "here": other == view.start,
                "address": wanted.address(position=other),
            }
            for other in range(0, length, WIDE)
        ],
    }


class TraceView:
    """A trace looked at from one layer and position."""

    def __init__(self, wanted: TraceAddress, trace: Data, words: Vocabulary, layer: int, position: int) -> None:
        self.wanted, self.trace, self.layer, self.position = wanted, trace, layer, position
        self.here = trace["positions"][position]
        self.start = position // WIDE * WIDE
        self._words = words

    def shown(self, one: Data) -> str:
        """A token as it is shown."""
        return self._words.shown(one["id"])

    def address(self, part: str, *, layer: int | None = None, position: int | None = None) -> str:
        """The page at a layer and a position, this one's unless others are named, from one of its parts on."""
        layer = self.layer if layer is None else layer
        return f"{self.wanted.address(layer=layer, position=self.position if position is None else position)}#{part}"

    def head(self) -> Data:
        """The prediction at the position in words."""
        best = self.here["prediction"][0]
        return {
            "token": self.shown(self.here["token"]),
            "says": self.shown(best),
            "probability": best["probability"],
            "residual": self.here["residual"],
            "output": self.here["output"],
            "last": self.position == len(self.trace["positions"]) - 1,
        }

    def heat_map(self, heat: Data) -> Data:
        """The window of positions around the chosen one, and a row of cells for each layer."""
        window = list(enumerate(self.trace["positions"]))[self.start : self.start + WIDE]
        columns = [
            {
                "position": position,
                "token": self.shown(at["token"]),
                "final": self.shown(at["prediction"][0]),
                "chosen": position == self.position,
                "address": self.address("layers", position=position),
            }
            for position, at in window
        ]
        by_rank = self.wanted.cell == "rank"

        def cell(layer: int, column: Data, place: Data) -> Data:
            position = column["position"]
            probability, rank = heat["probability"][layer][position], heat["rank"][layer][position]
            top = self.shown(place[heat["stream"]][0])
            texts = {"probability": short_share(probability), "rank": short_rank(rank), "token": top}
            return {
                "text": texts[self.wanted.cell],
                "shade": shade_of_rank(rank) if by_rank else shade(probability),
                "top": rank == 0,
                "chosen": layer == self.layer and column["chosen"],
                "title": f"layer {layer}, position {position}: {column['final']} has"
                f" {format_value(probability, 'share')}, rank {rank:,}; on top is {top}",
                "address": self.address("layers", position=position, layer=layer),
            }

        rows = [
            {
                "layer": layer,
                "chosen": layer == self.layer,
                "cells": [cell(layer, column, found["positions"][column["position"]]) for column in columns],
            }
            for layer, found in enumerate(self.trace["layers"])
        ]
        legend = RANKS if by_rank else [str(step * step) for step in range(SHADES)]
        return {"columns": columns, "rows": rows, "legend": legend}

    def layers(self) -> list[Data]:
        """Every layer at the position in a line."""
        final = self.here["prediction"][0]["id"]

        def line(layer: int, place: Data) -> Data:
            marks = [
                f"{name} {'for good' if self.here[name]['decided'] == layer else 'first'}"
                for name in ("residual", "output")
                if layer in (self.here[name]["first"], self.here[name]["decided"])
            ]
            tops = [place[name][0] for name in ("residual", "ffn", "output")]
            return {
                "layer": layer,
                "chosen": layer == self.layer,
                "address": self.address("layer", layer=layer),
                "event": place["event"],
                "means": EVENTS[place["event"]],
                "marks": marks,
                "tops": [self.guess(one) | {"final": one["id"] == final} for one in tops],
                "memory": self.memory(place["memories"][0]) if place["memories"] else None,
            }

        return [line(layer, found["positions"][self.position]) for layer, found in enumerate(self.trace["layers"])]

    def guess(self, one: Data) -> Data:
        """A token with its probability, as the width of a bar and as a shade."""
        share = one["probability"]
        drawn = {"width": round(100 * share, 2), "shade": shade(share)}
        return {"shown": self.shown(one), "probability": share, **drawn}

    def memory(self, one: Data) -> Data:
        """A dominant memory with its page, and the changes of it that one click makes."""
        name = one["memory"]
        now = f"{name}={one['coefficient']:.4g}"
        clicks = (
            ("off", f"{name}=0", f"switch {name} off: coefficient 0"),
            ("half", f"{name}*0.5", f"halve the coefficient of {name}"),
            ("double", f"{name}*2", f"double the coefficient of {name}"),
            ("turn", f"{name}*-1", f"turn the sign of {name}"),
            ("set", now, f"set {name} to this coefficient everywhere; the number can be edited above"),
        )
        return one | {
            "vote": self.shown(one["vote"]),
            "address": self.wanted.memory(name),
            "width": round(100 * min(1.0, one["share"]), 2),
            "clicks": [
                {"label": label, "address": self.wanted.with_change(change), "title": title}
                for label, change, title in clicks
            ],
        }

    def turn(self, one: Data) -> Data:
        """What is on top before and after the changes."""
        return {when: self.shown(one[when]) for when in ("before", "after")}

    def change(self, comparison: Data | None) -> Data | None:
        """Before and after at the position, and everywhere else in short."""
        if comparison is None:
            return None
        differences, places = comparison["differences"], comparison["changed_places"]
        here = differences[self.position]
        shifts = [
            one
            | {
                "shown": self.shown(one),
                "widths": [round(100 * one[when], 2) for when in ("before", "after")],
                "points": f"{100 * one['change']:+.2f}".replace("-", "\N{MINUS SIGN}"),
            }
            for one in sorted(here["shifts"], key=lambda one: -max(one["before"], one["after"]))
        ]
        positions = [
            self.turn(one)
            | {
                "position": one["position"],
                "token": self.shown(self.trace["positions"][one["position"]]["token"]),
                "changed": one["changed"],
                "kl": format_value(one["kl"], "number"),
                "address": self.address("change", position=one["position"]),
            }
            for one in differences
            if one["changed"] or one["position"] == self.position
        ]
        return self.turn(here) | {
            "changed": here["changed"],
            "kl": format_value(here["kl"], "number"),
            "shifts": shifts,
            "positions": positions,
            "moved": sum(one["changed"] for one in differences),
            "count": len(differences),
            "places_moved": len(places),
            "places": [
                {
                    "layer": one["layer"],
                    "turns": [{"name": name} | self.turn(one[key]) for key, name in STREAMS.items() if key in one],
                    "address": self.address("layer", layer=one["layer"]),
                }
                for one in places
                if one["position"] == self.position
            ],
        }

    def continuing(self, following: list[str | None]) -> list[Data]:
        """What the model predicts after the whole prompt; each with the address of the prompt continued by it."""
        guesses = self.trace["positions"][-1]["prediction"]
        return [
            self.guess(one) | {"address": None if text is None else self.wanted.with_text(text)}
            for one, text in zip(guesses, following, strict=True)
        ]

    def written(self, generation: Data | None) -> list[Data]:
        """The continuations, with and without changes."""
        return [
            {
                "name": name,
                "steps": [self.guess(step["token"] | step) for step in one["steps"]],
                "keep": None if one["joined"] is None else self.wanted.with_text(one["joined"]),
                "ended": bool(one["steps"]) and one["steps"][-1]["end"],
            }
            for name, one in (generation or {}).items()
            if one is not None
        ]


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
