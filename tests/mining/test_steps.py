"""Work in numbered steps: pieces of it are joined, what does not fit is halved, batches keep their bounds."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.errors import MiningError
from mnemoscope.mining import steps as steps_file
from mnemoscope.mining.steps import (
    Answers,
    PlannedSteps,
    RunContext,
    empty_answers,
    is_unanswered,
    join_pieces,
    run_piece,
)
from mnemoscope.mining.text.batches import even_parts
from mnemoscope.mining.text.thread_team import ThreadTeam
from mnemoscope.models.forward.batches import pack


class Squares:
    """Fills an array with squares, and notes which items it was asked for."""

    def __init__(self, count: int) -> None:
        self.answers = {"square": np.full(count, -1, np.int64)}
        self.asked: list[tuple[int, int]] = []
        self.room = count

    def __call__(self, items: slice) -> None:
        self.asked.append((items.start, items.stop))
        if items.stop - items.start > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.answers["square"][items] = np.arange(items.start, items.stop) ** 2


def cuts(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def planned(step: Any, pieces: list[slice], answers: Answers, *, team: int = 1, each: int = 1) -> PlannedSteps:
    """Steps of which each item is `each` tokens."""
    tokens = [each * (cut.stop - cut.start) for cut in pieces]
    return PlannedSteps(step, pieces, tokens, answers, stage="squares", unit="items", team=ThreadTeam(team))


def run(folder: Path, steps: PlannedSteps) -> list[int]:
    context = RunContext(folder)
    for number in range(len(steps.pieces)):
        run_piece(context, steps, number)
    return join_pieces(context, steps)


def take(work: Squares, pieces: list[slice], folder: Path, **more: Any) -> list[int]:
    return run(folder, planned(work, pieces, work.answers, **more))


@pytest.mark.parametrize("full", [np.array([5, 0, 3]), np.array([0.5, 0, 1], np.float32)])
def test_an_answer_that_no_step_gave_is_an_error(full: np.ndarray, tmp_path: Path) -> None:
    answers = {"one": empty_answers(3, full.dtype)}

    def fill(items: slice) -> None:
        answers["one"][items] = full[items]
        answers["one"][1:2] = empty_answers(1, full.dtype)

    with pytest.raises(MiningError, match="1 of 3 entries of one were never filled by the squares"):
        run(tmp_path, planned(fill, cuts(3, 2), answers))


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float32, np.float64])
def test_room_for_answers_holds_none(kind: type, tmp_path: Path) -> None:
    room = empty_answers((3, 2), kind)
    assert room.dtype == kind
    assert is_unanswered(room).tolist() == [[True, True]] * 3
    room[1, 0] = 0
    assert is_unanswered(room).tolist() == [[True, True], [False, True], [True, True]]
    with pytest.raises(MiningError, match="6 of 6 entries of one were never filled"):
        run(tmp_path, planned(lambda items: None, [], {"one": room}))


@pytest.mark.parametrize(
    ("tokens", "pieces"),
    [
        ([], []),
        ([5, 5], [(0, 2)]),
        ([5, 5, 5], [(0, 2), (2, 3)]),
        ([9, 1, 9, 2, 1], [(0, 2), (2, 4), (4, 5)]),  # a piece is what begins within ten
        ([25, 1, 1], [(0, 1), (1, 3)]),
        ([1, 1, 25, 1, 1], [(0, 3), (3, 5)]),
    ],
)
def test_a_piece_is_so_many_tokens_by_the_plan_alone(
    tokens: list[int], pieces: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_file, "PIECE_TOKENS", 10)
    work = planned(None, [slice(2 * n, 2 * n + 2) for n in range(len(tokens))], {})
    found = replace(work, tokens=tokens)
    assert [(one.start, one.stop) for one in found.pieces] == pieces
    items = [found.piece_of(item) for item in range(2 * len(tokens))]
    assert items == [number for number, (first, end) in enumerate(pieces) for _ in range(2 * (end - first))]


@pytest.mark.parametrize("tokens", [1, 10_000, 17_000, 40_000])
def test_pieces_are_cut_halved_and_joined(tokens: int, tmp_path: Path) -> None:
    def work(room: int = 2) -> tuple[Squares, PlannedSteps]:
        squares = Squares(10)
        squares.room = room
        return squares, planned(squares, cuts(10, 3), squares.answers, each=tokens)

    context, workers = RunContext(tmp_path), [work() for _ in range(2)]
    for number in reversed(range(len(workers[0][1].pieces))):
        run_piece(context, workers[number % 2][1], number)
    squares, whole = work(room=0)
    assert join_pieces(context, whole) == [0, 1, 2]  # the last has one item
    assert squares.answers["square"].tolist() == [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    assert squares.asked == []
    (tmp_path / "work/squares-1.safetensors").unlink()
    with pytest.raises(MiningError, match="piece 1 of the squares is missing"):
        join_pieces(context, whole)


def test_pieces_may_fill_different_columns_of_one_row(tmp_path: Path) -> None:
    answers = {"one": empty_answers((2, 3), np.float32), "other": empty_answers(2, np.int64)}

    def fill(items: slice) -> None:
        answers["one"][:, items] = 10 * np.arange(2)[:, None] + np.arange(items.start, items.stop)
        if items.start == 0:
            answers["other"][:] = 7

    run(tmp_path, planned(fill, cuts(3, 1), answers, each=40_000))
    assert answers["one"].tolist() == [[0, 1, 2], [10, 11, 12]]
    assert answers["other"].tolist() == [7, 7]


def test_a_step_that_does_not_fit_is_halved_and_listed(tmp_path: Path) -> None:
    work = Squares(10)
    work.room = 2
    assert take(work, [slice(0, 2), slice(2, 7), slice(7, 9), slice(9, 10)], tmp_path) == [1]
    assert work.answers["square"].tolist() == [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]


def test_a_team_takes_parts_of_a_step(tmp_path: Path) -> None:
    work = Squares(10)
    work.room = 2
    assert take(work, [slice(0, 4), slice(4, 9), slice(9, 10)], tmp_path, team=2) == [1]
    assert work.answers["square"].tolist() == [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    assert sorted(work.asked[:2]) == [(0, 2), (2, 4)]
    assert work.asked[-1] == (9, 10)


def test_one_item_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    work = Squares(2)
    work.room = 0
    with pytest.raises(MiningError, match="memory ran out on one sentence"):
        take(work, cuts(2, 2), tmp_path)


def test_nothing_to_do(tmp_path: Path) -> None:
    assert take(Squares(0), [], tmp_path) == []


def test_packing_by_eye() -> None:
    lengths = np.array([1, 2, 2, 3, 9, 1])
    assert pack(lengths, area=6, rows=10) == [slice(0, 3), slice(3, 4), slice(4, 5), slice(5, 6)]
    assert pack(lengths, area=100, rows=4) == [slice(0, 4), slice(4, 6)]
    apart = np.array([0, 0, 1, 1, 1, 2])
    assert pack(lengths, area=100, rows=9, apart=apart) == [slice(0, 2), slice(2, 5), slice(5, 6)]


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(1, 60), st.integers(1, 8))
def test_packing_keeps_order_and_bounds(lengths: list[int], area: int, rows: int) -> None:
    found = pack(np.array(lengths, np.int64), area=area, rows=rows)
    assert [i for piece in found for i in range(piece.start, piece.stop)] == list(range(len(lengths)))
    for piece in found:
        own = lengths[piece]
        assert len(own) == 1 or (len(own) <= rows and len(own) * max(own) <= area)
    for piece, following in pairwise(found):  # no more batches than it takes
        more = lengths[piece.start : following.start + 1]
        assert len(more) > rows or len(more) * max(more) > area


@given(st.integers(1, 20), st.integers(1, 6), st.integers(0, 3))
def test_parts_cover_all_items_evenly(count: int, parts: int, start: int) -> None:
    cuts = even_parts(slice(start, start + count), parts)
    assert [item for cut in cuts for item in range(cut.start, cut.stop)] == list(range(start, start + count))
    sizes = [cut.stop - cut.start for cut in cuts]
    assert len(cuts) == min(parts, count)
    assert max(sizes) - min(sizes) <= 1
