"""The pages of a trace, of who pushed its prediction, and of a causal check: the address, which is the whole state,
with limits; and the values drawn beside the data: a waterfall, and a check's table with intervals on a common scale.

Torch-free, and pure functions of the trace and its address: numbers are selected, shaded and linked, not computed.
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from mnemoscope.atlas.vocabulary import Vocabulary
from mnemoscope.errors import OptionError
from mnemoscope.foundation.formatting import format_value, show_token
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.words import Words, in_words
from mnemoscope.patterns.labels import listed_labels
from mnemoscope.show.figures.figure1 import BROAD, NARROW, draw
from mnemoscope.show.pages.edition import Data, Edition
from mnemoscope.show.pages.page import MODEL, Address, PageKind

PAGES = (
    PageKind(
        "trace",
        "/trace",
        label="Trace",
        needs=MODEL,
        about="a prompt layer by layer, and what changes without a memory.",
    ),
)
PROMPT = 2_000
"""Characters of a prompt."""
TOKENS = 256
"""Tokens of a prompt."""
CHANGES = 50
"""Interventions at one time."""
LONGEST = 80
"""Characters of one intervention."""
WRITTEN = 64
"""Tokens generated for one address."""
ANSWER = 200
"""Characters of a next token that is asked about."""
PUSHING = 20
"""Memories listed for, and against."""
WIDE = 32
"""Positions in the heat map at one time."""
DRAWN = (720, 125)
"""Width and height of the waterfall's bars."""
SHADES = 10
RANKS = ("more", "1.6k", "630", "250", "99", "38", "14", "5", "1", "0")
"""The highest rank of every shade."""
EVENTS = {
    "residual": "the residual's prediction stays, against the feed-forward update's",
    "agreement": "residual and feed-forward update predict the same",
    "ffn": "the feed-forward update's prediction wins",
    "composition": "the output predicts what neither of them predicts",
}
QUIET = ("residual", "agreement")
"""Events in which the feed-forward layer leaves the residual's prediction on top."""
STREAMS = {"residual": "residual", "ffn": "feed-forward update", "output": "output"}
Stream = Literal["residual", "ffn", "output"]
Cell = Literal["probability", "rank", "token"]
View = Literal["after", "before"]
Change = Annotated[str, Field(max_length=LONGEST)]
Place = Annotated[
    Annotated[int, Field(ge=0, le=100_000)] | Literal[""] | None,
    AfterValidator(lambda place: None if place == "" else place),
]
"""A number, or None for an empty form field."""
At = Annotated[
    Annotated[int, Field(ge=-100_000, le=100_000)] | Literal[""] | None,
    AfterValidator(lambda place: None if place == "" else place),
]
"""A position, which in a chat's template may be below 0."""
Chat = Annotated[bool, Field(description="Whether prompts are what a user says in a chat, in the model's template")]


Mask = Annotated[
    Place, Field(description="The own token that a masked model does not see; else the prompt holds a mask")
]


WrittenText = Annotated[
    str | None,
    Field(max_length=PROMPT),
    # Forms send CRLF line ends.
    AfterValidator(lambda text: text and text.replace("\r\n", "\n")),
]
"""A text of a form, None without one."""


Source = Annotated[
    WrittenText, AfterValidator(lambda text: text or None), Field(description="What an encoder-decoder reads")
]
ASKED = {"prompt", "source", "chat", "mask"}
"""What is carried from page to page."""
Answer = Annotated[str | None, Field(max_length=ANSWER), AfterValidator(lambda text: text or None)]
Written = Annotated[Annotated[int, Field(ge=0, le=WRITTEN)] | Literal[""], AfterValidator(lambda count: count or 0)]


