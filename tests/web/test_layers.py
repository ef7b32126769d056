"""Pages of layers: rows are the tables', sorting and filtering are a brute force's, and hostile tokens are text."""

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.manifest import seal
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_table
from mnemoscope.patterns import write_patterns
from mnemoscope.show.figures.colours import BLUE, GREY
from reports.reported_atlas import reported
from support.handbuilt_answers import build_answers
from support.handbuilt_atlas import PROVENANCE, build_atlas, manifest
from web.layer_atlas import WORDS, Row, layered
from web.served import client

KINDS = ("shallow", "semantic", "both", "none")
MANY: list[Row] = [
    (i * 7 % 101, i % 19, None if i % 11 == 0 else i % 7, 0.01 + i % 13 / 20, 1 + i % 5, KINDS[i % 4])
    for i in range(230)
]
TEXTS = {0: "<|end|>", 1: " the", 2: "The", 4: "\n"} | WORDS


def text(token: int) -> str:
    return TEXTS.get(token, f" w{token}")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    return client(layered(tmp_path_factory.mktemp("atlas"), MANY))


def asked(reader: TestClient, **parameters: Any) -> dict[str, Any]:
    answer = reader.get("/layers/0.json", params=parameters)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_the_numbers_are_the_tables(reader: TestClient) -> None:
    found = asked(reader)
    assert (found["memories"], found["total"], found["pages"]) == (230, 230, 3)
    assert found["never"] == sum(row[0] == 0 for row in MANY)
    assert found["agreeing"] == sum(row[1] == row[2] for row in MANY)
    assert found["with_target"] == sum(row[2] is not None for row in MANY)
    for number, row in enumerate(found["rows"]):
        fires, top, target, most, norm, kind = MANY[number]
        assert row["name"] == f"L0.M{number}"
        assert (row["positive"], row["prefixes"], row["rate"]) == (fires, 100, fires / 100)
        assert (row["top_token"], row["top_text"], row["target"]) == (top, text(top), target)
        assert row["agrees"] == (None if target is None else top == target)
        assert (row["max_probability"], row["value_norm"]) == (pytest.approx(most), pytest.approx(norm))
        assert (row["kind"], row["patterns"]) == (kind, {"both": 2, "none": 0}.get(kind, 1))
    page = unescape(reader.get("/layers/0").text)
    assert f"{sum(row[0] == 0 for row in MANY)} never fired" in page
    for number in (0, 57, 99):
        assert f'<a href="/L0.M{number}" class="name">L0.M{number}</a>' in page
    assert reader.get("/layers/1.json").json()["rows"][0]["top_token"] == MANY[-1][1]


CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "sort": st.sampled_from(["memory", "rate", "confidence", "norm", "rank", "agreement", "kind", "token"]),
        "order": st.sampled_from(["up", "down"]),
        "fires": st.sampled_from(["any", "never", "some"]),
        "agreement": st.sampled_from(["any", "yes", "no", "none"]),
        "kind": st.sampled_from(["any", *KINDS]),
        "token": st.sampled_from(["", "THE", " w", "<script", "[", "\n"]),
        "memories": st.sampled_from(["", "0,1,2,229,9999", " 5 , 7"]),
        "rate_from": st.sampled_from(["", "0", "0.3"]),
        "rate_to": st.sampled_from(["", "0.5"]),
        "confidence_from": st.sampled_from(["", "0.1"]),
        "confidence_to": st.sampled_from(["", "0.4"]),
        "norm_from": st.sampled_from(["", "1.5"]),
        "norm_to": st.sampled_from(["", "4.5"]),
    },
)


def expected(choice: dict[str, str]) -> list[int]:
    """The memories that the choice leaves, in its order, found one by one; those without a value come last."""

    def within(name: str, value: float) -> bool:
        low, high = choice.get(f"{name}_from") or "-1", choice.get(f"{name}_to") or "1e9"
        return float(low) <= value <= float(high)

    kept = []
    for number, (fires, top, target, most, norm, kind) in enumerate(MANY):
        agrees = "none" if target is None else "yes" if top == target else "no"
        named = [int(part) for part in choice.get("memories", "").split(",") if part.strip()]
        if choice.get("fires", "any") not in ("any", "some" if fires else "never"):
            continue
        if choice.get("agreement", "any") not in ("any", agrees) or choice.get("kind", "any") not in ("any", kind):
            continue
        if choice.get("token", "").lower() not in text(top).lower() or (named and number not in named):
            continue
        if within("rate", fires / 100) and within("confidence", most) and within("norm", norm):
            kept.append(number)

    def key(number: int) -> Any:
        fires, top, target, most, norm, kind = MANY[number]
        agrees = None if target is None else top == target
        rank = None if target is None else int(not agrees)
        keys = {"rate": fires, "confidence": most, "norm": norm, "kind": kind, "token": text(top)}
        keys |= {"rank": rank, "agreement": agrees, "memory": number, "clear": None}
        return keys[choice.get("sort", "clear")]

    known = [number for number in kept if key(number) is not None]
    values = sorted({key(number) for number in known}, reverse=choice.get("order", "down") == "down")
    ordered = [number for value in values for number in known if key(number) == value]
    return ordered + [number for number in kept if key(number) is None]


