"""Tokens coloured by a memory's coefficient at each: of its best examples, and of a text to try it on."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from mnemoscope.foundation.formatting import show_texts
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.page import Address
from mnemoscope.show.pages.trace import PROMPT

SHADES = 9
"""The deepest shade, of coefficients as large as the memory's best trigger's, or larger."""


class TrialAddress(Address, frozen=True):
    text: Annotated[str | None, Field(max_length=PROMPT, description="The text to try the memory on")] = None


def token_coefficients(edition: Edition, memory: MemoryId) -> dict[tuple[int, int], list[float]] | None:
    """The coefficients at every token of the best triggers' sentences by sign and rank; None without the table."""
    if not edition.atlas.has("token_activations", layer=memory.layer):
        return None
    own = [edition.atlas.number(memory)]
    table = edition.atlas.rows_where("token_activations", memory.layer, column="memory", ids=own)
    names = ("sign", "rank", "scale", "coefficients")
    return {
        (sign, rank): [float(f"{scale * share:.4g}") for share in shares]
        for sign, rank, scale, shares in table.select(names).iter_rows()
    }


def extreme(edition: Edition, memory: MemoryId) -> float:
    """The size of the memory's largest coefficient in the mined text, of either sign."""
    activity = edition.row("activity", memory)
    return max(abs(float(activity["max"])), abs(float(activity["min"])))


def colour_tokens(tokens: Sequence[dict[str, Any]], peak: float) -> list[dict[str, Any]]:
    """The tokens (`text`, `coefficient` or None) with `shown` and the class of their `shade`; `peak` is the size of the
    coefficient that has the deepest one.
    """
    shown = show_texts([one["text"] for one in tokens])
    return [
        one | {"shown": text, "shade": shade_class(one["coefficient"], peak)}
        for one, text in zip(tokens, shown, strict=True)
    ]


def shade_of(coefficient: float | None, peak: float) -> int:
    """From -SHADES to SHADES."""
    share = coefficient / peak if coefficient and peak else 0.0
    return max(-SHADES, min(SHADES, round(SHADES * share)))


def shade_class(coefficient: float | None, peak: float) -> str:
    shade = shade_of(coefficient, peak)
    return f"h{shade}" if shade > 0 else f"h{-shade} minus" if shade < 0 else ""
