"""`mnemoscope compare`: what changed between atlases of one text."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.declared import DeclaredOptions, option

if TYPE_CHECKING:
    import polars as pl

_SHOWN, _WIDTH = 20, 80


class CompareOptions(DeclaredOptions):
    atlases: list[Path] = option(help="Two or more folders.", metavar="ATLAS", argument=True)
    models: list[str] | None = option(
        None, "Their models, after the atlases: adds cosines of vectors.", metavar="MODEL MODEL ..."
    )
    save: bool = option(False, "Keep it in the first atlas, for its pages and report.")


def compare(options: CompareOptions, *, json: bool) -> None:
    """Compare atlases: checkpoints, fine-tunes, seeds, sizes.

    They are of one text. Of each layer the mean overlap (Jaccard) of the triggers of memories of one number, beside
    those of permuted memories, and how many features were born, died or were repurposed. Of more than two atlases each
    is compared with the next. Atlases with the table samples (mnemoscope extend ATLAS samples) are compared by
    correlation, too.

    Example: mnemoscope compare atlas-base atlas-tuned --models base tuned
    """
    atlases, models = options.atlases, options.models
    half, odd = divmod(len(atlases) + len(models or ()), 2)
    if models and not odd:  # the parser takes one word after --models
        atlases, models = atlases[:half], [*models, *map(str, atlases[half:])]
    if len(atlases) < 2:
        raise OptionError("one atlas cannot be compared; name two or more")
    arg.check_atlases(*atlases)
    from mnemoscope.comparison import compare as run_comparison

    with reporting() as progress:
        comparison = run_comparison(*atlases, models=models or None, progress=progress)
    notes = [pair["note"] for pair in comparison.pairs if pair["note"]] + (
        [f"kept in {comparison.save()}"] if options.save else []
    )
    for note in notes:
        print(note, file=sys.stderr)
    if json:
        emit(comparison.to_dict())
        return
    for pair in comparison.pairs:
        _draw(f"{pair['first']}, then {pair['second']}", pair["layers"], pair["changed"])
        if (weights := pair.get("weights")) is not None:
            from mnemoscope.atlas.derived_manifest import describe_changes

            for line in describe_changes(weights):
                print(line)


def _draw(title: str, layers: "pl.DataFrame", changed: "pl.DataFrame") -> None:
    from mnemoscope.cli.drawing import print_table, stdout_console
    from mnemoscope.comparison.result import layer_table
    from mnemoscope.foundation.formatting import Table, format_value, show_token

    console = stdout_console(piped_width=_WIDTH)
    console.print(title, style="bold")
    headings, lines = layer_table(layers.to_dicts())
    print_table(console, Table([f">{heading}" for heading in headings], lines), wrap=True)
    rows = []
    for row in changed.head(_SHOWN).to_dicts():
        tokens = [" ".join(map(show_token, row[f"tokens_{when}"][:3])) for when in ("before", "after")]
        name = row["memory"] if row["sign"] == 1 else f"{row['memory']} below zero"
        numbers = [format_value(row[each], "number") for each in ("effect", "halves_effect")]
        rows.append((name, row["kind"], *numbers, *tokens))
    if rows:
        print_table(console, Table(("memory", "changed", ">effect", ">halves", "promoted before", "after"), rows))
    more = f", {changed.height - _SHOWN:,} more with --json" if changed.height > _SHOWN else ""
    console.print(f"{changed.height:,} features changed{more}")
