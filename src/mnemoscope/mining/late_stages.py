"""What follows the pass over the text, cut into tasks for many workers: stage by stage, in a stage in any order.

A task writes whole files and may be done twice, also by two workers at the same time, and also late: whoever was held
up in a stage that has long been over writes what lies there already. So no task changes a file that another has made:
the values without what they are at work lie in the work folder, and a later stage makes the finished table of them.
The tables are those of one process, byte for byte, if the plan's number of threads is used.

The driver, which has no model, asks `task_count` how many tasks there are, and ends with `seal_run`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.folder import remove_work
from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.errors import MiningError
from mnemoscope.foundation.files import read_object, write_json
from mnemoscope.mining.passes.attention import join_attention, run_attention_piece
from mnemoscope.mining.passes.key_triggers import KeyTriggers
from mnemoscope.mining.passes.neighbours import NeighbourPass
from mnemoscope.mining.passes.predictions import PREFIXES, PredictionPass, Prefixes
from mnemoscope.mining.passes.removals import RemovalPass
from mnemoscope.mining.passes.roles import RolePass, write_layer_roles
from mnemoscope.mining.passes.values import ValuePass
from mnemoscope.mining.passes.writing import (
    is_made,
    neighbour_pass,
    write_mined_layer,
    write_neighbours,
    write_predictions,
    write_removals,
    write_routing,
    write_texts,
    write_values,
    write_working_values,
)
from mnemoscope.mining.pieces import join_pieces, run_piece
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.sealing import add_patterns, model_facts, seal_atlas, unsealed_atlas
from mnemoscope.mining.steps import RunContext, read_saved
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.mining.text.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel
from mnemoscope.models.readout.read_directions import input_embeddings
from mnemoscope.patterns import PatternFinder, open_finder, write_layer_patterns, write_words

LATE_STAGES = (
    "merging", "text tables", "tables", "values", "neighbours", "removals", "predictions", "questions",
    "values at work", "roles", "attention", "attention table", "pattern words", "patterns",
)  # fmt: skip
"""In order; a stage begins when all tasks of the one before are done. After the last the atlas is sealed."""
_ONE_TASK = ("text tables", "questions", "attention table", "pattern words")
_IN_PIECES = ("removals", "predictions", "attention")
_FACTS = "facts.json"


def task_count(stage: str, layers: int, pieces: int) -> int:
    """How many tasks a stage has, of a plan with so many mined layers; `pieces` those of what is asked."""
    if stage in _ONE_TASK:
        return 1
    return pieces if stage in _IN_PIECES else layers


@dataclass(frozen=True)
class WorkersFacts:
    """What the manifest says that is known when all was asked, as the stage `questions` leaves it."""

    halved: list[int]
    """The batches of the text that were computed in halves."""
    questions: dict[str, Any]
    equality: dict[str, Any]
    """What the manifest says of devices of different kinds, as of `MiningState.equality`."""

    @classmethod
    def read(cls, work: Path, plan: MiningPlan) -> Self:
        """What lies in the work folder; raises MiningError where there is nothing of this plan."""
        said = read_object(work / _FACTS)
        if said.pop("plan", None) != plan.hash():
            raise _missing("what was asked", work / _FACTS)
        return cls(**said)

    def save(self, work: Path, plan: MiningPlan) -> None:
        """Writes it to the work folder; raises StoreFailed."""
        write_json(work / _FACTS, {**vars(self), "plan": plan.hash()})


def seal_run(
    context: RunContext,
    plan: MiningPlan,
    facts: Mapping[str, Any],
    *,
    counts: Mapping[str, Any],
    versions: Sequence[Mapping[str, str]],
    keep_work: bool = False,
) -> None:
    """Makes an atlas of the folder in which all tasks of all stages were done; needs no model.

    `facts` are those of the model, as of `model_facts`, `counts` those of the text, `versions` as of `all_versions`.
    Raises MiningError where the questions were not asked, AtlasUnfinished where a layer's patterns are missing (the
    atlas is sealed then), Interrupted, StoreFailed.
    """
    said = WorkersFacts.read(context.work, plan)
    seal_atlas(
        context, facts, plan, said.halved, counts=counts, versions=versions, questions=said.questions,
        equality=said.equality, keep_work=True,
    )  # fmt: skip
    add_patterns(context.directory, context.progress, found=True)
    if not keep_work:
        remove_work(context.directory)


def _missing(what: str, path: Path) -> MiningError:
    return MiningError(f"{what} is missing, or is of another run ({path}); run the same command again, which makes it")


class LateStages:
    """The tasks of one run, of which this process does some.

    `states` are the files of all workers' states, which are `mixed` where they may be of devices of different names.
    `copy` is needed for the text tables only. `pieces` are those into which removals and predictions are cut.
    """

    def __init__(
        self,
        context: RunContext,
        model: LanguageModel,
        copy: TokenizedCorpus | None,
        plan: MiningPlan,
        states: Sequence[Path],
        *,
        pieces: int,
        mixed: bool = False,
    ) -> None:
        self._context, self._model, self._copy, self._plan = context, model, copy, plan
        self._directory, self._pieces = context.directory, pieces
        self._states, self._mixed = states, mixed
        self._asked: ValuePass | NeighbourPass | RolePass | RemovalPass | PredictionPass | None = None
        self._run: dict[str, Callable[[int], None]] = {
            "merging": self._merge,
            "text tables": lambda _: self._write_text_tables(),
            "tables": self._write_tables,
            "values": self._write_values,
            "neighbours": lambda layer: write_neighbours(self._directory, plan, model, self._neighbours(), layer),
            "removals": lambda piece: run_piece(context, self._removals().steps, piece, of=pieces),
            "predictions": lambda piece: run_piece(context, self._predictions().steps, piece, of=pieces),
            "questions": lambda _: self._write_questions(),
            "values at work": self._write_values_at_work,
            "roles": lambda layer: write_layer_roles(context, self._roles(), plan, layer),
            "attention": lambda piece: run_attention_piece(context, model, plan, piece, of=pieces),
            "attention table": lambda _: join_attention(context, model, plan, of=pieces),
            "pattern words": lambda _: write_words(self._atlas, progress=context.progress),
            "patterns": self._write_patterns,
        }

    def count(self, stage: str) -> int:
        """How many tasks a stage has."""
        return task_count(stage, len(self._plan.layers), self._pieces)

    def run(self, stage: str, number: int) -> None:
        """Does one task (0-based) of a stage; all tasks of the stages before must be done.

        Raises MiningError where they are not, AtlasDamaged for a state of another plan, NotFinite, StoreFailed.
        """
        if not 0 <= number < self.count(stage):
            raise MiningError(f"stage {stage} has no task {number}, only {self.count(stage)}")
        single = stage in (*_ONE_TASK, *_IN_PIECES)
        self._run[stage](number if single else self._plan.layers[number])
        self._context.heap.trim()

    def _merge(self, layer: int) -> None:
        """One layer of all states together, as a file: every byte is read once, of one state at a time."""
        state, plan = self._empty_state(layer), self._plan.hash()
        for path in self._states:
            state.absorb(path, plan=plan, mixed=self._mixed)
        state.save(self._merged_path(layer), plan=plan)

    def _empty_state(self, layer: int) -> MiningState:
        return MiningState(StateShape.of(self._model, keep=self._plan.triggers, layers=[layer]))

    def _merged_path(self, layer: int) -> Path:
        return self._context.work / f"merged-{layer:03d}.safetensors"

    def _layer_state(self, layer: int) -> MiningState:
        """The state of one layer of the whole text."""
        state = self._empty_state(layer)
        state.load(self._merged_path(layer), plan=self._plan.hash())
        return state

    @cached_property
    def _sentences(self) -> NamedSentences:
        return NamedSentences(self._directory)

    def _write_text_tables(self) -> None:
        """Vocabulary, tokens, background, sentences, what was counted of the routers, and the prefixes to ask."""
        if self._copy is None:
            raise MiningError("the text tables are made of the tokenized text, which was not given")
        named, routing = [], []
        for layer in self._plan.layers:
            state = self._layer_state(layer)
            named.append(state.named_sentences().numpy())
            routing += [counted.columns(layer) for counted in state.routing.values()]
        prefixes = write_texts(self._context, self._model, self._copy, self._plan, np.unique(np.concatenate(named)))
        write_routing(self._directory, self._plan, routing)
        prefixes.save(self._context.work / PREFIXES, plan=self._plan.hash())

    def _write_tables(self, layer: int) -> None:
        state, numberings = self._layer_state(layer), self._model.numberings
        write_mined_layer(self._directory, self._plan, state, layer, self._sentences, numberings)

    def _write_values(self, layer: int) -> None:
        path = self._values(layer)
        if not is_made(path, self._plan, "values"):
            state = self._layer_state(layer)
            write_values(path, self._plan, self._value_pass(), state, layer, self._sentences)

    def _values(self, layer: int) -> Path:
        """The values of a layer without what they are at work."""
        return self._context.work / f"values-{layer:03d}.parquet"

    def _value_pass(self) -> ValuePass:
        if not isinstance(self._asked, ValuePass):
            self._asked = ValuePass(self._model)
        return self._asked

    def _neighbours(self) -> NeighbourPass:
        if not isinstance(self._asked, NeighbourPass):
            self._asked = neighbour_pass(self._model, self._plan)
        return self._asked

    def _roles(self) -> RolePass:
        if not isinstance(self._asked, RolePass):
            triggers = KeyTriggers(self._model, self._context.directory, self._plan)
            self._asked = RolePass(self._model, input_embeddings(self._model), triggers)
        return self._asked

    def _removals(self) -> RemovalPass:
        if not isinstance(self._asked, RemovalPass):
            self._asked = None  # the other one's room comes first
            self._asked = RemovalPass(self._directory, self._model, self._plan, self._sentences)
        return self._asked

    def _predictions(self) -> PredictionPass:
        if not isinstance(self._asked, PredictionPass):
            self._asked = None
            found = read_saved(self._context.work / PREFIXES, self._plan.hash())
            if found is None:
                raise _missing("the list of prefixes", self._context.work / PREFIXES)
            values = {layer: self._made_values(layer) for layer in self._plan.layers}
            self._asked = PredictionPass(self._model, self._plan, Prefixes(**found), self._sentences, values)
        return self._asked

    def _made_values(self, layer: int) -> Path:
        path = self._values(layer)
        if not is_made(path, self._plan, "values"):
            raise _missing(f"the table of layer {layer}'s values", path)
        return path

    def _write_questions(self) -> None:
        """Removals, predictions and prefixes, of the answers of all pieces, and what is to be said of them."""
        halved = {"removals": join_pieces(self._context, self._removals().steps, of=self._pieces)}
        questions = write_removals(self._directory, self._model, self._plan, self._removals())
        halved["predictions"] = join_pieces(self._context, self._predictions().steps, of=self._pieces)
        questions |= write_predictions(self._directory, self._model, self._plan, self._predictions())
        questions["out_of_memory_steps"] = halved
        state = self._layer_state(self._plan.layers[0])
        facts = WorkersFacts(state.halved, questions, state.equality())
        facts.save(self._context.work, self._plan)

    def _write_values_at_work(self, layer: int) -> None:
        scales = WorkersFacts.read(self._context.work, self._plan).questions["value_scales"]
        scale = scales[self._plan.layers.index(layer)]
        source = self._made_values(layer)
        write_working_values(source, self._directory, self._plan, self._value_pass(), layer, scale=scale)

    @cached_property
    def _atlas(self) -> Atlas:
        return unsealed_atlas(self._directory, model_facts(self._model), self._plan)

    @cached_property
    def _finder(self) -> PatternFinder:
        return open_finder(self._atlas)

    def _write_patterns(self, layer: int) -> None:
        write_layer_patterns(self._atlas, layer, self._finder)
