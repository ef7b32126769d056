"""What every stage after the text works on. A stage reads what earlier stages wrote into the folder, so any process can
do any unit.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa

from mnemoscope.atlas.experts import counted_through, with_experts, with_names
from mnemoscope.atlas.schema import TABLES, Provenance
from mnemoscope.atlas.store import write_table
from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.foundation.files import read_object, write_bytes, write_json
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.record import RunRecord
from mnemoscope.mining.steps import RunContext, missing
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.mining.text.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel

Pass = TypeVar("Pass")


@dataclass
class MiningRun:
    """`states` are files that together count every batch of the text once. `copy` is the tokenized text, needed for its
    tables only; a merge has the folders of its `parts` instead. States are `mixed` if devices of different names may
    have computed them. An atlas that is extended has neither states nor text; `texts` are those of its texts that have
    moved. `name` is the process's, and `of` what else than the plan decides what is made.
    """

    context: RunContext
    model: LanguageModel
    plan: MiningPlan
    states: Sequence[Path] = ()
    copy: TokenizedCorpus | None = None
    parts: Sequence[Path] = ()
    mixed: bool = False
    texts: Mapping[str, str] = field(default_factory=dict)
    name: str = "run"
    of: str = ""
    made: list[Path] = field(default_factory=list, init=False)
    """The files that the present unit has written."""
    _kept: tuple[Hashable, Any] = field(default=(None, None), init=False)

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

    @cached_property
    def record(self) -> RunRecord:
        return RunRecord(self.directory, self.plan.hash() + self.of, name=self.name)

    def keep(self, key: Hashable, make: Callable[[], Pass]) -> Pass:
        """The kept object of this key, made if it is another; one is kept at a time, to free memory."""
        if self._kept[0] != key:
            self._kept = (None, None)
            self._kept = key, make()
        kept: Pass = self._kept[1]
        return kept

    def path(self, name: str, layer: int | None = None) -> Path:
        return self.directory / TABLES[name].path(layer)

    def write(self, name: str, columns: Mapping[str, Any], layer: int | None = None) -> None:
        """Memories are counted through their layers."""
        stored, path = with_experts(columns, self.model.numberings, layer), self.path(name, layer)
        write_table(path, stored, name=name, provenance=self.provenance)
        self.made.append(path)

    def save(self, name: str, data: bytes) -> None:
        """Writes a file into the work folder."""
        write_bytes(self.context.work / name, data)
        self.made.append(self.context.work / name)

    def read(self, name: str, columns: Iterable[str], layer: int) -> pl.DataFrame:
        names, numberings = [*columns], self.model.numberings
        stored = pl.read_parquet(self.path(name, layer), columns=with_names(names) if numberings else names, glob=False)
        return counted_through(stored, numberings, layer)

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        """Saves facts for later stages and the manifest."""
        path = _facts_path(self.context.work, stage)
        write_json(path, facts)
        self.made.append(path)

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
            self.save(self._merged_path(layer).name, whole.serialise(plan=self.plan.hash()))

    def _empty_state(self, layer: int) -> MiningState:
        shape = StateShape.of(self.model, keep=self.plan.triggers, layers=[layer], random=self.plan.random_seed)
        return MiningState(shape)

    def _merged_path(self, layer: int) -> Path:
        return self.context.work / f"merged-{layer:03d}.safetensors"


def columns_of(rows: pa.Table) -> dict[str, Any]:
    return dict(zip(rows.column_names, rows.columns, strict=True))


def read_note(work: Path, stage: str) -> dict[str, Any]:
    """The facts that a stage noted."""
    path = _facts_path(work, stage)
    if not path.is_file():
        raise missing(f"the note of the stage {stage}", path)
    return read_object(path)


def _facts_path(work: Path, stage: str) -> Path:
    return work / f"{stage.replace(' ', '-')}.json"
