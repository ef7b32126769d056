"""The list of stages from a read text to an atlas, and the routine that does one unit of any of them.

One process does all units in order (`run_stages`), workers lease them, `extend` does the stages of one optional table,
and a part stops before the first stage that needs all triggers. Units of a stage are independent: each writes whole
files and changes none of another unit, so they may run in any order, in any process, and twice.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.passes.attention import AttentionPass
from mnemoscope.mining.passes.importance import ImportancePass
from mnemoscope.mining.passes.memorised import DRAWING, MemorisedPass, draw_documents
from mnemoscope.mining.passes.predictions import PredictionPass
from mnemoscope.mining.passes.prefix_pass import PassKind, answer, ask, planned_pass
from mnemoscope.mining.passes.random_pass import make_random
from mnemoscope.mining.passes.removals import RemovalPass
from mnemoscope.mining.passes.samples import SamplePass
from mnemoscope.mining.passes.scales import ScalePass
from mnemoscope.mining.passes.text_tables import write_layer_tables, write_text_tables
from mnemoscope.mining.passes.token_activations import TokenActivationPass
from mnemoscope.mining.passes.vectors.neighbours import write_layer_neighbours
from mnemoscope.mining.passes.vectors.roles import write_layer_roles
from mnemoscope.mining.passes.vectors.similar_words import write_similar_words
from mnemoscope.mining.passes.vectors.values import write_layer_values
from mnemoscope.mining.passes.width import WidthPass
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.sealing import find_layer_patterns, number_words

WhenMined = Literal["always", "asked", "never"]


@dataclass(frozen=True)
class Stage:
    """`make(run, unit)` does one unit: a layer, the number of a piece, or 0."""

    name: str
    unit: Literal["run", "layer", "piece"]
    make: Callable[[MiningRun, int], None]
    table: str | None = None
    """The optional table that it helps to make."""
    needs_all: bool = True
    """Whether it needs the triggers of the whole text, which a part lacks."""
    mined: WhenMined = "always"
    """Whether mining does it: `asked` where the plan has its table's name as a field, `never` by `extend` only."""
    kind: PassKind | None = None
    """The pass whose pieces they are."""
    joined: str = ""
    """The stage that joins the pieces, after which they are not needed."""

    def count(self, run: MiningRun) -> int:
        """How many units there are; a pass plans its pieces when it is asked."""
        if self.kind is not None:
            return len(planned_pass(run, self.kind).steps.pieces)
        return len(run.plan.layers) if self.unit == "layer" else 1

    def is_needless(self, run: MiningRun) -> bool:
        return (self.joined, 0) in run.record.units


def pass_stages(
    name: str, kind: PassKind, *, table: str | None = None, mined: WhenMined = "always"
) -> tuple[Stage, Stage]:
    """The two stages of a planned pass: its pieces, and joining them."""
    join = f"{name} together"
    return (
        Stage(name, "piece", lambda run, piece: ask(run, kind, piece), table, mined=mined, kind=kind, joined=join),
        Stage(join, "run", lambda run, _: answer(run, kind, name), table, mined=mined),
    )


STAGES: tuple[Stage, ...] = (
    Stage("merging", "layer", MiningRun.merge_layer, needs_all=False),
    Stage("text tables", "run", lambda run, _: write_text_tables(run), needs_all=False),
    Stage("tables", "layer", write_layer_tables, needs_all=False),
    *pass_stages("scales", ScalePass),
    Stage("values", "layer", write_layer_values),
    Stage("neighbours", "layer", write_layer_neighbours),
    *pass_stages("removals", RemovalPass),
    *pass_stages("predictions", PredictionPass),
    Stage("roles", "layer", write_layer_roles, "roles"),
    *pass_stages("attention", AttentionPass, table="attention"),
    *pass_stages("token activations", TokenActivationPass, table="token_activations", mined="asked"),
    *pass_stages("width", WidthPass, table="width", mined="never"),
    Stage(DRAWING, "run", lambda run, _: draw_documents(run), "memorised", mined="never"),
    *pass_stages("memorised", MemorisedPass, table="memorised", mined="never"),
    *pass_stages("samples", SamplePass, table="samples", mined="never"),
    Stage("random", "run", lambda run, _: make_random(run), "random", mined="never"),
    *pass_stages("importance", ImportancePass, table="importance", mined="never"),
    Stage("similar words", "run", lambda run, _: write_similar_words(run), "similar_words"),
    Stage("pattern words", "run", lambda run, _: number_words(run)),
    Stage("patterns", "layer", find_layer_patterns),
)
"""In order; a stage begins when all units of those before it are done."""

OPTIONAL_TABLES: tuple[str, ...] = tuple(dict.fromkeys(stage.table for stage in STAGES if stage.table))
"""The tables that `extend` can make, in order."""


def mined_stages(plan: MiningPlan) -> tuple[Stage, ...]:
    """The stages of mining by a plan, in order."""
    asked = {stage.table for stage in STAGES if stage.mined == "asked" and getattr(plan, str(stage.table))}
    return tuple(stage for stage in STAGES if stage.mined == "always" or stage.table in asked)


def run_stages(run: MiningRun, stages: Iterable[Stage]) -> None:
    """Does all units of the stages in order that are not recorded as done."""
    for stage in stages:
        count = 0 if stage.is_needless(run) else stage.count(run)
        for number in [number for number in range(count) if (stage.name, number) not in run.record.units]:
            if stage.unit == "layer":
                run.context.progress(stage.name, number, count, "layers")
            run_unit(run, stage, number)
        if stage.unit == "layer":
            run.context.progress(stage.name, count, count, "layers")
        run.context.end_stage(stage.name)


def run_unit(run: MiningRun, stage: Stage, number: int) -> None:
    """Does unit `number` (0-based) and records it."""
    run.made.clear()
    stage.make(run, run.plan.layers[number] if stage.unit == "layer" else number)
    run.record.add(stage.name, number, run.made)
