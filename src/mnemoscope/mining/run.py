"""One run of mining, from a model and a text to a finished atlas, interrupted or not.

The order of things: check what can be checked at once, lock the folder, settle the text, run the model over it, write
the tables, project the values, seal. `work/` inside the atlas holds the working copy of the text and the saved state
until the atlas is sealed.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mnemoscope.atlas.folder import clear, occupancy, remove_work
from mnemoscope.atlas.lock import locked
from mnemoscope.atlas.manifest import STATE, begin, seal, unfinished_plan
from mnemoscope.atlas.remedy import remedy
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import storing
from mnemoscope.corpus import Source, WorkingCopy, open_source, prepare
from mnemoscope.dtypes import DTYPES
from mnemoscope.errors import AtlasExists, CorpusError, Interrupted, ModelError, OptionError, PlanDiffers
from mnemoscope.mining.feed import Feed
from mnemoscope.mining.heap import Heap
from mnemoscope.mining.options import choose_layers, parse_part, parse_removals
from mnemoscope.mining.plan import RULES, MiningPlan, all_versions, default_batch_tokens, library_versions
from mnemoscope.mining.removals import default_removals
from mnemoscope.mining.state import MiningState, Shape
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
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.progress import Progress, ignore_progress

WORK = "work"
CHECKPOINT = "state.safetensors"
PREFIXES = "prefixes.safetensors"


def mine(
    model: LanguageModel | str,
    corpus: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    validation: str | os.PathLike[str] | None = None,
    split: str = "sentence",
    triggers: int = 50,
    per_sentence: int | str = 1,
    layers: str | Sequence[int] | None = None,
    max_sentences: int | None = None,
    max_tokens: int | None = None,
    prefixes: int = 4000,
    removals: int | str | None = None,
    part: str | tuple[int, int] | None = None,
    batch_tokens: int | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    checkpoint_every: float = 60.0,
    keep_work: bool = False,
    text_field: str = "text",
    revision: str | None = None,
    dict: str | os.PathLike[str] | None = None,
    trust_remote_code: bool = False,
    accept_versions: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """The folder of the finished atlas (or part) mined from `model` and `corpus`; goes on if it was interrupted.

    `model` is a LanguageModel (whose dtype and device then count) or what `load_model` takes. `accept_versions` goes on
    where other versions of torch, transformers, tokenizers or sentencex began; the manifest then lists all of them and
    promises no equal bytes. Raises AtlasExists for
    a folder that is finished (without `force`) or holds something else, PlanDiffers for one begun otherwise,
    AtlasBusy, Interrupted (Ctrl-C, everything saved), and what models, corpora and the disk raise.
    """
    say = progress or ignore_progress
    directory = Path(out)
    share = None if part is None else parse_part(part)
    removals = None if removals is None else parse_removals(removals)
    if checkpoint_every < 0:
        raise OptionError(f"--checkpoint-every must not be negative, not {checkpoint_every}")
    _check_folder(directory, force=force)
    source = open_source(os.fspath(corpus), text_field=text_field, split=split)
    other = None if validation is None else open_source(os.fspath(validation), text_field=text_field, split=split)
    if dtype not in DTYPES:
        raise OptionError(f"--dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    if not isinstance(model, LanguageModel):
        say("loading", 0, None, str(model))
        model = load_model(
            model, dict=dict, revision=revision, dtype=dtype, device=device, trust_remote_code=trust_remote_code
        )
    torch.set_num_threads(torch.get_num_threads())  # also forbids the matrix library to use fewer when it likes
    versions: Mapping[str, Any] = library_versions()
    plan = MiningPlan(
        model=model.spec, revision=model.revision, model_fingerprint=model.fingerprint,
        corpus=source.spec, text_field=text_field, validation=None if other is None else other.spec, split=split,
        triggers=triggers, per_sentence=str(per_sentence),
        layers=choose_layers(layers, model.sizes.layers),
        max_sentences=max_sentences, max_tokens=max_tokens, prefixes=prefixes, removals=removals,
        batch_tokens=default_batch_tokens(model) if batch_tokens is None else batch_tokens,
        dtype=str(model.dtype).removeprefix("torch."), device=model.device.type, seed=seed,
        attention=model.attention, threads=torch.get_num_threads(), **versions,
    )  # fmt: skip
    with locked(directory):
        run = _Run(model, plan, directory, share, say, checkpoint_every)
        try:
            run.settle_text(source, other, force=force, accept_versions=accept_versions)
            run.read()
            run.finish(keep_work=keep_work)
        except KeyboardInterrupt:
            raise Interrupted("stopped; what was saved stays, run the same command again to go on") from None
        if share is None:
            add_patterns(directory, say)
    return directory


class _Run:
    """The steps of one run inside its locked folder."""

    def __init__(
        self,
        model: LanguageModel,
        plan: MiningPlan,
        directory: Path,
        share: tuple[int, int] | None,
        say: Progress,
        checkpoint_every: float,
    ) -> None:
        self.model, self.plan, self.directory, self.share, self.say = model, plan, directory, share, say
        self.checkpoint_every = checkpoint_every
        self.work = directory / WORK
        self.timings: dict[str, float] = {}
        self._began = time.monotonic()

    def settle_text(
        self, source: Source, validation: Source | None, *, force: bool, accept_versions: bool = False
    ) -> None:
        """Makes or opens the working copy, and fixes the plan; leaves no trace of a text that cannot be used."""
        # Again, now that nobody else can write: another run may have finished while this one loaded its model.
        _check_folder(self.directory, force=force)
        part = None if self.share is None else list(self.share)
        begun = unfinished_plan(self.directory)
        if begun is not None and accept_versions:
            self.plan = self.plan.with_versions_of(begun["plan"])
        if begun is not None and force and not self._goes_on(begun, part):
            clear(self.directory)
            begun = None
            self.plan = self.plan.with_versions_of(library_versions())
        self.versions = all_versions([] if begun is None else [begun])
        replaced = begun is None and occupancy(self.directory) == "finished"
        if begun is not None:
            self.plan.check_same(begun["plan"], self.directory)
            if begun["part"] != part:
                raise PlanDiffers(
                    f"{self.directory} was begun as part {begun['part']}, now {part}; choose another folder"
                )
        else:
            (self.work / CHECKPOINT).unlink(missing_ok=True)
            if not replaced:
                self._begin()
        model = self.model
        try:
            self.copy: WorkingCopy = prepare(
                source, model, directory=self.work / "text", longest=model.longest, split=self.plan.split,
                vocabulary=model.sizes.vocabulary, max_sentences=self.plan.max_sentences,
                max_tokens=self.plan.max_tokens, validation=validation, made_with=self._made_with(),
                checkpoint_every=self.checkpoint_every,
                progress=self.say,
            )  # fmt: skip
        except (CorpusError, ModelError):
            if begun is None:
                remove_work(self.directory)
                if not replaced:
                    clear(self.directory)
            raise
        if replaced:  # only now is it sure that there is something to replace it with
            clear(self.directory, keep_work=True)
        counts = self.copy.counts
        removals = default_removals(
            mined_tokens=int(counts["mined_tokens"]), mined_sentences=int(counts["mined_sentences"]),
            layers=len(self.plan.layers),
        )  # fmt: skip
        other = self.copy.validation
        self.plan = self.plan.with_texts(
            self.copy.fingerprint, other.fingerprint if isinstance(other, WorkingCopy) else None, removals=removals
        )
        if begun is not None and force and not self._goes_on(begun, part):  # a text has changed
            (self.work / CHECKPOINT).unlink(missing_ok=True)
            clear(self.directory, keep_work=True)
            begun = None
            self.versions = all_versions([])
            self.plan = self.plan.with_versions_of(library_versions())
        if begun is not None:
            self.plan.check_same(begun["plan"], self.directory)
        self._begin()
        self._mark("text")

    def _begin(self) -> None:
        part = None if self.share is None else list(self.share)
        begin(self.directory, plan={"plan": self.plan.document(), "part": part, "versions": self.versions})

    def _made_with(self) -> dict[str, str]:
        """What decides how the text is cut and tokenised, beside the text and the plan's own options."""
        libraries = {name: self.plan.versions[name] for name in ("tokenizers", "sentencex")}
        return {"tokenizer": self.model.tokenizer_fingerprint, "rules": str(RULES), **libraries}

    def _goes_on(self, begun: dict[str, Any], part: list[int] | None) -> bool:
        try:
            self.plan.check_same(begun["plan"], self.directory)
        except PlanDiffers:
            return False
        return bool(begun["part"] == part)

    def read(self) -> None:
        """Runs the model over the batches that are not counted yet."""
        model, plan = self.model, self.plan
        shape = Shape({layer: model.sizes.memories[layer] for layer in plan.layers}, plan.triggers, model.signs)
        self.state = MiningState(shape, device=model.device)
        if (self.work / CHECKPOINT).is_file():
            self.state.load(self.work / CHECKPOINT, plan=plan.hash())
        feed = Feed(self.copy, model, batch_tokens=plan.batch_tokens, seed=plan.seed)
        index, of = self.share or (1, 1)
        numbers = range(index - 1, feed.count, of)
        run_pass(
            model, self.state, feed, numbers,
            per_sentence=None if plan.per_sentence == "all" else 1,
            plan=plan.hash(), checkpoint=self.work / CHECKPOINT, checkpoint_every=self.checkpoint_every,
            progress=self.say,
            tokens_before=feed.tokens(k for k in numbers if k < self.state.next_batch),
            total_tokens=int(self.copy.counts["mined_tokens"]) if of == 1 else feed.tokens(numbers),
        )  # fmt: skip
        self._mark("mining")

    def finish(self, *, keep_work: bool) -> None:
        """Writes the tables; not in a part, projects the values and asks what needs all triggers; seals."""
        heap = Heap()
        prefixes = write_text_tables(self.directory, self.copy, self.model, self.plan, self.state)
        self.copy.release()
        heap.give_back()
        write_mined_tables(self.directory, self.state, self.plan, self.say)
        heap.give_back()
        questions = None
        self._mark("tables")
        if self.share is None:
            write_value_tables(self.directory, self.state, self.model, self.plan, self.say)
            self._mark("values")
            questions = write_question_tables(
                self.directory, self.model, self.plan, prefixes,
                work=self.work, checkpoint_every=self.checkpoint_every, progress=self.say, mark=self._mark,
            )  # fmt: skip
        else:
            self.state.save(self.directory / STATE / CHECKPOINT, plan=self.plan.hash())
            prefixes.save(self.directory / STATE / PREFIXES)
        counts = dict(self.copy.counts)
        write_run_record(self.directory, self.timings)
        document = manifest_of(
            self.model, self.plan, counts, self.state, self.versions, part=self.share, questions=questions
        )
        seal(self.directory, document)
        if not keep_work:
            remove_work(self.directory)

    def _mark(self, stage: str) -> None:
        now = time.monotonic()
        self.timings[stage] = now - self._began
        self._began = now


def _check_folder(directory: Path, *, force: bool) -> None:
    with storing(directory):
        found = occupancy(directory)
    if found == "foreign":
        raise AtlasExists(f"{directory} holds something that is not an atlas; choose another folder")
    if found == "finished" and not force:
        lacking = not (directory / STATE).is_dir() and not (directory / TABLES["patterns"].path()).is_file()
        patterns = f" but for its patterns, which {remedy(directory, 'patterns', {})} makes" if lacking else ""
        raise AtlasExists(
            f"{directory} is finished already{patterns}; choose another folder, or --force to mine it again"
        )
