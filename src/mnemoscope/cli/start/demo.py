"""`mnemoscope demo`: mines the built-in model on its own text, answers all questions and writes the report."""

from typing import TYPE_CHECKING, Any

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit
from mnemoscope.errors import AtlasExists
from mnemoscope.foundation.options.mining_options import DemoOptions

if TYPE_CHECKING:
    from mnemoscope.atlas import Atlas

MODEL, CORPUS = "builtin:pydocs", "builtin:pydocs:stdlib"
EXAMPLES = 10
REMOVALS = 10
"""Memories per layer whose tokens are removed: the minimum, to keep the demo short."""


def demo(options: DemoOptions, *, json: bool) -> None:
    """Mine a small built-in model, and write its report.

    Its text is Python's documentation, and the report answers the paper's questions. Works offline and takes a few
    minutes. A finished demo is shown again, not mined again. A memory is striking if its value is confident and its
    top token often follows its triggers: the largest probability at its typical activation times the share of its 25
    best triggers that are followed by the value's top token.

    Example: mnemoscope demo
    """
    out = options.out
    occupancy = arg.check_folder(out)
    from mnemoscope.atlas import open_atlas

    with reporting() as progress:
        if options.force or occupancy != "finished":
            from mnemoscope.mining import mine

            added: dict[str, Any] = {"removals": REMOVALS, "token_activations": True, "random": True}
            mine(MODEL, CORPUS, progress=progress, **added, **options.taken_by(mine))
        atlas = open_atlas(out)
        if atlas.manifest.model.spec != MODEL or atlas.manifest.part is not None:
            raise AtlasExists(f"{out} is an atlas, but not the demo's; choose another folder, or --force to replace it")
        _report(atlas, progress)
    layers, rows = [_layer(atlas, layer) for layer in atlas.layers], _striking(atlas)
    counts = atlas.manifest.corpus.counts
    if json:
        page = str(out / "report" / "index.html")
        emit({"atlas": str(out), "report": page, "counts": counts, "layers": layers, "striking": rows})
    else:
        _draw(atlas, layers, rows)


def _report(atlas: "Atlas", progress: Any) -> None:
    from mnemoscope.questions.answers import all_are_current

    reported = "report/index.html" in atlas.made_later("report")
    if reported and all_are_current(atlas):
        return
    from mnemoscope.show.export import write_report

    write_report(atlas, progress=progress)


def _layer(atlas: "Atlas", layer: int) -> dict[str, Any]:
    activity = atlas.table("activity", layer=layer)
    ranks = atlas.table("values", layer=layer)["target_rank"].drop_nulls()
    fired = activity["positive"].to_numpy()
    return {
        "layer": layer,
        "active": float((fired / activity["prefixes"].clip(lower_bound=1).to_numpy()).mean()),
        "dead": float((fired == 0).mean()),
        "agreement": float((ranks.to_numpy() == 0).mean()) if len(ranks) else None,
    }


def _striking(atlas: "Atlas") -> list[dict[str, Any]]:
    from mnemoscope.show.figures.examples import best_examples

    rows = best_examples(atlas, EXAMPLES).to_dicts()
    for row in rows:
        row["name"] = str(atlas.name(row["layer"], row["memory"]))
        row["top_text"] = atlas.token_text([row["top_token"]])[0]
        triggers = atlas[row["name"]].triggers().to_dicts()
        example = next(trigger for trigger in triggers if trigger["next_token"] == row["top_token"])
        row |= {name: example[name] for name in ("prefix", "trigger_text", "sentence", "position")}
    return rows


def _draw(atlas: "Atlas", layers: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    from rich.text import Text

    from mnemoscope.cli.drawing import mark_trigger, print_table, stdout_console
    from mnemoscope.foundation.formatting import Table, percent, show_token, times_chance

    console = stdout_console(piped_width=80)
    total, tokens = sum(atlas.memories(layer) for layer in atlas.layers), atlas.manifest.corpus.counts
    print(f"{atlas.path}: {total:,} memories in {len(layers)} layers, {tokens['mined_tokens']:,} tokens of text")
    print("\nLayers: how often a memory fires at a token, how many never do, and how many")
    print("values rank first the token that follows their best trigger")
    shares = ("active", "dead", "agreement")
    lines = [
        (str(row["layer"]), *("" if row[name] is None else f"{row[name]:.1%}" for name in shares)) for row in layers
    ]
    print_table(console, Table((">layer", ">fires", ">never", ">right"), lines))
    vocabulary = atlas.manifest.model.sizes.vocabulary
    print("\nStriking memories: neurons whose top output token often follows their triggers;")
    print("p: its probability at the typical activation (x chance: at coefficient 1);")
    print("follows: the share of the 25 best triggers that are followed by it")
    examples: list[tuple[str | Text, ...]] = []
    for row in rows:
        after, top = mark_trigger(row, width=min(60, console.width - 49)), show_token(row["top_text"])
        at_work = "" if row["working_probability"] is None else percent(row["working_probability"])
        bare = times_chance(row["max_probability"], vocabulary)
        examples.append((row["name"], after, top, at_work, bare, f"{row['agreement']:.0%}"))
    if rows:
        print_table(console, Table(("memory", "after", "top token", ">p", ">x chance", ">follows"), examples))
    else:
        console.print(Text("none: the text is too short, or the model untrained"))
    best = rows[0]["name"] if rows else str(atlas.name(atlas.layers[-1], 0))
    print(f"\nthe paper's questions, answered: open {atlas.path / 'report' / 'index.html'} in a browser")
    print(f"\nnext: mnemoscope serve {atlas.path} --model {MODEL}")
    print(f"      mnemoscope show {atlas.path} {best}")
    print(f"      mnemoscope analyze {atlas.path} value_agreement")
    print(f"      mnemoscope mine {MODEL} YOUR_TEXT.txt --out my-atlas")
    print("      mnemoscope mine gpt2 YOUR_TEXT.txt --out gpt2-atlas")
