"""The form of a manifest, entry by entry: the least and the most that each may be, and the line for what it may not."""

import json
from typing import Any

import pytest

from mnemoscope.atlas.form import form_faults, short, unwritable
from support.handbuilt_atlas import manifest

COUNT, ROWS = "a whole number from 0 on", "a whole number from 1 to 16,777,216"
NAME = "text or null"
LAYERS = "a list of layers from 0 to 1, in order"
EXPERTS = "one entry per layer whose memories add up to model.sizes.memories"
FORM_OF_EXPERTS = 'a list of null or an object such as {"routed": 8, "memories": 64, "shared": []} for each layer'
IN_ALL = "a list of one number per layer, 268,435,456 in all at most"
PART = 'an object such as {"index": 1, "of": 2}'
EXCLUDED = "an object of length_one and length_two, whole numbers from 0 on"
PROJECTIONS = "an object of texts of values, votes and streams"

RIGHT: list[tuple[str, Any]] = [
    ("model.fingerprint", ""), ("model.hub", None), ("model.hub", "gpt2"), ("model.head", "linear"),
    ("model.sizes.vocabulary", 1), ("model.sizes.vocabulary", 2**24),
    ("model.sizes.layers", 0), ("model.sizes.memories", [1, 2**24]), ("model.sizes.memories", [2**24] * 16),
    ("model.sizes.experts", None), ("model.sizes.experts", [None, {"routed": 1, "memories": 4, "shared": []}]),
    ("model.sizes.experts", [{"routed": 1, "memories": 2, "shared": [2]}, {"routed": 2, "memories": 1, "shared": [2]}]),
    ("model.sizes.experts", [{"routed": 4, "memories": 0, "shared": [1, 3]}, None]),
    ("model.beginning", {"token": 0, "kind": "own"}), ("model.beginning", {"token": None, "kind": "none"}),
    ("model.layer_blocks", [0, 2]), ("model.other_blocks", {"1": "a convolution"}), ("model.proof", {}),
    ("model.proof", {"residual": 1e-6, "values": None, "keys": 0}), ("corpus.counts.documents", 0),
    ("corpus.counts.windows", "many"), ("corpus.held_out_share", 0), ("corpus.held_out_share", 1),
    ("corpus.overlap", {"sentences": 1, "of": 2, "share": 1.5}),
    ("plan", {"seed": 0, "triggers": 0}), ("layers", [1]), ("part", {"index": 1, "of": 1}),
    ("part", {"index": 2, "of": 2**24}), ("part", {"index": 2, "of": 2}),
    ("questions.removals_per_layer", "all"), ("questions.removals_excluded.short", 0),
    ("questions.removals_per_layer", 0), ("projections.more", "gain"), ("out_of_memory_batches", []),
    ("package", "0.1"), ("files", {"tokens.parquet": {"bytes": 0, "sha256": "0" * 64}}), ("of another version", [1]),
]  # fmt: skip
WRONG: list[tuple[str, Any, str]] = [
    ("model.fingerprint", None, "text"), ("model.fingerprint", 1, "text"), ("model.spec", None, "text"),
    ("model.hub", 1, NAME),
    ("model.sizes.vocabulary", 0, ROWS), ("model.sizes.vocabulary", 2**24 + 1, ROWS),
    ("model.sizes.vocabulary", True, ROWS), ("model.sizes.vocabulary", 1.0, ROWS), ("model.sizes.layers", -1, COUNT),
    ("model.sizes.memories", {}, "a list"), ("model.sizes.experts", {}, FORM_OF_EXPERTS),
    ("model.beginning", None, "an object"), ("model.beginning.token", -1, f"{COUNT}, or null"),
    ("model.beginning.kind", 1, "text"),
    ("model.layer_blocks", [0, -1], "a list of whole numbers from 0 on"),
    ("model.layer_blocks", 1, "a list of whole numbers from 0 on"),
    ("model.other_blocks", {"one": "x"}, "an object of texts by the number of a block"),
    ("model.other_blocks", {"1": 1}, "an object of texts by the number of a block"),
    ("model.other_blocks", {"9" * 10: "x"}, "an object of texts by the number of a block"),
    ("model.proof", None, "an object of numbers"), ("model.proof", {"a": "b"}, "an object of numbers"),
    ("model.proof", {"a": True}, "an object of numbers"),
    ("corpus.counts", None, "an object"), ("corpus.counts.documents", -1, COUNT),
    ("corpus.held_out_share", -0.5, "a share from 0 to 1"), ("corpus.held_out_share", 1.5, "a share from 0 to 1"),
    ("corpus.held_out_share", False, "a share from 0 to 1"), ("corpus.overlap", 1, "an object"),
    ("corpus.overlap.share", -0.5, "a number from 0 on"),
    ("corpus.overlap.of", 0.5, COUNT), ("plan.seed", -1, COUNT), ("plan.triggers", "50", COUNT),
    ("corpus.counts.sentences", None, COUNT), ("plan.seed", None, COUNT), ("schema", 3, "4"), ("schema", 4.0, "4"),
    ("part", None, PART), ("part", {"index": 1}, PART), ("part", {"index": 0, "of": 1}, PART),
    ("part", {"index": 2, "of": 1}, PART), ("part", {"index": 1, "of": 0}, PART),
    ("part", {"index": 1, "of": 2**24 + 1}, PART), ("part", {"index": True, "of": 1}, PART), ("part", 1, PART),
    ("questions.prefixes", -1, COUNT), ("questions.removals_per_layer", "some", 'a whole number, or "all"'),
    ("questions.removals_excluded", {"length_one": 1}, EXCLUDED),
    ("questions.removals_excluded", {"length_one": 1, "length_two": -1}, EXCLUDED),
    ("projections", {"values": "gain"}, PROJECTIONS),
    ("projections", dict.fromkeys(("values", "votes", "streams"), 1), PROJECTIONS),
    ("out_of_memory_batches", {}, "a list"),
    ("layers", [], LAYERS), ("layers", [1, 0], LAYERS), ("layers", [0, 0], LAYERS), ("layers", [2], LAYERS),
    ("layers", [0, True], LAYERS), ("layers", 0, "a list"), ("model.sizes.memories", [], IN_ALL),
    ("model.sizes.memories", [2**24] * 16 + [1], IN_ALL), ("model.sizes.experts", [None], EXPERTS),
    ("model.sizes.experts", [{"routed": 2, "memories": 1, "shared": [1]}, None], EXPERTS),
]  # fmt: skip
NO_NUMBERINGS: list[Any] = [
    {}, 1, {"routed": 2, "memories": 2}, {"routed": 2, "shared": []}, {"memories": 2, "shared": []},
    {"routed": 0, "memories": 4, "shared": []}, {"routed": 1, "memories": -1, "shared": [5]},
    {"routed": 1, "memories": 4, "shared": [0]}, {"routed": 1, "memories": 4, "shared": {}},
    {"routed": 2.0, "memories": 2, "shared": []},
]  # fmt: skip


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
    assert form_faults(whole) == []


