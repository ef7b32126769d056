"""The folder of a run: its content when the run begins, and preparing the text in it.

A text is settled when it is read and tokenized, its fingerprints are in the plan, and the folder is marked as begun. A
text that cannot be used leaves no trace, and a finished atlas is removed only when there is something to replace it.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mnemoscope.atlas.folder import clear, occupancy, remove_work
from mnemoscope.atlas.manifest import (
    MANIFEST,
    STATE,
    as_mined,
    begin,
    files_beside,
    mined_from,
    read_manifest,
    unfinished_plan,
)
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.tables import patterns_command
from mnemoscope.corpus import Encoder, Render, Source, TokenizedCorpus, open_source, prepare
from mnemoscope.errors import AtlasError, AtlasExists, CorpusError, ModelError, PlanDiffers
from mnemoscope.foundation.files import file_hash, storing
from mnemoscope.foundation.options.mining_options import RULES, UNRELEASED, MiningOptions, is_chat
from mnemoscope.foundation.options.model_options import NAMED, full_name
from mnemoscope.foundation.progress import NOTE, StopSignal, interruption
from mnemoscope.mining.plan.limits import limit_note
from mnemoscope.mining.plan.mining_plan import MiningPlan, all_versions, library_versions
from mnemoscope.mining.plan.removal_cost import default_removals
from mnemoscope.mining.steps import CHECKPOINT, RunContext
from mnemoscope.models import IdTokens, LanguageModel
from mnemoscope.models.proof.company import prove_long_rows
from mnemoscope.models.tokens.chat_reader import chat_template

MINE_AGAIN = "; choose another folder, or --force to mine it again"


@contextmanager
def hold(lock: AbstractContextManager[None]) -> Iterator[None]:
    """Holds the lock of a folder; Ctrl-C becomes Interrupted, a StopSignal Terminated."""
    with lock:
        try:
            yield
        except (KeyboardInterrupt, StopSignal) as stop:
            raise interruption(stop, "stopped; what was saved stays, run the same command again to go on") from None


def difference(
    plan: MiningPlan, begun: Mapping[str, Any] | None, directory: Path, *, part: list[int] | None, otherwise: str
) -> PlanDiffers | None:
    """The error for an unfinished run of another plan or part; None if it is the same, or there is none. `otherwise` is
    the advice for another part.
    """
    if begun is not None and begun["plan"].get("rules") != RULES:
        return PlanDiffers(f"{directory} {UNRELEASED} with --force")
    if begun is not None and (found := plan.difference(begun["plan"])):
        return PlanDiffers(
            f"{directory} was begun with another plan ({found[0]}); "
            f"use {found[1]}, another folder, or --force to start again"
        )
    if begun is not None and begun["part"] != part:
        return PlanDiffers(f"{directory} was begun as part {begun['part']}{otherwise}")
    return None


def check_writable(directory: Path, *, force: bool, advice: str = MINE_AGAIN, again: bool = False) -> None:
    """Raises AtlasExists for a folder of something else and, without `force`, for a finished atlas; with `again` only
    for one that is damaged or has no patterns.
    """
    with storing(directory):
        found = occupancy(directory)
    if found == "foreign":
        raise AtlasExists(f"{directory} holds something that is not an atlas; choose another folder")
    if found == "finished" and not force:
        left, why = "", ""
        if _lacks_patterns(directory):
            left = f" but for its patterns, which {patterns_command(directory)} makes"
        elif again:
            try:
                read_manifest(directory)
                return
            except AtlasError as error:
                why = f": {error}"
        raise AtlasExists(f"{directory} is finished already{left}{advice}{why}")


def _lacks_patterns(directory: Path) -> bool:
    """Whether a finished atlas, no part, has no patterns that a manifest covers."""
    try:
        covered = files_beside(directory, "analyses", file_hash(directory / MANIFEST))
    except OSError:
        return False
    return not (directory / STATE).is_dir() and TABLES["patterns"].path() not in covered


@dataclass(frozen=True)
class RunInputs:
    model: LanguageModel
    plan: MiningPlan
    source: Source
    validation: Source | None

    @property
    def places(self) -> dict[str, dict[str, Any]]:
        """The paths of model and texts and the sizes of the texts, which are not in the plan."""
        texts = {"corpus": self.source} | ({} if self.validation is None else {"validation": self.validation})
        paths = {name: full_name(text.spec, of_text=True) for name, text in texts.items()}
        return {"paths": paths_of(self.model) | paths, "sizes": {name: text.size for name, text in texts.items()}}

    def check_texts(self, begun: Mapping[str, Any], directory: Path) -> None:
        """Raises PlanDiffers for a text of another path and size; others are compared by content later."""
        for name, size in self.places["sizes"].items():
            was, now = begun.get("paths", {}).get(name), self.places["paths"][name]
            if was != now and (size is None or size != begun.get("sizes", {}).get(name)):
                raise PlanDiffers(
                    f"{directory} was begun with another plan ({name} was {was!r}, now {now!r}); use the old text,"
                    " another folder, or --force to start again"
                )


@dataclass(frozen=True)
class SettledText:
    """A tokenized text, the complete plan, and the library versions used."""

    copy: TokenizedCorpus
    plan: MiningPlan
    versions: list[dict[str, str]]
    work: Mapping[str, Any] | None = None
    """The shared settings of a run for workers that goes on."""


def is_finished(context: RunContext, inputs: RunInputs, options: MiningOptions) -> bool:
    """True, with a note, if the folder already holds this plan's atlas. The text is read, the model is not run."""
    directory = context.directory
    if options.force or occupancy(directory) != "finished":
        return False
    manifest = read_manifest(directory)
    mined, plan = manifest.plan, inputs.plan
    if options.accept_versions:
        plan = plan.with_versions_of(mined)
    part = None if manifest.part is None else (manifest.part.index, manifest.part.of)
    said, advice = plan.difference(mined) or ("", "the old options")
    if part != options.share:
        said = said or f"part was {part}, now {options.share}"
    kept, was = (context.work / "text").is_dir(), manifest.corpus.counts
    try:
        if not said:
            copy = _prepare(context, inputs, plan)
            changed = [name for name, now in copy.counts.items() if isinstance(now, int) and now != was.get(name)]
            repeats = ", ".join(f"the text's {name.replace('_', ' ')} changed" for name in changed)
            said, _ = _with_texts(plan, copy, {"plan": mined}).difference(mined) or (repeats, "")
    finally:
        if not kept:
            remove_work(directory)
    if said:
        raise AtlasExists(f"{directory} is finished already{MINE_AGAIN}, or use {advice}: its plan is another ({said})")
    context.progress(NOTE, 0, None, f"{directory} is finished already, of this model, text and plan; nothing is mined")
    return True


