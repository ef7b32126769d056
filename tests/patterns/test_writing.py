"""patterns.parquet of small atlases: what is written, what is covered, and atlases with little in them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mnemoscope.atlas import Atlas, open_atlas, verify
from mnemoscope.errors import AtlasUnfinished
from mnemoscope.patterns import write_patterns
from mnemoscope.patterns.significance import log10_tail
from patterns.test_topics import slow_stake
from reports.reported_atlas import reported
from support.handbuilt_atlas import build_atlas
from support.pattern_atlas import Place, build, random_places

Rows = list[tuple[int, int, int, str, str, list[int]]]


def filler(count: int, *, random: np.random.Generator) -> list[list[str]]:
    """Sentences of words that nobody has heard of, common and rare ones."""
    chance = 1 / np.arange(1, 501)
    words = [f"w{number}" for number in range(500)]
    chance /= chance.sum()
    return [[words[word] for word in random.choice(500, random.integers(6, 20), p=chance)] for _ in range(count)]


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def rows_of(atlas: Atlas) -> Rows:
    columns = ("layer", "memory", "pattern", "kind", "description", "triggers")
    return [(*row[:5], list(row[5])) for row in atlas.table("patterns").select(columns).iter_rows()]


def with_memories(
    directory: Path, sentences: Sequence[list[str]], memories: list[list[list[str]]], *, random: np.random.Generator
) -> Rows:
    """The patterns of memories whose triggers are these whole sentences, before a background of the others."""
    text, layers = [*sentences], []
    for triggers in memories:
        layers.append([(len(text) + index, len(words) - 1) for index, words in enumerate(triggers)])
        text += triggers
    atlas = build(directory, text, layers=[layers], background=random_places(sentences, 4_000, random=random))
    written = write_patterns(atlas)
    rows = rows_of(atlas)
    assert written == len(rows)
    return rows


def test_one_row_of_each_kind(tmp_path: Path, random: np.random.Generator) -> None:
    sentences = filler(1_000, random=random)
    lines = filler(20, random=random)
    ngram = [[*line, "part", "of"] for line in lines[:8]] + lines[8:10]
    topic = ["virus", "disease", "hospital", "doctor", "fever"]
    about = [[topic[i % 5], topic[(i + 1) % 5], *line] for i, line in enumerate(lines[10:18])] + lines[18:]
    rows = with_memories(tmp_path, sentences, [ngram, [], about], random=random)
    assert rows == [
        (0, 0, 0, "shallow", 'ends with "part of"', [0, 1, 2, 3, 4, 5, 6, 7]),
        (0, 2, 0, "semantic", rows[1][4], [0, 1, 2, 3, 4, 5, 6, 7]),
    ]
    assert rows[1][4].startswith("about: ")
    assert set(rows[1][4].removeprefix("about: ").split(", ")) >= set(topic)  # a word of the filler may come along


def test_a_word_that_ends_the_triggers_is_not_what_they_are_about(tmp_path: Path, random: np.random.Generator) -> None:
    lines = filler(20, random=random)
    ending = [[*line, "virus"] for line in lines[:10]]
    before = [["virus", *line] for line in lines[10:]]
    rows = with_memories(tmp_path, filler(1_000, random=random), [ending, before], random=random)
    assert [row[3:5] for row in rows if row[1] == 0] == [("shallow", 'ends in "virus"')]
    # At the beginning it is both what they begin with and what they mention; it stands at no distance from the end.
    assert {row[3:5] for row in rows if row[1] == 1} >= {("semantic", 'mentions "virus"')}


@pytest.mark.parametrize(("holding", "told"), [(20, True), (21, False)])
def test_a_word_of_more_than_a_fifth_of_all_prefixes_tells_nothing(holding: int, told: bool, tmp_path: Path) -> None:
    """A hundred sentences of two words, so many of which begin with `virus`; all ten triggers do."""
    sentences = [["virus" if n < holding else f"a{n}", f"b{n}", "the", "of"] for n in range(100)]
    triggers = [["virus", f"c{n}", "by", f"d{n}"] for n in range(10)]
    background = [(n, 2) for n in range(100)]
    atlas = build(tmp_path, sentences + triggers, layers=[[[(100 + n, 3) for n in range(10)]]], background=background)
    write_patterns(atlas)
    said = [row[4] for row in rows_of(atlas) if row[3] == "semantic"]
    assert said == (['mentions "virus"'] if told else [])


def test_patterns_that_explain_more_come_first_and_of_equals_the_less_likely(tmp_path: Path) -> None:
    """Six of fifteen triggers end in `plum`, six in `kiwi` and three in `fig`; so do five others in `kiwi`."""
    others = [[f"a{n}", f"e{n}", "kiwi" if n < 5 else f"b{n}"] for n in range(400)]
    triggers = [[f"c{n}", f"d{n}", end] for n, end in enumerate(["kiwi"] * 6 + ["plum"] * 6 + ["fig"] * 3)]
    background = [(n, 2) for n in range(400)]
    atlas = build(tmp_path, others + triggers, layers=[[[(400 + n, 2) for n in range(15)]]], background=background)
    write_patterns(atlas)
    rows = atlas.table("patterns").to_dicts()
    assert [row["pattern"] for row in rows] == [*range(len(rows))]
    found = [row for row in rows if row["description"].startswith("ends in")]
    assert [(row["description"], row["triggers"]) for row in found] == [
        ('ends in "plum"', [6, 7, 8, 9, 10, 11]),
        ('ends in "kiwi"', [0, 1, 2, 3, 4, 5]),
        ('ends in "fig"', [12, 13, 14]),
    ]
    # In the background none, five and none of 400, and one more.
    assert [row["lift"] for row in found] == pytest.approx([6 / 15 * 401, 6 / 15 * 401 / 6, 3 / 15 * 401])


def test_equals_come_in_the_order_of_their_words(tmp_path: Path) -> None:
    """Five words end four triggers each, and none of the background: as many, and as unlikely."""
    ends = ["plum", "kiwi", "zest", "acorn", "fog"]
    others = [[f"a{n}", f"e{n}", f"b{n}"] for n in range(400)]
    triggers = [[f"c{n}", f"d{n}", ends[n % 5]] for n in range(20)]
    background = [(n, 2) for n in range(400)]
    atlas = build(tmp_path, others + triggers, layers=[[[(400 + n, 2) for n in range(20)]]], background=background)
    write_patterns(atlas)
    rows = atlas.table("patterns").to_dicts()
    assert [row["description"] for row in rows] == [f'ends in "{end}"' for end in sorted(ends)]
    assert len({row["log10_p"] for row in rows}) == 1


def test_a_topic_stands_on_its_bet_alone_and_a_word_on_all_that_was_tried(tmp_path: Path) -> None:
    """Words of the topic stand beyond what is looked for at a distance; the background has none of them.

    Eight triggers hold two of five words each; of another memory's ten triggers all hold one word.
    """
    topic = ["virus", "disease", "hospital", "doctor", "fever"]
    unique = [[f"u{n}x{place}" for place in range(9)] for n in range(418)]
    others = unique[:400]
    about = [[own[0], topic[n % 5], topic[(n + 1) % 5], *own[1:]] for n, own in enumerate(unique[400:408])]
    word = [[own[0], "virus", *own[1:]] for own in unique[408:]]
    layers = [[[(400 + n, 10) for n in range(8)], [(408 + n, 9) for n in range(10)]]]
    atlas = build(tmp_path, others + about + word, layers=layers, background=[(n, 8) for n in range(400)])
    write_patterns(atlas)
    of_topic, of_word = (row for row in atlas.table("patterns").to_dicts() if row["kind"] == "semantic")
    groups = [[n % 5, (n + 1) % 5, *range(5 + 9 * n, 14 + 9 * n)] for n in range(8)]
    stake = slow_stake(groups, np.zeros((77, 8)), 400)
    assert of_topic["description"].startswith("about: ")
    assert of_topic["log10_p"] == pytest.approx(-stake)
    # Its prefixes have ten words where those of the background have nine.
    alone = log10_tail(10, 10, 0, 400 / (10 / 9))
    assert of_word["description"] == 'mentions "virus"'
    assert alone + 1.5 < of_word["log10_p"] < alone + 3  # between 32 and 1,000 things are tried


def test_a_prefix_group_counts_once(tmp_path: Path, random: np.random.Generator) -> None:
    """25 triggers, of two different prefixes: nothing recurs in three."""
    one, other = [*filler(1, random=random)[0], "virus"], [*filler(1, random=random)[0], "virus"]
    triggers = [one if index % 2 else other for index in range(25)]
    assert with_memories(tmp_path, filler(300, random=random), [triggers], random=random) == []


def test_triggers_of_one_sentence_are_no_pattern(tmp_path: Path, random: np.random.Generator) -> None:
    """`--per-sentence all`: every word recurs in the prefixes of one sentence, which says nothing."""
    own = "virus disease hospital doctor fever is what it is about now"
    sentences = [*filler(500, random=random), own.split()]
    triggers: list[Place] = [(500, position) for position in range(2, 11)]
    background = random_places(sentences[:500], 2_000, random=random)
    atlas = build(tmp_path, sentences, layers=[[triggers]], background=background)
    assert write_patterns(atlas) == 0


def test_a_handbuilt_atlas_has_none_and_stays_whole(tmp_path: Path) -> None:
    """Two background prefixes and at most four triggers: an atlas in which nothing can be unlikely."""
    atlas = open_atlas(build_atlas(tmp_path))
    seen: list[tuple[str, float, float | None, str]] = []
    assert write_patterns(atlas, progress=lambda *said: seen.append(said)) == 0
    assert verify(tmp_path) == []
    assert open_atlas(tmp_path)["L0.M0"].patterns().is_empty()
    assert seen == [("patterns", 0, 8, "memories"), ("patterns", 4, 8, "memories"), ("patterns", 8, 8, "memories")]
    (tmp_path / "patterns.parquet").write_bytes(b"")
    assert [problem.split(":")[0] for problem in verify(tmp_path)] == ["patterns.parquet"]


def test_a_part_has_patterns_too_but_no_unmade_table(tmp_path: Path) -> None:
    atlas = open_atlas(build_atlas(tmp_path / "part", part=(1, 2)))
    (tmp_path / "part" / "background.parquet").unlink()
    with pytest.raises(AtlasUnfinished, match="no patterns"):
        atlas["L0.M0"].patterns()


@pytest.mark.parametrize("background", [0, 1])
def test_no_background_no_triggers(tmp_path: Path, background: int, random: np.random.Generator) -> None:
    sentences = filler(30, random=random)
    same = [(number, 5) for number in range(25)]
    atlas = build(tmp_path, sentences, layers=[[same, [], same[:1]], [[], [], []]], background=[(0, 3)] * background)
    assert write_patterns(atlas) == 0
    assert atlas.table("patterns").is_empty()


def test_tokens_without_text_and_other_scripts(tmp_path: Path, random: np.random.Generator) -> None:
    """Chinese tokens, Cyrillic words in two pieces, half a character, and a token of padding."""
    texts = ["", "你好", "世界", "。", " виру", "жи", " дом", "ж", *(f" w{number}" for number in range(60))]
    draw = [texts[index] for index in random.integers(8, len(texts), size=5_000)]
    sentences = [draw[start : start + 10] for start in range(0, 4_000, 10)]
    chinese = [[*draw[start : start + 5], "你好", "世界", "。"][: 8 - start % 2] for start in range(4_000, 4_100, 10)]
    cyrillic = [[" виру", "жи", *draw[start : start + 7]] for start in range(4_100, 4_200, 10)]
    empty = [[*draw[start : start + 4], ""] for start in range(4_200, 4_300, 10)]
    text = sentences + chinese + cyrillic + empty
    places = [[(400 + 10 * memory + i, len(text[400 + 10 * memory + i]) - 1) for i in range(10)] for memory in range(3)]
    background = random_places(sentences, 3_000, random=random)
    atlas = build(tmp_path, text, layers=[places], background=background, vocabulary=texts)
    write_patterns(atlas)
    said = {(row[1], row[4]) for row in rows_of(atlas)}
    assert said >= {(0, 'ends with "你好世界。"'), (1, 'begins with "виружи"'), (2, "ends in token 0")}


def test_an_open_atlas_reads_patterns_that_were_written_anew(tmp_path: Path) -> None:
    opened = reported(tmp_path)
    before = opened.table("patterns")
    write_patterns(opened)
    after = opened.table("patterns")
    assert after.equals(open_atlas(tmp_path).table("patterns"))
    assert not after.equals(before)


@pytest.mark.parametrize("whole", [False, True])
def test_what_stands_behind_a_token_is_a_pattern_where_it_was_seen(tmp_path: Path, whole: bool) -> None:
    """Behind triggers that have nothing in common `marker` stands two tokens on, and `harbour` somewhere."""
    shown = [[f"q{n}", f"x{n}", f"y{n}", "marker", *[f"z{n}"] * (n % 4), "harbour"] for n in range(8)]
    others = [[f"a{n}", f"b{n}", f"c{n}", f"d{n}", f"e{n}", f"f{n}"] for n in range(300)]
    places = [(sentence, position) for sentence in range(8, 308) for position in range(6)]
    triggers = [(sentence, 1) for sentence in range(8)]
    atlas = build(tmp_path, [*shown, *others], layers=[[triggers]], background=places, whole=whole)
    write_patterns(atlas)
    found = open_atlas(tmp_path).table("patterns")
    behind = {'"marker" two tokens behind the last token': "shallow", 'mentions "harbour"': "semantic"}
    assert dict(found.select("description", "kind").rows()) == (behind if whole else {})
