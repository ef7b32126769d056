"""Answers that an earlier version stored: drawn as far as they go, and not made again."""

import json
from pathlib import Path

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.derived_manifest import record_hashes
from mnemoscope.questions.answers import load_answers
from mnemoscope.show.figures.sections import section
from reports.reported_atlas import reported

LATER = "near-duplicates"


def as_of_before(atlas: Atlas) -> None:
    """Takes out of the stored answer of Figure 2 what came later: folded numbers, and where it comes from."""
    document, table = (atlas.path / f"analyses/key_patterns.{kind}" for kind in ("json", "parquet"))
    stored = json.loads(document.read_text())
    del stored["made_by"]
    for part in ("layers", "totals"):
        stored[part] = [row for row in stored[part] if not row["name"].startswith("folded_")]
    document.write_text(json.dumps(stored))
    pl.read_parquet(table).filter(~pl.col("name").str.starts_with("folded_")).write_parquet(table)
    record_hashes(atlas, "analyses", [f"analyses/{file.name}" for file in (document, table)])


def test_figure_2_without_the_numbers_of_near_duplicates(tmp_path: Path) -> None:
    atlas = reported(tmp_path)
    today = section("key_patterns", load_answers(atlas).answers)
    as_of_before(atlas)
    loaded = load_answers(atlas)
    assert loaded.made == ()
    before = section("key_patterns", loaded.answers)
    assert [LATER in one["reading"] for one in (today, before)] == [True, False]
    assert before["reading"].startswith(today["reading"].partition(",")[0])
    headings = {table["caption"]: table["header"] for table in today["tables"]}
    assert headings[f"by layer, {LATER} once"][1:5] == headings["by layer"][1:5]
    assert [table["caption"] for table in before["tables"]] == [name for name in headings if LATER not in name]
    assert before["comparison"] == today["comparison"]
