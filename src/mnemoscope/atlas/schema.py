"""The tables of an atlas: names, places, columns, and the origin that every file states.

One pyarrow schema per table of FORMAT.md, at this schema version; atlases of earlier versions lack the columns that
came later (`ColumnRules.since`) and stay readable. Readers ignore unknown columns; writers never drop one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import pyarrow as pa

from mnemoscope.errors import OptionError

SCHEMA_VERSION = 3

SENTENCES_PER_PART = 100_000


@dataclass(frozen=True)
class Provenance:
    model: str
    corpus: str
    plan: str
    schema: int = SCHEMA_VERSION


@dataclass(frozen=True)
class ColumnRules:
    """What holds of a column beside its type: the schema version `since` which atlases have it; whether its tokens are
    rows of the model's head; the columns that are null in the same rows, and those whose lists are as long.
    """

    since: int = 1
    of_head: bool = False
    nulls_as: tuple[str, ...] = ()
    lengths_as: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: Sequence[str]) -> Self:
        """From `since=2`, `of_head`, `nulls_as=COLUMN` and `lengths_as=COLUMN`."""
        given = [word.partition("=")[::2] for word in words]
        named = {name: tuple(other for key, other in given if key == name) for name in ("nulls_as", "lengths_as")}
        return cls(int(dict(given).get("since", "1")), ("of_head", "") in given, **named)


@dataclass(frozen=True)
class TableKind:
    """One table. `numbered` is the stem of numbered files (`layer`, `part`), None for one file at the atlas's top.
    `mined`: the atlas's manifest covers it. `optional`: it may be missing, or covered by the manifest of the
    extensions. `declared` are the columns, `for_experts` those that a model of experts adds: `name type rule ...`, with
    commas between columns, [type] for a list of it, a `?` after the type that allows nulls, and rules of `ColumnRules`.
    """

    name: str
    row_group: int
    numbered: str | None = None
    mined: bool = True
    optional: bool = False
    for_experts: str = ""
    declared: str = field(kw_only=True)

    @cached_property
    def columns(self) -> pa.Schema:
        return _columns(self.declared)

    @cached_property
    def rules(self) -> dict[str, ColumnRules]:
        """The rules of each column."""
        columns = (column.split() for column in self.declared.split(","))
        return {name: ColumnRules.of(rules) for name, _, *rules in columns}

    def columns_beside(self, names: Sequence[str]) -> pa.Schema:
        """The columns, with those of a model of experts if `names` has them: `expert` before `memory`, others last."""
        added = _columns(self.for_experts) if self.for_experts else pa.schema([])
        if not len(added) or not set(added.names) <= set(names):
            return self.columns
        at = self.columns.get_field_index("memory")
        fields = list(self.columns)
        first, *others = list(added)
        return pa.schema([*fields[:at], first, *fields[at:], *others])

    def path(self, number: int | None = None) -> str:
        """The file's path relative to the atlas, such as `triggers/layer-003.parquet`."""
        if (number is None) != (self.numbered is None):
            raise ValueError(f"table {self.name}: a number is {'needed' if self.numbered else 'not allowed'}")
        if self.numbered is None:
            return f"{self.name}.parquet"
        return f"{self.name}/{self.numbered}-{number:03d}.parquet"


def _columns(declared: str) -> pa.Schema:
    fields = []
    for column in declared.split(","):
        name, kind, *_ = column.split()
        plain = pa.type_for_alias(kind.strip("[]?"))
        fields.append(pa.field(name, pa.list_(plain) if kind[0] == "[" else plain, nullable=kind.endswith("?")))
    return pa.schema(fields)


