"""The end of a run or merge in one process: what needs all triggers, seal, patterns; or what a part carries."""

from collections.abc import Mapping, Sequence
from typing import Any

from mnemoscope.atlas.manifest import STATE
from mnemoscope.mining.extensions import CHEAP
from mnemoscope.mining.passes.predictions import PREFIXES, Prefixes
from mnemoscope.mining.passes.writing import write_question_tables, write_value_tables
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.sealing import add_patterns, model_facts, seal_atlas
from mnemoscope.mining.steps import CHECKPOINT, RunContext
from mnemoscope.mining.text.state import MiningState
from mnemoscope.models import LanguageModel
from mnemoscope.models.object_state import check_unchanged


def finish_atlas(
    context: RunContext,
    model: LanguageModel,
    plan: MiningPlan,
    state: MiningState,
    prefixes: Prefixes,
    *,
    counts: dict[str, Any],
    versions: Sequence[Mapping[str, str]],
    part: tuple[int, int] | None = None,
    keep_work: bool = False,
) -> None:
    """Makes an atlas of a folder that holds the mined tables, or a part, which carries what `merge` needs of it."""
    directory, questions = context.directory, None
    if part is None:
        write_value_tables(context, state, model, plan)
        questions = write_question_tables(context, model, plan, prefixes)
        for extension in CHEAP:
            extension.make(context, model, plan)
    else:
        state.save(directory / STATE / CHECKPOINT, plan=plan.hash())
        prefixes.save(directory / STATE / PREFIXES)
    check_unchanged(model)
    seal_atlas(
        context, model_facts(model), plan, state.halved, counts=counts, versions=versions, part=part,
        questions=questions, equality=state.equality(), keep_work=keep_work,
    )  # fmt: skip
    if part is None:
        add_patterns(directory, context.progress)
