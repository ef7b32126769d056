"""Random and middling examples on a memory's page."""

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import mnemoscope as ms
from mnemoscope.atlas import verify
from mnemoscope.atlas.manifest import seal
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_table
from mnemoscope.errors import AtlasDamaged
from support.handbuilt_atlas import PROVENANCE, SENTENCES, build_atlas, manifest, trigger_columns
from web.served import client

OTHER = [1, 2, 3, 6, 7]  # The capital of Paris.
COEFFICIENTS = [0.25, 3.0, 1.0, 0.5, 2.0, 1.5, 0.75, 1.25, 0.125, 2.5]
"""Of the ten firings of L0.M0 above zero, by hash; their median is 1.125."""


def atlas_with_random(folder: Path, *, sentence: int = 4) -> Path:
    """The hand-built atlas with ten firings of L0.M0 above zero, the first in a sentence that no other table names, and
    one below.
    """
    atlas = build_atlas(folder)
    places = [(sentence, 3), *((number, at) for number in (0, 1, 2) for at in (0, 1, 2))]
    rows = [
        (0, 1, rank, value, *place, 0) for rank, (value, place) in enumerate(zip(COEFFICIENTS, places, strict=True))
    ]
    tokens = [*SENTENCES, OTHER, *[OTHER] * 5]
    columns = trigger_columns([(*row[:4], 0, row[5], 0) for row in [*rows, (0, -1, 0, -0.5, 1, 3, 0)]])
    columns["sentence"] = [row[4] for row in rows] + [1]
    pairs = list(zip(columns["sentence"], columns["position"], strict=True))
    columns |= {"token": [tokens[s][j] for s, j in pairs], "next_token": [tokens[s][j + 1] for s, j in pairs]}
    columns["kept_firings"] = [4_000] * 10 + [1]
    del columns["prefix_group"]
    other: dict[str, Any] = {"sentence": [4], "document": [3], "text": ["The capital of Paris."], "tokens": [OTHER]}
    other |= {"multiplicity": [1], "held_out": [False]}
    empty = {name: [] for name in columns}
    written = [("random", 0, columns), ("random", 1, empty), ("random_sentences", None, other)]
    for name, layer, table in written:
        path = atlas / TABLES[name].path(layer)
        path.parent.mkdir(exist_ok=True)
        write_table(path, table, name=name, provenance=PROVENANCE)
    seal(atlas, manifest())
    return atlas


def examples(text: str) -> list[tuple[str, list[str]]]:
    """The lists of random examples: what stands above, and the numbers shown."""
    _, _, drawn = text.partition('<h2 id="random">')
    found = re.findall(r"<summary>([^<]*)</summary>\s*<ol class=\"triggers\">(.*?)</ol>", drawn, re.DOTALL)
    return [(said, re.findall(r'<span class="m"[^>]*>([^<]+)<', listed)) for said, listed in found]


def test_random_and_middling_examples_of_each_sign(tmp_path: Path) -> None:
    atlas = atlas_with_random(tmp_path)
    assert verify(atlas) == []
    reader = client(atlas)
    text = reader.get("/L0.M0").text
    heads = ["8 of 4,000 firings above zero that were looked at", "1 of 1 firings below zero that were looked at"]
    heads[1:1] = ["Middling examples: nearest the median activation, 1.12, of 10 drawn"]
    assert [head for head, _ in examples(text)] == heads
    assert [" ".join(shown) for _, shown in examples(text)] == [
        "0.25 3.00 1.00 0.50 2.00 1.50 0.75 1.25",
        "1.00 1.25 1.50 0.75 0.50 0.25 2.00 0.12",
        "-0.50",
    ]
    first = re.findall(r'<span class="text" dir="auto">(.*?)</span>', text.partition('<h2 id="random">')[2])[0]
    assert first.startswith("The capital of<mark>·Paris</mark>")
    assert "mnemoscope extend" not in text.partition('<h2 id="random">')[2]
    data = reader.get("/L0.M0.json").json()["random"]
    found = [(one["sign"], one["drawn"], one["kept_firings"], one["median"]) for one in data]
    assert (found, reader.get("/L0.M1.json").json()["random"]) == ([(1, 10, 4_000, 1.125), (-1, 1, 1, -0.5)], [])
    assert 'id="random"' not in reader.get("/L0.M1").text


def test_without_the_table_the_page_says_how_to_make_it(handbuilt: Path) -> None:
    reader = client(handbuilt)
    text = reader.get("/L0.M0").text
    assert f"mnemoscope extend {handbuilt} random</code>" in text
    assert 'id="random"' not in text
    assert reader.get("/L0.M0.json").json()["random"] is None


def test_a_frame_and_a_sentence_that_is_not_stored(tmp_path: Path) -> None:
    rows = ms.open_atlas(atlas_with_random(tmp_path / "one"))["L0.M0"].random()
    first = rows.filter(pl.col("rank") == 0).select("prefix", "text").row(0)
    assert first == ("The capital of Paris", "The capital of Paris.")
    atlas = atlas_with_random(tmp_path / "other", sentence=5)
    assert client(atlas).get("/L0.M0").status_code == 409
    with pytest.raises(AtlasDamaged, match="sentence 5 is named by a table but not stored"):
        ms.open_atlas(atlas)["L0.M0"].random()
