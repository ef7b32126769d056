"""The least database of annotations that may lie in an atlas, as docs/patterns.md promises it. Not a test itself."""

import re
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs" / "patterns.md"
(_TABLES,) = re.findall(r"```sql\n(CREATE TABLE annotations_version .+?)```", _PAGE.read_text(encoding="utf-8"), re.S)

SCHEMA = f"{_TABLES}INSERT INTO annotations_version VALUES (1);\n"
