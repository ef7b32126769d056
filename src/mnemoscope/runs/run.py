"""A run: one folder and one plan. The folder is free, begun with a plan, or finished with one.

`Run.open` settles the plan, compares it with the folder's, and claims the folder or takes up what is done in it. A text
that cannot be used leaves no trace, and a finished atlas is removed only when there is something to replace it. What
workers need stands in `unfinished.json`: the plan and, under `work`, the rest. Needs torch only to open a run.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemoscope.atlas.folder import clear, occupancy, remove_work
from mnemoscope.atlas.manifest import (
    MANIFEST,
    STATE,
    WORK,
    begin,
    files_beside,
    read_manifest,
    shared_run_of,
    unfinished_plan,
)
from mnemoscope.atlas.schema import TABLES, Provenance
from mnemoscope.atlas.tables import patterns_command
from mnemoscope.corpus import TokenizedCorpus, open_prepared
from mnemoscope.errors import AtlasError, AtlasExists, CorpusError, MiningError, ModelError, PartsDiffer, PlanDiffers
from mnemoscope.foundation.files import file_hash, read_object, storing, write_json
from mnemoscope.foundation.options.fleet_options import ALONE, FleetOptions
from mnemoscope.foundation.options.mining_options import UNRELEASED, MiningOptions
from mnemoscope.foundation.options.model_options import NAMED, full_name
from mnemoscope.foundation.progress import NOTE, Progress, StopSignal, ignore_progress, interruption
from mnemoscope.runs.plan import MiningPlan, all_versions, batch_order, library_versions, model_facts
from mnemoscope.runs.record import RunRecord
from mnemoscope.runs.states import CHECKPOINT, CLOSED, STATES

if TYPE_CHECKING:
    from mnemoscope.models import LanguageModel
    from mnemoscope.runs.texts import Texts

MINE_AGAIN = "; choose another folder, or --force to mine it again"
_LEAST_LEASES, _MOST_LEASES = 256, 10_000
"""A text has more leases than the first, if it has enough batches, and fewer than the second."""
_LEASE_SECONDS = 60
_NOMINAL = {"cpu": 4e10, "cuda": 2e14}
"""Operations per second of one thread, and of one card, about."""
_SHARED = (
    *("facts", "counts", "batches", "first_batch", "lease_batches", "tokens"),
    *("of", "checkpoint_every", "patience", "mixed_devices", "fleet"),
)
"""What workers read of a run, beside its plan."""


@contextmanager
def hold(lock: AbstractContextManager[None]) -> Iterator[None]:
    """Holds the lock of a folder; Ctrl-C becomes Interrupted, a StopSignal Terminated."""
    with lock:
        try:
            yield
        except (KeyboardInterrupt, StopSignal) as stop:
            raise interruption(stop, "stopped; what is done stays, run the same command again to go on") from None


@dataclass(kw_only=True)
class Run:
    """The run in a folder. A merge has the folders of its `parts` in place of a text; `of` is what else than the plan
    decides what is made.
    """

    directory: Path
    plan: MiningPlan
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of the model, for the manifest."""
    counts: Mapping[str, Any] = field(default_factory=dict)
    """Of the text, for the manifest."""
    versions: list[dict[str, str]] = field(default_factory=list)
    part: tuple[int, int] | None = None
    batches: int = 0
    """Of the text, or of a part's share of it."""
    first_batch: int = 0
    """The batches of all parts are numbered one part after the other, so that their states fit together."""
    lease_batches: int = 1
    """Batches of a lease; the last one may have fewer."""
    tokens: int = 0
    checkpoint_every: float = MiningOptions.checkpoint_every
    patience: float = FleetOptions.patience
    """Seconds of silence after which a worker counts as dead."""
    mixed_devices: bool = False
    """Whether devices of different names may compute states."""
    fleet: bool = False
    """Whether it was begun for several workers."""
    is_finished: bool = False
    """Whether the folder held this plan's atlas already."""
    parts: Sequence[Path] = ()
    of: str = ""
    copy: TokenizedCorpus | None = None
    progress: Progress = ignore_progress
    seconds: dict[str, float] = field(default_factory=dict)
    """Of each stage that has ended, in order."""
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def open(
        cls,
        directory: Path,
        options: MiningOptions,
        model: "LanguageModel",
        texts: "Texts",
        *,
        fleet: FleetOptions,
        progress: Progress = ignore_progress,
    ) -> "Run":
        """The run of these options in the locked folder `directory`: begun now, gone on with, or finished already,
        which is said. Another plan in the folder is refused (AtlasExists, PlanDiffers) unless it is forced.
        """
        from mnemoscope.runs.texts import prepare_texts, text_notes

        began, part, force = time.monotonic(), options.share, options.force
        plan = MiningPlan.derive(options, model, **{name: text.name for name, text in texts.items()})
        paths = paths_of(model) | {name: full_name(text.spec, of_text=True) for name, text in texts.items()}
        finished = occupancy(directory) == "finished"
        stored = {} if finished and force else stored_plan(directory)
        if stored and options.accept_versions:
            plan = plan.with_versions_of(stored["plan"])
        new, had_text = not stored and not finished, (directory / WORK / "text").is_dir()
        if new:
            begin(directory, plan=_marks(plan, part, paths, versions=[library_versions()]))
        try:
            copy = prepare_texts(texts, directory, model, plan, progress=progress)
            plan = plan.with_texts(copy, stored.get("plan"))
            differs = plan.difference(stored, part, copy.counts)
            if differs and not force:
                raise refusal(directory, differs, finished=finished)
        except (CorpusError, ModelError, AtlasExists):
            if new:
                clear(directory)
            elif finished and not had_text:
                remove_work(directory)
            raise
        if finished and not force:
            if not had_text:
                remove_work(directory)
            progress(NOTE, 0, None, f"{directory} is finished already, of this model, text and plan; nothing is mined")
            return cls(directory=directory, plan=plan, is_finished=True)
        for note in text_notes(texts["corpus"], copy, model, plan):
            progress(NOTE, 0, None, note)
        if finished or differs:
            clear(directory, keep_text=True)
            stored = {}
        if not stored:
            plan = plan.with_versions_of(library_versions())
        earlier = stored.get("work") or {}
        run = cls(
            directory=directory,
            plan=plan,
            facts=model_facts(model),
            counts=copy.counts,
            versions=all_versions([stored] if stored else []),
            part=part,
            checkpoint_every=options.checkpoint_every,
            patience=fleet.patience,
            mixed_devices=bool(fleet.allow_mixed_devices or earlier.get("mixed_devices")),
            fleet=bool(fleet != ALONE or earlier.get("fleet")),
            copy=copy,
            progress=progress,
            began=began,
        )
        run.plan_batches(model)
        run.claim(paths)
        run.end_stage("text")
        return run

    @classmethod
    def read(cls, directory: Path) -> "Run":
        """The run that is under way in a folder, for its workers."""
        begun = shared_run_of(directory)
        try:
            plan, part = MiningPlan.from_document(begun["plan"], directory), begun["part"]
            part = None if part is None else tuple(part)
            return cls(directory=directory, plan=plan, part=part, versions=begun["versions"], **begun["work"])
        except (TypeError, KeyError) as error:
            raise PlanDiffers(f"{directory} {UNRELEASED} with --force") from error

    def claim(self, paths: Mapping[str, str]) -> None:
        """Marks the folder as begun with this run, whose model and texts have these paths, and takes up what is done:
        files that are not as they were recorded are made again, which is said.
        """
        self.take_up()
        work = {name: getattr(self, name) for name in _SHARED}
        begin(self.directory, plan=_marks(self.plan, self.part, paths, versions=self.versions, work=work))

    def take_up(self) -> None:
        self.record.take_up(self.progress)
        for folder in (STATES, CLOSED):
            for state in (self.directory / folder).glob(f"*/{CHECKPOINT}"):
                if not self.record.finds(state, self.progress):
                    with storing(state):
                        state.unlink(missing_ok=True)

    def plan_batches(self, model: "LanguageModel") -> None:
        """Plans the batches of the tokenized text, and how many of them are a lease: about a minute of a worker's work,
        estimated without measuring.
        """
        assert self.copy is not None
        plan, (part, of) = self.plan, self.part or (1, 1)
        every = self.copy.batches(plan.batch_tokens, extra=model.reading.framing, boundaries=model.boundaries)
        sizes = [len(range(one, every.count, of)) for one in range(part)]
        self.batches, self.first_batch, self.tokens = sizes[-1], sum(sizes[:-1]), int(self.copy.counts["mined_tokens"])
        if self.part:
            ids = [every.ids(int(number)) for number in batch_order(every.count, plan.seed)[part - 1 :: of]]
            self.tokens = sum(int(self.copy.lengths[each].sum()) for each in ids)
        self.lease_batches = choose_lease(
            self.batches,
            tokens=self.tokens,
            parameters=model.sizes.parameters,
            device=plan.device,
            threads=plan.threads,
        )

    @property
    def work(self) -> Path:
        """Holds the tokenized text and all that is done until the atlas is sealed."""
        return self.directory / WORK

    @property
    def leases(self) -> int:
        return -(-self.batches // self.lease_batches)

    def lease_range(self, number: int) -> tuple[int, int]:
        """The batches of a lease."""
        begin = number * self.lease_batches
        return self.first_batch + begin, self.first_batch + min(begin + self.lease_batches, self.batches)

    @cached_property
    def record(self) -> RunRecord:
        """What is done, as far as this process knows."""
        return self.record_of("run")

    def record_of(self, name: str) -> RunRecord:
        """The record to which the process of this name appends."""
        return RunRecord(self.directory, self.plan.hash() + self.of, name=name)

    @property
    def provenance(self) -> Provenance:
        return Provenance(self.plan.model_fingerprint, str(self.plan.corpus_fingerprint), self.plan.hash())

    @property
    def states(self) -> list[Path]:
        """The saved states that together count every batch of the text once."""
        return [self.directory / path for path in self.read_note("states")["paths"]]

    def open_text(self) -> TokenizedCorpus:
        """The tokenized text. Raises PartsDiffer if it is another one."""
        copy = open_prepared(self.work / "text", validation=self.plan.validation is not None)
        if copy.fingerprint != self.plan.corpus_fingerprint:
            raise PartsDiffer(f"the text in {self.work} is not that of the plan; prepare it again with --force")
        return copy

    def read_note(self, stage: str) -> dict[str, Any]:
        """The facts that a stage noted."""
        path = note_path(self.directory, stage)
        if not path.is_file():
            raise MiningError(f"the note of the stage {stage} is missing ({path}); run the same command again")
        return read_object(path)

    def note(self, stage: str, facts: Mapping[str, Any]) -> Path:
        """Notes facts for later stages and the manifest."""
        path = note_path(self.directory, stage)
        write_json(path, facts)
        return path

    def end_stage(self, stage: str) -> None:
        self.seconds[stage] = time.monotonic() - self.began - sum(self.seconds.values())


def note_path(directory: Path, stage: str) -> Path:
    return directory / WORK / f"{stage.replace(' ', '-')}.json"


def choose_lease(batches: int, *, tokens: int, parameters: int, device: str, threads: int) -> int:
    """Batches per lease: about a minute's work of a worker, estimated without measuring."""
    each = max(1.0, tokens / max(1, batches)) * 2.0 * max(1, parameters)
    rate = _NOMINAL.get(device, _NOMINAL["cpu"]) * (threads if device == "cpu" else 1)
    minute = int(_LEASE_SECONDS * rate / each)
    return max(1, -(-batches // _MOST_LEASES), min(minute, batches // _LEAST_LEASES))


def check_writable(directory: Path, *, force: bool, finished: str = "") -> None:
    """Raises AtlasExists for a folder of something else and, without `force`, for an atlas that is damaged or has no
    patterns, and with the advice `finished` for any.
    """
    with storing(directory):
        found = occupancy(directory)
    if found == "foreign":
        raise AtlasExists(f"{directory} holds something that is not an atlas; choose another folder")
    if found == "finished" and not force:
        left = f" but for its patterns, which {patterns_command(directory)} makes" if _lacks_patterns(directory) else ""
        why = ""
        try:
            read_manifest(directory)
        except AtlasError as error:
            why = f": {error}"
        if left or why or finished:
            raise AtlasExists(f"{directory} is finished already{left}{finished or MINE_AGAIN}{why}")


def _lacks_patterns(directory: Path) -> bool:
    """Whether a finished atlas, no part, has no patterns that a manifest covers."""
    try:
        covered = files_beside(directory, "analyses", file_hash(directory / MANIFEST))
    except OSError:
        return False
    return not (directory / STATE).is_dir() and TABLES["patterns"].path() not in covered


def stored_plan(directory: Path) -> dict[str, Any]:
    """The marks of the unfinished run, or of the finished atlas, in a folder: `plan`, `part`, `counts` of the text;
    empty if there is neither.
    """
    if occupancy(directory) != "finished":
        begun = unfinished_plan(directory) or {}
        return begun | {"counts": (begun.get("work") or {}).get("counts", {})} if begun else {}
    manifest = read_manifest(directory)
    part = manifest.part and [manifest.part.index, manifest.part.of]
    return {"plan": manifest.plan, "part": part, "counts": manifest.corpus.counts}


def refusal(directory: Path, differs: tuple[str, str], *, finished: bool) -> AtlasExists | PlanDiffers:
    """The error for a folder of another plan."""
    said, advice = differs
    if finished:
        return AtlasExists(
            f"{directory} is finished already{MINE_AGAIN}, or use {advice}: its plan is another ({said})"
        )
    if not advice:
        return PlanDiffers(f"{directory} {said} with --force")
    return PlanDiffers(
        f"{directory} was begun with another plan ({said}); use {advice}, another folder, or --force to start again"
    )


def _marks(plan: MiningPlan, part: tuple[int, int] | None, paths: Mapping[str, str], **more: Any) -> dict[str, Any]:
    return {"plan": plan.document(), "part": None if part is None else list(part), "paths": dict(paths), **more}


def paths_of(model: "LanguageModel") -> dict[str, str]:
    """What opens a model again from any folder of this machine, by its names in a plan."""
    found = {"model": model.source, **{name: getattr(model.opening, name) for name in NAMED}}
    return {name: full_name(str(value)) for name, value in found.items() if value is not None}
