"""What follows the pass over the text, task by task in any order and by many: every byte is that of one process."""

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mining.conftest import byte_tokenizer, tables_of, tiny_model
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.atlas.folder import clear
from mnemoscope.atlas.manifest import MANIFEST, WORK
from mnemoscope.corpus import open_source
from mnemoscope.errors import AtlasDamaged, AtlasUnfinished, MiningError
from mnemoscope.foundation.options.fleet_options import ALONE
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.mining import mine, steps
from mnemoscope.mining.passes.vectors.values import ValuePass
from mnemoscope.mining.stages import STAGES as EVERY_STAGE
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.mining.text_pass import TextWork, collect_states
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.runs.driver import Driver
from mnemoscope.runs.run import Run
from mnemoscope.runs.seal import seal_run
from mnemoscope.runs.workers.leases import TEXT, publish
from mnemoscope.runs.workers.worker import Worker
from models.checkpoints import KINDS, args_of, weights_of, write
from models.expert_models import build_mixture

STAGES = {
    stage.name: stage
    for stage in EVERY_STAGE
    if stage.mined != "never" and stage.unit != "text" and not stage.name.startswith("own coefficients")
}
"""Those of causal models."""
NAMES = tuple(STAGES)
AFTER_TABLES = NAMES[3:]
OPTIONS: dict[str, Any] = {"split": "line", "triggers": 5, "batch_tokens": 80, "prefixes": 30, "removals": 3}
OPTIONS |= {"token_activations": True, "random": True}


