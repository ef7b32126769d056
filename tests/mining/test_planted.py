"""Mining recovers everything that handmade models were built to hold."""

from pathlib import Path

import polars as pl
import pytest

from mnemoscope.atlas import open_atlas
from mnemoscope.models.opening.handmade.models import DEAD, PLANTED, PLANTED_SENTENCES, WORDS
from support.mined import mined_text


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An atlas of the n-gram reader; a validation text is given, so that no sentence is held out."""
    tmp_path = tmp_path_factory.mktemp("planted")
    text = "\n".join(PLANTED_SENTENCES) + "\n"
    return mined_text("handmade:planted", tmp_path, text, other="the bird\n", per_sentence="all").path


def ends_in(ngram: tuple[str, ...]) -> list[tuple[int, int]]:
    places = []
    for number, sentence in enumerate(PLANTED_SENTENCES):
        words = sentence.split()
        for j in range(len(words)):
            if tuple(words[max(0, j + 1 - len(ngram)) : j + 1]) == ngram:
                places.append((number, j))
    return places


def test_every_planted_key_fires_where_its_words_are_and_nowhere_else(planted: Path) -> None:
    for memory in PLANTED:
        table = pl.read_parquet(planted / f"triggers/layer-{memory.memory.layer:03d}.parquet")
        rows = table.filter(pl.col("memory") == memory.memory.memory)
        expected = ends_in(memory.ngram)
        assert expected
        assert sorted(rows.select("sentence", "position").rows()) == expected, memory
        assert (set(rows["sign"]), set(rows["token"])) == ({1}, {WORDS.index(memory.ngram[-1])})
        activity = pl.read_parquet(planted / f"activity/layer-{memory.memory.layer:03d}.parquet")
        assert activity["positive"][memory.memory.memory] == len(expected)


def test_a_run_that_nothing_happened_to_promises_its_bytes(planted: Path) -> None:
    manifest = open_atlas(planted).manifest
    assert (manifest["out_of_memory_batches"], manifest["byte_identity_promised"]) == ([], True)
    assert manifest["questions"]["out_of_memory_steps"] == {"removals": [], "predictions": []}
    assert len(manifest["versions"]) == 1


def test_every_planted_value_promotes_its_word(planted: Path) -> None:
    for memory in PLANTED:
        table = pl.read_parquet(planted / f"values/layer-{memory.memory.layer:03d}.parquet")
        row = table.row(memory.memory.memory, named=True)
        promoted = WORDS.index(memory.promoted)
        assert row["top_tokens"][0] == promoted, memory
        assert row["top_scores"][0] > row["top_scores"][1]
        assert len(row["top_tokens"]) == 20
        followed = [(n, j) for n, j in ends_in(memory.ngram) if j + 1 < len(PLANTED_SENTENCES[n].split())]
        assert any(PLANTED_SENTENCES[n].split()[j + 1] == memory.promoted for n, j in followed)


def test_one_trigger_per_sentence_is_the_first_of_equal_ones(tmp_path: Path) -> None:
    atlas = mined_text("handmade:planted", tmp_path, "a red fox and a red fox\nthe cat sat\n", other="the bird\n")
    fox = next(p.memory for p in PLANTED if p.ngram == ("red", "fox"))
    rows = pl.read_parquet(atlas / f"triggers/layer-{fox.layer:03d}.parquet").filter(pl.col("memory") == fox.memory)
    assert rows.select("sentence", "position", "rank").rows() == [(0, 2, 0)]


def test_the_dead_key_is_an_empty_row_and_no_filler(planted: Path) -> None:
    memory = open_atlas(planted)[str(DEAD)]
    assert memory.triggers().is_empty()
    activity = pl.read_parquet(planted / f"activity/layer-{DEAD.layer:03d}.parquet").row(DEAD.memory, named=True)
    assert (activity["positive"], activity["max"], activity["mean"]) == (0, 0.0, 0.0)
    value = pl.read_parquet(planted / f"values/layer-{DEAD.layer:03d}.parquet").row(DEAD.memory, named=True)
    assert (value["target"], value["target_rank"], value["trigger_log_probability"]) == (None, None, None)


def test_the_worked_example(tmp_path: Path) -> None:
    atlas = mined_text("handmade:worked-example", tmp_path, "both x\nfirst\nsecond\n", other="x\n")
    triggers = pl.read_parquet(atlas / "triggers/layer-000.parquet")
    found = {(m, s, j): c for m, s, j, c in triggers.select("memory", "sentence", "position", "coefficient").rows()}
    # x = [0.5, 0.5] on "both", [1, 0] on "first", [0, 1] on "second".
    assert found[0, 0, 0] == found[1, 0, 0] == pytest.approx(0.5, abs=1e-5)
    assert found[0, 1, 0] == found[1, 2, 0] == pytest.approx(1.0, abs=1e-5)
    assert triggers["rank"].to_list() == [0, 1, 0, 1]
    assert triggers["sentence"].to_list() == [1, 0, 2, 0]
    values = pl.read_parquet(atlas / "values/layer-000.parquet")
    words = {text.strip(): token for token, text in open_atlas(atlas).table("vocabulary")["token", "text"].rows()}
    assert [tokens[0] for tokens in values["top_tokens"]] == [words["y"], words["x"]]
    assert [scores[0] for scores in values["top_scores"]] == [3.0, 4.0]
    written = [dict(zip(row["top_tokens"], row["top_scores"], strict=True)) for row in values.iter_rows(named=True)]
    total = [sum(found[m, 0, 0] * written[m][words[axis]] for m in (0, 1)) for axis in ("x", "y")]
    assert total == pytest.approx([3.0, 2.0], abs=1e-4)
    assert values["target"].to_list() == [words["x"], words["x"]]
