"""One run of mining, from a model and a text to a finished atlas; resumes an interrupted one. Until the seal `work/` in
the atlas holds the tokenized text and saved states.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.lock import lock_folder
from mnemoscope.atlas.manifest import STATE, as_mined, plan_of, unfinished_plan, work_of
from mnemoscope.errors import OptionError, PlanDiffers
from mnemoscope.foundation.files import check_spelling, copy_file
from mnemoscope.foundation.heap import require_addresses
from mnemoscope.foundation.options.mining_options import AUTO, MiningOptions
from mnemoscope.foundation.options.model_options import AS_USUAL
from mnemoscope.foundation.progress import Progress, ignore_progress, report_to
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.passes.prefix_pass import PREFIXES
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.record import RunRecord
from mnemoscope.mining.run_folder import (
    RunInputs,
    check_writable,
    encoder_of,
    hold,
    is_finished,
    open_text,
    settle_text,
)
from mnemoscope.mining.sealing import model_facts, seal_run
from mnemoscope.mining.stages import mined_stages, run_stages
from mnemoscope.mining.steps import CHECKPOINT, RunContext
from mnemoscope.mining.text_pass import read_text
from mnemoscope.models import LanguageModel, device_of, load_for_ids, load_model, set_threads
from mnemoscope.models.object_state import check_unchanged, hold_model
from mnemoscope.models.special_tokens import special_tokens
from mnemoscope.tracing.scoring.scores import check_wide_numbers

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
    name: str | None = None,
    text_name: str | None = None,
    skip_bad_rows: int = 0,
    skip_special: bool = False,
    token_activations: bool = False,
    random: bool = False,
    adapter: str | None = None,
    tokenizer: str | None = None,
    beginning: str | None = None,
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
        name: The model's name as readers see it; changes no byte.
        text_name: The text's name as readers see it.
        skip_bad_rows: Skip at most so many rows without a text, and list them.
        skip_special: Special tokens are never triggers; activity counts them all the same.
        token_activations: Keep activations at every token of the best examples.
        random: Draw examples of every memory at random, too.
        adapter: A PEFT adapter (LoRA and others) to put on the model: its folder or hub id.
        tokenizer: The tokenizer, if the model has none or needs another; ids: texts are token ids.
        beginning: The token before every sentence, if not the model's own; none: nothing.
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
    *,
    progress: Progress = ignore_progress,
) -> Path:
    """`mine` with its options as one object."""
    begun = begin_mining(model, corpus, directory, options, progress=progress)
    with hold_model(begun.model), hold(lock_folder(directory)):
        # Again: another run may have finished while this one loaded its model.
        check_writable(directory, force=options.force, again=True)
        if work_of(unfinished_plan(directory)):
            raise PlanDiffers(
                f"{directory} was begun for workers; go on with `mnemoscope mine ... --workers N`, or --force to begin"
                " anew"
            )
        context = RunContext(directory, options.checkpoint_every, progress)
        if is_finished(context, begun, options):
            return directory
        text = settle_text(context, begun, options)
        RunRecord(directory, text.plan.hash()).take_up(progress)
        state = read_text(context, begun.model, text.copy, text.plan, share=options.share)
        run = MiningRun(context, begun.model, text.plan, [state], text.copy)
        if options.share is None:
            run_stages(run, mined_stages(text.plan))
        else:
            run_stages(run, [stage for stage in mined_stages(text.plan) if not stage.needs_all])
            for name in (CHECKPOINT, PREFIXES):  # what `merge` needs
                copy_file(context.work / name, directory / STATE / name)
        check_unchanged(begun.model)
        seal_run(
            context,
            text.plan,
            model_facts(begun.model),
            counts={**text.copy.counts},
            versions=text.versions,
            part=options.share,
            keep_work=options.keep_work,
        )
    return directory


def begin_mining(
    model: LanguageModel | str,
    corpus: str | os.PathLike[str],
    directory: Path,
    options: MiningOptions,
    *,
    threads: int | None = None,
    progress: Progress = ignore_progress,
) -> RunInputs:
    """Loads the model, finds the texts and makes the plan, which lacks only what the texts tell; writes nothing.
    `threads` are those of one worker if this process only drives workers; a begun folder keeps its own.
    """
    check_spelling(directory.absolute(), os.fspath(corpus), options.validation)
    check_writable(directory, force=options.force, again=True)
    require_addresses(_ADDRESSES, "mining")
    text = open_text(as_mined(directory, "corpus", os.fspath(corpus)), options)
    source = text.with_sample(options.sample, options.seed)
    held_out = None if options.validation is None else os.fspath(options.validation)
    validation = None if held_out is None else open_text(as_mined(directory, "validation", held_out), options)
    set_threads(begun_threads(directory, options) or threads)
    if isinstance(model, LanguageModel):
        if options.opening != AS_USUAL:
            said = ", ".join(options.opening.keywords())
            raise OptionError(f"{said} cannot be changed in a model that is loaded; give it to load_model")
    else:
        progress("loading", 0, None, str(model))
        load = load_model if options.ids_field is None else load_for_ids
        model = load(model, dtype=options.dtype, device=_device(directory, options), **options.opening.keywords())
    with hold_model(model):
        check_wide_numbers(model)
        encoder_of(model, options)
        if options.skip_special:
            special_tokens(model)
        plan = MiningPlan.derive(
            options, model, corpus=source.name, validation=None if validation is None else validation.name
        )
    return RunInputs(model, plan, source, validation)


def begun_threads(directory: Path, options: MiningOptions) -> int | None:
    """The threads of a worker in the run of this folder; None if there is none or `force` discards it."""
    threads = None if options.force else plan_of(directory).get("threads")
    return threads if isinstance(threads, int) and threads > 0 else None


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
