"""Parts of one plan -> one atlas, every table byte-identical to that of a single run.

A part carries the accumulators' state; states merge exactly, and what needs all triggers runs here with the plan's
model. Parts of different plans, a missing and a repeated one are refused by name. A merge that was stopped goes on from
the values, removals and predictions that it had saved.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from mnemoscope.atlas import verify
from mnemoscope.atlas.folder import clear, occupancy, remove_work
from mnemoscope.atlas.lock import locked
from mnemoscope.atlas.manifest import STATE, WORK, begin, read_manifest, seal, unfinished_plan
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import copy_file, make_folder, storing, write_sentences
from mnemoscope.errors import AtlasDamaged, AtlasExists, Interrupted, OptionError, PartsDiffer, PlanDiffers
from mnemoscope.mining.plan import MiningPlan, all_versions, library_versions
from mnemoscope.mining.prefixes import Prefixes
from mnemoscope.mining.run import CHECKPOINT, PREFIXES
from mnemoscope.mining.state import MiningState, Shape
from mnemoscope.mining.writing import (
    add_patterns,
    manifest_of,
    provenance_of,
    write_mined_tables,
    write_question_tables,
    write_run_record,
    write_value_tables,
)
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.progress import Progress, ignore_progress

_SHARED = ("vocabulary", "tokens", "background")


def merge(
    out: str | os.PathLike[str],
    parts: Sequence[str | os.PathLike[str]],
    *,
    model: LanguageModel | str | None = None,
    dict: str | os.PathLike[str] | None = None,
    accept_versions: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """The folder of the atlas that `parts` make together; `model` if the plan's model has moved.

    `dict` is as for `load_model`, `accept_versions` as for `mine`. Goes on if it was interrupted.

    Raises PartsDiffer (different plans, a missing or repeated part, another model or library), AtlasDamaged,
    AtlasExists, PlanDiffers (`out` was begun with another plan; `force` replaces what it holds), Interrupted.
    """
    say = progress or ignore_progress
    directory = Path(out)
    folders = [Path(part) for part in parts]
    manifests = _complete(folders)
    if directory.resolve() in {folder.resolve() for folder in folders}:
        raise OptionError(f"{directory} is one of the parts; choose another folder for the merged atlas")
    _check_folder(directory, force=force)
    for folder in folders:
        if problems := verify(folder):
            raise AtlasDamaged(f"part {folder} is damaged: {problems[0]}; mine that part again")
    plan = MiningPlan.from_document(manifests[0]["plan"], folders[0])
    loaded = _plans_model(plan, model, None if dict is None else Path(dict), accept_versions=accept_versions)
    with locked(directory):
        try:
            return _merge_in(directory, folders, manifests, plan, loaded, force=force, say=say)
        except KeyboardInterrupt:
            raise Interrupted("stopped; what was saved stays, run the same command again to go on") from None


def _merge_in(
    directory: Path,
    folders: list[Path],
    manifests: list[dict[str, Any]],
    plan: MiningPlan,
    model: LanguageModel,
    *,
    force: bool,
    say: Progress,
) -> Path:
    """Merges checked parts inside the locked folder, going on where an earlier merge of this plan was stopped."""
    _check_folder(directory, force=force)  # again, now that nobody else can write
    begun = unfinished_plan(directory)
    versions = all_versions([*([] if begun is None else [begun]), *manifests])
    if begun is None or not _goes_on(begun, plan, directory, force=force):
        versions = all_versions(manifests)
        if occupancy(directory) != "free":
            clear(directory)
    begin(directory, plan={"plan": plan.document(), "part": None, "versions": versions})
    state = _merged(folders, plan, model, say)
    for name in _SHARED:
        copy_file(folders[0] / TABLES[name].path(), directory / TABLES[name].path())
    prefixes = Prefixes.load(folders[0] / STATE / PREFIXES)
    background = pq.read_table(folders[0] / TABLES["background"].path())["sentence"].to_numpy()
    named = np.union1d(state.named_sentences().numpy(), np.concatenate([background, prefixes.sentence]))
    make_folder(directory / "sentences")
    write_sentences(directory, _sentences(folders, named), provenance=provenance_of(plan))
    write_mined_tables(directory, state, plan, say)
    write_value_tables(directory, state, model, plan, say)
    questions = write_question_tables(
        directory, model, plan, prefixes,
        work=directory / WORK, checkpoint_every=60.0, progress=say, mark=lambda stage: None,
    )  # fmt: skip
    write_run_record(directory, {})
    counts = manifests[0]["corpus"]["counts"]
    seal(directory, manifest_of(model, plan, counts, state, versions, questions=questions))
    remove_work(directory)
    add_patterns(directory, say)
    return directory


def _check_folder(directory: Path, *, force: bool) -> None:
    """Raises AtlasExists unless the folder is free, an unfinished atlas, or may be replaced."""
    with storing(directory):
        found = occupancy(directory)
    if found == "foreign":
        raise AtlasExists(f"{directory} holds something that is not an atlas; choose another folder")
    if found == "finished" and not force:
        raise AtlasExists(f"{directory} is finished already; choose another folder, or --force to merge into it again")


def _goes_on(begun: dict[str, Any], plan: MiningPlan, directory: Path, *, force: bool) -> bool:
    """Whether what was begun in the folder is this merge; with `force` another plan is replaced, else PlanDiffers."""
    try:
        plan.check_same(begun["plan"], directory)
        if begun["part"] is not None:
            raise PlanDiffers(f"{directory} was begun as part {begun['part']}; choose another folder, or --force")
        return True
    except PlanDiffers:
        if force:
            return False
        raise


def _complete(folders: list[Path]) -> list[dict[str, Any]]:
    """The manifests of the parts, ordered as given; raises PartsDiffer unless they are all parts of one plan."""
    if not folders:
        raise OptionError("merge needs the folders of the parts")
    manifests = [read_manifest(folder) for folder in folders]
    seen: dict[int, Path] = {}
    for folder, manifest in zip(folders, manifests, strict=True):
        if "part" not in manifest:
            raise PartsDiffer(f"{folder} is a whole atlas, not a part; parts are made with `mine --part I/N`")
        first = manifests[0]
        if manifest["plan_hash"] != first["plan_hash"]:
            one, other = first["plan"], manifest["plan"]
            differing = [name.replace("_", " ") for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
            raise PartsDiffer(f"{folder} is part of another plan than {folders[0]} ({', '.join(differing)} differ)")
        index, of = manifest["part"]["index"], manifest["part"]["of"]
        if of != first["part"]["of"]:
            raise PartsDiffer(f"{folder} is one of {of} parts, {folders[0]} one of {first['part']['of']}")
        if index in seen:
            raise PartsDiffer(f"{folder} repeats part {index}/{of}, which is {seen[index]}")
        seen[index] = folder
    of = manifests[0]["part"]["of"]
    if missing := [f"{i}/{of}" for i in range(1, of + 1) if i not in seen]:
        raise PartsDiffer(
            f"part {', '.join(missing)} is missing; mine it with the same options and --part {missing[0]}"
        )
    for folder, manifest in zip(folders, manifests, strict=True):
        for name in _SHARED:
            path = TABLES[name].path()
            if manifest["files"][path] != manifests[0]["files"][path]:
                raise PartsDiffer(f"{folder} and {folders[0]} disagree on {path}, which parts of one plan share")
    return manifests


def _plans_model(
    plan: MiningPlan, model: LanguageModel | str | None, dictionary: Path | None, *, accept_versions: bool
) -> LanguageModel:
    here = library_versions()
    if not accept_versions and (others := [name for name in here if here[name] != plan.versions[name]]):
        said = ", ".join(f"{name} {plan.versions[name]} (here {here[name]})" for name in others)
        raise PartsDiffer(f"the parts were mined with {said}; install that, or --accept-versions to merge with these")
    torch.set_num_threads(plan.threads)
    if not isinstance(model, LanguageModel):
        name = plan.model if model is None else model
        model = load_model(name, dict=dictionary, revision=plan.revision, dtype=plan.dtype, device=plan.device)
    if model.fingerprint != plan.model_fingerprint:
        raise PartsDiffer(
            f"{model.spec} is not the model that the parts were mined with ({plan.model}); give it as --model"
        )
    if str(model.dtype) != f"torch.{plan.dtype}":
        raise PartsDiffer(
            f"the parts were mined in {plan.dtype}, {model.spec} is loaded in {model.dtype}; load it anew"
        )
    return model


def _merged(folders: list[Path], plan: MiningPlan, model: LanguageModel, say: Progress) -> MiningState:
    shape = Shape({layer: model.sizes.memories[layer] for layer in plan.layers}, plan.triggers, model.signs)
    whole = MiningState(shape)
    for done, folder in enumerate(folders):
        say("merging", done, len(folders), "parts")
        one = MiningState(shape)
        one.load(folder / STATE / CHECKPOINT, plan=plan.hash())
        whole.merge(one)
    return whole


def _sentences(folders: list[Path], named: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[pa.Table]:
    """The named sentences of all parts, each once, ascending, in pieces."""
    wanted = pa.array(named)
    tables = [
        pq.read_table(path).filter(pc.is_in(pc.field("sentence"), wanted))
        for folder in folders
        for path in sorted((folder / "sentences").glob("part-*.parquet"))
    ]
    rows = pa.concat_tables(tables)
    ids, firsts = np.unique(rows["sentence"].to_numpy(), return_index=True)
    if len(ids) != len(named):
        raise PartsDiffer(f"the parts lack {len(named) - len(ids)} sentences that their triggers name; mine them again")
    for start in range(0, len(firsts), 8192):
        yield rows.take(pa.array(firsts[start : start + 8192])).combine_chunks()
