"""The form of a manifest, entry by entry: the least and the most that each may be."""

import json
import math
import re
from typing import Any

import pytest

from mnemoscope.atlas.form import Manifest, unwritable
from mnemoscope.errors import AtlasDamaged
from support.handbuilt_atlas import manifest


def entries(table: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(path, value) for path, values in table.items() for value in values]


RIGHT = entries(
    {
        "model.fingerprint": [""],
        "model.hub": [None, "gpt2"],
        "model.head": ["linear"],
        "model.sizes.vocabulary": [1, 2**24],
        "model.sizes.layers": [0],
        "model.sizes.memories": [[1, 2**24], [2**24] * 16],
        "model.sizes.experts": [
            None,
            [None, {"routed": 1, "memories": 4, "shared": []}],
            [{"routed": 1, "memories": 2, "shared": [2]}, {"routed": 2, "memories": 1, "shared": [2]}],
            [{"routed": 4, "memories": 0, "shared": [1, 3]}, None],
        ],
        "model.beginning": [{"token": 0, "kind": "own"}, {"token": None, "kind": "none"}],
        "model.layer_blocks": [[0, 2]],
        "model.other_blocks": [{"1": "a convolution"}],
        "model.proof": [{}, {"residual": 1e-6, "values": None, "keys": 0}],
        "corpus.counts.documents": [0],
        "corpus.counts.windows": ["many"],
        "corpus.held_out_share": [0, 1],
        "corpus.overlap": [{"sentences": 1, "of": 2, "share": 1.5}],
        "plan": [{"seed": 0, "triggers": 0}],
        "layers": [[1]],
        "part": [{"index": 1, "of": 1}, {"index": 2, "of": 2**24}, {"index": 2, "of": 2}],
        "questions.removals_per_layer": ["all", 0],
        "questions.removals_excluded.short": [0],
        "projections.more": ["gain"],
        "out_of_memory_batches": [[]],
        "package": ["0.1"],
        "files": [{"tokens.parquet": {"bytes": 0, "sha256": "0" * 64}}],
        "of another version": [[1]],
    }
)
WRONG = entries(
    {
        "model.fingerprint": [None],
        "model.spec": [1],
        "model.hub": [1],
        "model.sizes.vocabulary": [0, 2**24 + 1, True, 1.0],
        "model.sizes.layers": [-1],
        "model.sizes.memories": [{}, [], [4, 0], [4, 2**24 + 1], [4, 1.0], [2**24] * 16 + [1]],
        "model.sizes.experts": [
            *({}, [None], [{"routed": 2, "memories": 1, "shared": [1]}, None], [{"routed": 2, "memories": 2}, None]),
            *([{"routed": 2, "shared": []}, None], [{"memories": 2, "shared": []}, None]),
            [{"routed": 0, "memories": 4, "shared": [4]}, None],
            [{"routed": 1, "memories": -1, "shared": [5]}, None],
            *([{"routed": 1, "memories": 4, "shared": [0]}, None], [{"routed": 1, "memories": 4, "shared": {}}, None]),
            [{"routed": 2.0, "memories": 2, "shared": []}, None],
        ],
        "model.beginning": [None],
        "model.beginning.token": [-1],
        "model.beginning.kind": [1],
        "model.gated": [1],
        "model.layer_blocks": [[0, -1], 1],
        "model.other_blocks": [{"one": "x"}, {"1": 1}, {"9" * 10: "x"}],
        "model.proof": [None, {"a": "1"}, {"a": True}],
        "corpus.counts": [None],
        "corpus.counts.documents": [-1],
        "corpus.counts.sentences": [None],
        "corpus.held_out_share": [-0.5, 1.5, False],
        "corpus.overlap": [1],
        "corpus.overlap.share": [-0.5],
        "corpus.overlap.of": [0.5],
        "plan": [[]],
        "plan.seed": [-1, None],
        "plan.triggers": ["50"],
        "plan_hash": [1.5],
        "schema": [3, 4.0, True],
        "part": [
            *({"index": 1}, {"index": 0, "of": 1}, {"index": 2, "of": 1}, {"index": 1, "of": 0}),
            *({"index": 1, "of": 2**24 + 1}, {"index": True, "of": 1}, 1),
        ],
        "questions.prefixes": [-1],
        "questions.removals_per_layer": ["some"],
        "questions.removals_excluded": [{"length_one": 1}, {"length_one": 1, "length_two": -1}],
        "projections": [{"values": "gain"}, dict.fromkeys(("values", "votes", "streams"), 1)],
        "out_of_memory_batches": [{}],
        "layers": [[], [1, 0], [0, 0], [2], [0, True], 0],
        "files": [{"../b": {"bytes": 1, "sha256": "0" * 64}}, {"a.parquet": 3}],
        "model.head": [["caf\u00e9"], "\ud800"],
        "of another version": [float("inf"), {"a": [2**63]}],
    }
)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The manifest of the hand-built atlas with another entry; entries with no name of a record are set whole."""
    whole: dict[str, Any] = json.loads(json.dumps(manifest()))
    _set(whole, path, value)
    return whole


def _set(whole: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for name in outer:
        whole = whole[name]
    whole[last] = value


@pytest.mark.parametrize(("path", "value"), RIGHT, ids=str)
def test_what_an_entry_may_be(path: str, value: Any) -> None:
    whole = changed(path, value)
    whole["layers"] = value if path == "layers" else [0]
    assert Manifest.of(whole)["layers"] == whole["layers"]


def fault(whole: dict[str, Any]) -> str:
    with pytest.raises(AtlasDamaged) as refused:
        Manifest.of(whole)
    return str(refused.value)


@pytest.mark.parametrize(("path", "value"), WRONG, ids=lambda one: ascii(one)[:60])
def test_what_an_entry_may_not_be(path: str, value: Any) -> None:
    said = fault(changed(path, value))
    assert re.match(rf"the manifest's {path}.*: |the manifest's .*: {path.rpartition('.')[2]} should be", said)
    assert said.isprintable()


@pytest.mark.parametrize(("most", "right"), [(2**15, True), (2**15 + 1, False)])
def test_a_layer_has_so_many_experts_at_most(most: int, right: bool) -> None:
    """Routed and shared ones together."""
    whole = changed("model.sizes.memories", [2 * (most - 2) + 7, 4])
    _set(whole, "model.sizes.experts", [{"routed": most - 2, "memories": 2, "shared": [3, 4]}, None])
    if right:
        Manifest.of(whole)
    else:
        assert "experts" in fault(whole)


def test_the_first_fault_is_told_in_one_short_line() -> None:
    whole = changed("model.sizes.layers", "2") | {"layers": [5]}
    assert fault(whole) == "the manifest's model.sizes.layers: Input should be a valid integer"
    assert len(unwritable({"a\nb" * 100: math.inf}) or "") < 130


@pytest.mark.parametrize("name", ["model", "corpus", "plan", "plan_hash", "layers", "files"])
def test_an_entry_that_is_needed(name: str) -> None:
    whole = changed("of another version", 1)
    del whole[name]
    assert fault(whole) == f"the manifest's {name}: Field required"


# What no JSON of ours holds anywhere.


def nested(depth: int, *, lists: bool) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] if lists else {"a": value}
    return value


@pytest.mark.parametrize("lists", [False, True], ids=["objects", "lists"])
def test_a_manifest_is_nested_32_deep_at_most(lists: bool) -> None:
    assert unwritable({"x": nested(31, lists=lists)}) is None
    assert unwritable({"x": nested(32, lists=lists)}) == "the manifest is nested more than 32 deep"


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63) + 1, 1.5, "\u00e9"])
def test_what_a_manifest_may_hold(value: Any) -> None:
    assert unwritable({"a": {"b": [0, value]}}) is None


@pytest.mark.parametrize("value", [2**63, -(2**63), float("inf"), float("nan"), "\ud800", {"\ud800": 1}], ids=ascii)
def test_numbers_have_64_bits_and_texts_are_utf8(value: Any) -> None:
    for inside in (value, [0, value]):
        assert re.match(r"the manifest's a\.b: Input should be ", unwritable({"a": {"b": inside}}) or "")
