"""Mining recovers all that a mixture of experts was built to hold: routing, keys, values, the one that is lost."""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from mnemoscope.atlas import open_atlas
from models import planted_experts as planted

PLACES = [(n, j, word) for n, sentence in enumerate(planted.SENTENCES) for j, word in enumerate(sentence.split())]


def test_every_planted_memory_is_recovered(experts_atlas: Path) -> None:
    atlas = open_atlas(experts_atlas)
    assert len(planted.PLANTED_EXPERTS) == planted.LAYERS * planted.EXPERTS * planted.MEMORIES - 1
    for one in planted.PLANTED_EXPERTS:
        memory = atlas[str(one.memory)]
        rows = memory.triggers(None)
        expected = [(n, j) for n, j, word in PLACES if word == one.word]
        assert expected
        assert sorted(rows.select("sentence", "position").rows()) == expected, one
        assert set(rows["sign"]) == {1}
        assert memory.activity()["positive"][0] == len(expected)
        if one.memory.layer == 0:
            assert rows["router_weight"].to_list() == pytest.approx(
                [planted.WEIGHTS[one.choice]] * len(expected), abs=1e-5
            )
            assert rows["coefficient"].to_list() == pytest.approx(
                [planted.WEIGHTS[one.choice]] * len(expected), abs=1e-4
            )
        value = memory.value()
        assert value["top_tokens"][0][0] == planted.WORDS.index(one.promoted)
        assert value["top_scores"][0][0] > value["top_scores"][0][1]


def test_routing_is_recovered(experts_atlas: Path) -> None:
    table = pl.read_parquet(experts_atlas / "routing.parquet")
    for layer in range(planted.LAYERS):
        routes = [planted.ROUTES[layer, planted.WORDS.index(word)] for _, _, word in PLACES]
        both, first = Counter(e for pair in routes for e in pair), Counter(pair[0] for pair in routes)
        rows = table.filter(pl.col("layer") == layer)
        assert rows["tokens"].to_list() == [both[e] for e in range(planted.EXPERTS)]
        assert rows["first_choice"].to_list() == [first[e] for e in range(planted.EXPERTS)]
        assert rows["weight_sum"].sum() == pytest.approx(len(PLACES), abs=1e-3)
    rows = table.filter(pl.col("layer") == 0)
    routes = [planted.ROUTES[0, planted.WORDS.index(word)] for _, _, word in PLACES]
    sums = [sum(planted.WEIGHTS[pair.index(e)] for pair in routes if e in pair) for e in range(planted.EXPERTS)]
    assert rows["weight_sum"].to_list() == pytest.approx(sums, abs=1e-4)


def test_a_memory_whose_word_goes_elsewhere_never_fires(experts_atlas: Path) -> None:
    assert any(word == planted.ASTRAY for _, _, word in PLACES)
    memory = open_atlas(experts_atlas)[str(planted.UNROUTED)]
    assert memory.triggers(None).is_empty()
    routed = sum(0 in planted.ROUTES[0, planted.WORDS.index(word)] for _, _, word in PLACES)
    found = memory.activity().select("prefixes", "positive", "max", "all_prefixes").row(0)
    assert found == (routed, 0, 0.0, len(PLACES))
