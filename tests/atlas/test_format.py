"""FORMAT.md names every table and every column with its type, and nothing that is not there."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from mnemoscope.atlas import schema
from mnemoscope.atlas.schema import TABLES

PAGE = (Path(schema.__file__).parent / "FORMAT.md").read_text(encoding="utf-8")
SPOKEN = {"halffloat": "float16", "bool": "boolean", "float": "float32", "double": "float64"}


def section(name: str) -> str:
    found = re.search(rf"^### {name}\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
    assert found, name
    return found.group(1)


def spoken(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"of {spoken(kind.value_type)}"
    return SPOKEN.get(str(kind), str(kind))


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_column_is_described_with_its_type(name: str) -> None:
    text = section(name)
    for field in TABLES[name].columns:
        row = rf"^\|[^|]*\b{field.name}\b[^|]*\|[^|]*\b{spoken(field.type)}\b"
        running = rf"`{field.name}\s+[^`]*\b{spoken(field.type)}\??`"
        assert re.search(f"{row}|{running}", text, re.M), f"{name}.{field.name}: {field.type}"


def test_no_table_is_described_that_does_not_exist() -> None:
    assert set(re.findall(r"^### (\w+)$", PAGE, re.M)) == set(TABLES)
