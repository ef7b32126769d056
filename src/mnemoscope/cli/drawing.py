"""Terminal output of verbs: consoles, tables, and one memory as text.

Rich writes its own escape sequences to a terminal, so a console bypasses the runner's filter and filters itself: no
control code of a drawn text gets through, and no text is parsed as rich's markup.
"""

import math
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from textwrap import wrap as wrap_text
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from mnemoscope.atlas.schema import TABLES
from mnemoscope.cli.runner import stream_behind
from mnemoscope.foundation.formatting import (
    before_token,
    plain_percent,
    show_controls,
    show_text,
    show_texts,
    show_token,
    times_chance,
)
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.near_duplicates import count_different

if TYPE_CHECKING:
    import polars as pl

    from mnemoscope.atlas import Atlas

_READ = 8
"""Top tokens shown of a value under a lens."""
_VALUE_SAID = (
    *("max_probability", "entropy", "top_z", "bottom_z", "clear_z", "target_rank", "trigger_log_probability"),
    *("working_probability", "working_logit", "working_probability_negative", "working_logit_negative"),
    *("literal_max_probability", "literal_target_rank"),
)
"""The numbers of a value that have a line of their own."""
_ROOMY, _BESIDE_TRIGGERS = 80, 16
"""Columns from which a trigger takes one line; and the width before it if it takes two."""
_PADDING, _LEAST, _HEADER, _ENDLESS = 2, 12, 6, 10_000
"""Blanks between columns; least widths of a wrapped text and of a header; a width that never wraps."""


