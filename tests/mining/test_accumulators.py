"""Triggers and Activity against plain sorting and adding, and the laws that make shards and restarts exact."""

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.kernels.reference import count_bins, sweep
from mnemoscope.mining.text.activity import Activity
from mnemoscope.mining.text.blocks import CoefficientBlock
from mnemoscope.mining.text.measures import Measures, Rows
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.mining.text.trigger_table import prefix_group
from mnemoscope.mining.text.triggers import Triggers

MEMORIES, POSITIONS = 3, 4

# Few different numbers, so that exact ties are everywhere; with zeros of both signs and the least positive float.
COEFFICIENTS = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 2.0**-149, 0.5, 1.0, 1.0000001, 3.0])


@st.composite
def streams(draw: st.DrawFn) -> tuple[int, list[torch.Tensor]]:
    """How many to keep, and batches `[sentence, position, memory]`; sentence ids are handed out in a random order."""
    keep = draw(st.integers(1, 4))
    batches = []
    for _ in range(draw(st.integers(0, 6))):
        size = draw(st.integers(1, 4))
        count = size * POSITIONS * MEMORIES
        numbers = draw(st.lists(COEFFICIENTS, min_size=count, max_size=count))
        batches.append(torch.tensor(numbers).reshape(size, POSITIONS, MEMORIES))
    return keep, batches


