"""The declaration of a question (`Question`), and its answer read by name and layer (`Answer`).

Tables, sentences, comparison, pages and report are made from the declaration.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import polars as pl

from mnemoscope.atlas.read import Atlas, first_upper_layer
from mnemoscope.foundation.formatting import Form, format_interval, format_value
from mnemoscope.foundation.intervals import Estimate
from mnemoscope.foundation.words import CONTINUES_NOTHING, KEYS_ONLY, NEXT, Words

EMPTY = pl.DataFrame(
    schema={"layer": pl.Int16, "name": pl.String, "value": pl.Float64, "count": pl.Int64}
    | {"low": pl.Float64, "high": pl.Float64}
)
"""The columns that every answer starts with."""

LITERAL = "literal_"
"""The prefix of numbers by the paper's own formulas (definitions.md 4b)."""
EVERY = "every_"
"""The prefix of numbers over all memories, where others are over those that do not copy (definitions.md 7.2)."""
Verdict = Literal["yes", "no", "undecided"]
Outcome = tuple[str, str, Verdict | None]
"""Our result and its interval in words, and the verdict; None without a result."""


@dataclass(frozen=True, kw_only=True)
class Row(Estimate):
    """One defined number of a layer or (layer None) in all; `own` holds the question's own columns."""

    value: float
    layer: int | None
    name: str
    own: Mapping[str, Any]
    form: Form

    @property
    def text(self) -> str:
        return format_value(self.value, self.form)

    @property
    def interval(self) -> str:
        """Such as `[3.1 %, 3.9 %]`; empty if unknown."""
        return format_interval(self.low, self.high, self.form)

    @property
    def text_and_interval(self) -> str:
        return f"{self.text} {self.interval}".rstrip()


@dataclass(frozen=True)
class Number:
    """`label` defaults to the name with spaces; `alone` is the label outside the question's own figure and tables,
    `terminal` another format in the terminal's table. Numbers with the same `table` form a table with that caption.
    Only some models have an `optional` one.
    """

    name: str
    form: Form
    label: str = ""
    alone: str = ""
    terminal: Form | None = None
    table: str = ""
    optional: bool = False

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.name.replace("_", " "))


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, the figure it gives, and the name and format of our total. `rule` states when it counts
    as shown; `test` applies the rule to the answer and that total (or the total `by`), and returns None if it does not
    apply. `ungated`: a gated layer, half of whose coefficients are above zero whatever it learned, cannot answer it.
    `counted`: the share is also given as so many of so many. `optional`: left out without our
    number; `unless`: left out where there is that number.
    """

    text: str
    paper: str
    name: str
    form: Form
    rule: str = ""
    test: "Callable[[Answer, Row], Verdict | None] | None" = None
    by: str = ""
    ungated: bool = False
    counted: bool = False
    optional: bool = False
    unless: str = ""

    def left_out(self, totals: Container[str]) -> bool:
        """Whether an answer with these totals does not show it."""
        return (self.optional and self.name not in totals) or self.unless in totals


@dataclass(frozen=True)
class Finding:
    """A result that the paper's figure shows without a number, a `rule` in words, and its test on all answers, whose
    second argument is the prefix of the numbers it reads. `literal`: whether they differ by the paper's formula.
    """

    text: str
    paper: str
    rule: str
    test: "Callable[[Mapping[str, Answer], str], Outcome]"
    literal: bool = False


@dataclass(frozen=True)
class Paper:
    figure: str
    section: str
    question: str
    claims: tuple[Claim, ...] = ()

    def document(self) -> dict[str, Any]:
        claims = [{"text": one.text, "paper": one.paper, "name": one.name, "form": one.form} for one in self.claims]
        return {"figure": self.figure, "section": self.section, "question": self.question, "claims": claims}


@dataclass(frozen=True)
class Question:
    """Its module defines QUESTION and `answer(atlas)`; `figures` has a module of the same name.

    `main` is the number without which there is no figure, `nothing` the text shown then. `headline` lists the columns
    of the terminal's table, `layer_page` those of a layer's page. `projections` and `interval` describe the vectors and
    intervals. `needs_patterns`: reads patterns.parquet. `may_lack` lists required tables that an atlas may lack or have
    empty. `judgements` returns the judgements counted (None without any), `cases` those to be judged. `literal` lists
    the numbers that are also given by the paper's own formula, with LITERAL before their name; `why` says in one
    sentence why ours is another one. Of a model that reads sentences whole the numbers of a question that is `held` are
    over the memories that still fire where the token is masked, and with EVERY before their name over all; one that is
    `causal` is not asked. Of an encoder alone only one about `keys` is asked.
    """

    id: str
    title: str
    paper: Paper
    numbers: tuple[Number, ...]
    main: str
    headline: tuple[str, ...]
    layer_page: tuple[str, ...]
    nothing: str
    interval: str
    projections: tuple[str, ...] = ()
    finding: Finding | None = None
    needs_patterns: bool = False
    may_lack: tuple[str, ...] = ()
    judgements: Callable[[Atlas], pl.DataFrame | None] | None = None
    cases: Callable[[Atlas], pl.DataFrame] | None = None
    literal: tuple[str, ...] = ()
    why: str = ""
    held: bool = False
    causal: bool = False
    keys: bool = False

    def __post_init__(self) -> None:
        ours = {number.name: number for number in self.numbers}
        copies = [
            replace(
                (one := ours[name]),
                name=prefix + name,
                label=f"{label}: {one.label}",
                alone="",
                table=f"{one.table or 'by layer'}, {table}",
                optional=prefix == EVERY,
            )
            for prefix, names, label, table in (
                (LITERAL, self.literal, "literal", "by the paper's formula"),
                (EVERY, tuple(ours) if self.held else (), "all memories", "over all memories, also those that copy"),
            )
            for name in names
        ]
        object.__setattr__(self, "numbers", (*self.numbers, *copies))

    def refusal(self, atlas: Atlas) -> str | None:
        """Why it is not asked of the atlas's model; None where it is."""
        if self.causal and not atlas.reading.causal:
            return CONTINUES_NOTHING
        return KEYS_ONLY if atlas.manifest.keys_only and not self.keys else None

    def number(self, name: str) -> Number:
        """A number that is not declared has a plain declaration."""
        return next((one for one in self.numbers if one.name == name), Number(name, "number"))


