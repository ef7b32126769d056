"""Work in numbered steps: what is saved is not done again, what does not fit is halved, batches keep their bounds."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from mnemoscope.errors import MiningError
from mnemoscope.foundation.files import write_bytes
from mnemoscope.mining.steps import (
    Answers,
    PlannedSteps,
    RunContext,
    digest,
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
        self.stop_at: int | None = None

    def __call__(self, items: slice) -> None:
        self.asked.append((items.start, items.stop))
        if items.stop - items.start > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if self.stop_at is not None and items.start >= self.stop_at:
            raise KeyboardInterrupt
        self.answers["square"][items] = np.arange(items.start, items.stop) ** 2


def cuts(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def planned(step: Any, pieces: Any, answers: Answers, *, inputs: str = "these", team: int = 1) -> PlannedSteps:
    return PlannedSteps(step, pieces, answers, stage="squares", unit="items", inputs=inputs, team=ThreadTeam(team))


def run(folder: Path, steps: PlannedSteps) -> list[int]:
    context = RunContext(folder, checkpoint_every=0)
    run_piece(context, steps)
    return join_pieces(context, steps)


def take(work: Squares, pieces: list[slice], folder: Path, **more: Any) -> list[int]:
    return run(folder, planned(work, pieces, work.answers, **more))


def test_what_was_saved_is_not_done_again(tmp_path: Path) -> None:
    first, second = Squares(10), Squares(10)
    first.stop_at = 6
    with pytest.raises(KeyboardInterrupt):
        take(first, cuts(10, 3), tmp_path)
    assert (take(second, cuts(10, 3), tmp_path), second.asked) == ([], [(6, 9), (9, 10)])
    assert second.answers["square"].tolist() == [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    third = Squares(10)
    take(third, cuts(10, 3), tmp_path)
    assert third.asked == []
    assert third.answers["square"].tolist() == second.answers["square"].tolist()


@pytest.mark.parametrize("foreign", [b"", b"garbage", None])
def test_a_checkpoint_of_something_else_is_not_believed(foreign: bytes | None, tmp_path: Path) -> None:
    if foreign is None:
        take(Squares(4), cuts(4, 2), tmp_path)
    else:
        write_bytes(tmp_path / "work" / "squares-1-of-1.safetensors", foreign)
    work = Squares(10)
    take(work, cuts(10, 5), tmp_path)
    assert (work.asked, work.answers["square"][9]) == ([(0, 5), (5, 10)], 81)


def test_a_checkpoint_of_other_inputs_is_not_believed(tmp_path: Path) -> None:
    take(Squares(4), cuts(4, 2), tmp_path)
    again, others = Squares(4), Squares(4)
    take(again, cuts(4, 2), tmp_path)
    take(others, cuts(4, 2), tmp_path, inputs="others")
    assert (again.asked, others.asked) == ([], [(0, 2), (2, 4)])


@pytest.mark.parametrize("full", [np.array([5, 0, 3]), np.array([0.5, 0, 1], np.float32)])
def test_an_answer_that_no_step_gave_is_an_error(full: np.ndarray, tmp_path: Path) -> None:
    answers = {"one": empty_answers(3, full.dtype)}
    for _ in range(2):  # the checkpoint is forgotten, so that it does not say so for ever
        asked: list[slice] = []

        def fill(items: slice, asked: list[slice] = asked) -> None:
            asked.append(items)
            answers["one"][items] = full[items]
            answers["one"][1:2] = empty_answers(1, full.dtype)

        with pytest.raises(MiningError, match="1 of 3 entries of one were never filled"):
            run(tmp_path, planned(fill, cuts(3, 2), answers))
        assert asked == [slice(0, 2), slice(2, 3)]
        assert list((tmp_path / "work").iterdir()) == []


def test_the_digest_of_inputs_tells_values_shapes_and_kinds_apart() -> None:
    whole = np.arange(6)
    others = [(whole.reshape(2, 3),), (whole.astype(np.int32),), (whole[:3], whole[3:]), (whole + 1,), ("0", whole)]
    assert digest(whole) == digest(np.arange(6))
    assert len({digest(whole), *(digest(*parts) for parts in others)}) == 6


def test_every_step_is_saved_before_the_next_where_no_time_may_be_lost(tmp_path: Path) -> None:
    """Also from a stop that nothing can catch."""
    work, saved = Squares(6), []

    def look(items: slice) -> None:
        path = tmp_path / "work" / "squares-1-of-1.safetensors"
        saved.append(load_file(path)["square"].tolist() if path.is_file() else [])
        work(items)

    run(tmp_path, planned(look, cuts(6, 2), work.answers))
    assert saved == [[], [0, 1], [0, 1, 4, 9]]


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float32, np.float64])
def test_room_for_answers_holds_none(kind: type, tmp_path: Path) -> None:
    room = empty_answers((3, 2), kind)
    assert room.dtype == kind
    assert is_unanswered(room).tolist() == [[True, True]] * 3
    room[1, 0] = 0
    assert is_unanswered(room).tolist() == [[True, True], [False, True], [True, True]]
    with pytest.raises(MiningError, match="6 of 6 entries of one were never filled"):
        run(tmp_path, planned(lambda items: None, [], {"one": room}))


@pytest.mark.parametrize("of", [1, 2, 3, 4, 9])
def test_pieces_are_cut_halved_and_joined(of: int, tmp_path: Path) -> None:
    def work(room: int = 2, inputs: str = "these") -> tuple[Squares, PlannedSteps]:
        squares = Squares(10)
        squares.room = room
        return squares, planned(squares, cuts(10, 3), squares.answers, inputs=inputs)

    context, workers = RunContext(tmp_path), [work() for _ in range(2)]
    for number in reversed(range(of)):
        run_piece(context, workers[number % 2][1], number, of=of)
    squares, whole = work(room=0)
    assert join_pieces(context, whole, of=of) == [0, 1, 2]  # the last has one item
    assert squares.answers["square"].tolist() == [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    for number in range(of):
        run_piece(context, whole, number, of=of)
    assert squares.asked == []
    other, steps = work(inputs="others")
    run_piece(context, steps, 0, of=of)
    assert (other.asked != []) == (4 // of > 0)
    with pytest.raises(MiningError, match=f"piece 1 of {of} of the squares is missing"):
        join_pieces(context, whole, of=of)


def test_a_step_that_does_not_fit_is_halved_and_listed(tmp_path: Path) -> None:
    work = Squares(10)
    work.room = 2
    assert take(work, [slice(0, 2), slice(2, 7), slice(7, 9), slice(9, 10)], tmp_path) == [1]
    assert work.answers["square"].tolist() == [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    assert take(Squares(10), [slice(0, 2), slice(2, 7), slice(7, 9), slice(9, 10)], tmp_path) == [1], "forgotten"


def test_a_team_takes_parts_of_a_step(tmp_path: Path) -> None:
    work = Squares(10)
    work.room = 2
    assert take(work, [slice(0, 4), slice(4, 9), slice(9, 10)], tmp_path, team=2) == [1]
    assert work.answers["square"].tolist() == [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    assert sorted(work.asked[:2]) == [(0, 2), (2, 4)]
    assert work.asked[-1] == (9, 10)


def test_an_error_in_a_part_of_a_step_leaves_the_step_undone(tmp_path: Path) -> None:
    first, second = Squares(10), Squares(10)
    first.stop_at = 7
    with pytest.raises(KeyboardInterrupt):
        take(first, cuts(10, 5), tmp_path, team=2)
    assert take(second, cuts(10, 5), tmp_path, team=2) == []
    assert (sorted(second.asked), second.answers["square"][7]) == ([(5, 7), (7, 10)], 49)


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
