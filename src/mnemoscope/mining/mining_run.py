"""What every stage after the text works on. A stage reads what earlier stages wrote into the folder, so any process can
do any unit.
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
from mnemoscope.foundation.files import read_object, write_json
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.steps import RunContext, missing
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.mining.text.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel

Pass = TypeVar("Pass")


@dataclass
class MiningRun:
    """`states` are files that together count every batch of the text once. `copy` is the tokenized text, needed for its
    tables only; a merge has the folders of its `parts` instead. Passes without layers are cut into `pieces`. States are
    `mixed` if devices of different names may have computed them. An atlas that is extended has neither states nor text;
    `texts` are those of its texts that have moved.
    """

    context: RunContext
    model: LanguageModel
    plan: MiningPlan
    states: Sequence[Path] = ()
    copy: TokenizedCorpus | None = None
    parts: Sequence[Path] = ()
    pieces: int = 1
    mixed: bool = False
    texts: Mapping[str, str] = field(default_factory=dict)
    _kept: Any = field(default=None, init=False)

    @property
    def directory(self) -> Path:
        return self.context.directory

    @property
    def provenance(self) -> Provenance:
        return Provenance(self.plan.model_fingerprint, str(self.plan.corpus_fingerprint), self.plan.hash())

    @cached_property
    def sentences(self) -> NamedSentences:
        """Needs the table `sentences`."""
        return NamedSentences(self.directory)

    def keep(self, kind: type[Pass], make: Callable[[], Pass]) -> Pass:
        """The kept object of this class, made if it is another; one is kept at a time, to free memory."""
        if not isinstance(self._kept, kind):
            self._kept = None
            self._kept = make()
        kept: Pass = self._kept
        return kept

    def path(self, name: str, layer: int | None = None) -> Path:
        return self.directory / TABLES[name].path(layer)

    def is_made(self, name: str, layer: int | None = None) -> bool:
        """Whether the table is there, of this model, text and plan."""
        try:
            return schema_error(name, pq.read_schema(self.path(name, layer)), self.provenance) is None
        except (OSError, pa.ArrowException):
            return False

    def write(self, name: str, columns: Mapping[str, Any], layer: int | None = None) -> None:
        """Memories are counted through their layers."""
        stored = with_experts(columns, self.model.numberings, layer)
        write_table(self.path(name, layer), stored, name=name, provenance=self.provenance)

    def read(self, name: str, columns: Iterable[str], layer: int) -> pl.DataFrame:
        names, numberings = [*columns], self.model.numberings
        stored = pl.read_parquet(self.path(name, layer), columns=with_names(names) if numberings else names, glob=False)
        return counted_through(stored, numberings, layer)

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        """Saves facts for later stages and the manifest."""
        write_json(_facts_path(self.context.work, stage), {**facts, "plan": self.plan.hash()})

    def layer_state(self, layer: int) -> MiningState:
        state = self._empty_state(layer)
        path = self.states[0] if len(self.states) == 1 else self._merged_path(layer)
        state.load(path, plan=self.plan.hash())
        return state

    def merge_layer(self, layer: int) -> None:
        """Merges one layer of all states into a file."""
        if len(self.states) > 1:
            whole = self._empty_state(layer)
            for path in self.states:
                whole.absorb(path, plan=self.plan.hash(), mixed=self.mixed)
            whole.save(self._merged_path(layer), plan=self.plan.hash())

    def _empty_state(self, layer: int) -> MiningState:
        shape = StateShape.of(self.model, keep=self.plan.triggers, layers=[layer], random=self.plan.random_seed)
        return MiningState(shape)

    def _merged_path(self, layer: int) -> Path:
        return self.context.work / f"merged-{layer:03d}.safetensors"


def columns_of(rows: pa.Table) -> dict[str, Any]:
    return dict(zip(rows.column_names, rows.columns, strict=True))


def read_note(work: Path, stage: str, plan: MiningPlan) -> dict[str, Any]:
    """The facts that a stage noted."""
    path = _facts_path(work, stage)
    facts = read_object(path)
    if facts.pop("plan", None) != plan.hash():
        raise missing(f"the record of the stage {stage}", path)
    return facts


def _facts_path(work: Path, stage: str) -> Path:
    return work / f"{stage.replace(' ', '-')}.json"
