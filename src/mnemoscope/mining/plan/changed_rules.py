"""What later rules changed, table by table: which optional tables an atlas of older rules can still get. Other tables
are made with its own plan, as the older version would have made them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from mnemoscope.atlas.schema import LENS_TABLES, TABLES
from mnemoscope.errors import PlanDiffers
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.models import LanguageModel

_OPTIONAL = frozenset(name for name, kind in TABLES.items() if kind.optional)


def _turns_by_length(_: MiningPlan, config: object) -> bool:
    said = getattr(config, "rope_parameters", None) or {}
    kinds = {str(each.get("rope_type")) for each in (said, *said.values()) if isinstance(each, dict)}
    return bool(kinds & {"longrope", "dynamic"})


def _biased_twice(_: MiningPlan, config: object) -> bool:
    return getattr(config, "model_type", "") == "falcon" and bool(getattr(config, "alibi", False))


def _has_branches(_: MiningPlan, config: object) -> bool:
    return "gemma4" in str(getattr(config, "model_type", ""))


CHANGES: tuple[tuple[int, frozenset[str], str, Callable[[MiningPlan, object], bool]], ...] = (
    (8, _OPTIONAL, "positions depended on the longest sentence of a batch", _turns_by_length),
    (8, frozenset({"attention"}), "eager attention added its bias twice", _biased_twice),
    (8, frozenset(LENS_TABLES), "moments of large entries were sums of rounding errors", lambda *_: True),
    (8, frozenset({"memorised"}), "padding counted as text", lambda plan, _: plan.ids_field is not None),
    (9, frozenset({"readings"}), "values of branches skipped their norm", _has_branches),
    (10, frozenset({"similar_words"}), "words with vowel signs were left out", lambda *_: True),
)
"""Rules, the tables that they changed, why, and whether they did so for a plan and configuration."""


def check_rules(directory: Path, plan: MiningPlan, model: LanguageModel, tables: Sequence[str]) -> None:
    """Raises PlanDiffers if rules later than the plan's changed one of the tables."""
    config = getattr(model.anatomy.model, "config", None)
    for rules, changed, why, touches in CHANGES:
        if plan.rules < rules and (told := changed.intersection(tables)) and touches(plan, config):
            raise PlanDiffers(
                f"{directory} was mined by rules {plan.rules}, and rules {rules} changed {', '.join(sorted(told))}"
                f" ({why}); mine it again, or use the version that mined it"
            )
