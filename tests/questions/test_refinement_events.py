"""Figure 11: every event once, and the list of the last layer's compositions."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mnemoscope.annotate.judgements.reading import ANNOTATIONS
from mnemoscope.questions import answer
from mnemoscope.questions.paper.refinement_events import cases
from support.handbuilt_answers import VOCABULARY, build_answers, numbers
from support.handwritten_judgements import SCHEMA

Prediction = dict[str, float]


def event(r: int, u: int, o: int, **others: float) -> Prediction:
    return {"residual_top": r, "ffn_top": u, "output_top": o, **others}


RESIDUAL, AGREEMENT, FFN = event(7, 8, 7), event(7, 7, 7), event(7, 8, 8)


def test_each_event_once(tmp_path: Path) -> None:
    prefixes = [(document, 1, 6, 7) for document in range(6)]
    half = VOCABULARY // 2
    layers = [
        [
            RESIDUAL,
            AGREEMENT,
            FFN,
            event(7, 8, 9, output_top_residual_rank=9, residual_top_ffn_rank=half),  # from the top 10, demoted
            event(7, 8, 9, output_top_residual_rank=10, residual_top_ffn_rank=half - 1),  # neither
            event(7, 7, 9, output_top_residual_rank=1, residual_top_ffn_rank=0),  # r and u agree, yet o is another
        ],
        [RESIDUAL] * 5 + [AGREEMENT],
    ]
    predictions = {(prefix, layer): row for layer, rows in enumerate(layers) for prefix, row in enumerate(rows)}
    atlas = build_answers(tmp_path, prefixes=prefixes, predictions=predictions)
    found = answer(atlas, "refinement_events")
    assert numbers(found, "residual") == {0: 1 / 6, 1: 5 / 6, None: 6 / 12}
    assert numbers(found, "agreement") == {0: 1 / 6, 1: 1 / 6, None: 2 / 12}
    assert numbers(found, "ffn") == {0: 1 / 6, 1: 0.0, None: 1 / 12}
    assert numbers(found, "composition") == {0: 3 / 6, 1: 0.0, None: 3 / 12}
    assert numbers(found, "changed") == {0: 4 / 6, 1: 0.0, None: 4 / 12}
    assert numbers(found, "unchanged") == {0: 2 / 6, 1: 1.0, None: 8 / 12}
    assert numbers(found, "composition_of_changed") == {0: 3 / 4, 1: None, None: 3 / 4}
    assert numbers(found, "composition_from_top10") == {0: pytest.approx(2 / 3), 1: None, None: pytest.approx(2 / 3)}
    assert numbers(found, "composition_demoted") == {0: pytest.approx(1 / 3), 1: None, None: pytest.approx(1 / 3)}
    assert numbers(found, "composition_demoted", "count") == {0: 3, 1: 0, None: 3}
    assert numbers(found, "composition_distant") == {None: None}
    with closing(sqlite3.connect(tmp_path / ANNOTATIONS)) as database:
        database.executescript(
            SCHEMA + "CREATE TABLE items (id, memory); INSERT INTO items VALUES (1, 4), (2, 5), (3, 6);"
            "CREATE TABLE verdicts (id, author, made_at, item, verdict); INSERT INTO verdicts VALUES"
            "(1, 'Ada', '1', 1, 'distant'), (2, 'Ada', '2', 2, 'distant'), (3, 'Ada', '3', 3, 'related');"
        )
    found = answer(atlas, "refinement_events")
    assert numbers(found, "composition_distant") == {None: 2 / 3}
    assert numbers(found, "composition_distant", "count") == {None: 3}
    assert numbers(found, "models_composition_distant") == {None: None}
    with closing(sqlite3.connect(tmp_path / ANNOTATIONS)) as database:
        database.executescript(
            "CREATE TABLE annotators (name, role); "
            "INSERT INTO annotators VALUES ('Ada', 'annotator'), ('Bot', 'model');"
            "INSERT INTO verdicts VALUES (4, 'Bot', '4', 1, 'related'), (5, 'Bot', '5', 3, 'distant'),"
            "(6, 'Bot', '6', 2, 'related'), (7, 'Bot', '7', 3, 'related');"
        )
    found = answer(atlas, "refinement_events")
    assert numbers(found, "composition_distant") == {None: 2 / 3}, "people's, as before"
    assert numbers(found, "models_composition_distant") == {None: 0}, "its last word on the third is related"
    judged = found.filter(found["judged_by"].is_not_null())
    assert judged.select("name", "judged_by").rows() == [
        ("composition_distant", "by 1 person"),
        ("models_composition_distant", "by the model Bot"),
    ]


def test_cases_are_listed_with_their_texts(tmp_path: Path) -> None:
    prefixes = [(0, 1, 4, 9), (0, 2, 1, 9), (1, 0, 3, 9)]
    rows = [event(3, 1, 2), RESIDUAL, event(5, 5, 4)]
    predictions = {(prefix, 0): FFN for prefix in range(3)} | {(prefix, 1): row for prefix, row in enumerate(rows)}
    found = cases(build_answers(tmp_path, prefixes=prefixes, predictions=predictions))
    tops = ("residual_top", "ffn_top", "output_top", "next_token")
    texts = ("residual_text", "ffn_text", "output_text", "next_text", "prefix_text")
    assert found.columns == ["prefix", "layer", *tops, *texts]
    assert found.rows() == [
        (0, 1, 3, 1, 2, 4, " cat", " the", "Of", ".", "<|end|> the"),
        (2, 1, 5, 5, 4, 3, "'s", "'s", ".", " cat", "Of"),
    ]


def test_a_hundred_cases_are_drawn_by_the_seed(tmp_path: Path) -> None:
    prefixes = [(document, 1, 6, 7) for document in range(150)]
    predictions = {(prefix, 0): event(1, 2, 3) for prefix in range(150)}
    plan = {"seed": 7}
    drawn = [
        cases(build_answers(tmp_path / name, prefixes=prefixes, predictions=predictions, plan=own))["prefix"].to_list()
        for name, own in (("a", plan), ("b", plan), ("c", {"seed": 8}))
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 100
    assert drawn[0] == sorted(drawn[0]) != list(range(100))


def test_no_cases_where_the_last_layer_was_not_mined_or_has_none(tmp_path: Path) -> None:
    prefixes = [(0, 1, 6, 7)]
    lower = build_answers(tmp_path / "a", model_layers=3, prefixes=prefixes, predictions={(0, 1): event(1, 2, 3)})
    none = build_answers(tmp_path / "b", prefixes=prefixes, predictions={(0, 0): RESIDUAL})
    empty = build_answers(tmp_path / "c", triggers={0: []})
    for atlas in (lower, none, empty):
        assert (cases(atlas).height, cases(atlas).columns[-1]) == (0, "prefix_text")


def test_without_changes_or_prefixes(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path / "a", prefixes=[(0, 1, 6, 7)] * 2, predictions={(p, 0): RESIDUAL for p in range(2)})
    found = answer(atlas, "refinement_events")
    assert numbers(found, "changed") == {0: 0.0, None: 0.0}
    assert numbers(found, "composition_of_changed") == {0: None, None: None}
    found = answer(build_answers(tmp_path / "b", triggers={0: []}), "refinement_events")
    assert found["value"].null_count() == found.height
