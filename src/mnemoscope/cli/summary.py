"""What to say after an atlas was made: where it is, what it holds, what to type next."""

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
    if json:
        emit(
            {
                "atlas": str(path),
                "model": model.get("spec"),
                "corpus": corpus.get("spec"),
                "layers": list(atlas.layers),
                "memories": memories,
                "counts": counts,
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
    if part:
        print(f"next: mine the other parts, then mnemoscope merge OUT {path} ...")
    else:
        print(f"next: mnemoscope show {path} L{atlas.layers[-1]}.M0")


_TOLD = ("documents", "sentences", "duplicates", "mined_sentences", "mined_tokens")
