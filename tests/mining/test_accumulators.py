"""Triggers and Activity against plain sorting and adding, and the laws that make shards and restarts exact."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.kernels.reference import Observer
from mnemoscope.mining.text.activity import Activity, BatchMeasures
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.mining.text.trigger_table import prefix_group
from mnemoscope.mining.text.triggers import RoutedBlock, Survivors, Triggers

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


def filled(
    keep: int, batches: Sequence[torch.Tensor], ids: Sequence[torch.Tensor], sign: int, *, all_: bool
) -> Triggers:
    triggers = Triggers(MEMORIES, keep)
    for block, sentences in zip(batches, ids, strict=True):
        if all_:
            found = triggers.survivors_everywhere(block, sentences, sign=sign, first=0)
        else:
            found = triggers.survivors((sign * block).amax(1), block, sentences, sign=sign, first=0)
        triggers.add(found)
    return triggers


def rows(triggers: Triggers) -> list[list[tuple[float, int, int]]]:
    state = triggers.state()
    return [
        [
            (float(magnitude), int(sentence), int(position))
            for magnitude, sentence, position in zip(*(state[name][memory] for name in state), strict=True)
            if sentence >= 0
        ]
        for memory in range(MEMORIES)
    ]


def oracle(keep: int, batches: Sequence[torch.Tensor], ids: Sequence[torch.Tensor], sign: int, *, all_: bool) -> list:
    expected = []
    for memory in range(MEMORIES):
        found = []
        for block, sentences in zip(batches, ids, strict=True):
            for row, sentence in enumerate(sentences.tolist()):
                places = [(sign * float(block[row, j, memory]), sentence, j) for j in range(POSITIONS)]
                found += places if all_ else [max(places, key=lambda place: (place[0], -place[2]))]
        positive = [place for place in found if place[0] > 0]
        expected.append(sorted(positive, key=lambda place: (-place[0], place[1], place[2]))[:keep])
    return expected


@given(streams(), st.integers(0, 5), st.sampled_from([1, -1]), st.booleans())
def test_triggers_are_what_sorting_everything_gives(stream, seed: int, sign: int, all_: bool) -> None:
    keep, batches = stream
    ids = ids_of(batches, seed)
    assert rows(filled(keep, batches, ids, sign, all_=all_)) == oracle(keep, batches, ids, sign, all_=all_)


@given(streams(), st.integers(0, 5), st.booleans(), st.data())
def test_triggers_merge_to_the_same_bits_however_the_stream_is_cut(stream, seed: int, all_: bool, data) -> None:
    keep, batches = stream
    ids = ids_of(batches, seed)
    whole = filled(keep, batches, ids, 1, all_=all_)
    owner = [data.draw(st.integers(0, 2)) for _ in batches]
    of = [[number for number, own in enumerate(owner) if own == part] for part in range(3)]
    parts = [filled(keep, [batches[k] for k in own], [ids[k] for k in own], 1, all_=all_) for own in of]
    a, b, c = (parts[i] for i in data.draw(st.permutations(range(3))))
    if data.draw(st.booleans()):
        a.add_state(b.state())
        a.add_state(c.state())
    else:
        b.add_state(c.state())
        a.add_state(b.state())
    for name, tensor in whole.state().items():
        assert tensor.numpy().tobytes() == a.state()[name].numpy().tobytes(), name
    assert whole.threshold.equal(a.threshold)


@pytest.mark.parametrize("loaded", [False, True])
def test_whatever_is_as_high_as_the_last_may_enter(loaded: bool) -> None:
    def offer(triggers: Triggers, coefficient: float, sentence: int) -> int:
        block = torch.tensor([[[coefficient]]])
        found = triggers.survivors(block.amax(1), block, torch.tensor([sentence]), sign=1, first=0)
        triggers.add(found)
        return len(found)

    triggers = Triggers(1, 3)
    for sentence, coefficient in enumerate((3.0, 5.0, 1.0)):
        assert offer(triggers, coefficient, sentence) == 1
    state = triggers.state()
    if loaded:
        other = Triggers(1, 3)
        other.load(state)
        triggers = other
    assert [offer(triggers, coefficient, 9) for coefficient in (0.5, 2.0)] == [0, 1]
    assert triggers.state()["magnitude"].tolist() == [[5.0, 3.0, 2.0]]
    assert [offer(triggers, coefficient, 4) for coefficient in (1.0, 2.0)] == [0, 1]  # of a tie the lower sentence
    assert triggers.state()["sentence"].tolist() == [[1, 0, 4]]


def add(activity: Activity, block: torch.Tensor, *, negative: bool = True, sampled: bool = True) -> None:
    observer = Observer()
    swept = BatchMeasures.of([observer.sweep(block, negative=negative, sampled=sampled)])
    device = block.device
    activity.add([swept], [observer.histogram(block.shape[2], negative=negative, device=device)] if sampled else [])


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
        a.add_state(b.state())
        a.add_state(c.state())
    else:
        b.add_state(c.state())
        a.add_state(b.state())
    assert bits(a) == bits(whole)


@pytest.mark.full
@given(measured())
def test_activity_is_what_adding_everything_gives(stream) -> None:
    batches, sampled = stream
    activity = counted(batches, sampled)
    flat = torch.cat([b.reshape(-1, MEMORIES) for b in batches]).double().numpy()
    assert int(activity.prefixes) == len(flat)
    assert activity.positive.tolist() == (flat > 0).sum(0).tolist()
    assert activity.least.tolist() == flat.min(0).tolist()
    assert activity.greatest.tolist() == flat.max(0).tolist()
    scale = np.abs(flat).max(0)
    assert (np.abs(activity.mean().numpy() - flat.mean(0)) <= 1e-6 * np.maximum(1, scale)).all()
    if any(sampled):
        some = torch.cat([b.reshape(-1, MEMORIES) for b, s in zip(batches, sampled, strict=True) if s]).double().numpy()
        assert int(activity.sampled) == len(some)
        assert (np.abs(activity.deviation().numpy() - some.std(0)) <= 1e-5 * np.maximum(1, scale)).all()
        edges = [-np.inf, *(-(2.0**k) for k in range(6, -11, -1)), 0.0, *(2.0**k for k in range(-10, 7)), np.inf]
        for memory in range(MEMORIES):
            x = some[:, memory]
            expected = [int(((x >= a) & (x < b)).sum()) for a, b in pairwise(edges)]
            assert activity.histogram[memory].tolist() == expected


@pytest.mark.parametrize("sampled", [True, False])
def test_some_rows_of_a_sweep_are_measured_as_if_they_were_alone(sampled: bool) -> None:
    block = torch.randn(5, POSITIONS, MEMORIES, generator=torch.Generator().manual_seed(0))
    several = Observer().sweep(block, negative=False, sampled=sampled, apart=True)
    found = vars(BatchMeasures.of([several.rows(1, 4)]))
    wanted = vars(BatchMeasures.of([Observer().sweep(block[1:4], negative=True, sampled=sampled)]))
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        assert torch.equal(found[name], one) if isinstance(one, torch.Tensor) else found[name] == one, name
    assert (found["positions"], found["squares"] is not None) == (3 * POSITIONS, sampled)


def test_an_expert_that_nothing_is_routed_to_has_zeros_and_no_prefixes() -> None:
    activity = Activity(3, widths=(2, 1))
    observer, block = Observer(), torch.tensor([[[-2.0], [4.0]]])
    swept = BatchMeasures.of([observer.sweep(block, negative=True, sampled=True)])
    activity.add([swept], [observer.histogram(1, negative=True, device=block.device)], expert=1)
    columns = {name: column.tolist() for name, column in activity.columns().items()}
    histogram = np.array(columns.pop("histogram"))
    third = {"prefixes": 2, "positive": 1, "mean": 1, "min": -2, "max": 4, "sampled": 2, "std": 3}
    assert columns == {"memory": [0, 1, 2], **{name: [0, 0, number] for name, number in third.items()}}
    begins = [-np.inf, *(-(2.0**k) for k in range(6, -11, -1)), 0.0, *(2.0**k for k in range(-10, 7))]
    assert np.argwhere(histogram).tolist() == [[2, begins.index(-2.0)], [2, begins.index(4.0)]]
    assert histogram.sum() == 2


def test_what_cannot_go_below_zero_has_no_lows_and_its_least_is_no_negative_zero() -> None:
    block = torch.randn(3, 21, 64, generator=torch.Generator().manual_seed(2)).abs()
    block[:, :, 0], block[1, 4, 1] = -0.0, 0.5
    swept = Observer().sweep(block, negative=False, sampled=True)
    assert swept.lows is None
    assert swept.least.tolist() == [float(own) if own > 0 else 0.0 for own in block.amin((0, 1))]
    assert not swept.least.signbit().any()


def test_bfloat16_counts_more_positions_than_bfloat16_can_write() -> None:
    block = torch.ones(3, 999, 2, dtype=torch.bfloat16)
    activity = Activity(2)
    add(activity, block, negative=False)
    assert activity.positive.tolist() == [2997, 2997]
    assert activity.mean().tolist() == [1.0, 1.0]
    assert activity.deviation().tolist() == [0.0, 0.0]


def test_prefix_groups_are_the_first_rank_with_the_same_prefix() -> None:
    columns = {"memory": [0, 0, 0, 0, 0, 1], "sign": [1, 1, 1, 1, -1, 1], "rank": [0, 1, 2, 3, 0, 0]}
    rows = pl.DataFrame(columns | {"prefix": [9, 4, 9, 4, 9, 9], "position": [2, 1, 2, 0, 2, 2]})
    # Rank 3 has the hash of rank 1 but another length, so it is another prefix.
    assert rows.select(prefix_group())["prefix_group"].to_list() == [0, 1, 0, 3, 0, 0]


def test_a_state_is_saved_and_loaded_whole(tmp_path) -> None:
    shape = StateShape({0: MEMORIES, 2: MEMORIES}, 2, (1, -1))
    state = MiningState(shape)
    block = torch.randn(4, POSITIONS, MEMORIES, generator=torch.Generator().manual_seed(2))
    add(state.activity[2], block)
    found = state.triggers[2, -1].survivors((-block).amax(1), block, torch.arange(4), sign=-1, first=0)
    state.triggers[2, -1].add(found)
    state.next_batch, state.halved = 17, [3, 16]
    state.save(tmp_path / "s", plan="p")
    other = MiningState(shape)
    other.load(tmp_path / "s", plan="p")
    other.save(tmp_path / "t", plan="p")
    assert (tmp_path / "s").read_bytes() == (tmp_path / "t").read_bytes()
    assert (other.next_batch, other.halved) == (17, [3, 16])
    assert other.named_sentences().tolist() == sorted({s for r in rows(state.triggers[2, -1]) for _, s, _ in r})


def test_survivors_of_experts_have_their_numbers_positions_and_weights() -> None:
    """Two experts of three memories from memory 1 on: a row for a sentence in one expert, its places where it went."""
    triggers = Triggers(8, 2, weighted=True)
    block = torch.tensor([[[1.0, -1.0, 0.0], [2.0, 5.0, 0.0]], [[3.0, 0.0, -4.0], [1.0, 0.0, 6.0]]])
    places, weights = torch.tensor([[2, 5], [0, 3]]), torch.tensor([[0.5, 0.25], [1.0, 0.75]])
    routed = RoutedBlock(1, 2, torch.tensor([1, 0]), places, weights)
    sentences = torch.tensor([40, 30])

    def found(survivors: Survivors) -> set[tuple[float, ...]]:
        assert survivors.weight is not None
        columns = (survivors.memory, survivors.magnitude, survivors.sentence, survivors.position, survivors.weight)
        return set(zip(*(column.tolist() for column in columns), strict=True))

    best = triggers.survivors(block.amax(1), block, sentences, sign=1, first=0, routed=routed)
    assert found(best) == {(4, 2.0, 40, 5, 0.25), (5, 5.0, 40, 5, 0.25), (1, 3.0, 30, 0, 1.0), (3, 6.0, 30, 3, 0.75)}
    every = triggers.survivors_everywhere(block, sentences, sign=1, first=0, routed=routed)
    assert found(every) == found(best) | {(4, 1.0, 40, 2, 0.5), (1, 1.0, 30, 3, 0.75)}
    lowest = triggers.survivors((-block).amax(1), block, sentences, sign=-1, first=0, routed=routed)
    assert found(lowest) == {(5, 1.0, 40, 2, 0.5), (3, 4.0, 30, 0, 1.0)}
    triggers.add(every)
    triggers.settle()
    triggers.threshold[5] = 5.5  # of the memory with 5.0
    later = triggers.survivors(block.amax(1), block, sentences, sign=1, first=0, routed=routed)
    assert found(later) == {(4, 2.0, 40, 5, 0.25), (1, 3.0, 30, 0, 1.0), (3, 6.0, 30, 3, 0.75)}
