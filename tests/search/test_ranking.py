"""What comes first, read by eye: sentences of words, and memories whose triggers are chosen."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.derived_manifest import record_hashes
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_sentences
from mnemoscope.cli import main
from mnemoscope.errors import AnnotationError, OptionError, SearchError
from mnemoscope.search import Hit, Index, open_index
from search.conftest import sealed, value_columns, write
from support.handbuilt_atlas import PROVENANCE, activity_columns, build_atlas
from support.handwritten_judgements import SCHEMA

SENTENCES = [
    *(
        [" 我", "们", "去", "巴", "黎", "看", "塔"],
        [" Мы", " были", " в", " Москве", "."],
        [" rain", " 🤖", " 😀😀", " end"],
    ),
    *([" import", " os", ".path", ".join", "(", "x", ")"], [" Café", " d'", "été", " naïve"]),
    *([" the", " red", " river"], [" the", " blue", " river"], [" a", " red", " house", " by", " the", " river"]),
    [" \0", " \x02", "NUL", "\x03"],
]
WORDS = [*sorted({word for sentence in SENTENCES for word in sentence}), *(f" more{n}" for n in range(20)), "end"]
TRIGGERS = {  # memory: (sentence, position), best first
    0: [(5, 2), (6, 2), (7, 5)],  # river, three times
    1: [(6, 2)],  # river once, and nothing else: still behind
    2: [(0, 6), (1, 4), (2, 3), (3, 6), (4, 3), (8, 3), (7, 5)],
    3: [(7, 2)],
}


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, number = tmp_path_factory.mktemp("ranked"), {word: i for i, word in enumerate(WORDS)}
    draw, count = np.random.default_rng(0), len(SENTENCES)
    spelled = [[number[word] for word in sentence] for sentence in SENTENCES]
    tokens = range(len(WORDS))
    write(directory, "vocabulary", {"token": tokens, "text": WORDS, "bytes": [word.encode() for word in WORDS]})
    write(directory, "tokens", {"token": tokens, "count": tokens, "next_count": tokens, "first_count": tokens})
    texts = ["".join(sentence).strip() for sentence in SENTENCES]
    ids = {"sentence": range(count), "document": range(count), "multiplicity": [1] * count, "held_out": [False] * count}
    write_sentences(directory, [ids | {"text": texts, "tokens": spelled}], provenance=PROVENANCE)
    write(directory, "background", {"sentence": [0], "position": [0], "token": [0], "next_token": [None]})
    places = [(memory, rank, *place) for memory, all in TRIGGERS.items() for rank, place in enumerate(all)]
    memories, ranks, sentences, positions = zip(*places, strict=True)
    columns: dict[str, Any] = {"memory": memories, "rank": ranks, "prefix_group": ranks}
    columns |= {"sign": [1] * len(places), "coefficient": [9.0 - rank for rank in ranks]}
    columns |= {"sentence": sentences, "position": positions, "next_token": [None] * len(places)}
    columns["token"] = [spelled[s][j] for s, j in zip(sentences, positions, strict=True)]
    write(directory, "triggers", columns, 0)
    write(directory, "activity", activity_columns(), 0)
    write(directory, "values", value_columns(draw, 4, len(WORDS)), 0)
    write(directory, "neighbours", {name: [] for name in TABLES["neighbours"].columns.names}, 0)
    return sealed(directory, 4, 1, len(WORDS))


@pytest.fixture(scope="module")
def index(atlas: Path) -> Iterator[Index]:
    with open_index(atlas) as opened:
        yield opened


def found(index: Index, text: str) -> list[tuple[str, int]]:
    return [(str(hit.memory), hit.count) for hit in index.search(text, fields=["triggers"]).hits]


def marks(hit: Hit) -> str:
    return "".join(f"[{text}]" if matched else text for text, matched in hit.parts)


def test_words_must_stand_in_one_prefix(index: Index) -> None:
    assert found(index, "red river") == [("L0.M0", 2), ("L0.M2", 1)]
    assert found(index, "blue house") == []  # L0.M0 has both, in different prefixes
    assert found(index, '"red river"') == [("L0.M0", 1)]
    assert found(index, '"river red"') == []
    assert found(index, "ri*") == found(index, "river")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("巴黎", "我们去[巴黎]看塔"),
        ("黎", "我们去巴[黎]看塔"),
        ("москве", "Мы были в [Москве]."),
        ("МОСК*", "Мы были в [Москве]."),  # noqa: RUF001
        ("🤖", "rain [🤖] 😀😀 end"),
        ("😀", "rain 🤖 [😀][😀] end"),
        ("os.path", "import [os.path].join(x)"),
        ("os.path.join(x)", "import [os.path.join(x])"),
        ("cafe", "[Café] d'été naïve"),
        ("d'ÉTÉ", "Café [d'été] naïve"),
        ("naive", "Café d'été [naïve]"),
        ("NUL", "\0 \x02[NUL]\x03"),
        ('"rain', "[rain] 🤖 😀😀 end"),
        ("-rain +(end", "[rain] 🤖 😀😀 [end]"),
    ],
)
def test_every_script(index: Index, text: str, shown: str) -> None:
    hits = index.search(text, fields=["triggers"]).hits
    assert [str(hit.memory) for hit in hits] == ["L0.M2"]
    assert marks(hits[0]).strip(" ") == shown


@pytest.mark.parametrize("text", ["黎巴", "巴看", "oscow", "path.os", "Paris"])
def test_what_is_not_there_is_not_found(index: Index, text: str) -> None:
    assert found(index, text) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "no letter") for text in ("", '"', "***", "\0")),
        ("x" * 10_000, "10,000 characters"),
        (" ".join(f"w{i}" for i in range(70)), "70 words"),
        ("a*", "'a\\*'"),
        ("aa* bb* cc* dd* ee*", "5 beginnings"),
    ],
)
def test_refused_in_one_line(index: Index, text: str, said: str) -> None:
    with pytest.raises(SearchError, match=said) as caught:
        index.search(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["NEAR(", "NEAR(red river, 2)", "red'); DROP TABLE about;--", "top : red", "^red", "red AND", "% _", "{top}:x"],
)
def test_queries_are_text(index: Index, text: str) -> None:
    try:
        index.search(text)
    except SearchError:
        assert text == "% _"
    assert found(index, "river")


def test_impossible_pages(index: Index) -> None:
    for limit, offset in ((0, 0), (5, -1), (5, 1_000_000)):
        with pytest.raises(OptionError, match="cannot be shown"):
            index.search("red", limit=limit, offset=offset)


def test_tokens_by_how_they_read(index: Index) -> None:
    assert [token.text for token in index.tokens_like("river")] == [" river"]
    assert [token.text for token in index.tokens_like("·river")] == [" river"]
    assert [token.text for token in index.tokens_like("RI")] == [" river"]
    assert [token.shown for token in index.tokens_like("os")] == ["·os"]
    assert index.token("·river") == index.token(" river")
    assert index.promoting("River") == index.promoting("·river"), "the only near one"
    assert [token.text for token in index.token("x ")] == ["x"]
    with pytest.raises(SearchError, match="no token reads 'rive'; there are '·river'"):
        index.promoting("rive")
    with pytest.raises(SearchError, match="no token reads 'sea' or holds it"):
        index.firing_on("sea")
    with pytest.raises(SearchError, match=f"it has tokens 0-{len(WORDS) - 1}"):
        index.promoting(len(WORDS))
    firing = {str(row.memory): row.triggers for row in index.firing_on(" river")}
    assert list(firing.items()) == [("L0.M0", 3), ("L0.M1", 1), ("L0.M2", 1)]


def test_a_token_without_memories_stands_aside_for_the_only_near_one(atlas: Path, index: Index, capsys: Any) -> None:
    assert [token.text for token in index.near("end")] == [" end"]
    assert [token.text for token in index.near(" end")] == ["end"]
    assert index.near("More") == ()
    assert index.firing_on("end") == ()
    assert main(["search", str(atlas), "--fires-on", "end", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [token["text"] for token in found["tokens"]] == [" end"]
    assert (found["total"], found["near"], found["hits"][0]["memory"]) == (1, True, "L0.M2")
    assert main(["search", str(atlas), "--fires-on", "end"]) == 0
    assert "1 memory fires on ·end (no memories fire on 'end'; this is the only near one)" in capsys.readouterr().out


def test_white_space_is_a_token_that_can_be_named(tmp_path: Path) -> None:
    with open_index(build_atlas(tmp_path / "atlas")) as index:
        assert index.token("⏎") == index.token("\n")
        assert index.tokens_like("⏎")[0].text == "\n"
        assert [str(row.memory) for row in index.firing_on("é")] == ["L0.M0"]
        assert index.missing_fields == ("patterns",)
        assert index.search("Paris", fields=["patterns"]).total == 0


def patterns(directory: Path, rows: list[tuple[int, str, int]]) -> None:
    same = {"layer": 0, "kind": "shallow", "lift": None, "log10_p": None}
    columns: dict[str, Any] = {name: [value] * len(rows) for name, value in same.items()}
    columns |= {"memory": [memory for memory, _, _ in rows], "description": [said for _, said, _ in rows]}
    columns |= {"pattern": range(len(rows)), "triggers": [list(range(count)) for _, _, count in rows]}
    write(directory, "patterns", columns)
    record_hashes(open_atlas(directory), "analyses", ["patterns.parquet"])


def test_patterns_rank_by_the_triggers_they_explain(tmp_path: Path) -> None:
    atlas = build_atlas(tmp_path / "atlas")
    patterns(atlas, [(0, 'ends with "of the"', 3), (1, "topic: kings, Paris", 4), (2, "ends with kings", 9)])
    with open_index(atlas) as index:
        hits = index.search("kings").hits
        assert [(str(hit.memory), hit.field, marks(hit), hit.detail) for hit in hits] == [
            ("L0.M2", "patterns", "ends with [kings]", "shallow, 9 triggers"),
            ("L0.M1", "patterns", "topic: [kings], Paris", "shallow, 4 triggers"),
        ]
        paris = index.search("paris")
        assert [hit.field for hit in paris.hits] == ["patterns", "words", *["values"] * 8]
        assert paris.totals == {"patterns": 1, "annotations": 0, "words": 1, "triggers": 1, "values": 8}
    patterns(atlas, [(3, "queens", 5)])  # made again: the index follows
    with open_index(atlas) as index:
        assert index.search("kings").total == 0
        assert [str(hit.memory) for hit in index.search("queens").hits] == ["L0.M3"]


def labels(directory: Path, rows: list[tuple[int, int, str, bool]]) -> None:
    memory, sign, label, promotes = (list(column) for column in zip(*rows, strict=True))
    columns = {"memory": memory, "sign": sign, "label": label, "promotes": promotes, "layer": [0] * len(rows)}
    write(directory, "labels", columns)
    record_hashes(open_atlas(directory), "analyses", ["labels.parquet"])


def test_a_word_that_leads_a_pattern_counts_twice_what_it_counts_among_others(tmp_path: Path) -> None:
    atlas = build_atlas(tmp_path / "atlas")
    patterns(
        atlas, [(0, "about: kings, Paris", 10), (1, "about: Paris, kings", 6), (2, "last word ends in -paris", 11)]
    )
    with open_index(atlas) as index:
        hits = index.search("paris", fields=["patterns"]).hits
    assert [(str(hit.memory), hit.score) for hit in hits] == [("L0.M1", 6), ("L0.M2", 5.5), ("L0.M0", 5)]


def test_patterns_of_one_memory_are_not_added_up(tmp_path: Path) -> None:
    """Their triggers may be the same."""
    atlas = build_atlas(tmp_path / "atlas")
    patterns(atlas, [(0, "ends in kings", 9), (0, "mentions kings", 8), (1, "last word is a king", 10)])
    with open_index(atlas) as index:
        hits = index.search("king", fields=["patterns"]).hits
    assert [(str(hit.memory), hit.score, hit.count) for hit in hits] == [("L0.M1", 10, 1), ("L0.M0", 9, 2)]


def test_labels_say_what_patterns_do_not(tmp_path: Path, capsys: Any) -> None:
    atlas = build_atlas(tmp_path / "atlas")
    patterns(atlas, [(0, "mentions 'kings'", 7), (3, "about: queens, kings", 8)])
    labels(
        atlas,
        [
            (0, 1, "mentions 'kings'; promotes \" king\"", True),  # the pattern is no hit of its own again
            (1, 1, 'no clear pattern; promotes "kings"', True),
            (1, -1, "no clear pattern", False),
            (2, -1, 'ends in "king"; promotes "x"', True),
            (2, 1, 'ends in "x"', False),
        ],
    )
    with open_index(atlas) as index:
        hits = index.search("king", fields=["patterns"]).hits
        assert [(str(hit.memory), hit.score, hit.count, hit.detail, marks(hit)) for hit in hits] == [
            ("L0.M0", 19, 2, "shallow, 7 triggers", "mentions '[kings]'"),
            ("L0.M1", 12, 1, "label", 'promotes "[kings]"'),
            ("L0.M2", 5, 1, "label below zero", 'ends in "[king]"'),
            ("L0.M3", 4, 1, "shallow, 8 triggers", "about: queens, [kings]"),
        ]
        assert index.search("clear", fields=["patterns"]).total == 0
        assert index.search("king", fields=["patterns"], layers=[1]).total == 0
        assert [str(hit.memory) for hit in index.search("x", fields=["patterns"]).hits] == ["L0.M2"]
    assert main(["search", str(atlas), "king OR queen"]) == 0
    assert "OR is read as an operator: either of the words beside it" in capsys.readouterr().out
    assert main(["search", str(atlas), "king or queen", "--json"]) == 0
    assert [note[:20] for note in json.loads(capsys.readouterr().out)["notes"]] == ["or is read as a word"]


LISTS = ("about", "near the end", "last word is like")


@pytest.mark.parametrize("seed", range(5))
def test_patterns_against_a_count_by_hand(tmp_path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    words = ["king", "queen", "river", "sea"]
    atlas, rows = build_atlas(tmp_path / "atlas"), []
    for _ in range(30):
        some = draw.permutation(words)[: draw.integers(1, 4)].tolist()
        shape = int(draw.integers(5))
        said = f"{LISTS[shape]}: {', '.join(some)}" if shape < 3 else f"ends in '{' '.join(some)}'"
        rows.append((int(draw.integers(4)), said, int(draw.integers(3, 26))))
    patterns(atlas, rows)
    labels(atlas, said := [(one, -1, f'ends in "{draw.choice(words)}"', False) for one in range(4)])
    with open_index(atlas) as index:
        for text in ("king", "kings queen", "river OR sea", '"king queen"'):
            asked = [one for one in words if one in text]
            points: dict[int, list[float]] = {}
            for memory, description, triggers in rows:
                there = [one in description for one in asked]
                if text.startswith('"'):
                    there = ["king queen" in description.replace(",", "")]
                if any(there) if " OR " in text else all(there):
                    first = description.split(": ")[1].split(",")[0] if ": " in description else description
                    asks = ["king queen"] if text.startswith('"') else asked
                    points.setdefault(memory, []).append(triggers * (1 if any(one in first for one in asks) else 0.5))
            best = {memory: max(own) for memory, own in points.items()}
            for memory, _, label, _ in said:
                there = [one in label for one in asked]
                if any(there) if " OR " in text else all(there):
                    best[memory] = best.get(memory, 0) + 5
            expected = sorted(best.items(), key=lambda item: (-item[1], item[0]))
            hits = index.search(text, fields=["patterns"]).hits
            assert [(hit.memory.memory, hit.score) for hit in hits] == expected


def judge(atlas: Path, *rows: tuple[str, int, int, int, str, str]) -> None:
    with closing(sqlite3.connect(atlas / "annotations.sqlite")) as database:
        if not database.execute("SELECT name FROM sqlite_master").fetchall():
            database.executescript(SCHEMA)
        database.executemany(
            "INSERT INTO judgements (author, made_at, layer, memory, control, pattern, kind, description, triggers)"
            " VALUES (?, '2026-01-02T10:00:00Z', ?, ?, ?, 0, ?, ?, '[0, 1, 2]')",
            rows,
        )
        database.commit()


def test_annotations_are_those_of_now(tmp_path: Path) -> None:
    atlas = build_atlas(tmp_path / "atlas")
    with open_index(atlas) as index:
        assert index.search("harbour").total == 0
        judge(
            atlas,
            ("Ada", 0, 1, 0, "semantic", "Harbours, ships"),
            ("Ada", 0, 2, 1, "semantic", "harbours of controls"),
            ("Ada", 9, 9, 0, "semantic", "harbours elsewhere"),
            ("Ada", 1, 3, 0, "none", "no harbours"),
        )
        hits = index.search("harbour*").hits
        assert [(str(hit.memory), hit.field, marks(hit), hit.detail) for hit in hits] == [
            ("L0.M1", "annotations", "[Harbours], ships", "semantic, 3 triggers")
        ]
        judge(atlas, ("Ben", 0, 3, 0, "both", "a harbour"), ("Cy", 0, 3, 0, "both", "harbours"))
        assert [(str(hit.memory), hit.count) for hit in index.search("harbour*").hits] == [("L0.M3", 2), ("L0.M1", 1)]
        assert index.search("harbour*", layers=[1]).total == 0
    with open_index(atlas, annotations=lambda: None) as index:
        assert index.search("harbour*").total == 0


def test_annotations_of_another_atlas_are_refused(tmp_path: Path) -> None:
    atlas = build_atlas(tmp_path / "atlas")
    judge(atlas, ("Ada", 0, 1, 0, "semantic", "harbours"))
    with closing(sqlite3.connect(atlas / "annotations.sqlite")) as database:
        database.executescript(f"ALTER TABLE annotations_version ADD COLUMN atlas TEXT DEFAULT '{'0' * 64}'")
    with open_index(atlas) as index:
        with pytest.raises(AnnotationError, match=r"another atlas .manifest 000000000000"):
            index.search("harbours")
        assert index.search("harbours", fields=("triggers", "values")).total == 0
