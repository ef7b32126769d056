"""Merges the parts of one plan into an atlas with the bytes of a single run.

Parts carry the accumulators' states, which merge exactly; all stages then run here with the plan's model. An
interrupted merge resumes.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from mnemoscope.atlas import Atlas, open_atlas, verify
from mnemoscope.atlas.folder import clear
from mnemoscope.atlas.form import Manifest
from mnemoscope.atlas.lock import lock_folder
from mnemoscope.atlas.manifest import STATE, mined_from, read_manifest
from mnemoscope.errors import AtlasDamaged, OptionError, PartsDiffer
from mnemoscope.foundation.options.model_options import ModelOptions
from mnemoscope.foundation.progress import Progress, report_to
from mnemoscope.mining.stages import mined_stages
from mnemoscope.mining.text.state import StateFacts
from mnemoscope.models import LanguageModel
from mnemoscope.models.object_state import check_unchanged, hold_model
from mnemoscope.runs.driver import Driver
from mnemoscope.runs.plan import MiningPlan, all_versions, library_versions, load_planned, model_facts
from mnemoscope.runs.run import Run, check_writable, hold, paths_of, refusal, stored_plan
from mnemoscope.runs.seal import seal_run
from mnemoscope.runs.states import CHECKPOINT, check_devices
from mnemoscope.runs.workers.leases import TEXT
from mnemoscope.runs.workers.worker import Worker

_ADVICE = "; choose another folder, or --force to merge into it again"


def merge(
    out: str | os.PathLike[str],
    parts: Sequence[str | os.PathLike[str]],
    *,
    model: LanguageModel | str | None = None,
    adapter: str | None = None,
    tokenizer: str | None = None,
    beginning: str | None = None,
    side: str | None = None,
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

    Raises PartsDiffer (different plans, a missing or repeated part, another device name), ModelDiffers (or another
    library), AtlasDamaged, AtlasExists, PlanDiffers (`out` was begun with another plan), Interrupted.

    Args:
        out: The folder of the new atlas.
        parts: Every part of one plan, by its folder.
        model: The plan's model, if it has moved, loaded or by name.
        adapter: A PEFT adapter (LoRA and others) to put on the model: its folder or hub id.
        tokenizer: The tokenizer, if the model has none or needs another; ids: texts are token ids.
        beginning: The token before every sentence, if not the model's own; none: nothing.
        side: The half of an encoder-decoder that is read; of an encoder the keys alone: decoder (None) or encoder.
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
    with hold(lock_folder(directory)), report_to(progress) as report:
        check_writable(directory, force=force, finished=_ADVICE)
        for folder in folders:
            if problems := verify(folder):
                raise AtlasDamaged(f"part {folder} is damaged: {problems[0]}; mine that part again")
        plan = MiningPlan.from_document(manifests[0]["plan"], folders[0])
        states = [folder.absolute() / STATE / CHECKPOINT for folder in folders]
        check_devices([StateFacts.read(state).device for state in states], mixed=allow_mixed_devices)
        begun = stored_plan(directory)
        if differs := plan.difference(begun):
            if not force:
                raise refusal(directory, differs, finished=False)
            begun = {}
        versions = [library_versions()] if accept_versions else []
        loaded = load_planned(plan, folders[0], model, opening, versions=versions)
        with hold_model(loaded):
            if not begun:
                clear(directory)
            run = Run(
                directory=directory,
                plan=plan,
                facts=model_facts(loaded),
                counts=manifests[0].corpus.counts,
                versions=all_versions([*([begun] if begun else []), *manifests]),
                parts=folders,
                progress=report,
            )
            run.claim(mined_from(folders[0]) | ({} if isinstance(model, LanguageModel) else paths_of(loaded)))
            run.note("states", {"paths": list(map(str, states))})
            Driver(run, worker=Worker(run, loaded)).drive(stage for stage in mined_stages(plan) if stage.name != TEXT)
            check_unchanged(loaded)
            seal_run(run)
    return open_atlas(directory)


def _complete(folders: list[Path]) -> list[Manifest]:
    """The manifests of the parts of one division of one plan, each of which is there once."""
    if not folders:
        raise OptionError("merge needs the folders of the parts")
    manifests = [read_manifest(folder) for folder in folders]
    first, seen, of = manifests[0], dict[int, Path](), 0
    for folder, manifest in zip(folders, manifests, strict=True):
        if (part := manifest.part) is None:
            raise PartsDiffer(f"{folder} is a whole atlas, not a part; parts are made with `mine --part I/N`")
        if manifest.plan_hash != first.plan_hash:
            one, other = first.plan, manifest.plan
            differing = [name.replace("_", " ") for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
            raise PartsDiffer(
                f"{folder} is part of another plan than {folders[0]} ({', '.join(differing)} differ);"
                " merge parts of one plan"
            )
        of = of or part.of
        if part.of != of:
            raise PartsDiffer(f"{folder} is {part}, {folders[0]} {first.part}; merge parts of one division")
        if part.index in seen:
            raise PartsDiffer(f"{folder} repeats {part}, which is {seen[part.index]}; give each part once")
        seen[part.index] = folder
    if missing := [f"{i}/{of}" for i in range(1, of + 1) if i not in seen]:
        raise PartsDiffer(
            f"part {', '.join(missing)} is missing; mine it with the same options and --part {missing[0]}"
        )
    return manifests