class TraceAddress(Address, frozen=True, populate_by_name=True):
    """The page chooses `layer` and `position` by default. `at` applies to changes without a position of their own.
    `target` and `against` are the next tokens whose logits are compared.
    """

    path = "/trace"
    prompt: Annotated[WrittenText, Field(description="The text to trace")] = None
    source: Source = None
    chat: Chat = False
    mask: Mask = None
    of: Annotated[Literal["first", "second"], Field(description="Which of the server's models is traced")] = "first"
    changes: Annotated[
        list[Change],
        # One more than the limit, so that the refusal can be explained.
        Field(validation_alias="set", max_length=CHANGES + 1),
        Field(description="Changes, such as L10.M222=0 or L10.M222*2@last"),
        AfterValidator(lambda changes: [one.strip() for one in changes if one.strip()]),
    ] = []  # noqa: RUF012
    at: Annotated[
        str,
        Field(max_length=10, description="Where changes hold that do not say so: all, last, or from a position on"),
        AfterValidator(lambda at: at.strip() or "all"),
    ] = "all"
    target: Annotated[
        Answer,
        Field(validation_alias="for", description="The next token asked about, with its space; else the prediction"),
    ] = None
    against: Annotated[
        Answer, Field(description="The token that it is compared with, or mean; else the best other one")
    ] = None
    generate: Written = 0
    layer: Place = None
    position: At = None
    stream: Stream = "residual"
    cell: Cell = "probability"
    view: View = "after"

    @property
    def placed_changes(self) -> tuple[str, ...]:
        if self.at == "all":
            return tuple(self.changes)
        return tuple(change if "@" in change else f"{change}@{self.at}" for change in self.changes)

    def with_change(self, change: str) -> str:
        """The page with this change, which replaces others of the same memory."""
        others = [one for one in self.changes if memory_of(one) != memory_of(change)]
        return self.address(changes=[*others, change], view="after")

    @staticmethod
    def change_off(memory: str, position: int) -> str:
        """A memory off from a position on; from one before 0, in a chat's template, it is off everywhere."""
        return f"{memory}=0@{position}" if position >= 0 else f"{memory}=0"

    def without_memories(self, rows: Sequence[Data], last: int, writes: bool = True) -> str:
        """The page with these memories off from their positions on, of which `last` is the highest possible, and what
        the model then writes, if it `writes`.
        """
        first: dict[str, int] = {}
        for one in rows:
            first[one["memory"]] = min(one["position"], first.get(one["memory"], last))
        others = [one for one in self.changes if memory_of(one) not in first]
        new = [self.change_off(name, position) for name, position in first.items()]
        return self.address(changes=[*others, *new], view="after", generate=(self.generate or PUSHING) * writes)

    def without(self, index: int) -> str:
        return self.address(changes=self.changes[:index] + self.changes[index + 1 :])

    def with_text(self, text: str) -> str:
        return self.address(prompt=(self.prompt or "") + text, position=None)

    def memory(self, name: str) -> str:
        carried = TraceAddress(**self.model_dump(include=ASKED | {"changes", "at"})).query()
        return f"/{name}" + (f"?{carried}" if carried else "")


class CauseAddress(TraceAddress, frozen=True, populate_by_name=True):
    """`until` is the last step of the answer."""

    until: Literal["attributions", "ablations", "curve"] = "curve"

    @property
    def trace(self) -> TraceAddress:
        return TraceAddress(**self.model_dump(exclude={"until"}))


def limits(longest: int) -> dict[str, int]:
    tokens = min(TOKENS, longest)
    return {"characters": PROMPT, "tokens": tokens, "interventions": CHANGES, "generate": WRITTEN, "answer": ANSWER}


def memory_of(change: str) -> str:
    return re.split("[=*@]", change, maxsplit=1)[0].strip()