@dataclass(frozen=True)
class Answer:
    """`interval` names what the intervals are over, `missing` the reason if there is no answer (else empty). `depth` is
    the model's number of layers. Rows with an undefined value are dropped. The upper layers are those from
    ceil(10 * depth / 16) on: the paper's layers 11-16 of 16.
    """

    question: Question
    table: pl.DataFrame
    interval: str
    missing: str
    layers: tuple[int, ...]
    depth: int
    gated: bool = False
    words: Words = field(default_factory=lambda: NEXT)

    def heading(self) -> dict[str, str]:
        """The question's name, figure and title, for pages."""
        return {"question": self.question.id, "figure": self.question.paper.figure, "about": self.question.title}

    def label(self, name: str) -> str:
        return self.question.number(name).label

    @property
    def upper(self) -> tuple[int, ...]:
        return tuple(layer for layer in self.layers if layer >= first_upper_layer(self.depth))

    @property
    def lower(self) -> tuple[int, ...]:
        return tuple(layer for layer in self.layers if layer < first_upper_layer(self.depth))

    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def rows(self, name: str) -> list[Row]:
        return [row for row in self._by_name.get(name, ()) if row.layer is not None]

    def total(self, name: str) -> Row | None:
        return self.at(name, None)

    def at(self, name: str, layer: int | None) -> Row | None:
        return next((row for row in self._by_name.get(name, ()) if row.layer == layer), None)

    def mean(self, name: str, layers: Sequence[int]) -> float | None:
        """The unweighted mean over those of `layers` that have the number; None if none has."""
        values = [row.value for row in self.rows(name) if row.layer in layers]
        return sum(values) / len(values) if values else None

    @cached_property
    def _by_name(self) -> dict[str, list[Row]]:
        """Sorted by layer, with the total last; names in order of appearance."""
        finite = self.table.filter(pl.col("value").is_finite()).to_dicts()
        rows: dict[str, list[Row]] = {columns["name"]: [] for columns in finite}
        for columns in finite:
            shared = {column: columns.pop(column) for column in EMPTY.columns}
            form = self.question.number(shared["name"]).form
            rows[shared["name"]].append(Row(**shared, own=columns, form=form))
        for of_name in rows.values():
            of_name.sort(key=lambda row: (row.layer is None, row.layer or 0))
        return rows
