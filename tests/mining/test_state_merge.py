"""Merged states are what sorting and adding everything gives, to the byte; what does not fit is refused by name."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load, load_file, save_file

from mnemoscope.errors import AtlasDamaged, PartsDiffer
from mnemoscope.foundation.memory_names import Numbering
from mnemoscope.kernels.devices import device_name, join_names, split_names
from mnemoscope.mining.text.state import MiningState, StateFacts, StateShape

DENSE = StateShape({0: 5, 3: 5}, 3, (1, -1))
EXPERTS = StateShape({1: 7, 2: 4}, 2, (1, -1), {1: Numbering((2, 2, 3), 2)})
SHAPES = pytest.mark.parametrize("shape", [DENSE, EXPERTS], ids=["dense", "experts"])

Tables = dict[str, np.ndarray[Any, Any]]


SUMS = ("total", "sampled_total", "squares", "weight")
"""What activity and routing hold as exact sums (exact_sums.py)."""


def random_state(shape: StateShape, number: int, of: int) -> MiningState:
    """One of `of` states of a plan: ties everywhere, empty places, sentences and batches that no other has."""
    chance = random.Random(f"{shape} {number}")
    state = MiningState(shape)
    for activity in state.activity.values():
        for name, tensor in activity.state().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.tensor([chance.choice([-2.0, -0.5, 0.0, 3.0]) for _ in tensor]))
            else:
                numbers = [chance.randrange(-(2**30) if name in SUMS else 0, 50) for _ in range(tensor.numel())]
                tensor.copy_(torch.tensor(numbers).view_as(tensor))
            if name in SUMS:  # the place of a sum's uppermost limb, among them some that have no limb in common
                tensor[0] = torch.tensor([chance.randrange(6) for _ in tensor[0]])
    for routing in state.routing.values():
        for tensor in routing.state().values():
            tensor.copy_(torch.tensor([chance.randrange(9) for _ in range(tensor.numel())]).view_as(tensor))
    for best in state.triggers.values():
        tensors = best.state()
        for feature in range(len(tensors["sentence"])):
            rows = [
                (-chance.choice([2.0**-149, 0.5, 1.0, 1.0000001, 3.0]), of * chance.randrange(4) + number, place)
                for place in chance.sample(range(9), chance.randrange(shape.keep + 1))
            ]
            for rank, (magnitude, sentence, position) in enumerate(sorted(rows)):
                tensors["magnitude"][feature, rank] = -magnitude
                tensors["sentence"][feature, rank] = sentence
                tensors["position"][feature, rank] = position
                if "weight" in tensors:
                    tensors["weight"][feature, rank] = chance.random()
        best.load(tensors)
    state.finished, state.halved = [(3 * number, 3 * number + 2)], [3 * number] if number % 2 else []
    return state


def save_states(folder: Path, shape: StateShape, count: int) -> list[Path]:
    paths = [folder / f"state-{number}" for number in range(count)]
    for number, path in enumerate(paths):
        random_state(shape, number, count).save(path, plan="p")
    return paths


def merged(paths: Sequence[Path], shape: StateShape) -> MiningState:
    state = MiningState(shape)
    for path in paths:
        state.absorb(path, plan="p")
    return state


def added(sums: Sequence[Any]) -> Any:
    """Sums of three limbs under the place of the uppermost, by adding the limbs of each place."""
    result = np.zeros_like(sums[0])
    for memory in range(result.shape[1]):
        places: Counter[int] = Counter()
        for own in sums:
            places.update({int(own[0, memory]) - number: int(own[1 + number, memory]) for number in range(3)})
        top = max(int(own[0, memory]) for own in sums)
        result[:, memory] = [top, *(places[top - number] for number in range(3))]
    return result


def brute_force(paths: Sequence[Path], keep: int) -> Tables:
    """What is in all the files together, by plain sorting and adding."""
    tables = [load_file(path) for path in paths]
    expected: Tables = {}
    for name, first in tables[0].items():
        if name.startswith(("activity/", "routing/")):
            column, rows = name.rsplit("/", 1)[1], [table[name] for table in tables]
            how = {"least": np.minimum, "greatest": np.maximum}.get(column, np.add)
            expected[name] = added(rows) if column in SUMS else how.reduce(rows)
        elif name.endswith("/magnitude"):
            group = name.removesuffix("magnitude")
            columns = [key for key in ("magnitude", "sentence", "position", "weight") if group + key in tables[0]]
            for key in columns:
                expected[group + key] = np.full_like(tables[0][group + key], -1 if key in columns[1:3] else 0)
            for memory in range(len(first)):
                own = [[table[group + key][memory] for key in columns] for table in tables]
                rows = [row for columns_of_memory in own for row in zip(*columns_of_memory, strict=True)]
                rows = sorted((row for row in rows if row[1] >= 0), key=lambda row: (-row[0], row[1], row[2]))
                for rank, row in enumerate(rows[:keep]):
                    for key, value in zip(columns, row, strict=True):
                        expected[group + key][memory, rank] = value
    return expected


@SHAPES
@pytest.mark.parametrize("count", [1, 2, 9])
def test_any_order_is_what_sorting_and_adding_everything_gives(shape: StateShape, count: int, tmp_path: Path) -> None:
    paths = save_states(tmp_path, shape, count)
    expected = brute_force(paths, shape.keep)
    made = []
    for seed in range(3):
        random.Random(seed).shuffle(paths)
        made.append(merged(paths, shape).serialise(plan="p"))
    assert len(set(made)) == 1
    assert merged(paths, shape).halved == [*range(3, 3 * count, 6)]
    found = load(made[0])
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].tobytes()) == (array.dtype, array.tobytes()), name

    # In groups they add up to the same.
    groups = [tmp_path / "first", tmp_path / "rest"]
    for path, group in zip(groups, (paths[:2], paths[2:]), strict=True):
        merged(group, shape).save(path, plan="p")
    assert merged(groups, shape).serialise(plan="p") == made[0]


@SHAPES
def test_a_layer_alone_is_that_layer_of_the_whole(shape: StateShape, tmp_path: Path) -> None:
    paths = save_states(tmp_path, shape, 4)
    whole = load(merged(paths, shape).serialise(plan="p"))
    alone = [
        StateShape({layer: count}, shape.keep, shape.signs, {k: own for k, own in shape.experts.items() if k == layer})
        for layer, count in shape.memories.items()
    ]
    parts = [load(merged(paths, one).serialise(plan="p")) for one in alone]
    assert {name for part in parts for name in part} == whole.keys()
    assert all(array.tobytes() == whole[name].tobytes() for part in parts for name, array in part.items())


Spoil = Callable[[Path], object]


def change_tensor(path: Path) -> None:
    """Another kind of number in one tensor, and all else as it was."""
    facts = StateFacts.read(path)
    tables = load_file(path)
    tables["triggers/3/position"] = tables["triggers/3/position"].astype(np.int64)
    save_file(tables, path, {"state": json.dumps(asdict(facts))})


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-5]), "state-1 is not a saved state of this plan"),
        (lambda path: path.write_bytes(b"\0" * 100), "state-1 is not a saved state of this plan"),
        (lambda path: path.unlink(), "state-1 is not a saved state of this plan"),
        (lambda path: random_state(DENSE, 1, 3).save(path, plan="q"), r"state-1 is not a saved state .*\('plan'\)"),
        (
            lambda path: random_state(StateShape({0: 5, 3: 5}, 4, (1, -1)), 1, 3).save(path, plan="p"),
            r"state-1 is not a saved state .*\('triggers/0/magnitude'\)",
        ),
        (
            lambda path: random_state(StateShape({0: 5}, 3, (1, -1)), 1, 3).save(path, plan="p"),
            "state-1 is not a saved state .*activity/3",
        ),
        (change_tensor, r"state-1 is not a saved state .*\('triggers/3/position'\)"),
        (lambda path: save_file({"a": np.zeros(2)}, path), "state-1 is not a saved state of this plan"),
        (lambda path: save_file({"a": np.zeros(2)}, path, {"state": "[]"}), "state-1 is not a saved state"),
    ],
    ids=["cut", "zeros", "missing", "plan", "keep", "layer", "kind", "no header", "odd header"],
)
def test_what_is_no_state_of_the_plan_is_refused(spoil: Spoil, line: str, tmp_path: Path) -> None:
    paths = save_states(tmp_path, DENSE, 3)
    spoil(paths[1])
    with pytest.raises(AtlasDamaged, match=line):
        merged(paths, DENSE)
    state = random_state(DENSE, 0, 3)
    before = state.serialise(plan="p")
    with pytest.raises(AtlasDamaged, match=line):
        state.absorb(paths[1], plan="p")
    assert state.serialise(plan="p") == before


def test_batches_that_are_counted_twice_are_named(tmp_path: Path) -> None:
    paths = save_states(tmp_path, DENSE, 3)
    with pytest.raises(PartsDiffer, match=r"state-2 .*\(6 to 7\)"):
        merged([*paths, paths[2]], DENSE)
    state = random_state(DENSE, 2, 3)
    state.finished = [(1, 4), (7, 9)]
    state.save(paths[2], plan="p")
    before = random_state(DENSE, 0, 3)
    before.absorb(paths[1], plan="p")
    said = before.serialise(plan="p")
    with pytest.raises(PartsDiffer, match=r"state-2 .*\(1 to 1, 3 to 3\)"):
        before.absorb(paths[2], plan="p")
    assert before.serialise(plan="p") == said
    assert not (tmp_path / "out").exists()
    before.finished = [(0, 2), (4, 6), (8, 10), (12, 14)]
    for last, listed in (((12, 14), "0 to 1, 4 to 5, 8 to 8, ..."), ((11, 12), "0 to 1, 4 to 5, 8 to 8")):
        state.finished = [(0, 9), last]
        state.save(paths[2], plan="p")
        with pytest.raises(PartsDiffer, match=re.escape(f"{paths[2]} counts batches a second time ({listed})")):
            before.absorb(paths[2], plan="p")


def test_names_of_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["NVIDIA B", "", "NVIDIA A", "NVIDIA B"]
    paths = save_states(tmp_path, DENSE, 4)
    for number, name in enumerate(names):
        state = random_state(DENSE, number, 4)
        state.device = name
        state.save(paths[number], plan="p")
    assert merged([paths[0], paths[1], paths[3]], DENSE).device == "NVIDIA B"
    merged(paths, DENSE).save(tmp_path / "out", plan="p")
    assert StateFacts.read(tmp_path / "out").device == "NVIDIA A + NVIDIA B"
    whole = MiningState(DENSE)
    whole.absorb(tmp_path / "out", plan="p")
    assert whole.equality()["devices"] == ["NVIDIA A", "NVIDIA B"]
    assert MiningState(DENSE).equality() == {}
    assert join_names("b + a", "", "c", "a") == "a + b + c"
    assert split_names("") == []
    processor = f"cpu {torch.backends.cpu.get_cpu_capability()}"
    assert device_name(torch.device("cpu")) == processor
    assert device_name(torch.device("meta")) == "meta"