def chosen_place(wanted: TraceAddress, trace: Data) -> tuple[int, int]:
    """Layer and position, by default the mask or the last position, and the layer that decides there."""
    layers, (first, last) = len(trace["layers"]), (trace["positions"][end]["position"] for end in (0, -1))
    asked = last if trace["mask"] is None else trace["mask"]
    position = wanted.position if isinstance(wanted.position, int) else asked
    if not first <= position <= last:
        raise OptionError(f"there is no position {position}: the prompt has positions {first} to {last}")
    decided = trace["positions"][position - first]["output"]["decided"]
    layer = wanted.layer if isinstance(wanted.layer, int) else decided
    if layer is not None and layer >= layers:
        raise OptionError(f"there is no layer {layer}: the model has layers 0 to {layers - 1}")
    return layers - 1 if layer is None else layer, position


class TraceView:
    events, streams = EVENTS, STREAMS

    def __init__(self, wanted: TraceAddress, data: Data, words: Vocabulary | None) -> None:
        """Without `words` a token is shown by its text alone, which does not tell the parts of a character."""
        self.wanted, self.trace, self.layer, self.position = wanted, data["trace"], data["layer"], data["position"]
        self.first, self.last = (self.trace["positions"][end]["position"] for end in (0, -1))
        self.index = self.position - self.first
        self.here = self.trace["positions"][self.index]
        self.place = self.trace["layers"][self.layer]["positions"][self.index]
        self.written = self.trace["logits"][self.index]
        self.figure1 = data["figure1"]
        self.dominant = data["dominant"] or [None] * len(self.trace["layers"])
        # The heat map shows some positions at one time.
        length = len(self.trace["positions"])
        self.windows = [range(first, min(first + WIDE, length)) for first in range(0, length, WIDE)]
        self.window = self.windows[self.index // WIDE]
        self._words = words

    def visible_text(self, one: Data) -> str:
        return show_token(one["text"]) if self._words is None else self._words.visible_text(one["id"])

    def at(self, part: str, *, layer: int | None = None, position: int | None = None) -> str:
        layer = self.layer if layer is None else layer
        return f"{self.wanted.address(layer=layer, position=self.position if position is None else position)}#{part}"

    def pale(self, position: int) -> str:
        """The class of a chat's template's tokens, with the space before it."""
        own = self.trace["own"]
        return "" if own is None or 0 <= position < own else " template"

    def dominants(self, layer: int) -> list[Data]:
        """The dominant memories of a layer: by their own extremes where an atlas has these."""
        memories: list[Data] | None = self.dominant[layer]
        if memories is None:
            memories = self.trace["layers"][layer]["positions"][self.index]["memories"]
        return memories

    def share(self, one: Data) -> float:
        """A dominant memory's coefficient as a share of its own extreme, which this prompt may exceed; else of the
        layer's sum.
        """
        return float(one["own_share"] if "own_share" in one else one["share"])

    def pushers(self, attribution: Data, sign: int) -> list[Data]:
        """The memories that pushed for (1) or against (-1), strongest first."""
        return [one for one in attribution["memories"] if one["direct"] * sign > 0]

    def quiet_layers(self) -> list[int]:
        """The layers without an event, but for the one that is shown."""
        places = enumerate(layer["positions"][self.index] for layer in self.trace["layers"])
        return [at for at, place in places if place["event"] in QUIET and at != self.layer and not self.marks(at)]

    def figures(self) -> dict[str, str]:
        """The paper's Figure 1 for wide windows and for phones."""
        sizes = {"broad": BROAD, "narrow": NARROW}
        return {size: draw(self.figure1, of, link=self.wanted.memory) for size, of in sizes.items()}

    def heat_map(self, heat: Data) -> list[list[Data]]:
        def cell(layer: int, index: int, state: Data) -> Data:
            final, position = self.visible_text(self.trace["positions"][index]["prediction"][0]), index + self.first
            probability, rank = heat["probability"][layer][index], heat["rank"][layer][index]
            top = self.visible_text(state[heat["stream"]][0])
            # In at most three and four characters.
            share = "0" if probability < 0.0005 else "<1" if probability < 0.01 else f"{100 * probability:.0f}"
            place = str(rank) if rank < 1000 else f"{rank / 1000:.1f}k" if rank < 10_000 else f"{rank // 1000}k"
            texts = {"probability": share, "rank": place, "token": top}
            # 9 for the first, and one less for each factor of about 2.5.
            shade_of_rank = max(0, SHADES - 1 - math.ceil(2.5 * math.log10(rank + 1)))
            return {
                "position": position,
                "text": texts[self.wanted.cell],
                "shade": shade_of_rank if self.wanted.cell == "rank" else shade(probability),
                "top": rank == 0,
                "title": f"layer {layer}, position {position}: {final} has"
                f" {format_value(probability, 'share')}, rank {rank:,}; on top is {top}",
            }

        return [
            [cell(layer, index, places["positions"][index]) for index in self.window]
            for layer, places in enumerate(self.trace["layers"])
        ]

    def legend(self) -> Sequence[str]:
        return RANKS if self.wanted.cell == "rank" else [str(step * step) for step in range(SHADES)]

    def shifts(self, comparison: Data) -> list[Data]:
        shifts = comparison["differences"][self.index]["shifts"]
        return sorted(shifts, key=lambda one: -max(one["before"], one["after"]))

    def marks(self, layer: int) -> list[str]:
        """The streams whose top token is the final prediction first in this layer, or for good from it on."""
        return [
            f"{name} {'for good' if self.here[name]['decided'] == layer else 'first'}"
            for name in ("residual", "output")
            if layer in (self.here[name]["first"], self.here[name]["decided"])
        ]

    def waterfall(self, attribution: Data) -> Data:
        return draw_effects(attribution)

    def clicks(self, one: Data) -> list[tuple[str, str, str]]:
        name = one["memory"]
        now = f"{name}={one['coefficient']:.4g}"
        changes = (
            ("off", f"{name}=0", f"switch {name} off: activation (coefficient) 0"),
            ("half", f"{name}*0.5", f"halve the activation (coefficient) of {name}"),
            ("double", f"{name}*2", f"double the activation (coefficient) of {name}"),
            ("turn", f"{name}*-1", f"turn the sign of {name}"),
            ("set", now, f"set {name} to this activation (coefficient) everywhere; the number can be edited above"),
        )
        return [(label, self.wanted.with_change(change), title) for label, change, title in changes]


def draw_effects(attribution: Data) -> Data:
    """The direct effects of an attribution as bars; the last is their sum."""
    direct = attribution["direct"]
    after = [(kind, direct[kind]) for kind in ("biases", "head") if direct[kind]]
    return draw_waterfall([("embedding", direct["embedding"])], direct, after, attribution["difference"])


def draw_waterfall(
    before: Sequence[tuple[str, float]], layers: Mapping[str, Any], after: Sequence[tuple[str, float]], total: float
) -> Data:
    """Bars, each from the sum of those before it, and at last their `total` from 0. `layers` has a number a layer for
    attention, memories and other.
    """
    kinds = [kind for kind in ("attention", "memories", "other") if any(layers[kind])]
    parts: list[tuple[str, int | None, float]] = [(kind, None, value) for kind, value in before]
    parts += [(kind, layer, layers[kind][layer]) for layer in range(len(layers["memories"])) for kind in kinds]
    parts += [(kind, None, value) for kind, value in after]
    ends = list(accumulate(value for _, _, value in parts))
    spans = [*pairwise([0.0, *ends]), (0.0, total)]
    parts.append(("total", None, total))
    low, high = min(0.0, *ends), max(0.0, *ends)
    (width, height), step = DRAWN, DRAWN[0] / len(parts)

    def y(value: float) -> float:
        return float(round(height * (high - value) / ((high - low) or 1.0), 2))

    bars: list[Data] = [
        {
            "kind": kind,
            "layer": layer,
            "value": value,
            "x": round(at * step, 2),
            "y": y(max(span)),
            "height": max(round(y(min(span)) - y(max(span)), 2), 0.5),
        }
        for at, ((kind, layer, value), span) in enumerate(zip(parts, spans, strict=True))
    ]
    every = math.ceil(len(layers["memories"]) / 16)
    marks = [bar for bar in bars if bar["kind"] in kinds[-1:] and bar["layer"] % every == 0]
    return {"bars": bars, "marks": marks, "zero": y(0.0), "step": round(step, 2), "width": width, "height": height}


def describe_memories(edition: Edition, rows: Sequence[Data], by: str = "coefficient") -> list[Data]:
    """Rows of memories with what the atlas says of each and the sign of its coefficient: `label` and `promotes`."""
    features = [(MemoryId.parse(row["memory"]), 1 if row[by] >= 0 else -1) for row in rows]
    labels, described = listed_labels(edition.atlas, features), []
    edition.check_current()
    for row, (memory, sign) in zip(rows, features, strict=True):
        mined = memory.layer in edition.atlas.layers
        promotes = edition.atlas.token_text(edition.promoted_tokens(memory, sign)[:5]) if mined else []
        described.append({**row, "label": labels.get((memory, sign)), "promotes": promotes})
    return described


def shade(probability: float) -> int:
    """The shade of a probability, 0 to 9: its square root in tenths, so that small ones differ."""
    return min(SHADES - 1, int(SHADES * math.sqrt(max(0.0, probability))))


MEASURES = {
    "own_tokens_probability": "its own tokens' probability, added up",
    "own_tokens_log_probability": "its own tokens' log probability, mean",
    "top_token_probability": "its top token's probability",
    "top_token_log_probability": "its top token's log probability",
    "next_token_probability": "probability of {what_came}",
    "next_token_log_probability": "log probability of {what_came}",
}
OF = {"memory": "this memory off", "controls": "another one off", "difference": "difference"}


def causal_view(data: Data, words: Vocabulary, spoken: Words) -> Data:
    groups = []
    for logs in (False, True):
        rows = [row for row in data["rows"] if ("log" in row["measure"]) == logs]
        ends = [abs(row[end]) for row in rows for end in ("mean", "low", "high") if row[end] is not None]
        widest = max(ends, default=0.0)
        groups.append(
            {
                "title": "Log probabilities (nats)" if logs else "Probabilities (hundredths)",
                "rows": [_check_row(row, widest, spoken, hundredths=not logs) for row in rows],
            }
        )
    key = ("next_token_log_probability", "difference")
    next_token = next(row for row in data["rows"] if (row["measure"], row["of"]) == key)
    # Its effect on the next token; few: too few triggers.
    low, high = next_token["low"], next_token["high"]
    clear = "few" if low is None else "unclear" if low <= 0 <= high else "down" if high < 0 else "up"
    return {
        "own": [{"token": token["id"], "shown": words.visible_text(token["id"])} for token in data["own_tokens"]],
        "groups": groups,
        "clear": clear,
        "other": -data["sign"],
    }


def _check_row(row: Data, widest: float, spoken: Words, *, hundredths: bool) -> Data:
    def at(value: float | None) -> float | None:
        return None if value is None else round(50 + (48 * value / widest if widest else 0.0), 2)

    unit = 100 if hundredths else 1
    return {
        "measure": in_words(MEASURES.get(row["measure"], row["measure"].replace("_", " ")), spoken),
        "first": row["of"] == "memory",
        "of": OF.get(row["of"], row["of"]),
        "kind": row["of"],
        "count": row["count"],
        **{name: _with_sign(row[name], unit) for name in ("mean", "low", "high")},
        **{f"{name}_at": at(row[name]) for name in ("mean", "low", "high")},
    }


def _with_sign(value: float | None, unit: int) -> str | None:
    if value is None or not math.isfinite(value):
        return None
    size = abs(value * unit)
    text = f"{size:.3f}" if size >= 0.0005 else f"{size:.0e}" if size else "0"
    return ("\N{MINUS SIGN}" if value < 0 else "+" if value > 0 else "") + text
