"""What the named sentences say of a place: its token, what follows, and which places have the same prefix."""

import random
from pathlib import Path

import numpy as np
import polars as pl

from mnemoscope.foundation.reading import Reading
from mnemoscope.mining.text.trigger_table import NamedSentences


def named(folder: Path, sentences: dict[int, list[int]]) -> NamedSentences:
    """The sentences of these ids, in two files."""
    (folder / "sentences").mkdir()
    rows, half = list(sentences.items()), len(sentences) // 2
    for number, part in enumerate((rows[:half], rows[half:])):
        table = pl.DataFrame(part, schema={"sentence": pl.Int64, "tokens": pl.List(pl.Int32)}, orient="row")
        table.write_parquet(folder / f"sentences/part-{number:03d}.parquet")
    return NamedSentences(folder)


def test_places_are_looked_up_in_their_sentences(tmp_path: Path) -> None:
    sentences = named(tmp_path, {2: [5, 6, 7], 3: [8], 9: [6, 6]})
    assert [sentences.of(sentence).tolist() for sentence in (9, 2, 3)] == [[6, 6], [5, 6, 7], [8]]
    assert [part.tolist() for part in sentences.arrays()] == [[2, 3, 9], [3, 1, 2], [5, 6, 7, 8, 6, 6]]
    found = sentences.look_up(np.array([9, 2, 2, 3, 9]), np.array([0, 1, 2, 0, 1]), Reading())
    assert found["token"].tolist() == [6, 6, 7, 8, 6]
    assert found["next_token"].tolist() == [6, 7, -1, -1, -1]


def test_places_have_one_hash_exactly_where_they_have_one_prefix(tmp_path: Path) -> None:
    """Of all pairs of places at one position; sentences of few words, so that prefixes recur."""
    chance = random.Random(0)
    tokens = {number: [chance.randrange(3) for _ in range(chance.randint(1, 6))] for number in range(60)}
    tokens |= {60 + number: [50_000 + number, 1, 2] for number in range(60)}  # and of many
    sentences = named(tmp_path, tokens)
    places = [(number, position) for number, own in tokens.items() for position in range(len(own))]
    hashes = sentences.look_up(*np.array(places).T, Reading())["prefix"].tolist()
    of_prefix: dict[tuple[int, ...], set[int]] = {}
    for (number, position), found in zip(places, hashes, strict=True):
        of_prefix.setdefault(tuple(tokens[number][: position + 1]), set()).add(found)
    assert {len(found) for found in of_prefix.values()} == {1}
    assert len({(len(prefix), *found) for prefix, found in of_prefix.items()}) == len(of_prefix)
    assert len(of_prefix) < len(places)