@pytest.mark.full
@given(choice=CHOICES)
def test_choosing_is_what_a_brute_force_chooses(reader: TestClient, choice: dict[str, str]) -> None:
    first = asked(reader, **choice)
    found = [row["memory"] for row in first["rows"]]
    for page in range(2, first["pages"] + 1):
        found += [row["memory"] for row in asked(reader, **choice, page=page)["rows"]]
    assert (found, first["total"]) == (expected(choice), len(found))


def names(reader: TestClient, **parameters: Any) -> list[str]:
    return [row["name"] for row in asked(reader, **parameters)["rows"]]


def test_features_are_shown_chosen_and_sorted(handbuilt: Path, copied: Callable[[Path], Path]) -> None:
    """The hand-built atlas: memory 0 promotes above zero alone, and has a second feature; 3 never fires."""
    atlas = copied(handbuilt)
    write_patterns(open_atlas(atlas))
    reader = client(atlas)
    rows = {row["name"]: row for row in asked(reader)["rows"]}
    found = [(name, row["promotes"], row["promotes_negative"]) for name, row in sorted(rows.items())]
    no = [("L0.M1", False, None), ("L0.M2", False, None), ("L0.M3", None, None)]
    assert found == [("L0.M0", True, False), *no]
    assert names(reader, sort="memory") == ["L0.M3", "L0.M2", "L0.M1", "L0.M0"]  # the order's default is down
    assert names(reader)[:2] == ["L0.M0", "L0.M2"]  # 1 above what is clear, then 0, 1 below, and no typical activation
    assert names(reader, promotes="yes") == ["L0.M0"]
    assert sorted(names(reader, promotes="no")) == ["L0.M1", "L0.M2", "L0.M3"]
    assert rows["L0.M0"]["label"] == 'no clear pattern; promotes " Paris"'
    assert (rows["L0.M0"]["label_negative"], rows["L0.M3"]["label"]) == ("no clear pattern", None)
    assert names(reader, label="PROMOTES") == ["L0.M0"]
    assert names(reader, label="no clear", strong_from=0.4) == ["L0.M0"]
    weak = [name for name, row in rows.items() if 0.0 in (row["strong"], row["strong_negative"])]
    assert names(reader, strong_to=0.0) == weak
    page = reader.get("/layers/0").text
    assert "no clear pattern; promotes &#34; Paris&#34;" in page
    assert page.split("</svg>")[0].count('href="/L0.M0"') == 2
    assert reader.get("/L0.M0").text.count("no clear pattern") >= 2
    layer = reader.get("/layers.json").json()["layers"][0]
    assert (layer["promotes"], layer["promotes_negative"]) == (pytest.approx(1 / 3), 0)


@pytest.mark.parametrize(("tokens", "kind", "colour"), [([4] * 6, "shallow", BLUE), ([4] * 4, "none", GREY)])
def test_a_ring_has_the_kind_of_its_label_and_covers_no_point(
    tokens: list[int], kind: str, colour: str, tmp_path: Path
) -> None:
    """Below zero memory 0 has triggers of one token: six of its best make it a label, four do not."""
    atlas, count = build_atlas(tmp_path / "atlas"), len(tokens)
    rows = {name: range(count) for name in ("rank", "position", "prefix_group")} | {"token": tokens}
    same = {"memory": 0, "sign": -1, "sentence": 0, "coefficient": -1.0, "next_token": None}
    rows |= {name: [value] * count for name, value in same.items()}
    write_table(atlas / TABLES["triggers"].path(0), rows, name="triggers", provenance=PROVENANCE)
    seal(atlas, manifest())
    write_patterns(open_atlas(atlas))
    reader = client(atlas)
    row = asked(reader, memories="0")["rows"][0]
    label = 'ends in "France"' if kind == "shallow" else "no clear pattern"
    assert (row["label_negative"], row["kind"], row["kind_negative"]) == (label, "none", kind)
    assert ("L0.M0" in names(reader, kind="shallow")) == (kind == "shallow")
    assert ("L0.M0" in names(reader, kind="none")) == (kind == "none")
    drawn = r'<g fill="(none|#\w+)"(?: pointer-events="all" stroke="(#\w+)")? (?:fill|stroke)-opacity'
    groups = re.findall(drawn, reader.get("/layers/0").text)
    assert groups == [("none", colour), (GREY, "")]  # the ring, then the points


def test_the_picture_has_the_chosen_as_points(reader: TestClient) -> None:
    page = reader.get("/layers/0", params={"kind": "both", "fires": "some"}).text
    svg = ElementTree.fromstring(re.search(r"<svg.*?</svg>", page, flags=re.DOTALL).group())  # type: ignore[union-attr]
    links = {element.get("href") for element in svg.iter("a")}
    assert links == {f"/L0.M{number}" for number in expected({"kind": "both", "fires": "some"})}
    assert not [element for element in svg.iter() if element.tag in ("script", "style") or "style" in element.attrib]


