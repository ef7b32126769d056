"""The page of what two models, or one model on two prompts, do differently: its address, which is its whole state, and
what is drawn beside the answer.

Torch-free, and pure functions of the answer and its address: numbers are selected and linked, not computed.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from mnemoscope.show.pages.edition import Data
from mnemoscope.show.pages.model.trace import (
    ASKED,
    PUSHING,
    Answer,
    Chat,
    Mask,
    Source,
    TraceAddress,
    Written,
    WrittenText,
    draw_waterfall,
)
from mnemoscope.show.pages.page import SECOND, Address, PageKind

PAGES = (
    PageKind(
        "diff",
        "/diff",
        label="Diff",
        needs=SECOND,
        about="what two models answer differently, and which memories make it so.",
    ),
)


class DiffAddress(Address, frozen=True, populate_by_name=True):
    """With an `other` prompt the first model is compared on the two. `until` is the last step of the answer."""

    path = "/diff"
    prompt: Annotated[WrittenText, Field(description="The prompt that both answer")] = None
    source: Source = None
    chat: Chat = False
    mask: Mask = None
    other: Annotated[
        WrittenText,
        AfterValidator(lambda text: text or None),
        Field(description="Another prompt for the first model, in place of the second model"),
    ] = None
    target: Annotated[
        Answer, Field(validation_alias="for", description="The second's answer, with its space; else its prediction")
    ] = None
    against: Annotated[Answer, Field(description="The first's answer, with its space; else its prediction")] = None
    generate: Written = 0
    restored: Annotated[
        int, Field(ge=0, le=256, description="With so many memories set back the second model writes, too")
    ] = 0
    until: Literal["parts", "patched"] = "parts"


class DiffView:
    """`difference` is the document of a difference between answers that part; `layers` the model's number of layers."""

    def __init__(self, wanted: DiffAddress, difference: Data, layers: int) -> None:
        self.difference, self._layers = difference, layers
        self.two_models = wanted.other is None
        self._trace = TraceAddress(**wanted.model_dump(include=ASKED))
        self.measure = "effect" if any("effect" in row for row in difference["memories"]) else "change"
        self.written = difference["continued"]
        """What both write before they part."""
        self.prompts = {name: f"{text}{self.written}" for name, text in difference.get("prompts", {}).items()}

    def sums(self) -> list[tuple[str, float]]:
        """The change of each kind of part, over all layers."""
        sums: dict[str, float] = {}
        for row in self.difference["parts"]:
            sums[row["part"]] = sums.get(row["part"], 0.0) + row["change"]
        return list(sums.items())

    def waterfall(self) -> Data:
        """From F in the first run, by the change of every part, to F in the second."""
        changes = {(row["part"], row["layer"]): row["change"] for row in self.difference["parts"]}
        kinds = ("attention", "memories", "other")
        layers = {kind: [changes.get((kind, layer), 0.0) for layer in range(self._layers)] for kind in kinds}
        ends = [(kind, changes.get((kind, None), 0.0)) for kind in ("embedding", "biases", "norm_scale")]
        ends += [("head", changes["head", None])] if ("head", None) in changes else []
        first, second = self.difference["difference"]["first"], self.difference["difference"]["second"]
        return draw_waterfall([("first", first), ends[0]], layers, ends[1:], second)

    def largest(self, sign: int) -> Sequence[Data]:
        """The memories that changed most towards the second's answer (1) or away from it (-1), strongest first."""
        rows = [row for row in self.difference["memories"] if row[self.measure] * sign > 0]
        return sorted(rows, key=lambda row: -abs(row[self.measure]))[:PUSHING]

    def memory(self, name: str) -> str:
        return self._trace.memory(name)
