"""How the columns of tables are declared: type, meaning, and how people are shown them. `schema.py` has the tables."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import cleandoc
from typing import Any

import pyarrow as pa

from mnemoscope.foundation.formatting import DASH, Form, format_value
from mnemoscope.foundation.words import NEXT, Words, in_words


@dataclass(frozen=True)
class Column:
    """One column: its type and what stands in it, in words for FORMAT.md and for the headings of pages.

    `form` says how people are shown a number; `label` what it is called then (the name, with blanks for underscores),
    `unit` what it is counted in; label and meaning may hold names of foundation/words.py in braces. `of_head`: its
    tokens are rows of the model's head; the columns `nulls_as` are null in the same rows, the lists of `lengths_as` as
    long. Lists have `items` entries, or where that is 0 as many in all rows.
    """

    field: pa.Field
    meaning: str = ""
    form: Form | None = None
    label: str = ""
    unit: str = ""
    of_head: bool = False
    nulls_as: tuple[str, ...] = ()
    lengths_as: tuple[str, ...] = ()
    items: int | None = None

    @property
    def name(self) -> str:
        return str(self.field.name)

    @property
    def type(self) -> str:
        """Such as `int32`, `float32?` where it may be null, `list of int32`."""
        kind, is_list = self.field.type, pa.types.is_list(self.field.type)
        plain = str(kind.value_type if is_list else kind)
        spoken = {"halffloat": "float16", "float": "float32", "double": "float64", "bool": "boolean"}.get(plain, plain)
        return f"{'list of ' * is_list}{spoken}{'?' * self.field.nullable}"

    @property
    def about(self) -> str:
        """What stands in it, with its unit."""
        return str(in_words("; ".join(filter(None, (self.meaning, self.unit and f"in {self.unit}"))), NEXT))

    def format(self, value: float | None) -> str:
        """A number as people are shown it, with its unit; a dash for none."""
        text = format_value(value, self.form or "number")
        return text if text == DASH or not self.unit else f"{text} {self.unit}"


@dataclass(frozen=True)
class TableKind:
    """One table. `numbered` is the stem of numbered files (`layer`, `part`), None for one file at the atlas's top.
    `mined`: the atlas's manifest covers it. `optional`: it may be missing, or covered by the manifest of the
    extensions. `declared` are the columns, `for_experts` those that a model of experts adds, before `memory` or last,
    and `for_some` those that other models add, each by itself.

    A line declares a column, or several of one kind: `name,name type word ... | meaning`, and goes on where the next
    one is indented. The type is that of a list in brackets, and `?` after it allows nulls. The words are fields of
    `Column`: `of_head`, `nulls_as=OTHER`, `lengths_as=OTHER`, `items=36`, `form=share`, `label='norm'`, `unit=nats`.
    """

    name: str
    row_group: int
    numbered: str | None = None
    mined: bool = True
    optional: bool = False
    for_experts: str = ""
    for_some: str = ""
    declared: str = ""

    def with_columns(self, declared: str) -> "TableKind":
        return replace(self, declared=declared)

    @cached_property
    def of_all(self) -> list[Column]:
        """The columns that the table of every model has."""
        return parse_columns(self.declared)

    @cached_property
    def of_experts(self) -> list[Column]:
        """Those that a model of experts adds."""
        return parse_columns(self.for_experts)

    @cached_property
    def of_some(self) -> list[Column]:
        return parse_columns(self.for_some)

    @cached_property
    def columns(self) -> pa.Schema:
        return pa.schema([column.field for column in self.of_all])

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """Every column by name, those of some models last."""
        return {column.name: column for column in (*self.of_all, *self.of_experts, *self.of_some)}

    def numbers(self, row: Mapping[str, Any], words: Words = NEXT) -> list[tuple[Column, str]]:
        """The numbers of a row, each as it is shown; without nulls, and columns that the row lacks."""
        there = (one for one in self.by_name.values() if one.form and row.get(one.name) is not None)
        return [(in_words(one, words), one.format(row[one.name])) for one in there]

    def columns_beside(self, names: Sequence[str]) -> pa.Schema:
        """The columns, with those of some models if `names` has them: `expert` before `memory`, others last."""
        added, has = [column.field for column in self.of_experts], set(names)
        if not {column.name for column in added} <= has:
            added = []
        added += [column.field for column in self.of_some if column.name in has]
        if not added:
            return self.columns
        fields, at = list(self.columns), max(0, self.columns.get_field_index("memory"))
        first = [column for column in added if column.name == "expert"]
        return pa.schema([*fields[:at], *first, *fields[at:], *added[len(first) :]])

    def path(self, number: int | None = None) -> str:
        """The file's path relative to the atlas, such as `triggers/layer-003.parquet`."""
        if (number is None) != (self.numbered is None):
            raise ValueError(f"table {self.name}: a number is {'needed' if self.numbered else 'not allowed'}")
        if self.numbered is None:
            return f"{self.name}.parquet"
        return f"{self.name}/{self.numbered}-{number:03d}.parquet"

    def content_error(self, rows: pa.Table, vocabulary: int) -> str | None:
        """The fault in rows that no run writes: nulls, unequal lists, tokens beyond the `vocabulary`, negative counts,
        numbers that are not finite (what is undefined is null); None without one.
        """
        import pyarrow.compute as pc  # a fifth of the time that a look into a folder takes

        rules = {one: rule for one, rule in self.by_name.items() if one in rows.column_names}
        for one, rule in rules.items():
            column, is_list = rows.column(one), pa.types.is_list(rule.field.type)
            lengths = pc.list_value_length(column) if is_list else None
            if not rule.field.nullable and (column.null_count or (is_list and pc.list_flatten(column).null_count)):
                return f"column {one} holds nulls"
            for other in (other for other in rule.lengths_as if other in rules):
                if not pc.list_value_length(column).equals(pc.list_value_length(rows.column(other))):
                    return f"{one} and {other} are lists of different lengths"
            for other in (other for other in rule.nulls_as if other in rules):
                if not column.is_null().equals(rows.column(other).is_null()):
                    return f"{one} and {other} are null in different rows"
            if rule.items is not None:
                counts = {*pc.min_max(lengths).as_py().values()} - {None}
                if len(counts) > 1 or (rule.items and counts - {rule.items}):
                    odd = max(counts - {rule.items})
                    return f"{one} holds a list of {odd} entries, not {rule.items or min(counts)}"
            wrong = None
            if rule.of_head or (not is_list and one.endswith("token")):
                if is_list and pc.min(lengths).as_py() == 0:
                    return f"{one} holds empty lists"
                for token in pc.min_max(pc.list_flatten(column) if is_list else column).as_py().values():
                    if token is not None and not 0 <= token < vocabulary:
                        return f"{one} names token {token}, and the model has tokens 0-{vocabulary - 1}"
            elif self.mined and pa.types.is_floating(rule.field.type):
                wrong = pc.invert(pc.is_finite(column))
            elif self.mined and pa.types.is_integer(rule.field.type) and one != "sign":
                wrong = pc.less(column, 0)
            if wrong is not None and (count := pc.sum(wrong).as_py()):
                return f"{one} holds {column.filter(wrong)[0]} in {count:,} of its rows"
        return None


def parse_columns(text: str) -> list[Column]:
    """The columns of a declaration, in order."""
    lines = re.sub(r"\n +", " ", cleandoc(text)).splitlines()
    return [column for line in lines for column in _columns_of(line)]


def _columns_of(line: str) -> Iterator[Column]:
    """The columns that a line declares."""
    head, _, meaning = line.partition(" | ")
    names, kind, *words = shlex.split(head)
    given = [word.partition("=")[::2] for word in words]
    rules: dict[str, Any] = dict(given)
    rules |= {"of_head": "of_head" in rules}
    rules |= {name: tuple(other for key, other in given if key == name) for name in ("nulls_as", "lengths_as")}
    rules |= {"items": int(rules["items"])} if "items" in rules else {}
    plain = pa.type_for_alias(kind.strip("[]?"))
    for name in names.split(","):
        typed = pa.field(name, pa.list_(plain) if kind[0] == "[" else plain, nullable=kind.endswith("?"))
        yield Column(typed, meaning, **{"label": name.replace("_", " "), **rules})
