"""Merges the parts of one plan into an atlas with the bytes of a single run.

Parts carry the accumulators' states, which merge exactly; all stages then run here with the plan's model. An
interrupted merge resumes.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mnemoscope.atlas import Atlas, open_atlas, verify
from mnemoscope.atlas.folder import clear
from mnemoscope.atlas.form import Manifest
from mnemoscope.atlas.lock import lock_folder
from mnemoscope.atlas.manifest import STATE, mined_from, open_as_mined, read_manifest, unfinished_plan
from mnemoscope.atlas.schema import TABLES
from mnemoscope.errors import AtlasDamaged, OptionError, PartsDiffer
from mnemoscope.foundation.options.model_options import ModelOptions
from mnemoscope.foundation.progress import Progress, report_to
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.passes.text_tables import SHARED
from mnemoscope.mining.plan.mining_plan import MiningPlan, all_versions, library_versions
from mnemoscope.mining.run_folder import begin_run, check_writable, difference, hold, paths_of
from mnemoscope.mining.sealing import model_facts, seal_run
from mnemoscope.mining.stages import mined_stages, run_stages
from mnemoscope.mining.steps import CHECKPOINT, RunContext
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.models import LanguageModel, load_model, set_threads
from mnemoscope.models.object_state import check_unchanged, hold_model

_ADVICE = "; choose another folder, or --force to merge into it again"


def merge(
    out: str | os.PathLike[str],
    parts: Sequence[str | os.PathLike[str]],
    *,
    model: LanguageModel | str | None = None,
    adapter: str | None = None,
    tokenizer: str | None = None,
    beginning: str | None = None,
    dequantize: bool = False,
    revision: str | None = None,
    dict: str | os.PathLike[str] | None = None,
    trust_remote_code: bool = False,
    max_memory: str | None = None,
    accept_versions: bool = False,
    allow_mixed_devices: bool = False,
    force: bool = False,
    progress: bool | Progress = True,
) -> Atlas:
    """Merges the `parts` of one plan into the atlas `out`. Omitted options of the model are as in the plan.

    Raises PartsDiffer (different plans, a missing or repeated part, another model, library or device name),
    AtlasDamaged, AtlasExists, PlanDiffers (`out` was begun with another plan), Interrupted.

    Args:
        out: The folder of the new atlas.
        parts: Every part of one plan, by its folder.
        model: The plan's model, if it has moved, loaded or by name.
        adapter: A PEFT adapter (LoRA and others) to put on the model: its folder or hub id.
        tokenizer: The tokenizer, if the model has none or needs another; ids: texts are token ids.
        beginning: The token before every sentence, if not the model's own; none: nothing.
        dequantize: Widen quantised weights at load.
        revision: The hub model's revision: a branch, tag or commit.
        dict: A fairseq model's dict.txt, if it is elsewhere.
        trust_remote_code: Run code that comes with the model.
        max_memory: Memory for weights: 2GiB, or 0=20GiB,cpu=60GiB; the rest of the model goes to disk.
        accept_versions: Go on with other versions of libraries; the bytes may differ.
        allow_mixed_devices: Join parts of different kinds of processors or cards, too.
        force: Replace a finished atlas or one with other options.
        progress: True: a bar in a terminal or notebook; or a function of stage, done, total (or None) and note.
    """
    opening = ModelOptions.of(locals())
    directory = Path(out)
    folders = [Path(part) for part in parts]
    manifests = _complete(folders)
    if directory.resolve() in {folder.resolve() for folder in folders}:
        raise OptionError(f"{directory} is one of the parts; choose another folder for the merged atlas")
    check_writable(directory, force=force, advice=_ADVICE)
    for folder in folders:
        if problems := verify(folder):
            raise AtlasDamaged(f"part {folder} is damaged: {problems[0]}; mine that part again")
    plan = MiningPlan.from_document(manifests[0]["plan"], folders[0])
    outline = MiningState.outline(StateShape({}, plan.triggers, ()))
    for folder in folders:  # refuses devices of different names before anything is made
        outline.absorb_facts(folder / STATE / CHECKPOINT, plan=plan.hash(), mixed=allow_mixed_devices)
    loaded = _plans_model(folders[0], plan, model, opening, accept_versions=accept_versions)
    with hold_model(loaded), hold(lock_folder(directory)), report_to(progress) as report:
        check_writable(directory, force=force, advice=_ADVICE)  # again, now that the folder is locked
        paths = mined_from(folders[0]) | ({} if isinstance(model, LanguageModel) else paths_of(loaded))
        versions = _begin(directory, plan, manifests, paths, force=force)
        context = RunContext(directory, progress=report)
        states = [folder / STATE / CHECKPOINT for folder in folders]
        run = MiningRun(context, loaded, plan, states, parts=folders, mixed=allow_mixed_devices)
        run.record.take_up(run.context.progress)
        run_stages(run, mined_stages(plan))
        check_unchanged(loaded)
        seal_run(context, plan, model_facts(loaded), counts=manifests[0].corpus.counts, versions=versions)
    return open_atlas(directory)


def _begin(
    directory: Path, plan: MiningPlan, manifests: list[Manifest], paths: Mapping[str, str], *, force: bool
) -> list[dict[str, str]]:
    """Begins or resumes the merged atlas; returns the library versions used."""
    begun = unfinished_plan(directory)
    differs = difference(plan, begun, directory, part=None, otherwise="; choose another folder, or --force")
    if differs and not force:
        raise differs
    if begun is None or differs:
        clear(directory)
        begun = None
    versions = all_versions([*([] if begun is None else [begun]), *manifests])
    begin_run(directory, plan, None, versions, places={"paths": dict(paths)})
    return versions


def _complete(folders: list[Path]) -> list[Manifest]:
    """The manifests of the parts."""
    if not folders:
        raise OptionError("merge needs the folders of the parts")
    manifests = [read_manifest(folder) for folder in folders]
    seen: dict[int, Path] = {}
    for folder, manifest in zip(folders, manifests, strict=True):
        first = manifests[0]
        part, common = manifest.part, first.part
        if part is None or common is None:
            raise PartsDiffer(f"{folder} is a whole atlas, not a part; parts are made with `mine --part I/N`")
        if manifest.plan_hash != first.plan_hash:
            one, other = first.plan, manifest.plan
            differing = [name.replace("_", " ") for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
            raise PartsDiffer(
                f"{folder} is part of another plan than {folders[0]} ({', '.join(differing)} differ);"
                " merge parts of one plan"
            )
        if part.of != common.of:
            raise PartsDiffer(
                f"{folder} is one of {part.of} parts, {folders[0]} one of {common.of}; merge parts of one division"
            )
        if part.index in seen:
            raise PartsDiffer(
                f"{folder} repeats part {part.index}/{part.of}, which is {seen[part.index]}; give each part once"
            )
        seen[part.index] = folder
    of = max(part.of for manifest in manifests if (part := manifest.part))
    if missing := [f"{i}/{of}" for i in range(1, of + 1) if i not in seen]:
        raise PartsDiffer(
            f"part {', '.join(missing)} is missing; mine it with the same options and --part {missing[0]}"
        )
    for folder, manifest in zip(folders, manifests, strict=True):
        for name in SHARED:
            path = TABLES[name].path()
            if manifest.hashes[path] != manifests[0].hashes[path]:
                raise PartsDiffer(f"{folder} and {folders[0]} disagree on {path}, which parts of one plan share")
    return manifests


def _plans_model(
    part: Path, plan: MiningPlan, model: LanguageModel | str | None, opening: ModelOptions, *, accept_versions: bool
) -> LanguageModel:
    here = library_versions()
    if not accept_versions and (others := [name for name in here if here[name] != getattr(plan, name)]):
        theirs = ", ".join(f"{name} {getattr(plan, name)} (here {here[name]})" for name in others)
        raise PartsDiffer(f"the parts were mined with {theirs}; install that, or --accept-versions to merge with these")
    set_threads(plan.threads)
    if not isinstance(model, LanguageModel):
        name, opening = open_as_mined(part, model, opening)
        model = load_model(name, dtype=plan.dtype, device=plan.device, **opening.keywords())
    if model.fingerprint != plan.model_fingerprint:
        raise PartsDiffer(
            f"{model.spec} is not the model that the parts were mined with ({plan.model}); give it as --model"
        )
    if str(model.dtype) != f"torch.{plan.dtype}":
        raise PartsDiffer(
            f"the parts were mined in {plan.dtype}, {model.spec} is loaded in {model.dtype}; load it in {plan.dtype}"
        )
    return model
