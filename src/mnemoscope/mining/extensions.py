"""The optional tables: what makes each of them, in a run of mining or in an atlas that is finished (`extend`).

An optional table is made of the tables that every atlas has and of the model; `memorised` reads the text again. Whoever
makes one is a module of this room with a line here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mnemoscope.mining.passes.attention import write_attention
from mnemoscope.mining.passes.memorised import write_memorised
from mnemoscope.mining.passes.roles import write_roles
from mnemoscope.mining.passes.width import write_width
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.steps import RunContext
from mnemoscope.models import LanguageModel


@dataclass(frozen=True)
class Extension:
    """One optional table: `make` writes its files in the context's folder and goes on from what it saved there.

    A `cheap` one is made by mining, too.
    """

    name: str
    make: Callable[[RunContext, LanguageModel, MiningPlan], None]
    cheap: bool = False


EXTENSIONS: dict[str, Extension] = {
    extension.name: extension
    for extension in (
        Extension("roles", write_roles, cheap=True),
        Extension("attention", write_attention, cheap=True),
        Extension("width", write_width),
        Extension("memorised", write_memorised),
    )
}  # fmt: skip
"""By the table's name, in the order in which they are made."""

CHEAP: tuple[Extension, ...] = tuple(extension for extension in EXTENSIONS.values() if extension.cheap)
