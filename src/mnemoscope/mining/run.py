"""One run of mining, from a model and a text to a finished atlas, by this process or by several; resumes an interrupted
one. Until the seal `work/` in the atlas holds the tokenized text and all that is done.
"""

import gc
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.lock import lock_folder
from mnemoscope.atlas.manifest import STATE, plan_of, unfinished_plan
from mnemoscope.errors import OptionError
from mnemoscope.foundation.files import check_spelling, copy_file, write_bytes
from mnemoscope.foundation.heap import require_addresses
from mnemoscope.foundation.options.fleet_options import ALONE, RAY_HERE, FleetOptions
from mnemoscope.foundation.options.mining_options import AUTO, MiningOptions
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelOptions
from mnemoscope.foundation.progress import Progress, ignore_progress, report_to
from mnemoscope.mining.passes.prefix_pass import PREFIXES
from mnemoscope.mining.stages import STAGES, mined_stages
from mnemoscope.mining.text_pass import merge_states
from mnemoscope.models import LanguageModel, device_of, load_for_ids, load_model, set_threads
from mnemoscope.models.object_state import check_unchanged, hold_model
from mnemoscope.runs.driver import Driver
from mnemoscope.runs.launch.local import LocalLauncher
from mnemoscope.runs.launch.ray_launcher import RayLauncher
from mnemoscope.runs.run import MINE_AGAIN, Run, check_writable, hold
from mnemoscope.runs.seal import seal_run
from mnemoscope.runs.states import CHECKPOINT
from mnemoscope.runs.texts import encoder_of, open_texts, special_tokens
from mnemoscope.runs.workers.joining import work
from mnemoscope.runs.workers.leases import TEXT, publish
from mnemoscope.runs.workers.worker import Worker
from mnemoscope.tracing.scoring.scores import check_wide_numbers

_TEAM = 8
"""Threads of which one process makes good use on a CPU."""
_ADDRESSES = 4_000_000_000
"""Measured: with 3 GB (`ulimit -v 3000000`) mining aborts or hangs; with 4 it ends."""


def mine(
    model: LanguageModel | str,
    corpus: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    validation: str | os.PathLike[str] | None = None,
    split: str = "sentence",
    triggers: int | None = None,
    per_sentence: int | str = 1,
    layers: str | Sequence[int] | None = None,
    sample: float | None = None,
    max_sentences: int | None = None,
    max_tokens: int | None = None,
    prefixes: int = 4000,
    removals: int | str | None = None,
    own: int | str | None = None,
    neighbours: int = 10,
    part: str | tuple[int, int] | None = None,
    batch_tokens: int | None = None,
    dtype: str = "float32",
    device: str = "auto",
    seed: int = 0,
    checkpoint_every: float = 60.0,
    keep_work: bool = False,
    text_field: str = "text",
    ids_field: str | None = None,
    source_field: str | None = None,
    name: str | None = None,
    text_name: str | None = None,
    skip_bad_rows: int = 0,
    skip_special: bool = False,
    token_activations: bool = False,
    random: bool = False,
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
    force: bool = False,
    progress: bool | Progress = True,
) -> Atlas:
    """Mines a text; returns the atlas (or part). Goes on if it was interrupted; if it is finished already, and model,
    text and options are the same, returns it without running the model.

    Raises AtlasExists for a folder that is finished with another model, text or option or holds something else,
    PlanDiffers for one begun with another plan, AtlasBusy, Interrupted (Ctrl-C, everything saved), and what models,
    corpora and the disk raise.

    Args:
        model: A LanguageModel, or a name that `load_model` takes. One in memory keeps its dtype and device.
        corpus: builtin:pydocs, a .txt, .jsonl or .parquet file, a glob of them, or hub:DATASET.
        out: The folder to make.
        validation: The text for questions on held-out prefixes; None: sentences held out of the corpus.
        split: What one text is: sentence, line or document.
        triggers: Triggers per memory and sign; 50, with experts 25.
        per_sentence: Triggers that one sentence may give: 1 or all.
        layers: Only these layers, as `0-3,7` or numbers; None: all.
        sample: Read a seeded share of the documents only, from all of the text.
        max_sentences: Stop after so many sentences.
        max_tokens: Stop after so many tokens.
        prefixes: Held-out prefixes to ask questions on.
        removals: Memories per layer for token removal, or all; None: by the size of the text.
        own: Memories asked with their token masked, in models that read sentences whole; None: all up to 50,000.
        neighbours: Most similar values kept of each memory; 0 compares none.
        part: Only every N-th batch; join with merge. (I, N) or `I/N`.
        batch_tokens: Padded tokens per batch; None: from the model's sizes.
        dtype: Number format: float32, bfloat16 or float16.
        device: Such as cpu, cuda or cuda:1; auto: a graphics card if there is one.
        seed: For the random samples.
        checkpoint_every: The most work that a sudden stop may lose, in seconds.
        keep_work: Keep the working copy of the text.
        text_field: The text's field in JSONL or Parquet; meta.text: within meta; messages: a chat.
        ids_field: Read token ids in this field of JSONL or Parquet, not text; a row is one sentence.
        source_field: The field of the source that an encoder-decoder reads the text with; a row is one pair.
        name: The model's name as readers see it; changes no byte.
        text_name: The text's name as readers see it.
        skip_bad_rows: Skip at most so many rows without a text, and list them.
        skip_special: Special tokens are never triggers; activity counts them all the same.
        token_activations: Keep activations at every token of the best examples.
        random: Draw examples of every memory at random, too.
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
        force: Replace a finished atlas, or one begun with another plan.
        progress: True: a bar in a terminal or notebook; or a function of stage, done, total (or None) and note.
    """
    options = MiningOptions.of(locals())
    with report_to(progress) as report:
        return open_atlas(run_mining(model, corpus, Path(out), options, progress=report))


