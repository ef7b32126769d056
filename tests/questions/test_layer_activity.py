"""Figure 7 on layers of four memories and prefixes of two documents."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from mnemoscope.questions import answer
from support.handbuilt_answers import build_answers, numbers

PREFIXES = [(0, 1, 6, 6), (0, 1, 6, 6), (1, 1, 6, 6)]


def rows(layers: Mapping[int, list[tuple[int, float, float]]]) -> dict[tuple[int, int], dict[str, float]]:
    """(active, effective, top share) of each prefix, by layer."""
    return {
        (prefix, layer): {"active": active, "effective": effective, "top_share": top}
        for layer, found in layers.items()
        for prefix, (active, effective, top) in enumerate(found)
    }


def test_active_and_effective_memories(tmp_path: Path) -> None:
    layers = {0: [(4, 2.0, 0.5), (2, 1.5, 0.75), (0, 0.0, 0.0)], 1: [(1, 1.0, 1.0), (1, 1.0, 1.0), (1, 1.0, 1.0)]}
    found = answer(build_answers(tmp_path, prefixes=PREFIXES, predictions=rows(layers)), "layer_activity")
    assert numbers(found, "active") == {0: 0.5, 1: 0.25, None: 0.375}  # 6 of 3 x 4; 3 of 3 x 4
    assert numbers(found, "active", "count") == {0: 3, 1: 3, None: 6}
    assert numbers(found, "effective") == {0: pytest.approx(3.5 / 3), 1: 1.0, None: pytest.approx(6.5 / 6)}
    assert numbers(found, "effective_share") == {0: pytest.approx(3.5 / 12), 1: 0.25, None: pytest.approx(6.5 / 24)}
    assert numbers(found, "dominated") == {0: 1 / 3, 1: 1.0, None: 4 / 6}  # more than half: 0.5 is not
    assert numbers(found, "active_least_layer") == {None: 0.25}
    assert numbers(found, "active_least_layer", "at_layer") == {None: 1}
    assert numbers(found, "least_depth") == {None: 1.0}  # layer 1 is the second of two
    # A resample of document 1 alone has its fewest in layer 0, so either may be the least.
    assert numbers(found, "least_depth", "low") == {None: 0.5}
    assert numbers(found, "least_depth", "high") == {None: 1.0}
    assert numbers(found, "least_depth", "at_layer") == {None: 1}
    # Document 0 has 6 of 8 active, document 1 none of 4: resamples say 0, 0.5 or 0.75.
    assert (numbers(found, "active", "low")[0], numbers(found, "active", "high")[0]) == (0.0, 0.75)
    assert numbers(found, "active", "low")[1] == numbers(found, "active", "high")[1] == 0.25


def test_the_least_layer_is_sure_where_every_document_says_so(tmp_path: Path) -> None:
    """Layers 1 and 3 of four: in both documents 3 of 4 fire in layer 1, and 2 of 4 in layer 3, the last."""
    layers = {1: [(3, 1.0, 0.1)] * 3, 3: [(2, 1.0, 0.1)] * 3}
    atlas = build_answers(tmp_path, model_layers=4, prefixes=PREFIXES, predictions=rows(layers))
    found = answer(atlas, "layer_activity")
    ends = {name: numbers(found, "least_depth", name) for name in ("value", "low", "high")}
    assert ends == {name: {None: 1.0} for name in ends}
    assert numbers(found, "active_least_layer", "at_layer") == {None: 3}
    assert numbers(found, "active_least_layer", "count") == {None: 3}


def test_one_document_says_nothing_of_how_sure_the_least_layer_is(tmp_path: Path) -> None:
    layers = {0: [(1, 1.0, 0.1)] * 2, 1: [(3, 1.0, 0.1)] * 2}
    found = answer(build_answers(tmp_path, prefixes=PREFIXES[:2], predictions=rows(layers)), "layer_activity")
    said = [numbers(found, "least_depth", name)[None] for name in ("value", "low", "high", "count")]
    assert said == [0.5, None, None, 2]


def test_correlation_over_layers_with_the_patterns(tmp_path: Path) -> None:
    """Active 0.25, 0.5, 1 in layers 0, 1, 2; shallow covers 1, 1/2, 0 of the two prefixes, semantic all of them."""
    layers = {layer: [(1 << layer, 1.0, 0.1)] * 3 for layer in range(3)}
    patterns = [(0, 0, "shallow", [0, 1]), (1, 0, "shallow", [0])]
    patterns += [(layer, 0, "semantic", [0, 1]) for layer in range(3)]
    made = {"patterns": patterns, "triggers": {layer: [(0, 6), (0, 6)] for layer in layers}}
    atlas = build_answers(tmp_path, prefixes=PREFIXES, predictions=rows(layers), **made)
    found = answer(atlas, "layer_activity")
    # 0.25, 0.5, 1 less 7/12 and 1, 0.5, 0 less 0.5: -0.375 over the root of 0.2917 x 0.5.
    assert numbers(found, "correlation_shallow") == {None: pytest.approx(-0.375 / (0.291667 * 0.5) ** 0.5, abs=1e-4)}
    assert numbers(found, "correlation_shallow", "count") == {None: 3}
    assert numbers(found, "correlation_semantic") == {None: None}  # no variance
    assert numbers(found, "correlation_semantic", "count") == {None: 3}


def test_two_layers_are_too_few_for_a_correlation(tmp_path: Path) -> None:
    layers = {layer: [(1 << layer, 1.0, 0.1)] * 3 for layer in range(2)}
    made = {"patterns": [(0, 0, "shallow", [0, 1])], "triggers": {layer: [(0, 6), (0, 6)] for layer in layers}}
    atlas = build_answers(tmp_path, prefixes=PREFIXES, predictions=rows(layers), **made)
    assert numbers(answer(atlas, "layer_activity"), "correlation_shallow") == {None: None}