def settle_text(context: RunContext, inputs: RunInputs, options: MiningOptions) -> SettledText:
    """Prepares the text in the locked folder, which is then begun with the complete plan."""
    directory, checkpoint, plan = context.directory, context.work / CHECKPOINT, inputs.plan
    part = None if options.share is None else list(options.share)
    otherwise = f", now {part}; choose another folder"
    begun = unfinished_plan(directory)
    if options.accept_versions and begun is not None:
        plan = plan.with_versions_of(begun["plan"])
    finished = begun is None and occupancy(directory) == "finished"
    if differs := difference(plan, begun, directory, part=part, otherwise=otherwise):
        if not options.force:
            raise differs
        clear(directory)
        plan, begun = plan.with_versions_of(library_versions()), None
    versions = all_versions([] if begun is None else [begun])
    fresh = begun is None and not finished

    if begun is None:
        checkpoint.unlink(missing_ok=True)
    elif not options.force:
        inputs.check_texts(begun, directory)
    if fresh:
        begin_run(directory, plan, part, versions, places=inputs.places)
    try:
        copy = _prepare(context, inputs, plan)
        for note in _notes(inputs, copy, plan):
            context.progress(NOTE, 0, None, note)
        _prove_rows(inputs.model, copy)
    except (CorpusError, ModelError):
        if begun is None:
            remove_work(directory)
        if fresh:
            clear(directory)
        raise
    if finished:  # only now is it sure that there is something to replace it with
        clear(directory, keep_work=True)

    plan = _with_texts(plan, copy, begun)
    work = None if begun is None else begun.get("work")
    # A text, since the folder was begun:
    if changed := difference(plan, begun, directory, part=part, otherwise=otherwise):
        if not options.force:
            raise changed
        checkpoint.unlink(missing_ok=True)
        clear(directory, keep_work=True)
        plan, versions, work = plan.with_versions_of(library_versions()), all_versions([]), None
    begin_run(directory, plan, part, versions, places=inputs.places, work=work)
    context.end_stage("text")
    return SettledText(copy, plan, versions, work)


def prepare_again(
    context: RunContext, model: LanguageModel, plan: MiningPlan, texts: Mapping[str, str]
) -> TokenizedCorpus:
    """The text of a finished atlas, tokenized again in the work folder; `texts` are those of `corpus` and `validation`
    that have moved.
    """
    paths = mined_from(context.directory) | {
        name: as_mined(context.directory, name, given) for name, given in texts.items()
    }
    validation = open_text(paths["validation"], plan) if plan.validation else None
    inputs = RunInputs(model, plan, open_text(paths["corpus"], plan).with_sample(plan.sample, plan.seed), validation)
    copy = _prepare(context, inputs, plan)
    if copy.fingerprint != plan.corpus_fingerprint:
        raise PlanDiffers(
            f"{paths['corpus']} is not the text that {context.directory} was mined from; restore it, or say with --text"
            " where it lies now"
        )
    return copy