def ids_of(batches: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    order = torch.tensor(np.random.default_rng(seed).permutation(sum(len(b) for b in batches)), dtype=torch.int64)
    return list(order.split([len(b) for b in batches])) if batches else []


SIGNS = (1, -1)


def offer(triggers: Triggers, coefficients: torch.Tensor, sentences: torch.Tensor, *, everywhere: bool = False) -> Rows:
    """The candidates of a block whose place 0 is position 0, which are counted."""
    positions = torch.arange(coefficients.shape[1]).expand(len(sentences), -1)
    found = triggers.find(
        CoefficientBlock(coefficients, sentences, positions), sweep(coefficients, sampled=False), everywhere=everywhere
    )
    triggers.update(Measures(candidates=[*found]))
    if triggers.is_due:
        triggers.settle()
    return tuple(map(torch.cat, zip(*found, strict=True)))


def filled(keep: int, batches: Sequence[torch.Tensor], ids: Sequence[torch.Tensor], *, all_: bool) -> Triggers:
    triggers = Triggers(MEMORIES, keep, SIGNS)
    for block, sentences in zip(batches, ids, strict=True):
        offer(triggers, block, sentences, everywhere=all_)
    return triggers


def rows(triggers: Triggers) -> list[list[tuple[float, int, int]]]:
    state = triggers.state()
    return [
        [
            (float(magnitude), int(sentence), int(position))
            for magnitude, sentence, position in zip(*(state[name][feature] for name in state), strict=True)
            if sentence >= 0
        ]
        for feature in range(len(state["sentence"]))
    ]


def oracle(
    keep: int, batches: Sequence[torch.Tensor], ids: Sequence[torch.Tensor], *, all_: bool, first: int = 0
) -> list:
    """Memories with sign 1, then with sign -1; place 0 is position `first`."""
    expected = []
    for sign, memory in product(SIGNS, range(MEMORIES)):
        found = []
        for block, sentences in zip(batches, ids, strict=True):
            for row, sentence in enumerate(sentences.tolist()):
                places = [(sign * float(block[row, j, memory]), sentence, j + first) for j in range(POSITIONS)]
                found += places if all_ else [max(places, key=lambda place: (place[0], -place[2]))]
        positive = [place for place in found if place[0] > 0]
        expected.append(sorted(positive, key=lambda place: (-place[0], place[1], place[2]))[:keep])
    return expected


@given(streams(), st.integers(0, 5), st.booleans())
def test_triggers_are_what_sorting_everything_gives(stream, seed: int, all_: bool) -> None:
    keep, batches = stream
    ids = ids_of(batches, seed)
    assert rows(filled(keep, batches, ids, all_=all_)) == oracle(keep, batches, ids, all_=all_)


@given(streams(), st.integers(0, 5), st.booleans(), st.data())
def test_hidden_places_are_no_triggers(stream, seed: int, all_: bool, data) -> None:
    """As if their coefficients were zero, which is none."""
    keep, batches = stream
    ids, triggers = ids_of(batches, seed), Triggers(MEMORIES, keep, SIGNS)
    shown = []
    for block, sentences in zip(batches, ids, strict=True):
        flags = data.draw(st.lists(st.booleans(), min_size=len(block) * POSITIONS, max_size=len(block) * POSITIONS))
        hidden = torch.tensor(flags).view(len(block), POSITIONS)
        shown.append(block.masked_fill(hidden[..., None], 0))
        positions = torch.arange(POSITIONS).expand(len(block), -1)
        swept = sweep(block, sampled=False)
        found = triggers.find(CoefficientBlock(block, sentences, positions, hidden), swept, everywhere=all_)
        triggers.update(Measures(candidates=[*found]))
    assert rows(triggers) == oracle(keep, shown, ids, all_=all_)


@given(streams(), st.integers(0, 5), st.booleans(), st.data())
def test_triggers_merge_to_the_same_bits_however_the_stream_is_cut(stream, seed: int, all_: bool, data) -> None:
    keep, batches = stream
    ids = ids_of(batches, seed)
    whole = filled(keep, batches, ids, all_=all_)
    owner = [data.draw(st.integers(0, 2)) for _ in batches]
    of = [[number for number, own in enumerate(owner) if own == part] for part in range(3)]
    parts = [filled(keep, [batches[k] for k in own], [ids[k] for k in own], all_=all_) for own in of]
    a, b, c = (parts[i] for i in data.draw(st.permutations(range(3))))
    if data.draw(st.booleans()):
        a.merge(b)
        a.merge(c)
    else:
        b.merge(c)
        a.merge(b)
    for name, tensor in whole.state().items():
        assert tensor.numpy().tobytes() == a.state()[name].numpy().tobytes(), name
    assert whole.threshold().equal(a.threshold())


@pytest.mark.parametrize("loaded", [False, True])
def test_whatever_is_as_high_as_the_last_may_enter(loaded: bool) -> None:
    def entering(triggers: Triggers, coefficient: float, sentence: int) -> int:
        return len(offer(triggers, torch.tensor([[[coefficient]]]), torch.tensor([sentence]))[0])

    triggers = Triggers(1, 3, (1,))
    for sentence, coefficient in enumerate((3.0, 5.0, 1.0)):
        assert entering(triggers, coefficient, sentence) == 1
    state = triggers.state()
    if loaded:
        other = Triggers(1, 3, (1,))
        other.load(state)
        triggers = other
    assert [entering(triggers, coefficient, 9) for coefficient in (0.5, 2.0)] == [0, 1]
    assert triggers.state()["magnitude"].tolist() == [[5.0, 3.0, 2.0]]
    assert [entering(triggers, coefficient, 4) for coefficient in (1.0, 2.0)] == [0, 1]  # of a tie the lower sentence
    assert triggers.state()["sentence"].tolist() == [[1, 0, 4]]


def measures_of(
    *blocks: torch.Tensor, first: int = 0, negative: bool = True, sampled: bool = True, together: bool = False
) -> Measures:
    """What is read off blocks of one expert, whose first memory this is."""
    share = Measures(swept=[(first, sweep(block, sampled=sampled)) for block in blocks])
    share.histograms = [(first, count_bins(block)) for block in blocks if sampled]
    return Measures.join([share], together=together, negative=negative)


def add(activity: Activity, block: torch.Tensor, *, negative: bool = True, sampled: bool = True) -> None:
    activity.update(measures_of(block, negative=negative, sampled=sampled))


def counted(batches: Sequence[torch.Tensor], sampled: Sequence[bool]) -> Activity:
    activity = Activity(MEMORIES)
    for block, sample in zip(batches, sampled, strict=True):
        add(activity, block, sampled=sample)
    return activity


def bits(activity: Activity) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in activity.state().items()}


WIDE = st.floats(-1e4, 1e4, width=32)


@st.composite
def measured(draw: st.DrawFn) -> tuple[list[torch.Tensor], list[bool]]:
    batches = []
    for _ in range(draw(st.integers(1, 6))):
        size = draw(st.integers(1, 3)) * POSITIONS * MEMORIES
        numbers = draw(st.lists(WIDE, min_size=size, max_size=size))
        batches.append(torch.tensor(numbers).reshape(-1, POSITIONS, MEMORIES))
    return batches, [draw(st.booleans()) for _ in batches]


