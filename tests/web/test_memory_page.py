"""A memory's page: its numbers are those of the tables, its marks are right, and its links lead somewhere."""

import math
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from starlette.testclient import TestClient

from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.manifest import seal
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_table
from mnemoscope.foundation.files import file_hash
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.show.pages.memory import bars
from mnemoscope.show.pages.triggers import group_triggers
from reports.reading import words
from reports.reported_atlas import reported
from support.handbuilt_answers import build_answers
from support.handbuilt_atlas import PROVENANCE, manifest
from web.served import client, patient


@pytest.fixture(scope="module")
def reader(handbuilt: Path) -> TestClient:
    return client(handbuilt)


@pytest.fixture(scope="module")
def data(reader: TestClient) -> Any:
    return reader.get("/L0.M0.json").json()


def test_every_trigger_is_the_table_s(handbuilt: Path, data: Any) -> None:
    rows = open_atlas(handbuilt)["L0.M0"].triggers(sign=None).to_dicts()
    assert len(data["triggers"]) == len(rows) == 5
    for shown, row in zip(data["triggers"], sorted(rows, key=lambda row: (-row["sign"], row["rank"])), strict=True):
        for name in ("sign", "rank", "coefficient", "sentence", "position", "prefix_group"):
            assert shown[name] == row[name]
        assert shown["before"] + shown["token"]["text"] == row["prefix"]
        assert (shown["next"] or {"text": None})["text"] == row["next_text"]
        following = (shown["next"] or {"text": ""})["text"] + shown["after"]
        assert row["prefix"] + following == row["text"]


def test_the_value_says_what_the_table_says(data: Any) -> None:
    top = data["value"]["top"]
    assert [(one["token"], one["shown"]) for one in top[:3]] == [(6, "·Paris"), (8, "·Rome"), (4, "·France")]
    assert top[0]["probability"] == 0.5
    # Scores fall from 2.0 to 0.1 in nineteen equal steps.
    assert top[1]["probability"] == pytest.approx(0.5 * math.exp(-0.1), rel=1e-6)
    bottom = data["value"]["bottom"]
    assert ([one["token"] for one in bottom], bottom[0]["score"]) == (list(range(20)), -2.0)
    assert bottom[0]["probability"] == pytest.approx(0.5 * math.exp(2.0 - 2.0), rel=1e-6)
    assert (data["value"]["value_norm"], data["value"]["entropy"]) == (2.0, 1.0)


def test_it_says_whether_the_value_comes_true(data: Any) -> None:
    follows = data["follows"]
    assert follows["target"]["shown"] == "·Paris"
    assert (follows["target_rank"], follows["trigger_log_probability"]) == (0, -1.5)
    # Of `is -> Paris`, `The -> capital` twice and `é -> [b]x[/b]`, one is followed by Paris.
    assert (follows["followed"], follows["best"]) == (1, 4)


def test_activity_is_counted(data: Any) -> None:
    activity = data["activity"]
    assert (activity["positive"], activity["prefixes"], activity["share"]) == (8, 19, 8 / 19)
    filled = [(one["low"], one["high"], one["count"]) for one in activity["bins"] if one["count"]]
    assert filled == [(0.0, 2**-10, 11), (0.5, 1.0, 8)]
    drawn = bars(activity)
    assert (len(drawn), drawn[0]["height"], [one["height"] for one in drawn[1:-1]]) == (11, 100.0, [0.0] * 9)
    assert drawn[-1]["height"] == pytest.approx(100 * math.log(9) / math.log(12), abs=0.1)


def test_neighbours_by_value_are_the_stored_ones(data: Any) -> None:
    found = [(one["memory"], one["cosine"]) for one in data["neighbours"]["value"]]
    assert found == [("L1.M0", pytest.approx(0.9)), ("L0.M1", pytest.approx(0.5))]
    assert data["neighbours"]["triggers"] == []


@pytest.mark.parametrize(
    ("unknown", "told"),
    [(-(2**31), "other_memory holds -2147483648 in"), (4, "the table of neighbours names a missing memory")],
)
def test_a_neighbour_that_there_is_not_is_damage(
    unknown: int, told: str, handbuilt: Path, copied: Callable[[Path], Path]
) -> None:
    atlas = copied(handbuilt)
    path = atlas / TABLES["neighbours"].path(0)
    rows = pl.read_parquet(path).with_columns(other_memory=pl.lit(unknown)).to_dict(as_series=False)
    write_table(path, rows, name="neighbours", provenance=PROVENANCE)
    seal(atlas, manifest())
    answer = client(atlas).get("/L0.M0.json")
    assert answer.status_code == 409
    assert told in answer.text