def run_mining(
    model: LanguageModel | str,
    corpus: str | os.PathLike[str],
    directory: Path,
    options: MiningOptions,
    fleet: FleetOptions = ALONE,
    *,
    progress: Progress = ignore_progress,
) -> Path:
    """`mine` with its options as one object; with the workers of `fleet`, whose bytes are those of one process with as
    many threads as a worker. With `prepare` it only settles the run in the folder, for workers started otherwise.
    """
    held_out = None if options.validation is None else os.fspath(options.validation)
    check_spelling(directory.absolute(), os.fspath(corpus), held_out)
    if fleet != ALONE and options.part is not None:
        raise OptionError("--part is a fixed share of the batches, but workers share all of them; leave one out")
    require_addresses(_ADDRESSES, "mining")
    with hold(lock_folder(directory)):
        check_writable(directory, force=options.force, finished=MINE_AGAIN if fleet.prepare else "")
        texts = open_texts(directory, os.fspath(corpus), held_out, options)
        fleet, threads = _share_cores(fleet, options, directory)
        set_threads(threads)
        loaded = _load(model, directory, options, progress)
        with hold_model(loaded):
            check_wide_numbers(loaded)
            encoder_of(loaded, options)
            if options.skip_special:
                special_tokens(loaded)
            run = Run.open(directory, options, loaded, texts, fleet=fleet, progress=progress)
            if fleet.prepare:
                publish(directory, TEXT)
            if run.is_finished or fleet.prepare:
                return directory
            stages = [stage for stage in mined_stages(run.plan) if run.part is None or not stage.needs_all]
            if fleet == ALONE:
                worker = Worker(run, loaded)
                Driver(run, worker=worker).drive(stages)
                if run.part:  # what `merge` needs of it
                    folder = directory / STATE
                    write_bytes(folder / CHECKPOINT, merge_states(worker).serialise(plan=run.plan.hash()))
                    copy_file(run.work / PREFIXES, folder / PREFIXES)
                check_unchanged(loaded)
        if fleet != ALONE:
            del loaded, texts  # workers have their own
            run.copy = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            _start_driver(run, options.opening, fleet).drive(stages)
        seal_run(run, keep_work=options.keep_work)
    return directory


def _load(model: LanguageModel | str, directory: Path, options: MiningOptions, progress: Progress) -> LanguageModel:
    if isinstance(model, LanguageModel):
        if options.opening != AS_USUAL:
            said = ", ".join(options.opening.keywords())
            raise OptionError(f"{said} cannot be changed in a model that is loaded; give it to load_model")
        return model
    progress("loading", 0, None, str(model))
    load = load_model if options.ids_field is None else load_for_ids
    return load(model, dtype=options.dtype, device=_device(directory, options), **options.opening.keywords())


def run_worker(directory: Path, name: str, **options: Any) -> bool:
    """One worker of the run in a folder, as the command line and launchers start it."""
    return work(directory, name, STAGES, **options)


def _device(directory: Path, options: MiningOptions) -> str:
    """The device asked for; for `auto`, that of the run in the folder."""
    planned = {} if options.force and unfinished_plan(directory) is None else plan_of(directory)
    if options.device != AUTO or not planned:
        return options.device
    kind = str(planned.get("device"))
    try:
        device_of(kind)
    except OptionError:
        if options.force:
            return AUTO
        raise OptionError(
            f"{directory} was begun on {kind}, which cannot be used here; go on where it can, choose another folder, "
            "or --force to start again"
        ) from None
    return kind


def _share_cores(fleet: FleetOptions, options: MiningOptions, directory: Path) -> tuple[FleetOptions, int | None]:
    """The workers of this machine, if their number is not given, and the threads of each: as many as the run in the
    folder was begun with. Ray chooses the number itself, and has at most `_TEAM` threads for each on other machines.
    """
    cores, planned = torch.get_num_threads(), None if options.force else plan_of(directory).get("threads")
    begun = planned if isinstance(planned, int) else 0
    if fleet == ALONE:
        return fleet, begun or None
    if fleet.count is None and fleet.ray is None:
        cards = 0 if options.device == "cpu" else torch.cuda.device_count()
        count = cards // max(1, fleet.cards) if cards else cores // (begun or _TEAM)
        fleet = replace(fleet, workers=max(1, count))
    elsewhere = fleet.ray not in (None, RAY_HERE)
    return fleet, begun or (min(_TEAM, cores) if elsewhere else max(1, cores // (fleet.count or 1)))


def _start_driver(run: Run, opening: ModelOptions, fleet: FleetOptions) -> Driver:
    plan = run.plan
    if fleet.ray is not None:
        ray = RayLauncher(
            run.directory,
            address=fleet.ray,
            threads=plan.threads,
            gpus_per_worker=fleet.cards if plan.device == "cuda" else 0,
            worker_options={"opening": opening, "device": plan.device},
            workers=fleet.count,
            work=run_worker,
        )
        return Driver(run, launcher=ray, workers=fleet.count or max(1, ray.capacity()))
    cards = torch.cuda.device_count() if plan.device == "cuda" else 0
    local = LocalLauncher(run.directory, threads=plan.threads, words=opening.words(), cards=cards, each=fleet.cards)
    return Driver(run, launcher=local, workers=fleet.count or 1)
