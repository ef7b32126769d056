"""One plan's tables in the making: what every stage after the text is given.

A stage reads what earlier stages wrote into the folder, so any process can do any unit of it. Beside the folder there
are the model and the saved states of the text; `keep` holds the one pass that is at work.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from mnemoscope.atlas.experts import counted_through, with_experts, with_names
from mnemoscope.atlas.schema import TABLES, Provenance, schema_error
from mnemoscope.atlas.store import write_table
from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.errors import MiningError
from mnemoscope.foundation.files import read_object, write_json
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.steps import RunContext
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.mining.text.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel

Pass = TypeVar("Pass")


@dataclass
class MiningRun:
    """What stages work on: `states` are files, which together count every batch of the text once.

    `copy` is the tokenized text, needed for the tables of the text alone; a merge has the folders of its `parts`
    instead. Passes without layers are cut into `pieces`. States are `mixed` where devices of different names may have
    computed them. An atlas that is extended has neither states nor text.
    """

    context: RunContext
    model: LanguageModel
    plan: MiningPlan
    states: Sequence[Path] = ()
    copy: TokenizedCorpus | None = None
    parts: Sequence[Path] = ()
    pieces: int = 1
    mixed: bool = False
    _kept: Any = field(default=None, init=False)

    @property
    def directory(self) -> Path:
        """The folder that becomes the atlas."""
        return self.context.directory

    @cached_property
    def sentences(self) -> NamedSentences:
        """The sentences that tables name; their table must be there."""
        return NamedSentences(self.directory)

    def keep(self, kind: type[Pass], make: Callable[[], Pass]) -> Pass:
        """The pass of this class that is at work, made when another was: its memory is freed before."""
        if not isinstance(self._kept, kind):
            self._kept = None
            self._kept = make()
        kept: Pass = self._kept
        return kept

    def path(self, name: str, layer: int | None = None) -> Path:
        """Where a table lies."""
        return self.directory / TABLES[name].path(layer)

    def is_made(self, name: str, layer: int | None = None) -> bool:
        """Whether a table of this model, text and plan is there."""
        try:
            return schema_error(name, pq.read_schema(self.path(name, layer)), provenance_of(self.plan)) is None
        except (OSError, pa.ArrowException):
            return False

    def write(self, name: str, columns: Mapping[str, Any], layer: int | None = None) -> None:
        """Writes a table, whose memories are counted through their layers; raises StoreFailed."""
        stored = with_experts(columns, self.model.numberings, layer)
        write_table(self.path(name, layer), stored, name=name, provenance=provenance_of(self.plan))

    def read(self, name: str, columns: Iterable[str], layer: int) -> pl.DataFrame:
        """Columns of a layer's table, whose memories are counted through the layer."""
        names, numberings = [*columns], self.model.numberings
        stored = pl.read_parquet(
            self.path(name, layer), columns=with_names(names) if numberings else names, glob=False
        )
        return counted_through(stored, numberings, layer)

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        """Saves what later stages and the manifest say of a stage; raises StoreFailed."""
        write_json(_facts_path(self.context.work, stage), {**facts, "plan": self.plan.hash()})

    def layer_state(self, layer: int) -> MiningState:
        """The state of one layer of the whole text."""
        state = MiningState(StateShape.of(self.model, keep=self.plan.triggers, layers=[layer]))
        path = self.states[0] if len(self.states) == 1 else self._merged_path(layer)
        state.load(path, plan=self.plan.hash())
        return state

    def merge_layer(self, layer: int) -> None:
        """Puts one layer of all states together, as a file: every byte is read once, of one state at a time.

        Raises AtlasDamaged, PartsDiffer, StoreFailed.
        """
        if len(self.states) > 1:
            whole = MiningState(StateShape.of(self.model, keep=self.plan.triggers, layers=[layer]))
            for path in self.states:
                whole.absorb(path, plan=self.plan.hash(), mixed=self.mixed)
            whole.save(self._merged_path(layer), plan=self.plan.hash())

    def _merged_path(self, layer: int) -> Path:
        return self.context.work / f"merged-{layer:03d}.safetensors"


def provenance_of(plan: MiningPlan) -> Provenance:
    """What every table of the plan says about its origin."""
    return Provenance(model=plan.model_fingerprint, corpus=str(plan.corpus_fingerprint), plan=plan.hash())


def columns_of(rows: pa.Table) -> dict[str, Any]:
    """The columns of a table by name."""
    return dict(zip(rows.column_names, rows.columns, strict=True))


def read_note(work: Path, stage: str, plan: MiningPlan) -> dict[str, Any]:
    """What a stage noted in the work folder; raises MiningError where there is nothing of this plan."""
    path = _facts_path(work, stage)
    facts = read_object(path)
    if facts.pop("plan", None) != plan.hash():
        raise MiningError(
            f"what the stage {stage} noted is missing, or is of another run ({path}); run the same command again, "
            "which makes it"
        )
    return facts


def _facts_path(work: Path, stage: str) -> Path:
    return work / f"{stage.replace(' ', '-')}.json"