# A row group of `triggers` spans about 256 memories of 50 triggers, so one memory is read without its layer.
_SENTENCES = "sentence int64, document int64, text string, tokens [int32], multiplicity int32, held_out bool"
_KINDS = (
    TableKind("vocabulary", 65_536, declared="token int32, text string, bytes binary"),
    TableKind("tokens", 65_536, declared="token int32, count int64, next_count int64, first_count int64"),
    TableKind("sentences", 1_024, "part", declared=_SENTENCES),
    TableKind("background", 65_536, declared="sentence int64, position int32, token int32, next_token int32?"),
    TableKind("triggers", 12_800, "layer", for_experts="expert int16?, router_weight float32?", declared=(
        "memory int32, sign int8, rank int16, coefficient float32, sentence int64, position int32, token int32, "
        "next_token int32?, prefix_group int16"
    )),
    TableKind("activity", 1_024, "layer", for_experts="expert int16?, all_prefixes int64", declared=(
        "memory int32, prefixes int64, positive int64, mean float64, min float32, max float32, sampled int64, "
        "std float64, histogram [int64]"
    )),
    TableKind("values", 1_024, "layer", for_experts="expert int16?", declared=(
        "memory int32, key_norm float32, up_norm float32?, value_norm float32, "
        "top_tokens [int32] of_head lengths_as=top_scores lengths_as=bottom_tokens, top_scores [float32], "
        "bottom_tokens [int32] of_head lengths_as=bottom_scores, bottom_scores [float32], "
        "max_probability float32, entropy float32, target int32? of_head, target_rank int32?, "
        "trigger_log_probability float32?, working_logit float32? since=2 nulls_as=working_probability, "
        "working_probability float32? since=2, "
        "working_logit_negative float32? since=3 nulls_as=working_probability_negative, "
        "working_probability_negative float32? since=3, top_z float32? since=3, bottom_z float32? since=3, "
        "clear_z float32? since=3"
    )),
    TableKind("neighbours", 10_240, "layer", for_experts="expert int16?, other_expert int16?", declared=(
        "memory int32, rank int16, other_layer int16, other_memory int32, cosine float32"
    )),
    TableKind("removals", 65_536, for_experts="expert int16?", declared=(
        "layer int16, memory int32, sign int8, trigger_rank int16, position int32, removed string, "
        "removed_position int32, coefficient float32, removed_coefficient float32"
    )),
    TableKind("prefixes", 65_536, declared=(
        "prefix int32, sentence int64, document int64, position int32, next_token int32, final_top int32"
    )),
    TableKind("predictions", 65_536, declared=(
        "prefix int32, layer int16, residual_top int32, ffn_top int32, ffn_vote_top int32, output_top int32, "
        "residual_final_rank int32, residual_final_probability float32, ffn_final_rank int32, "
        "output_top_residual_rank int32, residual_top_ffn_rank int32, active int32, effective float32, "
        "top_share float32, major int32, votes_ffn int32, votes_ffn_major int32, votes_output int32"
    )),
    TableKind("patterns", 16_384, mined=False, for_experts="expert int16?", declared=(
        "layer int16, memory int32, pattern int16, kind string, description string, triggers [int16], lift float32?, "
        "log10_p float32?"
    )),
    TableKind("labels", 16_384, mined=False, for_experts="expert int16?", declared=(
        "layer int16, memory int32, sign int8, label string, promotes bool?"
    )),
    TableKind("roles", 1_024, "layer", optional=True, for_experts="expert int16?", declared=(
        "memory int32, key_top_tokens [int32] lengths_as=key_top_cosines, key_top_cosines [float32], "
        "trigger_token int32?, trigger_rank int32?, trigger_cosine float32?, triggers_found float32?, "
        "control_token int32?, control_rank int32?, control_cosine float32?, controls_found float32?, "
        "text_rank int32? since=3, shuffled_rank int32? since=3"
    )),
    TableKind("similar_words", 16_384, optional=True, declared="word string, similar [int32]"),
    TableKind("readings", 4_096, "layer", optional=True, for_experts="expert int16?", declared=(
        "memory int32, lens string, top_tokens [int32], target_rank int32?, control_rank int32?, "
        "max_probability float32"
    )),
    TableKind("key_readings", 4_096, "layer", optional=True, for_experts="expert int16?", declared=(
        "memory int32, lens string, key_top_tokens [int32], trigger_rank int32?, triggers_found float32?, "
        "control_rank int32?, controls_found float32?, text_rank int32? since=3, shuffled_rank int32? since=3"
    )),
    TableKind("readouts", 65_536, optional=True, declared=(
        "prefix int32, layer int16, lens string, residual_top int32, residual_final_rank int32, "
        "residual_final_probability float32, residual_loss float32, residual_control_rank int32, ffn_top int32, "
        "output_top int32"
    )),
    TableKind("width", 65_536, optional=True, declared=(
        "layer int16?, kind string, memories int32?, draw int8?, threshold float32?, document int64?, tokens int64?, "
        "loss float64?, stopped int64?, wrong int64?"
    )),
    TableKind("memorised", 1_024, optional=True, declared=(
        "document int64, held_out bool, agreed int32, loss float64, text string, sentences [int64] lengths_as=inside, "
        "inside [int32]"
    )),
    TableKind("samples", 256, "layer", optional=True, for_experts="expert int16?", declared=(
        "memory int32, coefficients [float16], scale float32"
    )),
    TableKind("token_activations", 4_096, "layer", optional=True, for_experts="expert int16?", declared=(
        "memory int32, sign int8, rank int8, coefficients [float16], scale float32"
    )),
    TableKind("random", 8_192, "layer", optional=True, for_experts="expert int16?, router_weight float32?", declared=(
        "memory int32, sign int8, rank int16, coefficient float32, sentence int64, position int32, token int32, "
        "next_token int32?, kept_firings int64"
    )),
    TableKind("random_sentences", 1_024, optional=True, declared=_SENTENCES),
    TableKind("importance", 1_024, "layer", optional=True, for_experts="expert int16?", declared=(
        "memory int32, prefixes int64, direct float32, attribution float32, direct_among_20 float32, "
        "attribution_among_20 float32"
    )),
    TableKind("attention", 65_536, optional=True, declared=(
        "prefix int32, layer int16, other_top int32, input_top int32, attention_top int32?, ffn_alone_top int32?, "
        "attention_norm float32?, ffn_norm float32, attended float32?, "
        "attention_logit float32? nulls_as=attention_logit_mean, ffn_logit float32, "
        "attention_logit_mean float32? nulls_as=attention_logit_other, ffn_logit_mean float32, "
        "attention_logit_other float32?, ffn_logit_other float32, embedding_logit float32, rest_logit float32, "
        "bias_logit float32, final_logit float32, embedding_logit_mean float32, rest_logit_mean float32, "
        "bias_logit_mean float32, final_logit_mean float32, embedding_logit_other float32, rest_logit_other float32, "
        "bias_logit_other float32, final_logit_other float32, other_next_token int32? since=3, "
        "attention_logit_next float32? since=3, ffn_logit_next float32? since=3, "
        "attention_logit_other_next float32? since=3, ffn_logit_other_next float32? since=3"
    )),
    TableKind("routing", 65_536, declared=(
        "layer int16, expert int16, tokens int64, weight_sum float64, first_choice int64"
    )),
)  # fmt: skip
LENS_TABLES = ("readings", "key_readings", "readouts")
"""Tables that `mnemoscope lens` makes; `mnemoscope extend` makes the other optional ones."""
MADE_WITH = {"random": ("random_sentences",)}
"""Further tables that come with one."""
TABLES: dict[str, TableKind] = {kind.name: kind for kind in _KINDS}

