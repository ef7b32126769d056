"""Terminal output of verbs: consoles, tables, and one memory as text.

Rich writes its own escape sequences to a terminal, so a console bypasses the runner's filter and filters itself: no
control code of a drawn text gets through, and no text is parsed as rich's markup.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from textwrap import wrap as wrap_text
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from mnemoscope.atlas.schema import TABLES
from mnemoscope.cli.runner import stream_behind
from mnemoscope.foundation.formatting import (
    DASH,
    Table,
    before_token,
    plain_percent,
    show_controls,
    show_text,
    show_texts,
    show_token,
    times_chance,
)
from mnemoscope.foundation.near_duplicates import group_folds
from mnemoscope.foundation.words import KEYS_ONLY, Words, in_words

if TYPE_CHECKING:
    from mnemoscope.atlas.memory_document import MemoryDocument, Row

_READ = 8
"""Top tokens shown of a value under a lens."""
_LENSES = {
    "readings": ("Value through the lenses of its layer", "target_rank", "top_texts", "target"),
    "key_readings": ("What its key looks for, among the words", "trigger_rank", "key_top_texts", "{last_trigger}"),
}
"""By table the headline, the columns of rank and tokens, and what the rank is of."""
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


def print_table(console: Console, table: Table, *, wrap: bool = False) -> None:
    """Prints a table without lines. `wrap` wraps long names. In a table that is too wide, texts are wrapped; if even
    that does not fit, every row becomes a list.
    """
    drawn, endless = _rich_table(table.columns, table), console.options.update(width=_ENDLESS)
    if wrap or console.measure(drawn, options=endless).maximum > console.width:
        longest = [max((cell_len(str(row[at])) for row in table.rows), default=0) for at in range(len(table.columns))]
        whole = [name[:1] == ">" or name == "memory" for name in table.columns]
        for header in range(max(_HEADER, *map(cell_len, table.columns)), _HEADER - 1, -1):
            least = [
                max(size, min(header, cell_len(name))) if kept else min(_LEAST, size)
                for size, kept, name in zip(longest, whole, table.columns, strict=True)
            ]
            if sum(least) + _PADDING * (len(least) - 1) <= console.width:
                break
        else:
            for row in table.rows:
                for name, cell in zip(table.names, row, strict=True):
                    if str(cell):
                        console.print(Text.assemble((f"{name}: " if name else "", "dim"), cell, overflow="fold"))
                console.print()
            return
        names = [
            name[:1] * (name[:1] == ">") + "\n".join(wrap_text(name.removeprefix(">"), size)) if kept else name
            for name, size, kept in zip(table.columns, least, whole, strict=True)
        ]
        drawn = _rich_table(names, table, foldable=[not kept for kept in whole])
    console.print(drawn)


def _rich_table(columns: Sequence[str], table: Table, *, foldable: Sequence[bool] = ()) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False, padding=(0, _PADDING, 0, 0), show_edge=False, header_style="dim")
    for at, name in enumerate(columns):
        side: Any = "right" if name[:1] == ">" else "left"
        folds = bool(foldable) and foldable[at]
        drawn.add_column(name.removeprefix(">"), justify=side, overflow="fold", no_wrap=not folds)
    for row in table.rows:
        drawn.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return drawn


def draw_memory(document: "MemoryDocument", *, limit: int) -> None:
    """Prints a memory on stdout, at most `limit` prefixes of each sign."""
    console, manifest, words = stdout_console(piped_width=120), document.atlas.manifest, document.atlas.reading.words
    about = f"{document.memory.id}  model {manifest.model.spec}, text {manifest.corpus.spec}"
    console.print(Text(about, style="bold"))
    for row in document.rows("labels") or ():
        console.print(Text(f"{'' if row['sign'] == 1 else 'below zero: '}{row['label']}"))
    _draw_triggers(console, "Triggers (highest activations)", document, 1, limit=limit)
    _draw_triggers(console, "Lowest activations", document, -1, limit=limit)
    if (value := document.row("value")) is None:
        why = f"yet: this is {manifest.part}; `mnemoscope merge` makes it" if manifest.part else f"here: {KEYS_ONLY}"
        _headline(console, f"No value {why}")
    else:
        _draw_value(console, document, value)
    for table, (headline, rank, texts, of) in _LENSES.items():
        if (readings := document.rows(table)) is not None:
            _headline(console, headline)
            lines = [
                (
                    row["lens"],
                    "-" if row[rank] is None else f"{row[rank]:,}",
                    " ".join(map(show_token, row[texts][:_READ])),
                )
                for row in readings
            ]
            print_table(console, Table(("lens", in_words(f">rank of the {of}", words), "top tokens"), lines))
    _draw_activity(console, document.activity, words)
    if importance := document.row("importance"):
        _headline(console, "What predictions hang on it")
        console.print(f"  {_numbers('importance', importance, words)}")
    if (near := document.rows("neighbours")) is not None:
        _headline(console, "Neighbours (most similar values)")
        tops = [DASH if row["top_text"] is None else show_token(row["top_text"]) for row in near]
        lines = [(row["name"], f"{row['cosine']:.3f}", top) for row, top in zip(near, tops, strict=True)]
        print_table(console, Table(("memory", ">cosine", "its top token"), lines))
    if document.patterns:
        _headline(console, "Patterns")
        of = f"of {len({row['fold'] for row in document.best})} different ones"
        for row in document.patterns:
            counts = f"{len(row['triggers'])} of {len(document.best)} triggers, {row['different']} {of}"
            console.print(Text(f"  {row['kind']}: {row['description']} ({counts})"))


def _token_colours(document: "MemoryDocument", sign: int) -> dict[int, list[tuple[str, str]]]:
    """Text and style of the tokens of the triggers of one sign, by rank; the strongest one has the full colour."""
    peak = max(abs(row["coefficient"]) for row in document.triggers if row["sign"] == sign)
    return {
        row["rank"]: [
            (text, _style(coefficient / peak))
            for text, coefficient in zip(show_texts(row["texts"]), row["coefficients"], strict=True)
        ]
        for row in document.rows("token_activations") or ()
        if row["sign"] == sign
    }


def _style(share: float) -> str:
    """Black on a shade of blue, of orange below zero; nothing below a twentieth."""
    strength = min(1.0, abs(share))
    if strength < 0.05:
        return ""
    full = (80, 150, 235) if share > 0 else (230, 145, 60)
    return "black on #" + "".join(f"{round(255 - strength * (255 - one)):02x}" for one in full)


def _headline(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _draw_triggers(console: Console, name: str, document: "MemoryDocument", sign: int, *, limit: int) -> None:
    folds = group_folds(document.triggers, sign)
    if not folds:
        if sign == 1:
            _headline(console, f"{name}: none, the memory never fired")
        return
    words, reading = document.atlas.reading.words, document.atlas.reading
    prefixes, count = sum(map(len, folds)), sum(len(group) for groups in folds for group in groups)
    alike = f", {len(folds)} without near-duplicates" if prefixes > len(folds) else ""
    _headline(console, f"{name}: {count}, of {prefixes} different {words['prefixes']}{alike}")
    narrow = console.width < _ROOMY
    # From the hub the table is fetched for --json alone: it is larger than all other tables of a layer.
    colours = {} if document.atlas.foreign else _token_colours(document, sign)
    lines: list[tuple[str | Text, ...]] = []
    for group, *similar in folds[:limit]:
        first, times = group[0], f"x{len(group)}" if len(group) > 1 else ""
        more = Text(f"\nand {len(similar)} like it" if similar else "", "dim")
        rank, coefficient = str(first["rank"]), f"{first['coefficient']:.3f}"
        target = "next_text" if reading.causal else "trigger_text"
        after = dict.fromkeys("(end)" if row[target] is None else show_token(row[target]) for row in group)
        following = " ".join([*after][:3]) + (" ..." if len(after) > 3 else "")
        own = first.get("own_coefficient")
        following += "" if own is None else f" ({own:.3f} with it masked)"
        rest = "" if reading.causal else document.atlas.vocabulary.text(first["tokens"][first["position"] + 1 :])
        draw = partial(mark_trigger, first, colours.get(first["rank"]), rest=rest)
        if narrow:
            marked = draw(width=console.width - _BESIDE_TRIGGERS)
            below = " ".join(filter(None, (times, f"{words['next']} {following}")))
            lines.append((rank, coefficient, Text.assemble(marked, "\n", (below, "dim"), more, overflow="fold")))
        else:
            marked = draw(width=max(20, console.width - 62))
            lines.append((rank, coefficient, times, Text.assemble(marked, more), following))
    text, last = words["prefix"], words["next"]
    columns = ("", "", text) if narrow else (">rank", ">activation\n(coefficient)", ">count", text, last)
    print_table(console, Table(columns, lines))
    if len(folds) > limit:
        console.print(
            Text(f"  and {len(folds) - limit} more {words['prefixes']} (--limit {len(folds)} shows all)", style="dim")
        )


def mark_trigger(
    row: Mapping[str, Any], colours: Sequence[tuple[str, str]] | None = None, *, width: int, rest: str = ""
) -> Text:
    """The end of a trigger's prefix, as much as fits, with the trigger token in marks, and what is read behind it, the
    `rest`; `colours` are text and style of its sentence's tokens.
    """
    token = row["trigger_text"]
    if colours is None:
        shown, style, after = Text(show_text(before_token(row["prefix"], token))), "", Text(show_text(f"x{rest}")[1:])
    else:
        shown, style = Text.assemble(*colours[: row["position"]]), colours[row["position"]][1]
        after = Text.assemble(*colours[row["position"] + 1 :] if rest else ())
    marked = f"«{show_token(token)}»"
    room = width - cell_len(marked) - 1
    after.truncate(max(room // 2, room - cell_len(shown.plain)), overflow="ellipsis")
    room -= cell_len(after.plain)
    if cell_len(shown.plain) > room:
        while shown and cell_len(shown.plain) > room:
            shown = shown[1:]
        shown = Text("…") + shown
    return Text.assemble(shown, (marked, f"bold {style}"), after)


def _draw_value(console: Console, document: "MemoryDocument", value: "Row") -> None:
    from mnemoscope.atlas.features import features_of

    vocabulary, texts = document.atlas.manifest.model.sizes.vocabulary, document.atlas.vocabulary.texts
    words = document.atlas.reading.words
    _headline(console, "Value")
    above, rank = "{:.2f} nats above the mean token", f"first {words['its_target']}: rank {{:,}}"
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
    print_table(console, Table(("largest probability", ">", ">x chance", ""), lines))
    console.print(f"  {_numbers('values', value, words, but=_VALUE_SAID)}")
    for feature in features_of(value):
        where = "where it fires" if feature.sign == 1 else "where it is negative"
        token = show_token(value[f"{feature.end}_texts"][0])
        promotes = f"promotes {token}" if feature.promotes else "no clear token"
        out = f"z score {feature.distance:.1f}, clear above {feature.clear:.1f}"
        console.print(Text(f"  {where}: {promotes} ({out})"))
    if value["target"] is not None:
        score = value["trigger_log_probability"]
        mean = "" if score is None else f"; mean log p of {words['next_tokens']} {score:.2f}"
        target = show_token(value["target_text"])
        console.print(Text(f"  best {words['its_target']} {target}: rank {value['target_rank']:,}{mean}"))
    ends = zip(document.value_tokens("top")[:10], document.value_tokens("bottom")[:10], strict=True)
    rows = [
        (show_token(texts[top]), f"{score:.3f}", f"{share:.4f}", "", show_token(texts[bottom]), f"{low:.3f}")
        for (top, score, share), (bottom, low, _) in ends
    ]
    columns = ("top tokens", ">score", ">probability", "", "bottom tokens", ">score")
    print_table(console, Table(columns, rows))


def _numbers(table: str, row: "Row", words: Words, *, but: Sequence[str] = ()) -> str:
    """The numbers of a table's row, `but` those that stand elsewhere."""
    texts = (f"{column.label} {text}" for column, text in TABLES[table].numbers(row, words) if column.name not in but)
    return ", ".join(texts).replace("\N{NO-BREAK SPACE}", " ")