def test_hostile_tokens_are_text(reader: TestClient) -> None:
    page = reader.get("/layers/0", params={"token": '"><script>window.ran=1</script>'}).text
    assert "<script>" not in page
    whole = reader.get("/layers/0").text
    assert "<script>window" not in whole
    assert "<img" not in whole
    assert "&lt;script&gt;window.ran=3&lt;/script&gt;" in whole
    assert "7 * 191" in whole.replace("·", " ")
    assert "1337" not in whole


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/layers/2", 404),
        ("/layers/0?page=4", 404),
        ("/layers/0?memories=1,x", 400),
        ("/layers/0?memories=-1", 400),
        ("/layers/0?sort=nothing", 400),
        ("/layers/0?rate_from=nan", 400),
        ("/layers/0?page=0", 400),
        ("/layers/x", 400),
        ("/layers/-1", 400),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_sentence(reader: TestClient, address: str, status: int) -> None:
    path, _, query = address.partition("?")
    answer = reader.get(f"{path}.json?{query}")
    assert (answer.status_code, len(answer.json()["message"].splitlines())) == (status, 1)
    assert reader.get(address).status_code == status


def test_every_layer_has_a_line(reader: TestClient) -> None:
    lines = reader.get("/layers.json").json()["layers"]
    assert [line["layer"] for line in lines] == [0, 1]
    shallow = sum(row[-1] in ("shallow", "both") for row in MANY) / 230
    assert lines[0]["shallow"] == lines[1]["shallow"] == pytest.approx(shallow)
    assert 'href="/layers/1"' in reader.get("/layers").text


def test_an_atlas_without_patterns_and_answers_has_its_layers(tmp_path: Path) -> None:
    reader = client(layered(tmp_path, MANY[:3], patterns=False))
    found = reader.get("/layers/0.json").json()
    assert ([row["kind"] for row in found["rows"]], found["numbers"]) == ([None] * 3, [])
    assert reader.get("/layers/0").status_code == 200
    assert reader.get("/layers.json").json()["layers"][0]["semantic"] is None


def test_a_table_with_fewer_rows_leaves_gaps(tmp_path: Path) -> None:
    """The small atlas of the report has the activity of four memories only."""
    reader = client(reported(tmp_path).path)
    rows = reader.get("/layers/0.json").json()["rows"]
    assert [row["rate"] is None for row in rows] == [False] * 4 + [True] * 8
    assert reader.get("/layers/0").status_code == 200


def test_memories_are_sorted_by_importance_where_the_table_is(tmp_path: Path, reader: TestClient) -> None:
    value, effects = (6, 6, 0, 0.5, 1.0, -1.0), [(1.0, 2.0, 0, 0), (1.0, 9.0, 0, 0), (1.0, 5.0, 0, 0), (1.0, 7.0, 0, 0)]
    build_answers(tmp_path, triggers={0: [(0, 1)]}, values={0: [value] * 4}, importance={0: effects})
    other = client(tmp_path)
    found = asked(other, sort="importance")
    order = [(row["name"], row["attribution"]) for row in found["rows"]]
    assert order == [("L0.M1", 9), ("L0.M3", 7), ("L0.M2", 5), ("L0.M0", 2)]
    assert "sort=importance" in other.get("/layers/0").text
    assert "sort=importance" not in reader.get("/layers/0").text
    assert asked(reader, sort="importance")["rows"][0]["attribution"] is None


def test_memories_are_chosen_and_sorted_by_what_they_do_to_what_they_read(tmp_path: Path, reader: TestClient) -> None:
    """In turn memories add and remove; the last one's key cannot be read."""
    value = (6, 6, 0, 0.5, 1.0, -1.0)
    roles = {0: [(0, 0), (0, 0), (0, 0), (None, None)]}
    build_answers(tmp_path, triggers={0: [(0, 1)]}, values={0: [value] * 4}, roles=roles)
    other = client(tmp_path)
    rows = asked(other, sort="cosine")["rows"]
    assert [(row["name"], row["cosine"], row["adds"], row["removes"]) for row in rows] == [
        ("L0.M0", 0.5, True, False),
        ("L0.M2", 0.5, True, False),
        ("L0.M1", -0.5, False, True),
        ("L0.M3", None, None, None),
    ]
    assert names(other, effect="adds", sort="memory", order="up") == ["L0.M0", "L0.M2"]
    assert names(other, effect="removes") == ["L0.M1"]
    assert names(other, effect="neither") == []
    page = other.get("/layers/0").text
    assert "sort=cosine" in page
    assert page.count('<span class="kind">adds</span>') == 2
    assert page.count('<span class="kind">removes</span>') == 1
    line = other.get("/layers.json").json()["layers"][0]
    assert (line["adds"], line["removes"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert "add to what they read" in other.get("/layers").text
    for address in ("/layers", "/layers/0"):
        assert "what it reads" not in reader.get(address).text
        assert "what they read" not in reader.get(address).text
    assert asked(reader, effect="adds")["rows"] == []
