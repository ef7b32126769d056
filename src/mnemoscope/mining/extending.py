"""Optional tables for a finished atlas: `mnemoscope extend`, and what fitting lenses shares with it.

Added tables lie where mining would have put them, and extensions/manifest.json covers them. An interrupted run resumes
from the work folder.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.derived_manifest import record_hashes, write_beside
from mnemoscope.atlas.folder import remove_work
from mnemoscope.atlas.manifest import EXTENSIONS as SIDE
from mnemoscope.atlas.manifest import RUN
from mnemoscope.atlas.schema import MADE_WITH, OF_VALUES, TABLES, check_optional
from mnemoscope.errors import AtlasUnfinished, ModelUnsupported, OptionError
from mnemoscope.foundation.files import read_object, refuse_hub
from mnemoscope.foundation.options.mining_options import AUTO, ExtendOptions
from mnemoscope.foundation.options.model_options import ModelOptions
from mnemoscope.foundation.progress import Progress, ignore_progress, report_to
from mnemoscope.foundation.words import CONTINUES_NOTHING, KEYS_ONLY
from mnemoscope.mining.passes.random_pass import prepare_again
from mnemoscope.mining.stages import OPTIONAL_TABLES, STAGES
from mnemoscope.models import LanguageModel
from mnemoscope.models.object_state import check_unchanged, hold_model
from mnemoscope.runs.driver import Driver
from mnemoscope.runs.plan import MiningPlan, load_planned
from mnemoscope.runs.run import Run, hold
from mnemoscope.runs.workers.worker import Worker


@dataclass(frozen=True)
class ExtendedTables:
    """The tables made, and those already there."""

    made: tuple[str, ...]
    kept: tuple[str, ...]


def extend(
    atlas: Atlas | str | os.PathLike[str],
    model: LanguageModel | str | None = None,
    tables: Sequence[str] = (),
    *,
    device: str = "auto",
    adapter: str | None = None,
    tokenizer: str | None = None,
    beginning: str | None = None,
    side: str | None = None,
    dequantize: bool = False,
    revision: str | None = None,
    dict: str | os.PathLike[str] | None = None,
    trust_remote_code: bool = False,
    max_memory: str | None = None,
    text: str | os.PathLike[str] | None = None,
    validation: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 60.0,
    force: bool = False,
    progress: bool | Progress = True,
) -> ExtendedTables:
    """Makes optional tables in a finished atlas. Omitted options of the model are as in the plan.

    Raises OptionError for an unknown table, ModelUnsupported for one that is not made of such a model, ModelDiffers for
    another model, PlanDiffers for another text, AtlasUnfinished for a part, AtlasBusy, Interrupted, and what opening an
    atlas, loading a model and reading a text raise.

    Args:
        atlas: An atlas, or its folder.
        model: The model that was mined, loaded or by name; None: as mined.
        tables: Such as roles; if none is named all missing ones but samples and random.
        device: Such as cpu, cuda or cuda:1; auto: a graphics card if there is one.
        adapter: A PEFT adapter (LoRA and others) to put on the model: its folder or hub id.
        tokenizer: The tokenizer, if the model has none or needs another; ids: texts are token ids.
        beginning: The token before every sentence, if not the model's own; none: nothing.
        side: The half of an encoder-decoder that is read; of an encoder the keys alone: decoder (None) or encoder.
        dequantize: Widen quantised weights at load.
        revision: The hub model's revision: a branch, tag or commit.
        dict: A fairseq model's dict.txt, if it is elsewhere.
        trust_remote_code: Run code that comes with the model.
        max_memory: Memory for weights: 2GiB, or 0=20GiB,cpu=60GiB; the rest of the model goes to disk.
        text: Where the text lies now, for random.
        validation: The same of its validation text.
        checkpoint_every: The most work that a sudden stop may lose, in seconds.
        force: Make tables again that were added after mining.
        progress: True: a bar in a terminal or notebook; or a function of stage, done, total (or None) and note.
    """
    opening = ModelOptions.of(locals())
    ExtendOptions.check(locals())
    atlas = atlas if isinstance(atlas, Atlas) else open_atlas(Path(atlas))
    refuse_hub(atlas.path)
    check_optional(tables)
    refused = {} if atlas.reading.causal else {"memorised": CONTINUES_NOTHING}
    if atlas.manifest.keys_only:
        refused |= {name: KEYS_ONLY for name in OF_VALUES}  # noqa: C420
    for name in refused.keys() & {*tables}:
        raise ModelUnsupported(refused[name])
    # Without names not samples, which are as large as the triggers, nor random, for which the text is read again.
    left_out = {"samples", "random", *refused}
    wanted = [name for name in OPTIONAL_TABLES if (name in tables if tables else name not in left_out)]
    there = [name for name in wanted if has_table(atlas, name)]
    mined = [name for name in there if files_of(atlas, name)[0] in atlas.manifest.hashes]
    kept = mined if force else there
    made = [name for name in wanted if name not in kept]
    texts = {name: os.fspath(path) for name, path in (("corpus", text), ("validation", validation)) if path is not None}
    if texts and "random" not in wanted:
        raise OptionError("only the table random reads the text again; name it, or leave out --text and --validation")
    with report_to(progress) as report:
        if made:
            plan = MiningPlan.from_document(atlas.manifest["plan"], atlas.path)
            loaded = load_mined(atlas, plan, model, device=device, opening=opening, progress=report)
            if not tables and not loaded.linear_head:
                made = [name for name in made if name != "importance"]
            with hold_model(loaded), hold(write_beside(atlas)):
                for name in made:
                    for path in files_of(atlas, name) if name in there else ():
                        atlas.local(path).unlink(missing_ok=True)
                    run = beside(atlas, plan, checkpoint_every=checkpoint_every, progress=report)
                    if name == "random":
                        prepare_again(run, loaded, texts)
                    Driver(run, worker=Worker(run, loaded)).drive(stage for stage in STAGES if stage.table == name)
                    check_unchanged(loaded)
                    cover(atlas, files_of(atlas, name))
    return ExtendedTables(tuple(made), tuple(kept))


def has_table(atlas: Atlas, name: str) -> bool:
    """Whether an optional table is there, for every mined layer if it has one file each."""
    files = files_of(atlas, name)
    return set(files) <= atlas.hashes.keys() and all(atlas.local(path).is_file() for path in files)


def files_of(atlas: Atlas, name: str) -> list[str]:
    """The files of a table, relative to the atlas."""
    own = [TABLES[name].path(layer) for layer in (atlas.layers if TABLES[name].numbered else (None,))]
    return own + [TABLES[other].path() for other in MADE_WITH.get(name, ())]


def load_mined(
    atlas: Atlas,
    plan: MiningPlan,
    model: LanguageModel | str | None,
    *,
    device: str = AUTO,
    opening: ModelOptions,
    progress: Progress = ignore_progress,
) -> LanguageModel:
    """`load_planned` of a finished atlas; raises AtlasUnfinished for a part."""
    if part := atlas.manifest.part:
        raise AtlasUnfinished(f"{atlas.path} is {part}; join all parts with `mnemoscope merge`, then extend it")
    where = None if device == AUTO else device
    return load_planned(plan, atlas.path, model, opening, device=where, progress=progress)


def beside(atlas: Atlas, plan: MiningPlan, *, of: str = "", checkpoint_every: float, progress: Progress) -> Run:
    """The run of other stages in the locked folder of a finished atlas; takes up what an earlier one has done."""
    facts = {"sizes": {"memories": list(atlas.manifest.model.sizes.memories)}}
    run = Run(directory=atlas.path, plan=plan, facts=facts, of=of, checkpoint_every=checkpoint_every, progress=progress)
    run.take_up()
    return run


def cover(atlas: Atlas, paths: Iterable[str]) -> None:
    """Adds finished files to the manifest of extensions; removes the work folder, but for a text that mining kept."""
    record_hashes(atlas, SIDE, paths)
    atlas.forget()
    remove_work(atlas.path, keep_text=bool(read_object(atlas.path / RUN).get("keep_work")))