def test_a_memory_s_importance_is_shown_where_the_table_is(
    handbuilt: Path, copied: Callable[[Path], Path], data: Any
) -> None:
    atlas, memories = copied(handbuilt), [0, 1, 2, 3]
    rows = {"memory": memories, "prefixes": [8] * 4, "direct": [0.5, 0.0, 0.0, 0.0]}
    rows |= {"attribution": [1.75, 0, 0, 0], "direct_among_20": [0.25] * 4, "attribution_among_20": [0.5] * 4}
    write_table(atlas / TABLES["importance"].path(0), rows, name="importance", provenance=PROVENANCE)
    seal(atlas, manifest())
    reader = client(atlas)
    found = reader.get("/L0.M0.json").json()["importance"]
    assert found == {name: own[0] for name, own in rows.items() if name != "memory"}
    assert "hangs on it by <strong>1.75</strong> logits" in reader.get("/L0.M0").text
    assert reader.get("/L1.M0.json").json()["importance"] is data["importance"] is None


def test_what_a_memory_does_to_what_it_reads_is_said(tmp_path: Path, data: Any) -> None:
    value = (6, 6, 0, 0.5, 1.0, -1.0)
    roles = {0: [(0, 0), (0, 0), (None, None)]}
    build_answers(tmp_path, triggers={0: [(0, 1)]}, values={0: [value] * 3}, roles=roles)
    reader = client(tmp_path)
    first, second, third = (words(reader.get(f"/L0.M{memory}").text) for memory in range(3))
    said = "Its value adds to what its key reads: cosine 0.50, beyond 99.5 % of shuffled pairs, which lie between"
    assert f"{said} -0.25 and 0.25." in first
    assert "Its value removes what its key reads: cosine" in second
    assert "what its key reads" not in third
    assert "signs of these two" not in first
    assert reader.get("/L0.M2.json").json()["input_output"] is data["input_output"] is None


def test_a_gated_memory_s_signs_are_called_a_convention(gated_atlas: Path) -> None:
    reader, row = client(gated_atlas), open_atlas(gated_atlas).table("roles", layer=0).row(3, named=True)
    found = reader.get("/L0.M3.json").json()["input_output"]
    assert found["cosine"] == found["up_value"] == pytest.approx(row["up_value"])
    assert found["adds"] == (row["up_value"] > row["adds_above"])
    page = words(reader.get("/L0.M3").text)
    assert "its up row reads" in page
    assert "the signs of these two are a convention; those of the first cosine and of their product are not" in page


def test_neighbours_by_triggers_share_prefixes(tmp_path: Path) -> None:
    atlas = reported(tmp_path / "atlas", active=12)
    found = client(atlas.path).get("/L1.M0.json").json()["neighbours"]["triggers"]
    names = [f"L{layer}.M{memory}" for layer in (0, 1) for memory in range(12)]
    places = {name: set(atlas[name].triggers().select("sentence", "position").iter_rows()) for name in names}
    own = places.pop("L1.M0")
    expected = {name: len(own & others) for name, others in places.items() if own & others}
    assert expected
    best = sorted(expected, key=lambda name: (-expected[name], MemoryId.parse(name)))[:10]
    assert [(one["memory"], one["shared"]) for one in found] == [(name, expected[name]) for name in best]
    assert found[0]["shared"] == 6


def test_equal_prefixes_are_shown_once(data: Any) -> None:
    groups = group_triggers(data["triggers"], 1, says=6)
    found = [(one["ranks"], one["coefficient"], one["times"], one["foretold"]) for one in groups]
    assert found == [([0], 3.0, 1, True), ([1, 2], 2.0, 2, False), ([3], 1.5, 1, False)]
    prefixes = [(one["before"], one["token"]["shown"]) for one in groups]
    assert prefixes == [("The capital of France", "·is"), ("", "The"), ("The⏎", "é")]
    assert [one["rank"] for one in group_triggers(data["triggers"], -1, says=None)] == [0]


def test_the_page_shows_the_same_numbers(reader: TestClient, data: Any) -> None:
    page = reader.get("/L0.M0").text
    assert "<h1>L0.M0" in page
    for number in ("3.00", "2.00", "1.50", "-0.50", "50.0\N{NO-BREAK SPACE}%", "42.1\N{NO-BREAK SPACE}%", "0.90"):
        assert number in page, number
    assert page.count("<mark>") == 4
    for said in ("2 times", "Negative triggers", "[b]x[/b]"):
        assert said in page
    assert data["reference"]["text"] in page
    assert "Patterns were not looked for" in page
    assert "style=" not in page


def test_a_memory_that_never_fired_says_so(reader: TestClient) -> None:
    page = reader.get("/L0.M3").text
    assert "It never fired" in page
    assert reader.get("/L0.M3.json").json()["triggers"] == []


def test_the_reference_is_exact(handbuilt: Path, data: Any) -> None:
    reference = data["reference"]
    expected = (file_hash(handbuilt / "manifest.json"), "a" * 64)
    assert (reference["atlas"], reference["fingerprint"]) == expected
    assert reference["text"].startswith("Memory L0.M0 of handbuilt (model sha256 aaaa")