@pytest.mark.full
@given(measured(), st.data())
def test_activity_merges_to_the_same_bits_however_the_stream_is_cut(stream, data) -> None:
    batches, sampled = stream
    whole = counted(batches, sampled)
    owner = [data.draw(st.integers(0, 2)) for _ in batches]
    parts = []
    for part in range(3):
        mine = [k for k in data.draw(st.permutations(range(len(batches)))) if owner[k] == part]
        parts.append(counted([batches[k] for k in mine], [sampled[k] for k in mine]))
    a, b, c = (parts[i] for i in data.draw(st.permutations(range(3))))
    if data.draw(st.booleans()):
        a.merge(b)
        a.merge(c)
    else:
        b.merge(c)
        a.merge(b)
    assert bits(a) == bits(whole)


@pytest.mark.full
@given(measured())
def test_activity_is_what_adding_everything_gives(stream) -> None:
    batches, sampled = stream
    activity = counted(batches, sampled)
    flat = torch.cat([b.reshape(-1, MEMORIES) for b in batches]).double().numpy()
    assert activity.prefixes.tolist() == [len(flat)] * MEMORIES
    assert activity.positive.tolist() == (flat > 0).sum(0).tolist()
    assert activity.least.tolist() == flat.min(0).tolist()
    assert activity.greatest.tolist() == flat.max(0).tolist()
    scale = np.abs(flat).max(0)
    assert (np.abs(activity.columns()["mean"] - flat.mean(0)) <= 1e-6 * np.maximum(1, scale)).all()
    if any(sampled):
        some = torch.cat([b.reshape(-1, MEMORIES) for b, s in zip(batches, sampled, strict=True) if s]).double().numpy()
        assert activity.sampled.tolist() == [len(some)] * MEMORIES
        assert (np.abs(activity.columns()["std"] - some.std(0)) <= 1e-5 * np.maximum(1, scale)).all()
        edges = [-np.inf, *(-(2.0**k) for k in range(6, -11, -1)), 0.0, *(2.0**k for k in range(-10, 7)), np.inf]
        for memory in range(MEMORIES):
            x = some[:, memory]
            expected = [int(((x >= a) & (x < b)).sum()) for a, b in pairwise(edges)]
            assert activity.histogram[:, memory].tolist() == expected


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_some_rows_of_a_sweep_are_measured_as_if_they_were_alone(sampled: bool, together: bool) -> None:
    block = torch.randn(5, POSITIONS, MEMORIES, generator=torch.Generator().manual_seed(0))
    share = Measures(swept=[(0, sweep(block, sampled=sampled).part(slice(1, 4)))])
    ((_, found),) = Measures.join([share], together=together, negative=True).sums
    ((_, wanted),) = measures_of(block[1:4], sampled=sampled).sums
    for name, one in (vars(wanted) | {"histogram": None}).items():
        assert torch.equal(vars(found)[name], one) if isinstance(one, torch.Tensor) else vars(found)[name] == one, name
    assert (found.positions, found.squares is not None) == (3 * POSITIONS, sampled)


def test_an_expert_that_nothing_is_routed_to_has_zeros_and_no_prefixes() -> None:
    activity = Activity(3)
    activity.update(measures_of(torch.tensor([[[-2.0], [4.0]]]), first=2, together=True))
    columns = {name: column.tolist() for name, column in activity.columns().items()}
    histogram = np.array(columns.pop("histogram"))
    third = {"prefixes": 2, "positive": 1, "mean": 1, "min": -2, "max": 4, "sampled": 2, "std": 3}
    assert columns == {"memory": [0, 1, 2], **{name: [0, 0, number] for name, number in third.items()}}
    begins = [-np.inf, *(-(2.0**k) for k in range(6, -11, -1)), 0.0, *(2.0**k for k in range(-10, 7))]
    assert np.argwhere(histogram).tolist() == [[2, begins.index(-2.0)], [2, begins.index(4.0)]]
    assert histogram.sum() == 2


