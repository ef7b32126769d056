"""What an atlas knows of listed memories, by the sign of their coefficients."""

from pathlib import Path

import polars as pl

from mnemoscope.atlas import open_atlas
from mnemoscope.attribution.explanation import about_memories, with_labels
from mnemoscope.cli.app import run_verb
from support.handbuilt_atlas import build_atlas


def test_a_memory_is_described_by_the_sign_of_its_coefficient(tmp_path: Path) -> None:
    folder = build_atlas(tmp_path)
    listed = pl.DataFrame(
        {"memory": ["L0.M0", "L0.M0", "L7.M0"], "position": [0, 1, 1], "coefficient": [2.0, -1.0, 1.0]}
    )
    bare = about_memories(listed, open_atlas(folder), ["The", " cat"])
    assert bare["token"].to_list() == ["The", " cat", " cat"]
    # Without labels there stand the tokens of its first triggers, below zero of those below zero.
    assert bare["label"].to_list() == ['fires at "is", "The", "é"', 'fires at "Italy"', None]
    assert run_verb(["analyze", str(folder), "--patterns"]) == 0
    atlas = open_atlas(folder)
    found = about_memories(listed, atlas, ["The", " cat"])
    assert found.drop("label").equals(bare.drop("label"))
    labels = dict(atlas["L0.M0"].labels().select("sign", "label").iter_rows())
    assert labels == {1: 'no clear pattern; promotes " Paris"', -1: "no clear pattern"}
    shown = ['fires at "is", "The", "é"; promotes " Paris"', 'fires at "Italy"', None]
    assert found["label"].to_list() == shown
    assert with_labels(listed, atlas)["label"].to_list() == [shown[0], shown[0], None]
    value = atlas["L0.M0"].value()
    assert (value["top_z"][0], value["bottom_z"][0], value["clear_z"][0]) == (5.0, 2.0, 4.0)
    # Below zero it has no clear token, and there is no layer 7.
    assert found["promotes"].to_list() == [value["top_texts"][0].to_list()[:5], [], []]
    best = [atlas["L0.M0"].triggers(sign=sign)["text"][0] for sign in (1, -1)]
    assert found["trigger"].to_list() == [*best, None]
