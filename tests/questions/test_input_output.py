"""B7: shares of memories that add and remove, and the signs of their coefficients, counted by hand and by a loop."""

from pathlib import Path
from typing import Any

import pytest

from mining.conftest import odd_text, tiny_model
from mnemoscope.atlas import open_atlas
from mnemoscope.errors import AtlasUnfinished
from mnemoscope.foundation.intervals import wilson
from mnemoscope.mining import mine
from mnemoscope.mining.passes.vectors import roles as pass_of_roles
from mnemoscope.questions import answer
from mnemoscope.show.figures.sections import chart
from support.handbuilt_answers import build_answers, numbers


def test_memories_beyond_the_thresholds_are_counted(tmp_path: Path) -> None:
    """Of a layer the memories add and remove in turn; the last one's key cannot be read."""
    roles = {0: [(0, 0)] * 5 + [(None, None)], 1: [(0, 0)] * 4}
    atlas = build_answers(tmp_path, triggers={0: [(0, 1)], 1: [(0, 1)]}, roles=roles)
    found = answer(atlas, "input_output")
    assert numbers(found, "adds") == pytest.approx({0: 3 / 5, 1: 1 / 2, None: 5 / 9})
    assert numbers(found, "removes") == pytest.approx({0: 2 / 5, 1: 1 / 2, None: 4 / 9})
    assert numbers(found, "adds", "count") == {0: 5, 1: 4, None: 9}
    assert numbers(found, "adds", "low")[0] == pytest.approx(wilson(3 / 5, 5)[0])
    assert numbers(found, "adds", "high")[None] == pytest.approx(wilson(5 / 9, 9)[1])
    assert numbers(found, "chance") == {0: 0.0025, 1: 0.0025, None: 0.0025}
    assert numbers(found, "cosine") == pytest.approx({0: 0.1, 1: 0, None: 1 / 18})
    # Without a gate nothing is said of signs.
    assert set(numbers(found, "adds_above_zero").values()) == {None}
    assert chart(atlas, "input_output")


def test_keys_that_cannot_be_read_give_no_share(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={0: [(0, 1)]}, roles={0: [(None, None)] * 4})
    found = answer(atlas, "input_output")
    assert found["value"].null_count() == found.height > 0


def test_an_atlas_without_the_table_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(AtlasUnfinished, match=r"mnemoscope extend .* roles"):
        answer(build_answers(tmp_path, triggers={0: [(0, 1)]}), "input_output")


def test_signs_are_those_of_strongly_active_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With thresholds that many of a tiny model's memories are beyond."""
    monkeypatch.setattr(pass_of_roles, "TAIL", 0.3)
    (tmp_path / "text.txt").write_text(odd_text())
    options: dict[str, Any] = {"split": "line", "triggers": 5, "prefixes": 5, "removals": 0}
    atlas = open_atlas(mine(tiny_model("llama"), tmp_path / "text.txt", out=tmp_path / "atlas", **options))
    edges = [2.0**power for power in range(-10, 7)]
    counted: dict[tuple[int | None, str], list[float]] = {}
    shares: dict[tuple[int | None, str], list[bool]] = {}
    for layer in atlas.layers:
        activity = {row["memory"]: row for row in atlas.table("activity", layer=layer).to_dicts()}
        for row in atlas.table("roles", layer=layer).to_dicts():
            for name, here in (
                ("adds", row["up_value"] > row["adds_above"]),
                ("removes", row["up_value"] < row["removes_below"]),
            ):
                for place in (layer, None):
                    shares.setdefault((place, name), []).append(here)
                strong = _strong(activity[row["memory"]], edges) if here else None
                for place in (layer, None) if strong else ():
                    sums = counted.setdefault((place, name), [0, 0])
                    sums[0], sums[1] = sums[0] + strong[0], sums[1] + strong[1]  # type: ignore[index]
    found = answer(atlas, "input_output")
    for (place, name), each in shares.items():
        assert numbers(found, name)[place] == pytest.approx(sum(each) / len(each))
    for (place, name), (above, below) in counted.items():
        assert numbers(found, f"{name}_above_zero")[place] == pytest.approx(above / (above + below))
        assert numbers(found, f"{name}_below_zero")[place] == pytest.approx(below / (above + below))
        assert numbers(found, f"{name}_above_zero", "count")[place] == above + below
    assert set(counted) == {(layer, name) for layer in (0, 1, None) for name in ("adds", "removes")}


def _strong(row: dict[str, Any], edges: list[float]) -> tuple[int, int] | None:
    """Sampled positions with m >= e, and with m < -e; None where a sign has no edge e."""
    sums = []
    for extreme, counts in ((row["max"], row["histogram"][18:]), (-row["min"], row["histogram"][17::-1])):
        if not 2.0**-7 <= extreme <= 512:
            return None
        edge = max(number for number, one in enumerate(edges) if one <= extreme / 8)
        sums.append(sum(counts[edge + 1 :]))  # the first counts are those from zero to the first edge
    return sums[0], sums[1]