def test_the_least_of_what_cannot_go_below_zero_is_no_negative_zero() -> None:
    block = torch.randn(3, 21, 64, generator=torch.Generator().manual_seed(2)).abs()
    block[:, :, 0], block[1, 4, 1] = -0.0, 0.5
    ((_, sums),) = measures_of(block, negative=False).sums
    assert sums.least.tolist() == block.amin((0, 1)).tolist()
    assert not sums.least.signbit().any()


def test_bfloat16_counts_more_positions_than_bfloat16_can_write() -> None:
    block = torch.ones(3, 999, 2, dtype=torch.bfloat16)
    activity = Activity(2)
    add(activity, block, negative=False)
    assert activity.positive.tolist() == [2997, 2997]
    assert activity.columns()["mean"].tolist() == [1.0, 1.0]
    assert activity.columns()["std"].tolist() == [0.0, 0.0]


def test_prefix_groups_are_the_first_rank_with_the_same_prefix() -> None:
    columns = {"memory": [0, 0, 0, 0, 0, 1], "sign": [1, 1, 1, 1, -1, 1], "rank": [0, 1, 2, 3, 0, 0]}
    rows = pl.DataFrame(columns | {"prefix": [9, 4, 9, 4, 9, 9], "position": [2, 1, 2, 0, 2, 2]})
    # Rank 3 has the hash of rank 1 but another length, so it is another prefix.
    assert rows.select(prefix_group())["prefix_group"].to_list() == [0, 1, 0, 3, 0, 0]


def test_a_state_is_saved_and_loaded_whole(tmp_path) -> None:
    shape = StateShape({0: MEMORIES, 2: MEMORIES}, 2, SIGNS)
    state = MiningState(shape)
    block = torch.randn(4, POSITIONS, MEMORIES, generator=torch.Generator().manual_seed(2))
    add(state.activity[2], block)
    offer(state.triggers[2], block, torch.arange(4))
    state.halved = [3, 16]
    state.save(tmp_path / "s", plan="p")
    other = MiningState(shape)
    other.load(tmp_path / "s", plan="p")
    other.save(tmp_path / "t", plan="p")
    assert (tmp_path / "s").read_bytes() == (tmp_path / "t").read_bytes()
    assert other.halved == [3, 16]
    named = {sentence for each in rows(state.triggers[2]) for _, sentence, _ in each}
    assert (other.triggers[2].sentences().tolist(), other.triggers[0].sentences().tolist()) == (sorted(named), [])


def test_candidates_of_experts_have_their_numbers_positions_and_weights() -> None:
    """Two experts of three memories from memory 1 on: a row for a sentence in one expert, its places where it went."""
    triggers = Triggers(8, 2, SIGNS, weighted=True)
    coefficients = torch.tensor([[[1.0, -1.0, 0.0], [2.0, 5.0, 0.0]], [[3.0, 0.0, -4.0], [1.0, 0.0, 6.0]]])
    places, weights = torch.tensor([[2, 5], [0, 3]]), torch.tensor([[0.5, 0.25], [1.0, 0.75]])
    block = CoefficientBlock(coefficients, torch.tensor([40, 30]), places, None, torch.tensor([4, 1]), weights)
    swept = sweep(coefficients, sampled=False)

    def found(*, everywhere: bool) -> list[set[tuple[float, ...]]]:
        """By sign."""
        each = triggers.find(block, swept, everywhere=everywhere)
        return [set(zip(*(column.tolist() for column in one), strict=True)) for one in each]

    best, lowest = found(everywhere=False)
    assert best == {(4, 2.0, 40, 5, 0.25), (5, 5.0, 40, 5, 0.25), (1, 3.0, 30, 0, 1.0), (3, 6.0, 30, 3, 0.75)}
    assert lowest == {(8 + 5, 1.0, 40, 2, 0.5), (8 + 3, 4.0, 30, 0, 1.0)}
    every, low = found(everywhere=True)
    assert every == best | {(4, 1.0, 40, 2, 0.5), (1, 1.0, 30, 3, 0.75)}
    assert low == lowest
    triggers.magnitude[5, -1] = 5.5  # of the memory with 5.0
    assert found(everywhere=False) == [best - {(5, 5.0, 40, 5, 0.25)}, lowest]
    assert block.runs() == [(4, slice(0, 1)), (1, slice(1, 2))]