def open_text(spec: str | os.PathLike[str], like: MiningOptions | MiningPlan) -> Source:
    """A text, whole, as options or plan say it is read; raises what opening a text raises."""
    return open_source(
        os.fspath(spec),
        text_field=like.text_field,
        ids_field=like.ids_field,
        split=like.cut if isinstance(like, MiningOptions) else like.split,
        chat=is_chat(like.text_field),
        skip_bad_rows=like.skip_bad_rows,
    )


def _notes(inputs: RunInputs, copy: TokenizedCorpus, plan: MiningPlan) -> Iterator[str]:
    """Notes on a text that was read just now, given once."""
    if not inputs.source.meter.done:
        return
    if note := limit_note(inputs.source, copy):
        yield note
    if plan.ids_field is None and not is_chat(plan.text_field) and chat_template(inputs.model.reader):
        yield "the model's chat template is not used: the text is read as it stands; --text-field messages reads chats"


def begin_run(
    directory: Path,
    plan: MiningPlan,
    part: list[int] | None,
    versions: list[dict[str, str]],
    *,
    places: Mapping[str, Any],
    work: Mapping[str, Any] | None = None,
) -> None:
    """Marks the folder as begun; `places` has the `paths` of model and texts, `work` the settings of workers."""
    shared = {} if work is None else {"work": dict(work)}
    begin(directory, plan={"plan": plan.document(), "part": part, "versions": versions, **places, **shared})


def paths_of(model: LanguageModel) -> dict[str, str]:
    """What opens a model again from any folder of this machine, by its names in a plan."""
    found = {"model": model.source, **{name: getattr(model.opening, name) for name in NAMED}}
    return {name: full_name(str(value)) for name, value in found.items() if value is not None}


def encoder_of(model: LanguageModel, like: MiningOptions | MiningPlan) -> tuple[Encoder, str, Render | None]:
    """The encoder of a run's texts, its fingerprint, and the renderer of chats, if any."""
    ids = like.ids_field is not None
    if is_chat(like.text_field) and not ids:
        chat = model.chat_reader()
        return chat, chat.fingerprint, chat.render
    if not ids and not isinstance(model.reader, IdTokens):
        return model, model.tokenizer_fingerprint, None
    beginning, padding = model.beginning.token, model.ends.union(() if model.padding is None else [model.padding])
    made_of = f"ids after {beginning}" if ids else model.tokenizer_fingerprint
    return IdTokens(beginning=beginning, padding=padding), made_of, None


def _prepare(context: RunContext, inputs: RunInputs, plan: MiningPlan) -> TokenizedCorpus:
    model = inputs.model
    # What decides how the text is cut and tokenised, beside the text and the plan's own options.
    libraries = {"tokenizers": plan.tokenizers, "sentencex": plan.sentencex}
    encoder, made_of, render = encoder_of(model, plan)
    made_with = {"tokenizer": made_of, "rules": str(RULES), **libraries}
    return prepare(
        inputs.source,
        encoder,
        directory=context.work / "text",
        longest=model.longest,
        split=plan.split,
        vocabulary=model.sizes.vocabulary,
        max_sentences=plan.max_sentences,
        max_tokens=plan.max_tokens,
        validation=inputs.validation,
        render=render,
        made_with=made_with,
        progress=context.progress,
    )


def _prove_rows(model: LanguageModel, copy: TokenizedCorpus) -> None:
    """Proves the model on rows beyond its boundaries if the text has any."""
    texts = [copy, *([copy.validation] if isinstance(copy.validation, TokenizedCorpus) else [])]
    longest = max(int(text.lengths.max(initial=0)) for text in texts)
    prove_long_rows(model, model.reading.columns(longest))


def _with_texts(plan: MiningPlan, copy: TokenizedCorpus, begun: Mapping[str, Any] | None) -> MiningPlan:
    """The plan with the fingerprints of the texts and the default number of removals: that of a run begun, which may be
    another version's.
    """
    sentences, tokens = int(copy.counts["mined_sentences"]), int(copy.counts["mined_tokens"])
    removals = None if begun is None else begun["plan"].get("removals")
    if removals is None:
        removals = default_removals(mined_tokens=tokens, mined_sentences=sentences, layers=len(plan.layers))
    return replace(
        plan,
        corpus_fingerprint=copy.fingerprint,
        validation_fingerprint=copy.validation.fingerprint if isinstance(copy.validation, TokenizedCorpus) else None,
        removals=removals if plan.removals is None else plan.removals,
    )
