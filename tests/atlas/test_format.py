"""FORMAT.md shows every table and every column as `atlas/schema.py` declares them, and no others."""

import re
import runpy
from pathlib import Path

from mnemoscope.atlas.schema import TABLES

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "columns.py"))
PAGE = SCRIPT["PAGE"].read_text(encoding="utf-8")


def test_the_page_has_today_s_tables_and_columns() -> None:
    assert SCRIPT["renew"](PAGE) == PAGE, "python docs/columns.py renews it"
    assert set(re.findall(r"^### (\w+)$", PAGE, re.M)) == set(TABLES)


def test_a_column_that_the_page_lacks_is_found() -> None:
    row = "| key_norm | float32 | length of the key; in gated layers of the gate row |\n"
    assert row in PAGE
    assert SCRIPT["renew"](PAGE.replace(row, "")) == PAGE
