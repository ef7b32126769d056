"""The list of stages from a tokenized text to an atlas.

Mining does them in order, `extend` does those of one optional table, `merge` all but the first, and a part stops before
the first stage that needs all triggers.
"""

from mnemoscope.atlas.schema import OF_VALUES
from mnemoscope.mining.passes.attention import AttentionPass
from mnemoscope.mining.passes.importance import ImportancePass
from mnemoscope.mining.passes.memorised import DRAWING, MemorisedPass, draw_documents
from mnemoscope.mining.passes.own_coefficients import OwnPass
from mnemoscope.mining.passes.predictions import PredictionPass
from mnemoscope.mining.passes.prefix_pass import pass_stages
from mnemoscope.mining.passes.random_pass import RANDOM_STAGES
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
from mnemoscope.mining.text_pass import TextWork, collect_states, merge_layer
from mnemoscope.runs.plan import MiningPlan
from mnemoscope.runs.seal import PATTERN_STAGES
from mnemoscope.runs.workers.leases import TEXT
from mnemoscope.runs.workers.worker import Stage

STAGES: tuple[Stage, ...] = (
    Stage(TEXT, "text", lambda worker, _: TextWork(worker).run(), needs_all=False, collect=collect_states),
    Stage("merging", "layer", merge_layer, needs_all=False),
    Stage("text tables", "run", write_text_tables, needs_all=False),
    *pass_stages("own coefficients", OwnPass, mined="asked"),
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
    Stage(DRAWING, "run", draw_documents, "memorised", mined="never"),
    *pass_stages("memorised", MemorisedPass, table="memorised", mined="never"),
    *pass_stages("samples", SamplePass, table="samples", mined="never"),
    *RANDOM_STAGES,
    *pass_stages("importance", ImportancePass, table="importance", mined="never"),
    Stage("similar words", "run", write_similar_words, "similar_words"),
    *PATTERN_STAGES,
)
"""In order; a stage begins when all units of those before it are done."""

OPTIONAL_TABLES: tuple[str, ...] = tuple(dict.fromkeys(stage.table for stage in STAGES if stage.table))
"""The tables that `extend` can make, in order."""


def mined_stages(plan: MiningPlan) -> tuple[Stage, ...]:
    """The stages of mining by a plan, in order: those asked for are named by their table, or make no table (`own`)."""
    asked = {"always": True, "never": False}
    stages = (stage for stage in STAGES if asked.get(stage.mined, getattr(plan, stage.table or "own", None)))
    return tuple(stage for stage in stages if plan.head != "none" or not _of_values(stage))


def _of_values(stage: Stage) -> bool:
    """Whether it needs a head, which an encoder alone does not have."""
    return stage.name == "scales together" or (stage.table or stage.name) in ("scales", *OF_VALUES)