# The answers' tables, analyses/QUESTION.parquet: these columns, and the question's own after them.
ANSWER_COLUMNS = _columns("layer int16?, name string, value float64?, count int64, low float64?, high float64?")

THE_PAPERS = (
    "key_patterns", "key_removals", "value_agreement", "value_rank", "value_confidence", "layer_activity",
    "layer_composition", "refinement_match", "refinement_confidence", "refinement_events",
)  # fmt: skip
BEYOND = ("attention_share", "key_agreement", "lenses", "memorised", "width", "importance")
"""Questions that the paper left open; each needs an optional table."""
QUESTIONS = (*THE_PAPERS, *BEYOND)
"""The questions, the paper's ten in its order: the one list. Their answers have a place in analyses/ and
report/figures/; files of later versions' questions are an atlas's own because the manifests of these folders list them.
"""


def question_named(name: str) -> str:
    """The question of a name, or of a figure, such as `figure4` or `B1`. Raises OptionError."""
    figures = {f"figure{number}": one for number, one in enumerate(THE_PAPERS, 2)}
    figures |= {f"b{number}": one for number, one in enumerate(BEYOND, 1)}
    name = figures.get(re.sub("[ _-]", "", name.lower()), name)
    if name not in QUESTIONS:
        raise OptionError(f"{name!r} is not a question; the questions are {', '.join(QUESTIONS)}")
    return name


