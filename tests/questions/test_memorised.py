"""B4: numbers worked out by hand, memories that sit on known text, nothing found where verdicts are dealt at random."""

import math
import random
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mnemoscope as ms
from mnemoscope.foundation.intervals import clustered_share, share
from mnemoscope.models import load_model
from mnemoscope.questions.answer_builder import difference
from mnemoscope.questions.beyond.memorised import TriggerPlaces, binomial_tail, find_true
from mnemoscope.questions.verdicts import is_above
from questions.known_model import Known, build
from support.handbuilt_answers import build_answers, numbers
from support.mined import mined_text

CYCLE = [f"k{number}" for number in range(11, 24)]
OTHERS = ["the", "of", "cat", "dog", "bird", "sat", "ran", "mat", "far"]


def test_the_numbers_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    """Sentence s is that of rank s: memory 0 has triggers in sentences 0 to 3, memory 1 in 0 and 1."""
    documents = [(False, 32, [0]), (False, 5, [1]), (False, 32, [2]), (False, 0, [3]), (True, 32, []), (True, 8, [])]
    triggers, prefixes = {0: [(0, 1)] * 4 + [(1, 1)] * 2}, [(number, 0, 1, 1) for number in range(4)]
    atlas = build_answers(tmp_path, triggers=triggers, memorised=documents, prefixes=prefixes)
    found = ms.answer(atlas, "memorised")
    assert (numbers(found, "extractable"), numbers(found, "extractable", "count")) == ({None: 0.5}, {None: 4})
    assert (numbers(found, "held_out_extractable"), numbers(found, "above_held_out")) == ({None: 0.5}, {None: 0.0})
    assert (numbers(found, "agreed"), numbers(found, "held_out_agreed")) == ({None: 69 / 4}, {None: 20})
    assert (numbers(found, "loss"), numbers(found, "held_out_loss")) == ({None: 2.5}, {None: 5.5})
    assert (numbers(found, "triggers_asked"), numbers(found, "base_rate")) == ({0: 6}, {0: 3 / 6})
    assert numbers(found, "memories_asked") == {0: 1, None: 1}  # memory 1 is in two documents only
    assert numbers(found, "memories_above") == {0: 0, None: 0}


def test_how_likely_a_memory_s_documents_are_by_hand() -> None:
    """Documents 0 to 2 are known. Memory 0 is in all of them, in 0 twice; memory 1 in two others; memory 2 in four.

    So it is of 9 pairs, 4 of which are known: memory 0 has 3 of 3, memory 2 one or more of 4.
    """
    places = TriggerPlaces(np.array([0, 0, 0, 0, 1, 1, 2, 2, 2, 2]), np.array([0, 0, 1, 2, 3, 4, 0, 3, 4, 5]))
    known = np.array([True, True, True, False, False, False])
    assert places.p_values(known).tolist() == pytest.approx([(4 / 9) ** 3, 1 - (5 / 9) ** 4])
    # Of ten triggers five; a document is a cluster.
    assert places.base_rate(known) == clustered_share([3, 1, 1, 0, 0, 0], [3, 1, 1, 2, 2, 1])
    nowhere = TriggerPlaces(np.empty(0, np.int64), np.empty(0, np.int64))
    assert (nowhere.p_values(known).tolist(), nowhere.base_rate(known).value) == ([], None)


def test_what_is_asked_of_two_layers(tmp_path: Path) -> None:
    """Twelve documents, the first four known: a memory of layer 0 is in all, one of layer 1 in the first six."""
    triggers = {0: [(1, 1)] * 12, 1: [(0, 1)] * 6}
    documents = [(False, 32 if number < 4 else 31, [number]) for number in range(12)] + [(True, 32, [])]
    prefixes = [(number, 0, 1, 1) for number in range(12)]
    found = ms.answer(build_answers(tmp_path, triggers=triggers, memorised=documents, prefixes=prefixes), "memorised")
    assert (numbers(found, "triggers_asked"), numbers(found, "base_rate")) == ({0: 12, 1: 6}, {0: 4 / 12, 1: 4 / 6})
    assert numbers(found, "memories_asked") == {0: 1, 1: 1, None: 2}
    assert numbers(found, "memories_above") == {0: 0, 1: 0, None: 0}
    assert numbers(found, "memories_above", "count") == {0: 1, 1: 1, None: 2}
    # Newcombe's interval of 4 of 12 less 1 of 1.
    expected = difference(share(4, 12), share(1, 1))
    row = found.filter(name="above_held_out").to_dicts()[0]
    assert (row["value"], row["low"], row["high"]) == (expected.value, expected.low, expected.high)