def mixture() -> LanguageModel:
    tokenizer = byte_tokenizer(bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    return load_model(build_mixture("deepseek_v2"), tokenizer=tokenizer)


class Begun:
    """A folder in which the text was settled and read, and nothing else was made."""

    def __init__(self, model: LanguageModel, text: Path, folder: Path, **options: Any) -> None:
        self.model, self.folder = model, folder
        chosen = MiningOptions(**{**OPTIONS, **options})
        source = open_source(str(text), text_field="text", ids_field=None, split="line")
        self.run = Run.open(folder, chosen, model, {"corpus": source}, fleet=ALONE)
        publish(folder, TEXT)
        TextWork(self.worker()).run()
        collect_states(self.run)
        # A state that counts nothing, as of a worker that came late: so there is something to merge.
        plan, empty = self.run.plan, folder / WORK / "closed/late/state.safetensors"
        shape = StateShape.of(model, keep=plan.triggers, layers=plan.layers, random=plan.random_seed)
        MiningState(shape).save(empty, plan=plan.hash())
        self.run.note("states", {"paths": [str(path) for path in (*self.run.states, empty)]})

    def worker(self) -> Worker:
        return Worker(self.run, self.model)

    def do(self, stages: Sequence[str], *, seed: int = 0) -> None:
        """Every task at least once, some twice, in chance order within their stage, by three workers in turn."""
        chance, workers = random.Random(seed), [self.worker() for _ in range(3)]
        for stage in stages:
            units = list(range(STAGES[stage].count(workers[0])))
            units += chance.choices(units or [0], k=2 if units else 0)
            chance.shuffle(units)
            for number, unit in enumerate(units):
                workers[number % 3].do(STAGES[stage], unit)

    def seal(self, *, keep_work: bool = False) -> None:
        """What a driver does, without the model."""
        seal_run(self.run, keep_work=keep_work)


def assert_same_atlas(one: Path, other: Path) -> None:
    tables, others = tables_of(one), tables_of(other)
    assert tables.keys() == others.keys()
    assert [name for name in tables if tables[name] != others[name]] == []
    for name in (MANIFEST, "manifest.sha256", "analyses/manifest.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.fixture(scope="module")
def dense() -> LanguageModel:
    return tiny_model("gpt2")


@pytest.fixture
def run(dense: LanguageModel, text: Path, tmp_path: Path) -> Begun:
    return Begun(dense, text, tmp_path / "run")


@pytest.mark.fast(0, full=3)
@pytest.mark.parametrize(
    ("make", "tokens", "options"),
    [
        (lambda _: tiny_model("gpt2"), 10**6, {"per_sentence": "all"}),
        (lambda _: tiny_model("gpt2-relu"), 300, {"prefixes": 0, "layers": "1"}),
        (lambda _: tiny_model("llama"), 300, {}),
        (lambda _: tiny_model("llama"), 1, {"removals": 0}),
        (lambda _: mixture(), 200, {}),
        (
            lambda folder: load_model(write(folder / "model", args_of(KINDS["tied"]), weights_of(KINDS["tied"]))),
            400,
            {},
        ),
    ],
    ids=["signed", "relu, no prefixes, one layer", "gated", "a piece for each step", "experts", "adaptive softmax"],
)
def test_tasks_in_any_order_make_the_bytes_of_one_run(
    make: Callable[[Path], LanguageModel],
    tokens: int,
    options: dict[str, Any],
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where pieces are of another size."""
    model = make(tmp_path)
    whole = mine(model, text, out=tmp_path / "whole", **{**OPTIONS, **options})
    monkeypatch.setattr(steps, "PIECE_TOKENS", tokens)
    one = Begun(model, text, tmp_path / "run", **options)
    one.do(NAMES, seed=tokens)
    one.seal()
    assert_same_atlas(one.folder, whole)
    assert verify(one.folder) == []
    assert not (one.folder / WORK).exists()
    if "prefixes" not in options:
        assert open_atlas(whole).table("predictions").height > 0


@pytest.mark.full
def test_who_wakes_up_in_a_stage_that_is_over_changes_nothing(run: Begun) -> None:
    late = {stage: run.worker() for stage in NAMES}
    for stage in NAMES:
        for number in range(STAGES[stage].count(late[stage])):
            late[stage].do(STAGES[stage], number)
    made = tables_of(run.folder)
    for stage in NAMES:
        for worker in (late[stage], run.worker()):
            worker.do(STAGES[stage], 0)
        assert tables_of(run.folder) == made, stage
    (run.folder / "values/layer-000.parquet").unlink()
    run.worker().do(STAGES["values"], 0)
    assert tables_of(run.folder) == made


@pytest.mark.full
def test_who_was_held_up_in_the_values_changes_no_sealed_atlas(run: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker is frozen while it makes values; all others come to the end, and then it goes on."""
    compute, frozen = ValuePass.columns, run.worker()

    def wait(*what: Any, **options: Any) -> dict[str, Any]:
        monkeypatch.setattr(ValuePass, "columns", compute)
        found = compute(*what, **options)
        run.do(AFTER_TABLES)
        run.seal()
        return found

    run.do(NAMES[:5])
    monkeypatch.setattr(ValuePass, "columns", wait)
    frozen.do(STAGES["values"], 0)
    assert verify(run.folder) == []
    assert not (run.folder / WORK).exists()


@pytest.mark.full
def test_what_another_plan_left_is_not_believed(dense: LanguageModel, text: Path, tmp_path: Path) -> None:
    old, new = Begun(dense, text, tmp_path / "run", seed=1), Begun(dense, text, tmp_path / "new")
    Driver(old.run, worker=old.worker()).drive(STAGES.values())
    without = shutil.ignore_patterns("text", "closed", "states.json", "unfinished.json")
    shutil.copytree(old.folder, new.folder, ignore=without, dirs_exist_ok=True)
    shutil.rmtree(new.folder / WORK / "leases")
    Driver(new.run, worker=new.worker()).drive(STAGES.values())
    new.seal()
    assert_same_atlas(new.folder, mine(dense, text, out=tmp_path / "whole", **OPTIONS))
    fresh = Begun(dense, text, tmp_path / "fresh")
    fresh.run.note("states", {"paths": [str(path) for path in old.run.states]})
    with pytest.raises(AtlasDamaged, match="not a saved state of this plan"):
        fresh.worker().do(STAGES["merging"], 0)


@pytest.mark.full
def test_what_is_not_made_yet_is_an_error(run: Begun) -> None:
    with pytest.raises(MiningError, match=r"stage text .*text\.json"):
        run.seal()
    run.do(NAMES[:-2])
    with pytest.raises(AtlasUnfinished, match=r"pattern-words\.json"):
        run.worker().do(STAGES["patterns"], 1)
    run.worker().do(STAGES["pattern words"], 0)
    run.worker().do(STAGES["patterns"], 1)
    with pytest.raises(AtlasUnfinished, match=r"patterns of layer 0 are missing"):
        run.seal()
    run.worker().do(STAGES["patterns"], 0)
    run.seal(keep_work=True)
    assert verify(run.folder) == []
    assert [path.name for path in (run.folder / WORK).iterdir()] == ["text"]
    clear(run.folder)
    assert not (run.folder / WORK).exists()


def test_only_a_layers_own_tensors_are_read(run: Begun) -> None:
    whole = MiningState(StateShape.of(run.model, keep=5))
    (state, _), plan = run.run.states, run.run.plan.hash()
    whole.load(state, plan=plan)
    one = MiningState(StateShape.of(run.model, keep=5, layers=[1]))
    one.load(state, plan=plan)
    for name, tensor in one.triggers[1].state().items():
        assert torch.equal(tensor, whole.triggers[1].state()[name])
    one.save(run.folder / WORK / "one.safetensors", plan=plan)
    with pytest.raises(AtlasDamaged, match="not a saved state of this plan"):
        whole.load(run.folder / WORK / "one.safetensors", plan=plan)
    with pytest.raises(AtlasDamaged, match="not a saved state of this plan"):
        one.load(state, plan=replace(run.run.plan, seed=5).hash())
