"""`mnemoscope demo`: the built-in model and its own documentation, mined; then the most striking memories."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mnemoscope.cli.frame import Debug, Json, emit
from mnemoscope.cli.progress import reporting

MODEL, CORPUS = "builtin:pydocs", "builtin:pydocs:stdlib"
SHOWN = 10


def demo(
    out: Annotated[Path, typer.Option("--out", metavar="ATLAS", help="The folder to make.")] = Path("mnemoscope-demo"),
    force: Annotated[bool, typer.Option("--force", help="Replace a finished atlas.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Mine the built-in model on Python's documentation, offline, in a few minutes; show the most striking memories.

    A finished demo is shown again, not mined again.

    Example: mnemoscope demo
    """
    from mnemoscope.atlas.manifest import occupancy

    if force or occupancy(out) != "finished":
        from mnemoscope.mining import mine

        with reporting() as progress:
            mine(MODEL, CORPUS, out=out, force=force, progress=progress)
    _tell(out, json=json)


def _tell(out: Path, *, json: bool) -> None:
    from mnemoscope.analyses import striking
    from mnemoscope.atlas import open_atlas

    atlas = open_atlas(out)
    rows: list[dict[str, Any]] = [
        {**row, "name": f"L{row['layer']}.M{row['memory']}", "top_text": atlas.token_text([row["top_token"]])[0]}
        for row in striking(atlas, SHOWN).to_dicts()
    ]
    for row in rows:
        best = atlas[row["name"]].triggers().filter(_agrees(row["top_token"])).head(1)
        row["example"] = best["prefix"][0] if best.height else ""
    layers = [_layer(atlas, layer) for layer in atlas.layers]
    counts = atlas.manifest["corpus"]["counts"]
    if json:
        emit({"atlas": str(out), "counts": counts, "layers": layers, "striking": rows})
        return
    from rich.console import Console
    from rich.table import Table

    from mnemoscope.cli.visible import visible

    console = Console(highlight=False)
    total = sum(atlas.memories(layer) for layer in atlas.layers)
    print(f"{out}: {total:,} memories in {len(atlas.layers)} layers, {counts['mined_tokens']:,} tokens of text")
    table = Table("layer", "fire at a token", "never fire", "value's top = target", title="layers", title_justify="left")
    for row in layers:
        table.add_row(str(row["layer"]), f"{row['active']:.1%}", f"{row['dead']:.1%}", f"{row['agreement']:.1%}")
    console.print(table)
    table = Table("memory", "value says", "p", "comes true", "for example after", title="striking memories",
                  title_justify="left")  # fmt: skip
    for row in rows:
        example = visible(row["example"])
        table.add_row(
            row["name"], visible(row["top_text"]), f"{row['max_probability']:.2f}", f"{row['agreement']:.0%}",
            example if len(example) <= 60 else "..." + example[-57:],
        )  # fmt: skip
    console.print(table)
    best = rows[0]["name"] if rows else f"L{atlas.layers[-1]}.M0"
    print(f"next: mnemoscope show {out} {best}")
    print(f"      mnemoscope mine {MODEL} YOUR_TEXT.txt --out my-atlas")


def _agrees(token: int) -> Any:
    import polars as pl

    return (pl.col("sign") == 1) & (pl.col("next_token") == token)


def _layer(atlas: Any, layer: int) -> dict[str, float]:
    """How active a layer is, the share of memories that never fire, and of values whose top token is the target."""
    activity = atlas.table("activity", layer=layer)
    values = atlas.table("values", layer=layer).filter(_has_target())
    return {
        "layer": layer,
        "active": float((activity["positive"] / activity["prefixes"].clip(lower_bound=1)).mean() or 0.0),
        "dead": float((activity["positive"] == 0).mean() or 0.0),
        "agreement": float((values["target_rank"] == 0).mean() or 0.0),
    }


def _has_target() -> Any:
    import polars as pl

    return pl.col("target").is_not_null()