def test_a_trigger_beyond_the_tokens_asked_does_not_count(tmp_path: Path) -> None:
    """Triggers of rank 0 are at position 0, the others at 1; of each sentence the first token alone lies inside."""
    atlas = build_answers(tmp_path, triggers={0: [(0, 1)] * 4}, memorised=[(False, 32, [0, 1, 2, 3])], inside=1)
    assert numbers(ms.answer(atlas, "memorised"), "triggers_asked") == {0: 1}


@pytest.mark.parametrize(("count", "least", "part"), [(1, 0, 0.3), (7, 3, 0.25), (50, 50, 0.9), (50, 0, 0), (9, 1, 0)])
def test_the_tail_is_that_of_exact_fractions(count: int, least: int, part: float) -> None:
    exact = Fraction(part)
    tail = sum(math.comb(count, k) * exact**k * (1 - exact) ** (count - k) for k in range(least, count + 1))
    assert binomial_tail(count, least, part) == pytest.approx(float(tail), rel=1e-12)


def test_findings_are_those_of_the_step_up_rule() -> None:
    chance = np.random.default_rng(0)
    for _ in range(50):
        tails = chance.random(40) ** 4
        ranked = sorted(tails)
        cut = max((tail for k, tail in enumerate(ranked, 1) if tail <= 0.05 * k / 40), default=-1.0)
        assert find_true(tails).tolist() == [tail <= cut for tail in tails]


def test_dealt_verdicts_are_found_no_more_often_than_said() -> None:
    """200 layers of 60 memories, each in 3 to 30 of 300 documents that were drawn without looking."""
    chance = np.random.default_rng(7)
    fooled = 0
    for _ in range(200):
        sizes = chance.integers(3, 31, 60)
        document = np.concatenate([chance.choice(300, size, replace=False) for size in sizes])
        places = TriggerPlaces(np.repeat(np.arange(60), sizes), document)
        tails = places.p_values(chance.random(300) < 0.3)
        assert len(tails) == 60
        fooled += bool(find_true(tails).any())
    assert fooled <= 18  # 5 % of 200 is 10; 99.5 % of such sets of draws have 18 or fewer


@pytest.mark.full
def test_mined_documents_are_above_held_out_ones_only_where_they_are(tmp_path: Path) -> None:
    """250 documents of which 50 are held out: known alike, then not."""
    chance = np.random.default_rng(3)

    def said(mined: float, held_out: float, draw: int) -> bool:
        rows = [
            (number < 50, 32 * int(chance.random() < (held_out if number < 50 else mined)), []) for number in range(250)
        ]
        atlas = build_answers(tmp_path / f"{mined} {held_out} {draw}", triggers={0: []}, memorised=rows)
        return is_above(load_row(ms.answer(atlas, "memorised")), 0) == "yes"

    def load_row(found: Any) -> Any:
        (row,) = found.filter(name="above_held_out").to_dicts()
        return SimpleNamespace(low=row["low"], high=row["high"])

    assert sum(said(0.2, 0.2, draw) for draw in range(60)) <= 5  # 2.5 % of 60 is 1.5
    assert all(said(0.5, 0.1, draw) for draw in range(8))


def test_memories_that_fire_in_known_text_alone_are_found_and_no_others(tmp_path: Path) -> None:
    """A model whose memories say the next word of a cycle: documents that end in it are known by heart."""
    steps = tuple(Known({word: 4.0}, {after: 9.0}) for word, after in zip(CYCLE, CYCLE[1:] + CYCLE[:1], strict=True))
    others = tuple(Known({word: 1.0}, {"far": 0.5}) for word in OTHERS)
    hf, tokenizer = build(((*steps, *others),), context=72)
    chance = random.Random(1)

    def document(known: bool) -> str:
        words = chance.choices(OTHERS, k=28 if known else 66)
        begin = chance.randrange(13)
        return " ".join([*words, *(CYCLE[(begin + k) % 13] for k in range(38 if known else 0))])

    text = [document(known=number % 4 == 0) for number in range(160)]
    # Every step of the cycle is seen elsewhere too, if more rarely.
    text += [" ".join([*chance.choices(CYCLE, k=3), *chance.choices(OTHERS, k=63)]) for _ in range(40)]
    model = load_model(hf, tokenizer=tokenizer)
    out = mined_text(model, tmp_path, "\n".join(text) + "\n", triggers=40, prefixes=8, removals=0)
    ms.extend(out, model, ["memorised"])
    found = ms.answer(out, "memorised")
    assert 0.1 < numbers(found, "extractable")[None] < 0.3
    assert numbers(found, "memories_above")[0] * numbers(found, "memories_asked")[0] == pytest.approx(len(CYCLE))
    assert numbers(found, "memories_above", "low")[0] > numbers(found, "control_above")[0]
    assert numbers(found, "control_above")[0] == 0
