"""The page of an audit: its address, which is its whole state, with limits; and the audit in words and bars.

Torch-free, and pure functions of the audit and its address: computes only differences and bar lengths.
"""

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from mnemoscope.foundation.formatting import DASH
from mnemoscope.show.pages.model.trace import TraceAddress, WrittenText
from mnemoscope.show.pages.page import MODEL, Address, PageKind

PAGES = (
    PageKind(
        "audit", "/audit", label="Audit", needs=MODEL,
        about="which memories carry a string, and what it loses without them.",
    ),
)  # fmt: skip
FEWEST, USUAL, MOST = 19, 99, 999
"""Random strings drawn for the given one: with fewer, none can rank among the best 5 %."""
NEIGHBOURS = 40
"""Most texts on which side effects are measured: fewer than in `mnemoscope audit`, since a reader waits."""
MINUS = "\N{MINUS SIGN}"
Data = dict[str, Any]


class AuditAddress(Address, frozen=True):
    text: Annotated[WrittenText, Field(description="The string to audit")] = None
    vary: Annotated[
        Literal["all", "digits"],
        Field(description="What is random in its alternatives: digits and letters, or only digits"),
    ] = "all"
    alternatives: Annotated[
        Annotated[int, Field(ge=FEWEST, le=MOST)] | Literal[""], AfterValidator(lambda count: count or USUAL)
    ] = USUAL

    def address(self) -> str:
        return f"/audit?{self.query()}"


class AuditView:
    def __init__(self, found: Data, neighbours: str) -> None:
        self.found, self.after, self.neighbours = found, found["after"], neighbours
        self._trace = TraceAddress(prompt=found["text"])

    @property
    def candidates(self) -> int:
        return int(self.found["alternatives"]) + 1

    @property
    def highest(self) -> float:
        return math.log2(self.candidates)

    @property
    def log_probability(self) -> str:
        return with_sign(self.found["log_probability"], 2)

    def carriers(self) -> list[Data]:
        own = self.found["memories"]
        longest = {name: max((abs(one[name]) for one in own), default=0.0) or 1.0 for name in ("direct", "lost")}
        return [
            {
                "name": one["memory"],
                "page": self._trace.memory(one["memory"]),
                "direct": with_sign(one["direct"], 2),
                "direct_share": abs(one["direct"]) / longest["direct"],
                "change": with_sign(-one["lost"], 2),
                "lost_share": max(0.0, one["lost"]) / longest["lost"],
                "off": self.trace([one["memory"]]),
            }
            for one in own
        ]

    def together(self) -> list[Data]:
        before, after = self.found["log_probability"], self.after
        untouched = {"kind": "", "log_probability": self.log_probability, "change": "", "beside": ""}
        rows = [("memory", after["log_probability"], after["side_effect"])]
        rows.append(("control", after["control_log_probability"], after["control_side_effect"]))
        return [untouched] + [
            {
                "kind": kind,
                "log_probability": with_sign(own, 2),
                "change": with_sign(own - before, 2),
                "beside": DASH if beside is None else with_sign(beside, 4),
            }
            for kind, own, beside in rows
        ]

    def trace(self, memories: list[str] | None = None) -> str:
        return self._trace.model_copy(update={"changes": [f"{one}=0" for one in memories or []]}).address()

    def memory(self, name: str) -> str:
        return self._trace.memory(name)


def with_sign(value: float, digits: int) -> str:
    """A number with its sign, and a true minus; -0 becomes +0."""
    return f"{value + 0.0:+.{digits}f}".replace("-", MINUS)
