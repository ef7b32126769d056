"""What to say after an atlas was made: where it is, what it holds, what to type next."""

import sys
from pathlib import Path
from typing import Any

from mnemoscope.cli.frame import emit


def summarise(path: Path, *, json: bool) -> None:
    """Prints a few lines about the finished atlas (or part), or one JSON document."""
    from mnemoscope.atlas import open_atlas

    atlas = open_atlas(path)
    model, corpus = atlas.manifest["model"], atlas.manifest["corpus"]
    counts: dict[str, Any] = corpus.get("counts", {})
    part = atlas.manifest.get("part")
    memories = sum(atlas.memories(layer) for layer in atlas.layers)
    questions: dict[str, Any] = atlas.manifest.get("questions", {})
    warn_of_overlap(atlas.manifest)
    if json:
        emit(
            {
                "atlas": str(path),
                "model": model.get("spec"),
                "corpus": corpus.get("spec"),
                "layers": list(atlas.layers),
                "memories": memories,
                "counts": counts,
                "overlap": corpus.get("overlap"),
                "questions": questions or None,
                "part": part,
                "plan_hash": atlas.manifest["plan_hash"],
            }
        )
        return
    what = f"part {part['index']} of {part['of']} of an atlas" if part else "an atlas"
    print(f"{path} is {what}: {atlas.range_text()} ({memories:,} memories)")
    print(f"  model   {model.get('spec')}")
    print(f"  corpus  {corpus.get('spec')}")
    if spoken := ", ".join(f"{counts[name]:,} {name.replace('_', ' ')}" for name in _TOLD if name in counts):
        print(f"  text    {spoken}")
    if questions:
        print(f"  asked   {_asked(questions)}")
    if part:
        print(f"next: mine the other parts, then mnemoscope merge OUT {path} ...")
    else:
        print(f"next: mnemoscope show {path} L{atlas.layers[-1]}.M0")
        print(f"      mnemoscope report {path}")


def warn_of_overlap(manifest: dict[str, Any]) -> None:
    """Says on stderr that sentences of the validation text were mined, too, where some were."""
    overlap = manifest["corpus"].get("overlap") or {"sentences": 0}
    if overlap["sentences"]:
        print(
            f"warning: {overlap['sentences']:,} of {overlap['of']:,} sentences of the validation text"
            f" ({overlap['share']:.1%}) are in the mined text, too",
            file=sys.stderr,
        )


def _asked(questions: dict[str, Any]) -> str:
    """How many prefixes and memories the questions were asked about; says so where the text gave fewer."""
    found, wanted = questions["prefixes"], questions["prefixes_asked"]
    fewer = f" (not {wanted:,}: the validation text has no more)" if found < wanted else ""
    return f"{found:,} validation prefixes{fewer}, {questions['removals_per_layer']} memories per layer for removals"


_TOLD = ("documents", "sentences", "duplicates", "mined_sentences", "mined_tokens")
