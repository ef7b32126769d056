"""Atlases of schema 1, which earlier versions made, stay readable: the columns that came later are null."""

import json
from pathlib import Path

import polars as pl
import pytest

from mnemoscope.atlas import open_atlas, verify
from mnemoscope.errors import AtlasDamaged
from support.handbuilt_atlas import build_atlas, make_older, seal_as_is

NEGATIVE = ["working_logit_negative", "working_probability_negative"]
LATER = ["working_logit", "working_probability", *NEGATIVE, "top_z", "bottom_z", "clear_z"]


def of_schema(directory: Path, schema: int, *, without: list[str]) -> Path:
    """The hand-built atlas as a version of that schema wrote it, without some columns of its values; sealed."""
    return make_older(build_atlas(directory), schema, without={"values": without})


def test_an_atlas_of_schema_one_opens_and_is_whole(tmp_path: Path) -> None:
    atlas = open_atlas(of_schema(tmp_path / "old", 1, without=LATER))
    assert verify(atlas.path) == []
    today = open_atlas(build_atlas(tmp_path / "new"))
    old, new = (one.table("values", layer=0) for one in (atlas, today))
    assert old.columns == new.columns
    assert old.schema == new.schema
    assert old.drop(LATER).equals(new.drop(LATER))
    assert old.select(pl.col(LATER).is_null().all()).row(0) == (True,) * len(LATER)
    assert new["working_probability"].to_list() == [0.25, 0.125, 0.0625, None]
    assert atlas["L0.M1"].value()["working_logit"].to_list() == [None]
    assert today["L0.M1"].value()["working_logit"].to_list() == [2.0]
    some = atlas.table("values", layer=1, columns=["memory", "working_logit"])
    assert some.columns == ["memory", "working_logit"]
    assert atlas.table("values", layer=1, columns=["memory"]).columns == ["memory"]


def test_the_columns_of_schema_three_are_null_before_it(tmp_path: Path) -> None:
    atlas = open_atlas(of_schema(tmp_path / "old", 2, without=LATER[2:]))
    assert verify(atlas.path) == []
    old = atlas.table("values", layer=0)
    assert old["working_logit"].to_list() == [3.0, 2.0, 1.0, None]
    assert old.select(pl.col(LATER[2:]).is_null().all()).row(0) == (True,) * 5


def test_today_the_columns_must_be_there(tmp_path: Path) -> None:
    directory = of_schema(tmp_path / "a", 2, without=LATER[:1])
    assert verify(directory) == [f"values/layer-00{n}.parquet: column working_logit is missing" for n in (0, 1)]
    with pytest.raises(AtlasDamaged, match="column working_logit is missing"):
        open_atlas(directory).table("values", layer=0)


def test_the_columns_of_schema_one_must_always_be_there(tmp_path: Path) -> None:
    directory = of_schema(tmp_path / "a", 1, without=[*LATER, "entropy"])
    assert verify(directory) == [f"values/layer-00{n}.parquet: column entropy is missing" for n in (0, 1)]


@pytest.mark.parametrize("schema", [0, -1, True, "1"])
def test_other_schemas_are_no_schemas(tmp_path: Path, schema: object) -> None:
    directory = build_atlas(tmp_path / "a")
    seal_as_is(directory, {**json.loads((directory / "manifest.json").read_bytes()), "schema": schema})
    with pytest.raises(AtlasDamaged, match="expected 1 to 3"):
        open_atlas(directory)
