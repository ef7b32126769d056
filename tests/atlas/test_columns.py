"""What a declaration of columns says, and how numbers of a row are shown by it."""

from pathlib import Path

import pyarrow as pa
import pytest

from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.columns import TableKind, parse_columns
from mnemoscope.atlas.schema import TABLES
from mnemoscope.errors import OptionError
from support.handbuilt_atlas import build_atlas

DECLARED = """
    memory int32
    entropy float32? form=number unit=nats | of the softmax
        of the scores
    rank,other_rank int16 form=rank label="token's rank"
    tokens [int32] of_head lengths_as=scores | best first
    scores [float32]
"""


def test_a_line_declares_a_column_or_several() -> None:
    memory, entropy, rank, other, tokens, scores = parse_columns(DECLARED)
    assert memory.field == pa.field("memory", pa.int32(), nullable=False)
    assert (memory.label, memory.form, memory.about) == ("memory", None, "")
    assert entropy.field == pa.field("entropy", pa.float32(), nullable=True)
    assert entropy.about == "of the softmax of the scores; in nats"
    assert (rank.name, other.name, rank.label, other.label) == ("rank", "other_rank", "token's rank", "token's rank")
    assert (tokens.type, tokens.of_head, tokens.lengths_as) == ("list of int32", True, ("scores",))
    assert (entropy.type, scores.type) == ("float32?", "list of float32")


def test_a_row_s_numbers_are_shown_by_their_form() -> None:
    kind = TableKind("made", 8, for_experts="expert int16?\nshare float32 form=share", declared=DECLARED)
    row = {"memory": 3, "entropy": 2.5, "rank": 1234, "other_rank": None, "tokens": [1], "share": 0.25}
    shown = [(column.name, text) for column, text in kind.numbers(row)]
    assert shown == [("entropy", "2.50 nats"), ("rank", "1,234"), ("share", "25.0\u00a0%")]
    assert kind.columns.names == ["memory", "entropy", "rank", "other_rank", "tokens", "scores"]
    assert parse_columns("loss float64? form=number unit=nats")[0].format(float("nan")) == "\u2014"


def test_every_number_that_people_are_shown_says_what_it_is() -> None:
    shown = [(table, one) for table in ("values", "activity", "importance") for one in TABLES[table].by_name.values()]
    assert [f"{table}.{one.name}" for table, one in shown if one.form and not one.meaning] == []


def test_an_atlas_tells_its_columns(tmp_path: Path) -> None:
    atlas = open_atlas(build_atlas(tmp_path / "atlas"))
    columns = atlas.columns("values")
    assert columns.columns == ["column", "type", "about"]
    assert columns.filter(column="entropy").row(0) == ("entropy", "float32", "of the same softmax; in nats")
    assert "expert" not in columns["column"].to_list()
    with pytest.raises(OptionError, match="'value' is not a table of an atlas"):
        atlas.columns("value")
