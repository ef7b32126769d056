"""What later rules changed, table by table: which optional tables an atlas of older rules can still be given.

A table that they did not touch is made with the atlas's own plan, and is what the older version would have made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mnemoscope.atlas.schema import LENS_TABLES, TABLES
from mnemoscope.errors import PlanDiffers
from mnemoscope.mining.plan import MiningPlan
from mnemoscope.models import LanguageModel

_ALL = frozenset(name for name, kind in TABLES.items() if kind.optional) | frozenset(LENS_TABLES)


@dataclass(frozen=True)
class Change:
    """What a number of rules changed: of which atlases (`touches`) which tables, and why."""

    rules: int
    tables: frozenset[str]
    touches: Callable[[MiningPlan, LanguageModel], bool]
    why: str


def _turns_by_length(plan: MiningPlan, model: LanguageModel) -> bool:
    return not {"longrope", "dynamic", "su"}.isdisjoint(_rotations(model))


def _rotations(model: LanguageModel) -> list[str]:
    """The kinds of rotary positions that the configuration names, of every kind of layer."""
    said = getattr(getattr(model.anatomy.model, "config", None), "rope_parameters", None) or {}
    return [str(each.get("rope_type")) for each in (said, *said.values()) if isinstance(each, dict)]


def _adds_a_bias_twice(plan: MiningPlan, model: LanguageModel) -> bool:
    config = getattr(model.anatomy.model, "config", None)
    return getattr(config, "model_type", "") == "falcon" and bool(getattr(config, "alibi", False))


CHANGES = (
    Change(8, _ALL, _turns_by_length, "positions depended on the longest sentence of a batch"),
    Change(8, frozenset({"attention"}), _adds_a_bias_twice, "eager attention added its bias twice"),
    Change(8, frozenset({"memorised"}), lambda plan, _: plan.ids_field is not None, "padding counted as text"),
)


def check_rules(directory: Path, plan: MiningPlan, model: LanguageModel, tables: Sequence[str]) -> None:
    """Raises PlanDiffers where rules later than those of the atlas's plan changed one of the tables."""
    for change in CHANGES:
        if plan.rules < change.rules and change.touches(plan, model) and (told := change.tables.intersection(tables)):
            raise PlanDiffers(
                f"{directory} was mined by rules {plan.rules}, and rules {change.rules} changed"
                f" {', '.join(sorted(told))} ({change.why}); mine it again, or use the version that mined it"
            )
