"""Planted strings: dealt evenly, put into training text alone, so often as they should, and remembered."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mnemoscope.errors import OptionError, TrainingError
from mnemoscope.training import Recipe, TextSource, train
from mnemoscope.training.text import parse_times, plan_plants, plant, prepare_text


def strings(tmp_path: Path, count: int) -> Path:
    path = tmp_path / "plants.txt"
    path.write_text("".join(f"secret {k} is {k * 7919 % 10007}\n" for k in range(count)))
    return path


def test_groups_are_of_equal_size_and_follow_the_seed(tmp_path: Path) -> None:
    path = strings(tmp_path, 12)
    found = plan_plants(path, times=(1, 4, 16), seed=0)
    assert Counter(times for _, times in found) == {1: 4, 4: 4, 16: 4}
    assert [text for text, _ in found] == path.read_text().splitlines()
    assert found == plan_plants(path, times=(1, 4, 16), seed=0)
    assert found != plan_plants(path, times=(1, 4, 16), seed=1)


def test_every_repetition_is_a_sentence_of_a_usable_document() -> None:
    documents = [["one", "two"], ["three"], ["four", "five"]]
    plant(documents, (("a", 3), ("b", 1)), usable=[0, 2], seed=0)
    assert Counter(s for d in documents for s in d if s in "ab") == {"a": 3, "b": 1}
    assert documents[1] == ["three"]
    assert [[s for s in d if s not in ("a", "b")] for d in documents] == [["one", "two"], ["three"], ["four", "five"]]
    with pytest.raises(TrainingError, match="no document"):
        plant(documents, (("a", 1),), usable=[], seed=0)


def test_they_are_in_the_training_stream_and_in_the_model_s_record(
    recipe: Recipe, documentation: list[str], tmp_path: Path
) -> None:
    plants = plan_plants(strings(tmp_path, 4), times=(1, 5), seed=0)
    wanted = TextSource(plants=plants)
    made = train(tmp_path / "out", replace(recipe, steps=2), wanted=wanted, say=lambda text: None)
    text = prepare_text(recipe, tmp_path / "out" / "text", say=print, wanted=wanted)
    stream, held_out = (text.tokenizer.decode(t.tokens.tolist()) for t in (text.training, text.held_out))
    for string, times in plants:
        assert stream.count(f"{string}\n") == times
        assert string not in held_out
    assert json.loads((made / "training.json").read_text())["text"]["plants"] == [list(one) for one in plants]
    with pytest.raises(TrainingError, match="another recipe"):
        prepare_text(recipe, tmp_path / "out" / "text", say=print, wanted=TextSource())


LONG = pytest.param("9" * 5_000, id="5,000 digits")


@pytest.mark.parametrize("times", ["", "1,x", "0,4", "4,4", "\u0661,\u0664", "\u00b2", "1_0", LONG])
def test_repetitions_that_cannot_be_are_refused(times: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="plant_times"):
        plan_plants(strings(tmp_path, 2), times=parse_times(times), seed=0)