@pytest.mark.parametrize(("path", "value", "words"), WRONG, ids=str)
def test_what_an_entry_may_not_be(path: str, value: Any, words: str) -> None:
    said = f"the manifest's {path} is {short(json.dumps(value))}, not {words}"
    assert form_faults(changed(path, value)) == [said]


@pytest.mark.parametrize("one", NO_NUMBERINGS, ids=str)
def test_what_does_not_say_how_experts_are_numbered(one: Any) -> None:
    said = f"the manifest's model.sizes.experts is {short(json.dumps([one, None]))}, not {FORM_OF_EXPERTS}"
    assert form_faults(changed("model.sizes.experts", [one, None])) == [said]


@pytest.mark.parametrize(("most", "right"), [(2**15, True), (2**15 + 1, False)])
def test_a_layer_has_so_many_experts_at_most(most: int, right: bool) -> None:
    """Routed and shared ones together."""
    whole = changed("model.sizes.memories", [2 * (most - 2) + 7, 4])
    _set(whole, "model.sizes.experts", [{"routed": most - 2, "memories": 2, "shared": [3, 4]}, None])
    assert (form_faults(whole) == []) == right


@pytest.mark.parametrize("count", [0, 2**24 + 1, None, 1.0])
def test_the_first_layer_of_an_impossible_size_is_named(count: Any) -> None:
    said = f"the manifest's model.sizes.memories[1] is {json.dumps(count)}, not {ROWS}"
    assert form_faults(changed("model.sizes.memories", [4, count, count])) == [said]


def test_of_three_layers_the_last_is_the_second() -> None:
    whole = changed("model.sizes.memories", [4, 4, 4]) | {"layers": [3]}
    assert form_faults(whole) == ["the manifest's layers is [3], not a list of layers from 0 to 2, in order"]


@pytest.mark.parametrize("name", ["model", "corpus", "plan", "plan_hash", "layers", "files"])
def test_of_entries_that_are_needed_only_the_first_is_told(name: str) -> None:
    whole = changed("part", 1)
    del whole[name]
    assert form_faults(whole) == [f"the manifest has no {name}; the atlas was not written by mnemoscope"]
    assert len(form_faults(changed("part", 1) | {name: 1.5})) == 1


def test_every_other_fault_is_told_and_files_that_nobody_writes() -> None:
    entry = {"bytes": 1, "sha256": "0" * 64}
    whole = changed("part", 1) | {"files": {"../b": entry, "a.parquet": 3, "tokens.parquet": entry}, "layers": [5]}
    assert form_faults(whole) == [
        f"the manifest's part is 1, not {PART}", f"the manifest's layers is [5], not {LAYERS}",
        "../b: not an entry that mnemoscope writes", "a.parquet: not an entry that mnemoscope writes",
    ]  # fmt: skip


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


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (2**63 - 1, None), (-(2**63) + 1, None), (1.5, None), ("é", None),
        (2**63, "the manifest's a.b is 9223372036854775808, not a number of 64 bits"),
        (-(2**63), "the manifest's a.b is -9223372036854775808, not a number of 64 bits"),
        (float("inf"), "the manifest's a.b is Infinity, not a finite number"),
        ("\ud800", "the manifest holds text under a.b that is not UTF-8"),
        ({"\ud800": 1}, "the manifest holds text under a.b that is not UTF-8"),
    ],
    ids=repr,
)  # fmt: skip
def test_numbers_have_64_bits_and_texts_are_utf8(value: Any, said: str | None) -> None:
    assert unwritable({"a": {"b": value}}) == said
    assert unwritable({"a": {"b": [0, value]}}) == said


def test_what_is_wrong_is_told_in_its_own_letters() -> None:
    (said,) = form_faults(changed("model.head", ["caf\u00e9"]))
    assert said == 'the manifest\'s model.head is ["caf\u00e9"], not text'


def test_a_long_value_is_shortened_to_sixty_characters() -> None:
    assert short("a  b\n" + "c" * 56) == "a b " + "c" * 56
    assert short("a b " + "c" * 57) == "a b " + "c" * 53 + "..."
    assert short("\ud800") == "\\ud800"
