"""The end of a run: patterns, the manifest, and the seal, none of which need the model.

Patterns are found before the seal, layer by layer, and joined after it, since the manifest does not cover them.
"""

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.folder import remove_work
from mnemoscope.atlas.form import Manifest
from mnemoscope.atlas.manifest import RUN, mined_from, seal
from mnemoscope.atlas.schema import SCHEMA_VERSION, place
from mnemoscope.atlas.tables import patterns_command
from mnemoscope.errors import StoreFailed
from mnemoscope.foundation.files import write_json
from mnemoscope.foundation.origin import package_version
from mnemoscope.foundation.progress import StopSignal, interruption
from mnemoscope.patterns import PatternFinder, join_patterns, open_finder, write_layer_patterns, write_words
from mnemoscope.runs.run import Run
from mnemoscope.runs.workers.worker import Stage, Worker

_PROJECTIONS = {"values": "gain", "votes": "gain", "streams": "lens", "neighbours": "raw cosine"}
_OF_PATTERNS = ("vocabulary", "background", "sentences", "triggers", "similar_words")
"""The tables in which patterns are found."""


def seal_run(run: Run, *, keep_work: bool = False) -> None:
    """Seals the folder as an atlas, or a part, when all stages are done."""
    directory = run.directory
    run.progress("sealing", 0, None, "")
    write_json(
        directory / RUN,
        {  # which no hash covers
            "seconds": {stage: round(seconds, 3) for stage, seconds in run.seconds.items()},
            "host": platform.node(),
            "machine": platform.machine(),
            "paths": mined_from(directory),
            **({"keep_work": True} if keep_work else {}),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )
    seal(directory, _manifest(run), made=run.record.hashes)
    if run.part is None:
        add_patterns(directory)
    remove_work(directory, keep_text=keep_work)


def _manifest(run: Run) -> dict[str, Any]:
    """The manifest without its files."""
    plan, counts, part, text = run.plan, run.counts, run.part, run.read_note("text")
    if part is None:
        with_head = ["scales"] if plan.head != "none" else []
        asked = {stage: run.read_note(stage) for stage in ("removals", "predictions", *with_head)}
        halved = {stage: own.pop("halved") for stage, own in asked.items()}
        halved = {stage: steps for stage, steps in halved.items() if steps or stage != "scales"}
        facts = {name: fact for noted in asked.values() for name, fact in noted.items()}
        questions = {**facts, "out_of_memory_steps": halved}
        own: dict[str, Any] = {"questions": questions}
    else:
        own = {"part": {"index": part[0], "of": part[1]}}
    given, held_out = counts.get("validation"), int(counts["held_out_sentences"])
    # Sentences of a separate validation text may be mined, too; of the mined text none is.
    total = held_out if given is None else int(given["sentences"])
    shared = 0 if given is None else int(given["overlap_sentences"])
    return {
        "model": {**run.facts, "spec": plan.spec},
        "corpus": {
            "spec": plan.corpus,
            "fingerprint": plan.corpus_fingerprint,
            "counts": dict(counts),
            "held_out_share": held_out / max(1, int(counts["sentences"])),
            "overlap": {"sentences": shared, "of": total, "share": shared / max(1, total)},
        },
        "plan": plan.document(),
        "plan_hash": plan.hash(),
        "layers": list(plan.layers),
        "projections": _PROJECTIONS,
        "dtype": plan.dtype,
        "device": plan.device,
        "out_of_memory_batches": text["halved"],
        "versions": run.versions,
        "byte_identity_promised": len(run.versions) == 1 and not text["halved"],
        **text["equality"],
        **own,
    }


def add_patterns(directory: Path) -> None:
    """Joins the patterns of all layers in the sealed atlas."""
    left = f"{directory} is finished but for its patterns, which {patterns_command(directory)} makes"
    try:
        join_patterns(open_atlas(directory))
    except (KeyboardInterrupt, StopSignal) as stop:
        raise interruption(stop, f"stopped; {left}") from None
    except StoreFailed as refused:  # which says to run the same again, and mining would refuse a finished atlas
        raise StoreFailed(f"{str(refused).rpartition('; ')[0]}; {left}") from refused


def number_words(worker: Worker, _: int) -> None:
    """Numbers the words of all layers at once: ties between patterns are ordered by their words."""
    worker.made.append(write_words(_unsealed_atlas(worker), progress=worker.progress))


def find_layer_patterns(worker: Worker, layer: int) -> None:
    finder = worker.keep(PatternFinder, lambda: open_finder(_unsealed_atlas(worker)))
    worker.made.append(write_layer_patterns(finder.atlas, layer, finder))


PATTERN_STAGES: tuple[Stage, ...] = (
    Stage("pattern words", "run", number_words, needs_model=False),
    Stage("patterns", "layer", find_layer_patterns, needs_model=False),
)
"""The last stages, which read tables alone."""


def _unsealed_atlas(worker: Worker) -> Atlas:
    """The folder as an atlas with only the tables in which patterns are found."""
    directory, files = worker.directory, {}
    for path, sha in worker.record.hashes.items():
        if (found := place(path)) and found[0].name in _OF_PATTERNS:
            files[path] = {"bytes": (directory / path).stat().st_size, "sha256": sha}
    document = {**_manifest(worker.run), "schema": SCHEMA_VERSION, "package": package_version(), "files": files}
    return Atlas(directory, Manifest.of(document), manifest_hash="")
