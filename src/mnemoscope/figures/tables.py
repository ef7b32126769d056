"""The tables behind the figures: wide ones to read, and the whole answer as CSV to take away."""

import base64
from dataclasses import dataclass

import polars as pl

from mnemoscope.formatting import interval, number, spoken
from mnemoscope.questions.answered import Answered, Row

_KINDS = ("shallow", "semantic", "both", "none")


@dataclass(frozen=True)
class Cell:
    """A number as text, and its interval in smaller print."""

    text: str
    aside: str = ""


@dataclass(frozen=True)
class Table:
    """A table with a header of its own."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def tables(answer: Answered) -> list[Table]:
    """Everything that the answer says, in tables narrow enough to read."""
    by_layer = [name for name in answer.names() if answer.rows(name)]
    found = [_by_layer(answer, names, caption) for caption, names in _groups(by_layer)]
    if deciles := _deciles(answer):
        found.append(deciles)
    alone = [name for name in answer.names() if name not in by_layer and not name.startswith("decile_")]
    if alone:
        found.append(_totals(answer, alone))
    return found


def _groups(names: list[str]) -> list[tuple[str, list[str]]]:
    """The names in groups that belong together: people's patterns, and removals by kind of pattern, stand apart."""
    rest = [name for name in names if not name.startswith("people_") and name.rsplit("_", 1)[-1] not in _KINDS]
    plain = {name for name in names if name in ("shallow_only", "semantic_only", *_KINDS)}
    first = [name for name in names if name in rest or name in plain]
    groups = [("by layer", first)]
    if people := [name for name in names if name.startswith("people_")]:
        groups.append(("by layer, patterns named by people", people))
    for kind in _KINDS:
        own = [name for name in names if name.endswith(f"_{kind}") and name not in first and name not in people]
        if own:
            groups.append((f"by layer, triggers under {_spoken_kind(kind)}", own))
    return [(caption, own) for caption, own in groups if own]


def _spoken_kind(kind: str) -> str:
    return {"both": "both kinds of pattern", "none": "no pattern"}.get(kind, f"{kind} patterns only")


def _by_layer(answer: Answered, names: list[str], caption: str) -> Table:
    """A row per layer and one for all of them; the number of cases once, where it is the same for all names."""
    lines: list[tuple[Cell, ...]] = []
    for layer in (*answer.layers, None):
        found = [answer.total(name) if layer is None else answer.at(name, layer) for name in names]
        if not any(found):
            continue
        counts = {row.count for row in found if row is not None}
        cases = f"{counts.pop():,}" if len(counts) == 1 else "differ"
        lines.append((Cell("all" if layer is None else str(layer)), *(_cell(row) for row in found), Cell(cases)))
    return Table(caption, ("layer", *(answer.label(name) for name in names), "cases"), tuple(lines))


def _cell(row: Row | None) -> Cell:
    if row is None:
        return Cell(spoken(None, "number"))
    return Cell(spoken(row.value, row.form), interval(row.low, row.high, row.form))


def _deciles(answer: Answered) -> Table | None:
    """Agreement by tenth of the memories, with the bounds of the largest probability and the mean norm."""
    found = [row for index in range(10) if (row := answer.total(f"decile_{index}")) is not None]
    if not found:
        return None
    rows = []
    for index, row in enumerate(found):
        bounds, norm = (row.own.get("lowest"), row.own.get("highest")), row.own.get("value_norm")
        spread = " to ".join(number(bound) for bound in bounds if bound is not None)
        cells = Cell(str(index + 1)), Cell(spread), _cell(row), Cell(spoken(norm, "number")), Cell(f"{row.count:,}")
        rows.append(cells)
    header = ("tenth", "largest probability", "agreement", "norm of the value, mean", "memories")
    return Table("by tenth of the memories, least confident first", header, tuple(rows))


def _totals(answer: Answered, names: list[str]) -> Table:
    rows = []
    for name in names:
        row = answer.total(name)
        assert row is not None
        where = row.own.get("at_layer", row.own.get("best_layer"))
        place = "" if where is None else f" (layer {where:.0f})"
        rows.append((Cell(answer.label(name) + place), _cell(row), Cell(f"{row.count:,}")))
    return Table("over all layers", ("what", "value", "cases"), tuple(rows))


def csv_link(table: pl.DataFrame) -> str:
    """The whole answer as a `data:` link that a browser saves as CSV."""
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(table.write_csv().encode()).decode()
