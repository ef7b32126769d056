"""The final output of `mine` and `merge`: the atlas's path, its contents, and the next commands."""

import sys
from pathlib import Path

from mnemoscope.cli.runner import emit

OTHER_FUNCTION = "plain (eager) attention, the only kind that reports it, computes another function here, or cannot run"
_COUNTS = ("documents", "sentences", "duplicates", "mined_sentences", "mined_tokens")
_LISTED = 20


def summarise(path: Path, *, json: bool) -> None:
    from mnemoscope.atlas import open_atlas

    atlas = open_atlas(path)
    path = atlas.path
    manifest, model, corpus, part = atlas.manifest, atlas.manifest.model, atlas.manifest.corpus, atlas.manifest.part
    counts, questions = corpus.counts, manifest.questions
    memories = sum(atlas.memories(layer) for layer in atlas.layers)
    if (overlap := corpus.overlap).sentences:
        print(
            f"warning: {overlap.sentences:,} of {overlap.of:,} sentences of the validation text"
            f" ({overlap.share:.1%}) are in the mined text, too",
            file=sys.stderr,
        )
    if "attention_weights" in manifest["model"]:
        print(f"warning: where attention looks is left out: {OTHER_FUNCTION}", file=sys.stderr)
    if json:
        made = {"atlas": str(path), "model": model.spec, "corpus": corpus.spec}
        sizes = {"layers": list(atlas.layers), "memories": memories, "counts": counts}
        rest = {"overlap": manifest["corpus"]["overlap"], "questions": manifest.get("questions") or None}
        plan = {"part": manifest.get("part"), "plan_hash": manifest.plan_hash}
        emit({**made, **sizes, **rest, **plan, "made_by": atlas.made_by()})
        return
    print(f"{path} is {f'{part} of ' if part else ''}an atlas: {atlas.range_text()} ({memories:,} memories)")
    print(f"  model   {model.spec}")
    print(f"  corpus  {corpus.spec}")
    spoken = ", ".join(f"{counts[name]:,} {name.replace('_', ' ')}" for name in _COUNTS)
    print(f"  text    {spoken}")
    if counts["duplicates"] and manifest.plan.get("split") != "sentence":
        print("          (texts that differ only in white space at their ends, such as indentation, count as one)")
    for which, read in (("", counts), (" of the validation text", counts.get("validation") or {})):
        if bad := read.get("bad_rows", {}).get("count"):
            rows = read["bad_rows"]["rows"]
            more = f" and {bad - len(rows[:_LISTED]):,} more (manifest.json)" if bad > _LISTED else ""
            print(f"  skipped {bad:,} bad rows{which}: {', '.join(rows[:_LISTED])}{more}")
    if not part:
        gave, requested = questions.prefixes, questions.prefixes_asked
        fewer = f" of {requested:,} requested (text too short)" if gave < requested else ""
        removals = f"{questions.removals_per_layer} memories per layer for removals"
        print(f"  asked   held-out {atlas.reading.words['cases']}: {gave:,}{fewer}; {removals}")
    if part:
        print(f"next: mine the other parts, then mnemoscope merge OUT {path} ...")
    else:
        print(f"next: mnemoscope show {path} {atlas.name(atlas.layers[-1], 0)}")
        print(f"      mnemoscope report {path}")