class _Plain(Console):
    """A console that shows texts literally; only rich's own control segments act."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(show_controls(segment.text), segment.style)


def stdout_console(*, piped_width: int) -> Console:
    """A console on stdout; `piped_width` is its width unless stdout is a terminal."""
    width = None if sys.stdout.isatty() else piped_width
    return _Plain(file=stream_behind(sys.stdout), width=width, highlight=False, markup=False, emoji=False)


def print_table(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], *, wrap: bool = False
) -> None:
    """Prints a table without lines; a column whose name starts with `>` is right-aligned. `wrap` wraps long names. In a
    table that is too wide, texts are wrapped; if even that does not fit, every row becomes a list.
    """
    endless = console.options.update(width=_ENDLESS)
    if wrap or console.measure(_table(columns, rows), options=endless).maximum > console.width:
        longest = [max((cell_len(str(row[at])) for row in rows), default=0) for at in range(len(columns))]
        whole = [name[:1] == ">" or name == "memory" for name in columns]
        for header in range(max(_HEADER, *map(cell_len, columns)), _HEADER - 1, -1):
            least = [
                max(size, min(header, cell_len(name))) if kept else min(_LEAST, size)
                for size, kept, name in zip(longest, whole, columns, strict=True)
            ]
            if sum(least) + _PADDING * (len(columns) - 1) <= console.width:
                break
        else:
            _print_lists(console, columns, rows)
            return
        names = [
            name[:1] * (name[:1] == ">") + "\n".join(wrap_text(name.removeprefix(">"), size)) if kept else name
            for name, size, kept in zip(columns, least, whole, strict=True)
        ]
        console.print(_table(names, rows, foldable=[not kept for kept in whole]))
        return
    console.print(_table(columns, rows))


def _table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, foldable: Sequence[bool] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _PADDING, 0, 0), show_edge=False, header_style="dim")
    for at, name in enumerate(columns):
        table.add_column(
            name.removeprefix(">"),
            justify="right" if name[:1] == ">" else "left",
            overflow="fold",
            no_wrap=not (foldable and foldable[at]),
        )
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def _print_lists(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
    for row in rows:
        for name, cell in zip(columns, row, strict=True):
            if str(cell):
                start = f"{name.removeprefix('>')}: " if name.strip(">") else ""
                console.print(Text.assemble((start, "dim"), cell, overflow="fold"))
        console.print()


def draw_memory(atlas: "Atlas", memory: MemoryId, tables: "dict[str, pl.DataFrame]", *, limit: int) -> None:
    """Prints a memory on stdout, at most `limit` prefixes of each sign."""
    from mnemoscope.atlas.read import BEST_TRIGGERS

    console = stdout_console(piped_width=120)
    about = f"{memory}  model {atlas.manifest.model.spec}, text {atlas.manifest.corpus.spec}"
    console.print(Text(about, style="bold"))
    for sign, label in tables["labels"].select("sign", "label").rows() if "labels" in tables else ():
        console.print(Text(f"{'' if sign == 1 else 'below zero: '}{label}"))
    triggers = tables["triggers"].to_dicts()
    for sign, name in ((1, "Triggers (highest activations)"), (-1, "Lowest activations")):
        rows = [row for row in triggers if row["sign"] == sign]
        if rows or sign == 1:
            _draw_triggers(console, name, rows, _token_colours(tables, rows), limit=limit)
    if "value" in tables:
        _draw_value(console, tables["value"].to_dicts()[0], vocabulary=atlas.manifest.model.sizes.vocabulary)
    else:
        _headline(console, f"No value yet: this is {atlas.manifest.part}; `mnemoscope merge` makes it")
    if "readings" in tables:
        _headline(console, "Value through the lenses of its layer")
        _draw_readings(console, tables["readings"], "target_rank", "top_texts", of="target")
    if "key_readings" in tables:
        _headline(console, "What its key looks for, among the words")
        _draw_readings(console, tables["key_readings"], "trigger_rank", "key_top_texts", of="last trigger token")
    _draw_activity(console, tables["activity"].to_dicts()[0])
    for row in tables["importance"].to_dicts() if "importance" in tables else ():
        _headline(console, "What predictions hang on it")
        console.print(f"  {_numbers('importance', row)}")
    if "neighbours" in tables:
        _headline(console, "Neighbours (most similar values)")
        near = tables["neighbours"].select("name", "cosine", "top_text").rows()
        lines = [(name, f"{cosine:.3f}", show_token(text)) for name, cosine, text in near]
        print_table(console, ("memory", ">cosine", "its top token"), lines)
    if "patterns" in tables and tables["patterns"].height:
        _headline(console, "Patterns")
        best = [row for row in triggers if row["sign"] == 1 and row["rank"] < BEST_TRIGGERS]
        folds = len({row["fold"] for row in best})
        for row in tables["patterns"].to_dicts():
            different = count_different(row["triggers"], best)
            counts = f"{len(row['triggers'])} of {len(best)} triggers, {different} of {folds} different ones"
            console.print(Text(f"  {row['kind']}: {row['description']} ({counts})"))


def _token_colours(tables: "dict[str, pl.DataFrame]", rows: list[dict[str, Any]]) -> dict[int, list[tuple[str, str]]]:
    """Text and style of the tokens of the triggers of one sign, by rank; the strongest one has the full colour."""
    if "token_activations" not in tables or not rows:
        return {}
    peak, table = max(abs(row["coefficient"]) for row in rows), tables["token_activations"]
    return {
        rank: [(text, _style(c / peak)) for text, c in zip(show_texts(texts), numbers, strict=True)]
        for sign, rank, texts, numbers in table.select("sign", "rank", "texts", "coefficients").iter_rows()
        if sign == rows[0]["sign"]
    }


def _style(share: float) -> str:
    """Black on a shade of blue, of orange below zero; nothing below a twentieth."""
    strength = min(1.0, abs(share))
    if strength < 0.05:
        return ""
    full = (80, 150, 235) if share > 0 else (230, 145, 60)
    return "black on #" + "".join(f"{round(255 - strength * (255 - one)):02x}" for one in full)


def _draw_readings(console: Console, table: "pl.DataFrame", rank: str, texts: str, *, of: str) -> None:
    lines = []
    for row in table.to_dicts():
        place = "-" if row[rank] is None else f"{row[rank]:,}"
        lines.append((row["lens"], place, " ".join(show_token(text) for text in row[texts][:_READ])))
    print_table(console, ("lens", f">rank of the {of}", "top tokens"), lines)


def _headline(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _draw_triggers(
    console: Console, name: str, rows: list[dict[str, Any]], colours: dict[int, list[tuple[str, str]]], *, limit: int
) -> None:
    if not rows:
        _headline(console, f"{name}: none, the memory never fired")
        return
    groups: dict[int, list[dict[str, Any]]] = {}
    folds: dict[int, set[int]] = {}
    for row in rows:
        folds.setdefault(row["fold"], set()).add(row["prefix_group"])
        if row["prefix_group"] == row["fold"] or row["prefix_group"] in groups:
            groups.setdefault(row["prefix_group"], []).append(row)
    prefixes = sum(map(len, folds.values()))
    alike = f", {len(groups)} without near-duplicates" if prefixes > len(groups) else ""
    _headline(console, f"{name}: {len(rows)}, of {prefixes} different prefixes{alike}")
    narrow = console.width < _ROOMY
    lines: list[tuple[str | Text, ...]] = []
    for group in list(groups.values())[:limit]:
        first, count = group[0], f"x{len(group)}" if len(group) > 1 else ""
        similar = len(folds[first["fold"]]) - 1
        more = Text(f"\nand {similar} like it" if similar else "", "dim")
        rank, coefficient = str(first["rank"]), f"{first['coefficient']:.3f}"
        after = dict.fromkeys("(end)" if row["next_text"] is None else show_token(row["next_text"]) for row in group)
        following = " ".join([*after][:3]) + (" ..." if len(after) > 3 else "")
        if narrow:
            marked = mark_trigger(first, colours.get(first["rank"]), width=console.width - _BESIDE_TRIGGERS)
            below = " ".join(filter(None, (count, f"next {following}")))
            lines.append((rank, coefficient, Text.assemble(marked, "\n", (below, "dim"), more, overflow="fold")))
        else:
            marked = mark_trigger(first, colours.get(first["rank"]), width=max(20, console.width - 62))
            lines.append((rank, coefficient, count, Text.assemble(marked, more), following))
    columns = ("", "", "prefix") if narrow else (">rank", ">activation\n(coefficient)", ">count", "prefix", "next")
    print_table(console, columns, lines)
    if len(groups) > limit:
        console.print(Text(f"  and {len(groups) - limit} more prefixes (--limit {len(groups)} shows all)", style="dim"))


def mark_trigger(row: dict[str, Any], colours: Sequence[tuple[str, str]] | None = None, *, width: int) -> Text:
    """The end of a trigger's prefix, as much as fits, with the trigger token in marks; `colours` are text and style of
    its sentence's tokens.
    """
    token = row["trigger_text"]
    if colours is None:
        shown, style = Text(show_text(before_token(row["prefix"], token))), ""
    else:
        shown, style = Text.assemble(*colours[: row["position"]]), colours[row["position"]][1]
    marked = f"«{show_token(token)}»"
    room = width - cell_len(marked) - 1
    if cell_len(shown.plain) > room:
        while shown and cell_len(shown.plain) > room:
            shown = shown[1:]
        shown = Text("…") + shown
    return Text.assemble(shown, (marked, f"bold {style}"))


def _draw_value(console: Console, value: dict[str, Any], *, vocabulary: int) -> None:
    from mnemoscope.atlas.features import features_of

    _headline(console, "Value")
    above, rank = "{:.2f} nats above the mean token", "first trigger's next token: rank {:,}"
    readings = (
        ("at its typical activation", "working_probability", "working_logit", above),
        ("the same below zero", "working_probability_negative", "working_logit_negative", above),
        ("at coefficient 1", "max_probability", "entropy", "entropy {:.2f} nats"),
        ("by the paper's formula", "literal_max_probability", "literal_target_rank", rank),
    )
    lines = [
        (where, plain_percent(share), times_chance(share, vocabulary), "" if more is None else text.format(more))
        for where, share, more, text in (
            (where, value[name], value[beside], text) for where, name, beside, text in readings
        )
        if share is not None
    ]
    print_table(console, ("largest probability", ">", ">x chance", ""), lines)
    console.print(f"  {_numbers('values', value, but=_VALUE_SAID)}")
    for feature in features_of(value):
        where = "where it fires" if feature.sign == 1 else "where it is negative"
        token = show_token(value[f"{feature.end}_texts"][0])
        promotes = f"promotes {token}" if feature.promotes else "no clear token"
        out = f"z score {feature.distance:.1f}, clear above {feature.clear:.1f}"
        console.print(Text(f"  {where}: {promotes} ({out})"))
    if value["target"] is not None:
        score = value["trigger_log_probability"]
        mean = "" if score is None else f"; mean log p of next tokens {score:.2f}"
        target = show_token(value["target_text"])
        console.print(Text(f"  best trigger's next token {target}: rank {value['target_rank']:,}{mean}"))
    rows = []
    columns = (value[name][:10] for name in ("top_texts", "top_scores", "bottom_texts", "bottom_scores"))
    for top, score, bottom, low in zip(*columns, strict=True):
        share = value["max_probability"] * math.exp(min(0.0, score - value["top_scores"][0]))
        rows.append((show_token(top), f"{score:.3f}", f"{share:.4f}", "", show_token(bottom), f"{low:.3f}"))
    print_table(console, ("top tokens", ">score", ">probability", "", "bottom tokens", ">score"), rows)


def _numbers(table: str, row: dict[str, Any], *, but: Sequence[str] = ()) -> str:
    """The numbers of a table's row, `but` those that stand elsewhere."""
    texts = (f"{column.label} {text}" for column, text in TABLES[table].numbers(row) if column.name not in but)
    return ", ".join(texts).replace("\N{NO-BREAK SPACE}", " ")


