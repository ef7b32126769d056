"""One run of mining, from a model and a text to a finished atlas, interrupted or not.

`run_mining` is the order of things: check what can be checked at once, lock the folder, settle the text, run the model
over it, write the tables, project the values, ask what needs all triggers, seal. Each pass says what it takes and what
it makes. `work/` inside the atlas holds the working copy of the text and the saved states until the atlas is sealed.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mnemoscope.atlas.folder import remove_work
from mnemoscope.atlas.lock import locked
from mnemoscope.atlas.manifest import STATE, seal
from mnemoscope.atlas.remedy import patterns_command
from mnemoscope.atlas.schema import TABLES
from mnemoscope.corpus import Source, open_source
from mnemoscope.dtypes import DTYPES
from mnemoscope.errors import Interrupted, OptionError
from mnemoscope.mining.batch_loader import BatchLoader
from mnemoscope.mining.context import CHECKPOINT, RunContext
from mnemoscope.mining.folder_state import check_writable
from mnemoscope.mining.heap import HeapTrimmer
from mnemoscope.mining.plan import MiningPlan
from mnemoscope.mining.prefixes import Prefixes
from mnemoscope.mining.settled_text import SettledText, settle_text
from mnemoscope.mining.state import MiningState, StateShape
from mnemoscope.mining.text_pass import run_pass
from mnemoscope.mining.writing import (
    add_patterns,
    manifest_of,
    write_mined_tables,
    write_question_tables,
    write_run_record,
    write_text_tables,
    write_value_tables,
)
from mnemoscope.mining_options import MiningOptions
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.progress import Progress, ignore_progress

PREFIXES = "prefixes.safetensors"


def mine(
    model: LanguageModel | str,
    corpus: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    validation: str | os.PathLike[str] | None = MiningOptions.validation,
    split: str = MiningOptions.split,
    triggers: int = MiningOptions.triggers,
    per_sentence: int | str = MiningOptions.per_sentence,
    layers: str | Sequence[int] | None = MiningOptions.layers,
    max_sentences: int | None = MiningOptions.max_sentences,
    max_tokens: int | None = MiningOptions.max_tokens,
    prefixes: int = MiningOptions.prefixes,
    removals: int | str | None = MiningOptions.removals,
    part: str | tuple[int, int] | None = MiningOptions.part,
    batch_tokens: int | None = MiningOptions.batch_tokens,
    dtype: str = MiningOptions.dtype,
    device: str = MiningOptions.device,
    seed: int = MiningOptions.seed,
    checkpoint_every: float = MiningOptions.checkpoint_every,
    keep_work: bool = MiningOptions.keep_work,
    text_field: str = MiningOptions.text_field,
    revision: str | None = MiningOptions.revision,
    dict: str | os.PathLike[str] | None = MiningOptions.dictionary,
    trust_remote_code: bool = MiningOptions.trust_remote_code,
    accept_versions: bool = MiningOptions.accept_versions,
    force: bool = MiningOptions.force,
    progress: Progress | None = None,
) -> Path:
    """The folder of the finished atlas (or part) mined from `model` and `corpus`; goes on if it was interrupted.

    `model` is a LanguageModel (whose dtype and device then count) or what `load_model` takes. `accept_versions` goes on
    where other versions of torch, transformers, tokenizers or sentencex began; the manifest then lists all of them and
    promises no equal bytes. Raises AtlasExists for
    a folder that is finished (without `force`) or holds something else, PlanDiffers for one begun otherwise,
    AtlasBusy, Interrupted (Ctrl-C, everything saved), and what models, corpora and the disk raise.
    """
    options = MiningOptions(
        validation=validation, split=split, triggers=triggers, per_sentence=per_sentence, layers=layers,
        max_sentences=max_sentences, max_tokens=max_tokens, prefixes=prefixes, removals=removals, part=part,
        batch_tokens=batch_tokens, dtype=dtype, device=device, seed=seed, checkpoint_every=checkpoint_every,
        keep_work=keep_work, text_field=text_field, revision=revision, dictionary=dict,
        trust_remote_code=trust_remote_code, accept_versions=accept_versions, force=force,
    )  # fmt: skip
    return run_mining(model, corpus, Path(out), options, progress=progress)


def run_mining(
    model: LanguageModel | str,
    corpus: str | os.PathLike[str],
    directory: Path,
    options: MiningOptions,
    *,
    progress: Progress | None = None,
) -> Path:
    """`mine` with its options as one; returns `directory`, which then holds the atlas or part."""
    say = progress or ignore_progress
    _check_folder(directory, options)
    source = _open(corpus, options)
    validation = None if options.validation is None else _open(options.validation, options)
    if options.dtype not in DTYPES:
        raise OptionError(f"--dtype must be one of {', '.join(DTYPES)}, not {options.dtype!r}")
    if not isinstance(model, LanguageModel):
        say("loading", 0, None, str(model))
        model = load_model(
            model, dict=options.dictionary, revision=options.revision, dtype=options.dtype, device=options.device,
            trust_remote_code=options.trust_remote_code,
        )  # fmt: skip
    torch.set_num_threads(torch.get_num_threads())  # also forbids the matrix library to use fewer when it likes
    plan = MiningPlan.derive(
        options, model, corpus=source.spec, validation=None if validation is None else validation.spec
    )
    with locked(directory):
        context = RunContext(directory, options.checkpoint_every, say)
        try:
            # Again, now that nobody else can write: another run may have finished while this one loaded its model.
            _check_folder(directory, options)
            text = settle_text(context, model, plan, source, validation, options)
            state = read_text(context, model, text, options.share)
            prefixes = write_mined(context, model, text, state)
            questions = None
            if options.share is None:
                write_value_tables(context, state, model, text.plan)
                questions = write_question_tables(context, model, text.plan, prefixes)
            else:
                save_part(context, text.plan, state, prefixes)
            seal_atlas(context, model, text, state, options, questions)
        except KeyboardInterrupt:
            raise Interrupted("stopped; what was saved stays, run the same command again to go on") from None
        if options.share is None:
            add_patterns(directory, say)
    return directory


def read_text(
    context: RunContext, model: LanguageModel, text: SettledText, share: tuple[int, int] | None
) -> MiningState:
    """The state once the model has run over every batch of the text (or of its part), going on from a saved state."""
    plan = text.plan
    shape = StateShape({layer: model.sizes.memories[layer] for layer in plan.layers}, plan.triggers, model.signs)
    state = MiningState(shape, device=model.device)
    if (context.work / CHECKPOINT).is_file():
        state.load(context.work / CHECKPOINT, plan=plan.hash())
    loader = BatchLoader(text.copy, model, batch_tokens=plan.batch_tokens, seed=plan.seed)
    index, of = share or (1, 1)
    numbers = range(index - 1, loader.count, of)
    run_pass(
        context, model, state, loader, [k for k in numbers if k >= state.next_batch], plan=plan,
        tokens_before=loader.tokens(k for k in numbers if k < state.next_batch),
        total_tokens=int(text.copy.counts["mined_tokens"]) if of == 1 else loader.tokens(numbers),
    )  # fmt: skip
    context.times.end("mining")
    return state


def write_mined(context: RunContext, model: LanguageModel, text: SettledText, state: MiningState) -> Prefixes:
    """Writes the tables of the text, triggers and activity; returns the prefixes that will be asked.

    The working copy is not read after this.
    """
    heap = HeapTrimmer()
    prefixes = write_text_tables(context.directory, text.copy, model, text.plan, state)
    text.copy.release()
    heap.trim()
    write_mined_tables(context, state, text.plan)
    heap.trim()
    context.times.end("tables")
    return prefixes


def save_part(context: RunContext, plan: MiningPlan, state: MiningState, prefixes: Prefixes) -> None:
    """Saves what `merge` needs of a part: its state, and the prefixes that will be asked once all parts are there."""
    state.save(context.directory / STATE / CHECKPOINT, plan=plan.hash())
    prefixes.save(context.directory / STATE / PREFIXES)


def seal_atlas(
    context: RunContext,
    model: LanguageModel,
    text: SettledText,
    state: MiningState,
    options: MiningOptions,
    questions: dict[str, Any] | None,
) -> None:
    """Makes the folder an atlas, or a part of one; its work folder goes unless it is to stay."""
    write_run_record(context.directory, context.times.seconds)
    counts = {**text.copy.counts}
    document = manifest_of(model, text.plan, counts, state, text.versions, part=options.share, questions=questions)
    seal(context.directory, document)
    if not options.keep_work:
        remove_work(context.directory)


def _open(corpus: str | os.PathLike[str], options: MiningOptions) -> Source:
    return open_source(os.fspath(corpus), text_field=options.text_field, split=options.split)


def _check_folder(directory: Path, options: MiningOptions) -> None:
    def advice() -> str:
        lacking = not (directory / STATE).is_dir() and not (directory / TABLES["patterns"].path()).is_file()
        patterns = f" but for its patterns, which {patterns_command(directory)} makes" if lacking else ""
        return f"{patterns}; choose another folder, or --force to mine it again"

    check_writable(directory, force=options.force, advice=advice)