def check_optional(tables: Sequence[str]) -> None:
    """Raises OptionError for a table that `mnemoscope extend` cannot make."""
    others = {*LENS_TABLES, *(name for names in MADE_WITH.values() for name in names)}
    added = [kind.name for kind in TABLES.values() if kind.optional and kind.name not in others]
    for name in tables:
        if name not in added:
            raise OptionError(f"{name!r} is not a table that can be added; these can: {', '.join(added)}")


def place(path: str) -> tuple[TableKind, int | None] | None:
    """The table and number of a path relative to the atlas; None where it is no table's."""
    match = re.fullmatch(r"([a-z_]+)(?:/([a-z]+)-(\d{3,}))?\.parquet", path)
    kind = TABLES.get(match[1]) if match else None
    if match is None or kind is None or kind.numbered != match[2]:
        return None
    number = None if kind.numbered is None else int(match[3])
    return (kind, number) if kind.path(number) == path else None


def metadata(name: str, provenance: Provenance) -> dict[bytes, bytes]:
    return {
        b"mnemoscope.schema": str(provenance.schema).encode(),
        b"mnemoscope.table": name.encode(),
        b"mnemoscope.model": provenance.model.encode(),
        b"mnemoscope.corpus": provenance.corpus.encode(),
        b"mnemoscope.plan": provenance.plan.encode(),
    }


def schema_error(name: str, found: pa.Schema, provenance: Provenance) -> str | None:
    """The fault in the schema of a table's file, in a few words; None without one."""
    stored = found.metadata or {}
    for key, expected in metadata(name, provenance).items():
        if stored.get(key) != expected:
            seen = stored.get(key, b"nothing").decode("utf-8", "replace")
            return f"it says {key.decode()} = {seen}, the manifest {expected.decode()}"
    rules = TABLES[name].rules
    for column in TABLES[name].columns_beside(found.names):
        index = found.get_field_index(column.name)
        if index < 0 and rules.get(column.name, ColumnRules()).since <= provenance.schema:
            return f"column {column.name} is missing"
        if index >= 0 and not found.field(index).type.equals(column.type):
            return f"column {column.name} is {found.field(index).type}, not {column.type}"
    return None


def content_error(name: str, rows: pa.Table, vocabulary: int) -> str | None:
    """The fault in rows that no run writes: nulls, unequal lists, tokens beyond the `vocabulary`; None without one."""
    import pyarrow.compute as pc  # a fifth of the time that a look into a folder takes

    for kind in TABLES[name].columns_beside(rows.column_names):
        if kind.name not in rows.column_names or kind.nullable:
            continue
        column = rows.column(kind.name)
        inner = sum(chunk.flatten().null_count for chunk in column.chunks) if pa.types.is_list(kind.type) else 0
        if column.null_count or inner:
            return f"column {kind.name} holds nulls"
    rules = {column: own for column, own in TABLES[name].rules.items() if column in rows.column_names}
    for one, own in rules.items():
        for other in (other for other in own.lengths_as if other in rules):
            if not pc.list_value_length(rows.column(one)).equals(pc.list_value_length(rows.column(other))):
                return f"{one} and {other} are lists of different lengths"
        for other in (other for other in own.nulls_as if other in rules):
            if not rows.column(one).is_null().equals(rows.column(other).is_null()):
                return f"{one} and {other} are null in different rows"
    for column in (column for column, own in rules.items() if own.of_head):
        numbers = rows.column(column)
        if pa.types.is_list(numbers.type):
            if pc.min(pc.list_value_length(numbers)).as_py() == 0:
                return f"{column} holds empty lists"
            numbers = pc.list_flatten(numbers)
        extremes = pc.min_max(numbers).as_py()
        for token in extremes.values():
            if token is not None and not 0 <= token < vocabulary:
                return f"{column} names token {token}, and the model has tokens 0-{vocabulary - 1}"
    return None


def with_later_columns(name: str, rows: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a table of any schema, with nulls for the later columns; only those of `columns`."""
    for later in (column for column, rules in TABLES[name].rules.items() if rules.since > 1):
        if (columns is None or later in columns) and later not in rows.column_names:
            column = TABLES[name].columns.field(later)
            rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
    return rows