def _draw_activity(console: Console, activity: "Row", words: Words) -> None:
    prefixes, positive, every = activity["prefixes"], activity["positive"], activity["all_prefixes"]
    share = 100 * positive / prefixes if prefixes else 0.0
    routed = "" if every == prefixes else f", those of {every:,} that its expert gets"
    _headline(console, f"Activity: positive on {positive:,} of {prefixes:,} {words['places']} ({share:.2f} %){routed}")
    console.print(f"  {_numbers('activity', activity, words, but=('prefixes', 'all_prefixes', 'positive', 'sampled'))}")
    strong = (activity["strong"], "above"), (activity["strong_negative"], "below")
    if sides := [f"{plain_percent(share)} {side} zero" for share, side in strong if share is not None]:
        console.print(f"  strongly active (≥ 1/8 of its extreme): {', '.join(sides)}")
    most, rows = max(one["count"] for one in activity["bins"]), []
    for low, high, count in (one.values() for one in activity["bins"] if one["count"]):
        ends = f"below {high:g}" if low is None else f"{low:g} and more"
        bounds = ends if None in (low, high) else f"{low:.3g} to {high:.3g}"
        rows.append((bounds, "█" * math.ceil(30 * count / most), f"{count:,}"))
    if rows:
        columns = (">activation (coefficient)", f"of {activity['sampled']:,} sampled {words['places']}", ">")
        print_table(console, Table(columns, rows))