def test_previous_and_next_pass_from_layer_to_layer(reader: TestClient) -> None:
    found = [reader.get(f"/{name}.json").json() for name in ("L0.M0", "L0.M3", "L1.M0", "L1.M3")]
    beside = [(one["previous"], one["next"]) for one in found]
    assert beside == [(None, "L0.M1"), ("L0.M2", "L1.M0"), ("L0.M3", "L1.M1"), ("L1.M2", None)]


def test_a_pattern_marks_the_triggers_that_it_explains(tmp_path: Path) -> None:
    reader = client(reported(tmp_path / "atlas").path)
    data = reader.get("/L0.M0.json?pattern=0").json()
    assert [(one["pattern"], one["kind"], one["triggers"]) for one in data["patterns"]] == [(0, "shallow", [0, 1, 2])]
    explained = {one["rank"] for one in data["triggers"] if 0 in one["patterns"]}
    assert explained >= {0, 1, 2}
    marked, plain = reader.get("/L0.M0?pattern=0").text, reader.get("/L0.M0").text
    groups = {one["prefix_group"] for one in data["triggers"] if 0 in one["patterns"]}
    assert marked.count('<li class="explained">') == len(groups)
    assert 'class="explained"' not in plain
    assert "The paper's Table 1 has such patterns" in plain
    assert "pattern 1 is not" in reader.get("/L0.M0?pattern=1").text
    assert [reader.get(f"/L0.M0?pattern={wrong}").status_code for wrong in ("1", "-1", "x")] == [400] * 3


def test_interventions_are_carried_along(reader: TestClient) -> None:
    page = reader.get("/L0.M0?set=L1.M1%3D0&set=L1.M2*2").text
    assert re.search(r'href="/L0\.M1\?set=L1\.M1%3D0&amp;set=L1\.M2%2A2"', page)
    # Without a model there is no trace to go to.
    assert "/trace" not in page


def test_all_numbers_of_the_tables_are_on_the_page_with_what_they_are(tmp_path: Path) -> None:
    value, effects = (6, 6, 0, 0.5, 1.0, -1.0), [(0.25, 2.0, 1, 3)]
    build_answers(tmp_path, triggers={0: [(0, 1)]}, values={0: [value]}, importance={0: effects})
    page = unescape(client(tmp_path).get("/L0.M0").text)
    row = r'<th scope="row" title="column \w+">([^<]*) <small[^>]*>([^<]*)</small></th><td class="n">([^<]*)</td>'
    cells = re.findall(row, page)
    shown = {label: (about, text) for label, about, text in cells}
    assert shown["attribution"][1] == "2.00 logits"
    assert shown["attribution"][0].startswith("mean of the size of m dF/dm")
    assert shown["direct effect"][1] == "0.25 logits"
    shares = [shown[name][1] for name in ("among the 20 largest attributions", "at coefficient 1")]
    assert shares == ["37.5\u00a0%", "50.0\u00a0%"]
    for table in ("values", "activity", "importance"):
        row = open_atlas(tmp_path).table(table, layer=0).row(0, named=True)
        assert all(column.label in shown for column, _ in TABLES[table].numbers(row))


def test_a_layer_s_headings_say_what_the_numbers_are(reader: TestClient) -> None:
    page = reader.get("/layers/0").text
    assert f'title="{TABLES["values"].by_name["target_rank"].about}"' in unescape(page)


def test_a_memory_is_said_to_say_a_token_only_where_it_is_clear(
    handbuilt: Path, copied: Callable[[Path], Path]
) -> None:
    """L0.M0 stands out by 5 deviations and L0.M1 by 3, where random directions reach 4; L0.M3 never fires."""
    reader = client(path := copied(handbuilt))
    for heading in ("L0.M0 promotes ·Paris", "L0.M1 no clear token", "L0.M3 no clear token"):
        page = reader.get(f"/{heading[:5]}").text
        assert words(page[page.index("<h1>") : page.index("</h1>")]) == heading
    first, second = (words(reader.get(f"/L0.M{memory}").text) for memory in (0, 1))
    assert "Its value promotes ·Paris . That is what follows" in first
    assert "Below zero it has no clear token; the first," in first
    assert "Its value has no clear token. Its first, ·Paris , is what follows" in second
    assert "Its value promotes ·Paris" in words(open_atlas(path)["L0.M0"]._repr_html_())
    assert "Its value has no clear token." in open_atlas(path)["L0.M1"]._repr_html_()
    fires = words(patient(reader, "/tokens/6").text)
    assert "L0.M1 1 0 no clear token" in fires
    found = patient(reader, "/search.json?q=paris&in=values").json()["hits"]
    promoted = {hit["memory"]: hit["promotes"] for hit in found}
    assert (promoted["L0.M0"], promoted["L0.M1"]) == (True, False)
    listed = words(patient(reader, "/search?q=paris&in=values").text)
    assert "L0.M0 values promotes ·Paris" in listed
    assert "L0.M1 values no clear token" in listed