def _draw_activity(console: Console, activity: dict[str, Any]) -> None:
    import polars as pl

    from mnemoscope.atlas.features import strongly_active

    prefixes, positive = activity["prefixes"], activity["positive"]
    share = 100 * positive / prefixes if prefixes else 0.0
    every = activity.get("all_prefixes", prefixes)
    routed = "" if every == prefixes else f", those of {every:,} that its expert gets"
    _headline(console, f"Activity: positive on {positive:,} of {prefixes:,} prefixes ({share:.2f} %){routed}")
    console.print(f"  {_numbers('activity', activity, but=('prefixes', 'all_prefixes', 'positive', 'sampled'))}")
    strong = zip(strongly_active(pl.DataFrame([activity])).row(0), ("above", "below"), strict=True)
    if sides := [f"{plain_percent(share)} {side} zero" for share, side in strong if share is not None]:
        console.print(f"  strongly active (≥ 1/8 of its extreme): {', '.join(sides)}")
    counts, edges = activity["histogram"], activity["edges"]
    # Bin i counts edges[i-1] <= x < edges[i].
    between = [f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
    bins = [f"below {edges[0]:g}", *between, f"{edges[-1]:g} and more"]
    rows = [
        (bounds, "█" * math.ceil(30 * count / max(counts)), f"{count:,}")
        for bounds, count in zip(bins, counts, strict=True)
        if count
    ]
    if rows:
        print_table(console, (">activation (coefficient)", f"of {activity['sampled']:,} sampled prefixes", ">"), rows)
