"""Patterns found layer by layer, in any order: the very table of one run, which depends on the layers' order."""

from pathlib import Path

import numpy as np
import pytest

from mnemoscope.atlas import Atlas
from mnemoscope.errors import AtlasUnfinished
from mnemoscope.foundation.files import write_json
from mnemoscope.patterns import (
    PatternFinder,
    join_patterns,
    open_finder,
    write_layer_patterns,
    write_patterns,
    write_words,
)
from patterns.test_writing import filler
from support.pattern_atlas import build, random_places

ENDINGS = ("baking", "making", "taking", "waking", "raking", "soaking", "asking", "poking", "parking", "walking")


@pytest.fixture
def atlas(tmp_path: Path) -> Atlas:
    """Layer 0 has a memory of the word `king`, layer 1 one of words that end so; the background has no such letters."""
    random = np.random.default_rng(0)
    lines = filler(620, random=random)
    kings = [[*line, "king"] for line in lines[600:610]]
    verbs = [[*line, word] for line, word in zip(lines[610:], ENDINGS, strict=True)]
    text = lines[:600] + kings + verbs
    memories = [[(number, len(text[number]) - 1) for number in range(first, first + 10)] for first in (600, 610)]
    background = random_places(lines[:600], 2_000, random=random)
    return build(tmp_path / "atlas", text, layers=[[memories[0], []], [[], memories[1]]], background=background)


def described(atlas: Atlas, layer: int) -> list[str]:
    rows = atlas.table("patterns")
    return [text for at, text in rows.select("layer", "description").iter_rows() if at == layer]


def test_layers_in_any_order_make_the_table_of_one_run(atlas: Atlas) -> None:
    count, path = write_patterns(atlas), atlas.path / "patterns.parquet"
    whole = path.read_bytes()
    # `king` was met before `g`, `ng` and `ing`, which fit as well, so it comes first.
    assert described(atlas, 1) == ["last word ends in -king"]
    path.unlink()
    write_words(atlas)
    for layer in (1, 0, 1):
        write_layer_patterns(atlas, layer, open_finder(atlas))
    assert (join_patterns(atlas), path.read_bytes()) == (count, whole)


def test_a_finder_that_has_not_met_the_words_puts_equals_otherwise(atlas: Atlas) -> None:
    assert [one.description for one in PatternFinder(atlas).of_layer(1)] == ["last word ends in -g"]


def test_words_and_layers_of_something_else_are_not_believed(atlas: Atlas) -> None:
    with pytest.raises(AtlasUnfinished, match=r"pattern-words\.json"):
        open_finder(atlas)
    write_words(atlas)
    finder = open_finder(atlas)
    write_json(atlas.path / "work/pattern-words.json", {"plan": "another", "words": []})
    with pytest.raises(AtlasUnfinished, match=r"pattern-words\.json"):
        open_finder(atlas)
    write_layer_patterns(atlas, 1, finder)
    (atlas.path / "work/patterns-000.parquet").write_bytes(b"half")
    with pytest.raises(AtlasUnfinished, match=r"patterns of layer 0 are missing .*--patterns"):
        join_patterns(atlas)
    (atlas.path / "work/patterns-000.parquet").write_bytes((atlas.path / "triggers/layer-000.parquet").read_bytes())
    with pytest.raises(AtlasUnfinished, match="patterns of layer 0 are missing"):
        join_patterns(atlas)
    assert not (atlas.path / "patterns.parquet").exists()
