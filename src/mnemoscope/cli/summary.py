"""What to say after an atlas was made: where it is, what it holds, what to type next."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mnemoscope.cli.frame import emit

if TYPE_CHECKING:
    from mnemoscope.atlas.manifest import Overlap, Questions


def summarise(path: Path, *, json: bool) -> None:
    """Prints a few lines about the finished atlas (or part), or one JSON document."""
    from mnemoscope.atlas import open_atlas

    atlas = open_atlas(path)
    model, corpus, part = atlas.manifest.model, atlas.manifest.corpus, atlas.manifest.part
    counts, questions = corpus.counts, atlas.manifest.questions
    memories = sum(atlas.memories(layer) for layer in atlas.layers)
    warn_of_overlap(corpus.overlap)
    if json:
        emit(
            {
                "atlas": str(path),
                "model": model.spec,
                "corpus": corpus.spec,
                "layers": list(atlas.layers),
                "memories": memories,
                "counts": counts,
                "overlap": atlas.manifest["corpus"].get("overlap"),
                "questions": atlas.manifest.get("questions") or None,
                "part": atlas.manifest.get("part"),
                "plan_hash": atlas.manifest.plan_hash,
            }
        )
        return
    what = f"{part} of an atlas" if part else "an atlas"
    print(f"{path} is {what}: {atlas.range_text()} ({memories:,} memories)")
    print(f"  model   {model.spec}")
    print(f"  corpus  {corpus.spec}")
    if spoken := ", ".join(f"{counts[name]:,} {name.replace('_', ' ')}" for name in _TOLD if name in counts):
        print(f"  text    {spoken}")
    if questions.prefixes is not None:
        print(f"  asked   {_asked(questions)}")
    if part:
        print(f"next: mine the other parts, then mnemoscope merge OUT {path} ...")
    else:
        print(f"next: mnemoscope show {path} L{atlas.layers[-1]}.M0")
        print(f"      mnemoscope report {path}")


def warn_of_overlap(overlap: "Overlap | None") -> None:
    """Says on stderr that sentences of the validation text were mined, too, where some were."""
    if overlap and overlap.sentences:
        print(
            f"warning: {overlap.sentences:,} of {overlap.of:,} sentences of the validation text"
            f" ({overlap.share:.1%}) are in the mined text, too",
            file=sys.stderr,
        )


def _asked(questions: "Questions") -> str:
    """How many prefixes and memories the questions were asked about; says so where the text gave fewer."""
    found, wanted = questions.prefixes or 0, questions.prefixes_asked or 0
    fewer = f" (not {wanted:,}: the validation text has no more)" if found < wanted else ""
    return f"{found:,} validation prefixes{fewer}, {questions.removals_per_layer} memories per layer for removals"


_TOLD = ("documents", "sentences", "duplicates", "mined_sentences", "mined_tokens")
