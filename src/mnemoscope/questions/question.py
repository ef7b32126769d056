"""What a question of the paper is, and how the answer to it is read: by name, layer by layer.

Everything that is said of a question outside its module and its figure (table, sentence, comparison, page, report)
follows from what it declares. Nothing is computed here. Rows whose value is not defined are left out of an answer, so
what is drawn is always a number.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import polars as pl

from mnemoscope.atlas.read import Atlas, first_upper_layer
from mnemoscope.foundation.formatting import Form, format_interval, format_value
from mnemoscope.foundation.intervals import Estimate

EMPTY = pl.DataFrame(
    schema={"layer": pl.Int16, "name": pl.String, "value": pl.Float64, "count": pl.Int64}
    | {"low": pl.Float64, "high": pl.Float64}
)
"""The columns that every answer begins with."""

Verdict = Literal["yes", "no", "undecided"]
Outcome = tuple[str, str, Verdict | None]
"""A finding of ours in words, its interval in words, and the verdict; None where there is nothing to judge."""


@dataclass(frozen=True, kw_only=True)
class Row(Estimate):
    """One number of an answer: of a layer, or (layer None) a total; it is defined.

    `own` are the question's own columns, `form` is how the number is to be read.
    """

    value: float
    layer: int | None
    name: str
    own: Mapping[str, Any]
    form: Form

    @property
    def text(self) -> str:
        """The value as one reads it."""
        return format_value(self.value, self.form)

    @property
    def interval(self) -> str:
        """`[3.1 %, 3.9 %]`, or nothing where there is no interval."""
        return format_interval(self.low, self.high, self.form)

    @property
    def text_and_interval(self) -> str:
        """`34.0 % [33.1 %, 35.2 %]`."""
        return f"{self.text} {self.interval}".rstrip()


@dataclass(frozen=True)
class Number:
    """One number of an answer: its name, how its value is to be read, and its label.

    Without a label it is called by its name, with spaces. `alone` is the label away from the question's own figure and
    tables; `terminal` the form in the terminal's table, where that is another. Numbers with a `table` stand in one of
    their own, with that caption.
    """

    name: str
    form: Form
    label: str = ""
    alone: str = ""
    terminal: Form | None = None
    table: str = ""

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.name.replace("_", " "))


@dataclass(frozen=True)
class Claim:
    """One statement of the paper's text: what it says, the stated figure, and the total of the answer beside it.

    `form` is how ours is to be read beside the paper's. `rule` says in words when the claim counts as shown; `test`
    asks it of the answer and that total (or the total `by`), and gives None where it cannot be asked of this answer.
    Where no rule would be fair, there is none.
    """

    text: str
    paper: str
    name: str
    form: Form
    rule: str = ""
    test: "Callable[[Answer, Row], Verdict | None] | None" = None
    by: str = ""


@dataclass(frozen=True)
class Finding:
    """A result that the paper's figure shows without a number of its own: what, the rule in words, and its test.

    The test gets all answers by question.
    """

    text: str
    paper: str
    rule: str
    test: "Callable[[Mapping[str, Answer]], Outcome]"


@dataclass(frozen=True)
class Paper:
    """Where the paper asks a question: figure, section, the question in one sentence, and its stated results."""

    figure: str
    section: str
    question: str
    claims: tuple[Claim, ...] = ()

    def document(self) -> dict[str, Any]:
        """The same as JSON has it; the rules are left out."""
        claims = [{"text": one.text, "paper": one.paper, "name": one.name, "form": one.form} for one in self.claims]
        return {"figure": self.figure, "section": self.section, "question": self.question, "claims": claims}


@dataclass(frozen=True)
class Question:
    """One question. Its module has it as QUESTION, and `answer(atlas)`; `figures` has a module of the same name.

    `title` says in a few words what it is about; `main` is the number without which there is nothing to draw, and
    `nothing` what is said then; `headline` are the numbers of the terminal's table, `layer_page` those that a layer's
    page shows; `projections` and `interval` are what the answer says of its vectors and intervals.

    `needs_patterns`: it reads patterns.parquet; `may_lack` are the tables that it cannot do without and that an atlas
    may not have, or have empty because its plan asked for none. `judgements` gives what people say, where the answer
    counts it (None where nobody said anything); `cases` lists cases beside the answer, for people to judge.
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

    def __post_init__(self) -> None:
        names = [number.name for number in self.numbers]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"{self.id} declares {sorted(twice)} twice")
        claimed = [claim.by or claim.name for claim in self.paper.claims] + [claim.name for claim in self.paper.claims]
        shown = (self.main, *self.headline, *self.layer_page, *claimed)
        if unknown := set(shown) - set(names):
            raise ValueError(f"{self.id} shows {sorted(unknown)}, which it does not declare")

    def number(self, name: str) -> Number:
        """What is declared of the number; an answer of another version may hold one that is not, shown as it is."""
        return next((one for one in self.numbers if one.name == name), Number(name, "number"))


@dataclass(frozen=True)
class Answer:
    """A question with its answer: the table, what its intervals are over, and why it is missing if so.

    `missing` is one sentence, empty where there is an answer. `layers` are the layers of the atlas, `depth` those of
    the model: the paper's layers 11-16 of 16 are the *upper* ones, `layer >= ceil(10 * depth / 16)`.
    """

    question: Question
    table: pl.DataFrame
    interval: str
    missing: str
    layers: tuple[int, ...]
    depth: int

    def label(self, name: str) -> str:
        """What the number of that name is called."""
        return self.question.number(name).label

    @property
    def upper(self) -> tuple[int, ...]:
        """The mined layers that stand for the paper's layers 11-16."""
        return tuple(layer for layer in self.layers if layer >= first_upper_layer(self.depth))

    @property
    def lower(self) -> tuple[int, ...]:
        """The mined layers that stand for the paper's layers 1-10."""
        return tuple(layer for layer in self.layers if layer < first_upper_layer(self.depth))

    def names(self) -> tuple[str, ...]:
        """Every name with at least one number, in order of appearance."""
        return tuple(self._by_name)

    def rows(self, name: str) -> list[Row]:
        """The numbers of that name, by layer; without the total."""
        return [row for row in self._by_name.get(name, ()) if row.layer is not None]

    def total(self, name: str) -> Row | None:
        """The number of that name over all layers; None where there is none."""
        return self.at(name, None)

    def at(self, name: str, layer: int | None) -> Row | None:
        """The number of that name in one layer, or (layer None) over all; None where there is none."""
        return next((row for row in self._by_name.get(name, ()) if row.layer == layer), None)

    def mean(self, name: str, layers: Sequence[int]) -> float | None:
        """The mean over those of the layers that have the number, each weighing the same; None where none has."""
        values = [row.value for row in self.rows(name) if row.layer in layers]
        return sum(values) / len(values) if values else None

    @cached_property
    def _by_name(self) -> dict[str, list[Row]]:
        """The rows of each name, by layer, the total last; names in order of appearance."""
        finite = self.table.filter(pl.col("value").is_finite()).to_dicts()
        rows: dict[str, list[Row]] = {columns["name"]: [] for columns in finite}
        for columns in finite:
            known = {column: columns.pop(column) for column in EMPTY.columns}
            form = self.question.number(known["name"]).form
            rows[known["name"]].append(Row(**known, own=columns, form=form))
        for own in rows.values():
            own.sort(key=lambda row: (row.layer is None, row.layer or 0))
        return rows
