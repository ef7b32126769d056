"""The page of an audit: its address, which is its whole state, with limits; and the audit in words and bars.

Torch-free, and pure functions of the audit and its address: computes only differences and bar lengths.
"""

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from mnemoscope.show.pages.edition import Data
from mnemoscope.show.pages.model.trace import TraceAddress, WrittenText
from mnemoscope.show.pages.page import MODEL, Address, PageKind

PAGES = (
    PageKind(
        "audit",
        "/audit",
        label="Audit",
        needs=MODEL,
        causal=True,
        about="which memories carry a string, and what it loses without them.",
    ),
)
FEWEST, USUAL, MOST = 19, 99, 999
"""Random strings drawn for the given one: with fewer, none can rank among the best 5 %."""
NEIGHBOURS = 40
"""Most texts on which side effects are measured: fewer than in `mnemoscope audit`, since a reader waits."""


class AuditAddress(Address, frozen=True):
    path = "/audit"
    text: Annotated[WrittenText, Field(description="The string to audit")] = None
    vary: Annotated[
        Literal["all", "digits"],
        Field(description="What is random in its alternatives: digits and letters, or only digits"),
    ] = "all"
    alternatives: Annotated[
        Annotated[int, Field(ge=FEWEST, le=MOST)] | Literal[""], AfterValidator(lambda count: count or USUAL)
    ] = USUAL


class AuditView:
    def __init__(self, audit: Data, neighbours: str) -> None:
        self.audit, self.after, self.neighbours = audit, audit["after"], neighbours
        self._trace = TraceAddress(prompt=audit["text"])

    @property
    def highest(self) -> float:
        return math.log2(self.audit["alternatives"] + 1)

    def carriers(self) -> list[Data]:
        carriers = self.audit["memories"]
        longest = {name: max((abs(one[name]) for one in carriers), default=0.0) or 1.0 for name in ("direct", "lost")}
        return [
            one
            | {
                "direct_share": abs(one["direct"]) / longest["direct"],
                "lost_share": max(0.0, one["lost"]) / longest["lost"],
            }
            for one in carriers
        ]

    def together(self) -> list[Data]:
        """With nothing, the best, and others off: log probability, its change, and the loss on other text."""
        before, after = self.audit["log_probability"], self.after
        rows = (
            ("nothing", before, None),
            (f"its best {len(after['memories'])}", after["log_probability"], after["side_effect"]),
            ("others as strong there", after["control_log_probability"], after["control_side_effect"]),
        )
        return [
            {"off": off, "log_probability": left, "change": left - before, "beside": beside}
            for off, left, beside in rows
        ]

    def trace(self, memories: list[str] | None = None) -> str:
        return self._trace.model_copy(update={"changes": [f"{one}=0" for one in memories or []]}).address()

    def memory(self, name: str) -> str:
        return self._trace.memory(name)
