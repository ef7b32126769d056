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
    view = TraceView(wanted, words, layer, position)
    place = trace["layers"][layer]["positions"][position]
    return {
        "head": view.head(trace),
        "heat_map": view.heat_map(trace, data["heat"]),
        "rows": view.layers(trace),
        "streams": [
            {"name": name, "title": title, "guesses": view.guesses(place[name])}
            for name, title in (("residual", "Residual"), ("ffn", "Feed-forward update"), ("output", "Output"))
        ],
        "place": place | {"vote": words.shown(place["ffn_vote"]["id"]), "means": EVENTS[place["event"]]},
        "memories": [view.memory(one) for one in place["memories"]],
        "change": view.change(data["comparison"], trace),
        "continuing": view.continuing(trace, data["following"]),
        "written": view.written(data["generation"]),
        "pages": [
            {"name": f"{other} to {min(other + WIDE, len(trace['positions'])) - 1}", "here": other == view.start,
             "address": wanted.address(position=other)}
            for other in range(0, len(trace["positions"]), WIDE)
        ],
    }  # fmt: skip


class TraceView:
    """A trace looked at from one layer and position."""

    def __init__(self, wanted: TraceAddress, words: Vocabulary, layer: int, position: int) -> None:
        self.wanted, self.layer, self.position = wanted, layer, position
        self.shown = words.shown
        self.start = position // WIDE * WIDE

    def head(self, trace: Data) -> Data:
        """The prediction at the position in words."""
        at = trace["positions"][self.position]
        best = at["prediction"][0]
        return {
            "token": self.shown(at["token"]["id"]),
            "says": self.shown(best["id"]),
            "probability": best["probability"],
            "residual": at["residual"],
            "output": at["output"],
            "last": self.position == len(trace["positions"]) - 1,
        }

    def heat_map(self, trace: Data, heat: Data) -> Data:
        """The window of positions around the chosen one, and a row of cells for each layer."""
        shown = range(self.start, min(self.start + WIDE, len(trace["positions"])))
        columns = [
            {
                "position": j,
                "token": self.shown(trace["positions"][j]["token"]["id"]),
                "final": self.shown(trace["positions"][j]["prediction"][0]["id"]),
                "chosen": j == self.position,
                "address": self.wanted.address(position=j, layer=self.layer) + "#layers",
            }
            for j in shown
        ]
        rows = []
        for layer, found in enumerate(trace["layers"]):
            cells = []
            for j in shown:
                probability, rank = heat["probability"][layer][j], heat["rank"][layer][j]
                top = self.shown(found["positions"][j][heat["stream"]][0]["id"])
                text = {"probability": short_share(probability), "rank": short_rank(rank), "token": top}
                cells.append(
                    {
                        "text": text[self.wanted.cell],
                        "shade": shade_of_rank(rank) if self.wanted.cell == "rank" else shade(probability),
                        "top": rank == 0,
                        "chosen": layer == self.layer and j == self.position,
                        "title": f"layer {layer}, position {j}: {columns[j - self.start]['final']} has"
                        f" {format_value(probability, 'share')}, rank {rank:,}; on top is {top}",
                        "address": self.wanted.address(position=j, layer=layer) + "#layers",
                    }
                )
            rows.append({"layer": layer, "chosen": layer == self.layer, "cells": cells})
        legend = RANKS if self.wanted.cell == "rank" else [str(step * step) for step in range(SHADES)]
        return {"columns": columns, "rows": rows, "legend": legend}

    def layers(self, trace: Data) -> list[Data]:
        """Every layer at the position in a line."""
        at = trace["positions"][self.position]
        final, rows = at["prediction"][0]["id"], []
        for layer, found in enumerate(trace["layers"]):
            place = found["positions"][self.position]
            marks = [
                f"{name} {'for good' if at[name]['decided'] == layer else 'first'}"
                for name in ("residual", "output")
                if layer in (at[name]["first"], at[name]["decided"])
            ]
            tops = [
                self.guess(place[name][0]) | {"final": place[name][0]["id"] == final}
                for name in ("residual", "ffn", "output")
            ]
            rows.append(
                {
                    "layer": layer,
                    "chosen": layer == self.layer,
                    "address": self.wanted.address(layer=layer, position=self.position) + "#layer",
                    "event": place["event"],
                    "means": EVENTS[place["event"]],
                    "active": place["active"],
                    "marks": marks,
                    "tops": tops,
                    "memory": self.memory(place["memories"][0]) if place["memories"] else None,
                }
            )
        return rows

    def guess(self, one: Data) -> Data:
        """A token with its probability, and the width of its bar."""
        return {"id": one["id"], "shown": self.shown(one["id"]), "probability": one["probability"],
                "width": round(100 * one["probability"], 2)}  # fmt: skip

    def guesses(self, listed: list[Data]) -> list[Data]:
        """Several of them."""
        return [self.guess(one) for one in listed]

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
            "vote": self.shown(one["vote"]["id"]),
            "address": self.wanted.memory(name),
            "width": round(100 * min(1.0, one["share"]), 2),
            "clicks": [{"label": label, "address": self.wanted.with_change(change), "title": title}
                       for label, change, title in clicks],
        }  # fmt: skip

    def change(self, comparison: Data | None, trace: Data) -> Data | None:
        """Before and after at the position, and everywhere else in short."""
        if comparison is None:
            return None
        here = comparison["differences"][self.position]
        shifts = [
            one | {
                "shown": self.shown(one["id"]),
                "widths": [round(100 * one[when], 2) for when in ("before", "after")],
                "points": f"{100 * one['change']:+.2f}".replace("-", "\N{MINUS SIGN}"),
            }
            for one in sorted(here["shifts"], key=lambda one: -max(one["before"], one["after"]))
        ]  # fmt: skip
        positions = [
            {
                "position": one["position"],
                "token": self.shown(trace["positions"][one["position"]]["token"]["id"]),
                "before": self.shown(one["before"]["id"]),
                "after": self.shown(one["after"]["id"]),
                "changed": one["changed"],
                "kl": format_value(one["kl"], "number"),
                "address": self.wanted.address(position=one["position"], layer=self.layer) + "#change",
            }
            for one in comparison["differences"]
            if one["changed"] or one["position"] == self.position
        ]
        places = [one for one in comparison["changed_places"] if one["position"] == self.position]
        return {
            "before": self.shown(here["before"]["id"]),
            "after": self.shown(here["after"]["id"]),
            "changed": here["changed"],
            "kl": format_value(here["kl"], "number"),
            "shifts": shifts,
            "positions": positions,
            "moved": sum(one["changed"] for one in comparison["differences"]),
            "count": len(comparison["differences"]),
            "places_moved": len(comparison["changed_places"]),
            "places": [self.layer_change(one) for one in places],
        }

    def layer_change(self, one: Data) -> Data:
        """A layer of the position where a top token is another than before."""
        named = {"residual": "residual", "ffn": "feed-forward update", "output": "output"}
        turns = [
            {
                "name": said,
                "before": self.shown(one[name]["before"]["id"]),
                "after": self.shown(one[name]["after"]["id"]),
            }
            for name, said in named.items()
            if name in one
        ]
        address = self.wanted.address(position=self.position, layer=one["layer"]) + "#layer"
        return {"layer": one["layer"], "turns": turns, "address": address}

    def continuing(self, trace: Data, following: list[str | None]) -> list[Data]:
        """What the model predicts after the whole prompt; each with the address of the prompt continued by it."""
        guesses = self.guesses(trace["positions"][-1]["prediction"])
        return [
            guess | {"address": None if text is None else self.wanted.with_text(text)}
            for guess, text in zip(guesses, following, strict=True)
        ]

    def written(self, generation: Data | None) -> list[Data]:
        """The continuations, with and without changes."""
        if generation is None:
            return []
        found = []
        for name in ("before", "after"):
            one = generation[name]
            if one is not None:
                steps = [
                    {"shown": self.shown(step["token"]["id"]), "probability": step["probability"],
                     "shade": shade(step["probability"])}
                    for step in one["steps"]
                ]  # fmt: skip
                keep = None if one["joined"] is None else self.wanted.with_text(one["joined"])
                ended = bool(one["steps"]) and one["steps"][-1]["end"]
                found.append({"name": name, "steps": steps, "keep": keep, "ended": ended})
        return found


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
