"""Threads that run one model side by side: they find what one thread finds, and none sees another's forward."""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Barrier, get_ident
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.utils import logging

from mining.conftest import odd_text, spoil, tables_of, tiny_model
from mining.equal_atlases import assert_equal_atlases
from mnemoscope.errors import NotFinite
from mnemoscope.mining import mine
from mnemoscope.mining.text import batch_reader, thread_team
from mnemoscope.mining.text.batches import Batch
from mnemoscope.mining.text.blocks import Places
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.mining.text.thread_team import ThreadTeam, runs_side_by_side
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.hooks import read_blocks, read_coefficients
from mnemoscope.models.modules.quiet import suppress_warnings
from support.mined import mined_text

OPTIONS: dict[str, Any] = {"split": "line", "triggers": 5, "batch_tokens": 60, "removals": 4}


@pytest.fixture(autouse=True)
def cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def lines_of_letters() -> str:
    """Lines of 2 to 14 letters; few prefixes are there twice, so few triggers are tied."""
    draw = random.Random(0)
    return "\n".join("".join(draw.choices("abcdefgh ", k=draw.randint(2, 14))).strip() or "a" for _ in range(70))


def meet(together: Barrier, found: list[tuple[int, int]]) -> None:
    together.wait(20)  # so both are running
    found.append((get_ident(), torch.get_num_threads()))


def test_tasks_run_at_the_same_time_with_their_share_of_the_cores() -> None:
    torch.set_num_threads(4)
    team, found, together = ThreadTeam(2), [], Barrier(2)
    for _ in range(2):
        team.run([partial(meet, together, found)] * 2)
        assert torch.get_num_threads() == 4
    assert ({cores for _, cores in found}, len({thread for thread, _ in found})) == ({2}, 2)
    assert get_ident() not in {thread for thread, _ in found}
    ThreadTeam(1).run([lambda: found.append((get_ident(), torch.get_num_threads()))])
    assert found[-1] == (get_ident(), 4)


def test_an_error_waits_for_the_others() -> None:
    ended: list[int] = []

    def fail() -> None:
        raise MemoryError("no room")

    def go_on() -> None:
        torch.ones(2_000_000).cumsum(0)
        ended.append(1)

    with pytest.raises(MemoryError, match="no room"):
        ThreadTeam(2).run([fail, go_on])
    assert ended == [1]
    assert torch.get_num_threads() == 3


def mined(folder: Path, name: str, size: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Path:
    """An atlas that a team of so many made."""
    teams: list[int] = []

    def team_of(model: LanguageModel) -> ThreadTeam:
        teams.append(size)
        return ThreadTeam(size)

    monkeypatch.setattr(ThreadTeam, "of", team_of)
    (folder / "text.txt").write_text(lines_of_letters())
    made = mine(tiny_model(name), folder / "text.txt", out=folder / f"by-{size}", **OPTIONS, **options)
    assert teams == [size] * 5  # text, scales, removals, predictions, attention
    return made


@pytest.mark.full
@pytest.mark.parametrize(("name", "per_sentence"), [("gpt2-relu", "1"), ("llama", "all"), ("opt", "1")])
def test_what_three_threads_find_is_what_one_finds(
    name: str, per_sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To rounding: matrices of a few rows are multiplied in another order of sums than those of many."""
    one, three = (mined(tmp_path, name, size, monkeypatch, per_sentence=per_sentence) for size in (1, 3))
    assert_equal_atlases(one, three)


@pytest.mark.full
def test_the_same_bytes_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tables_of(mined(tmp_path, "gpt2", 3, monkeypatch))
    assert tables_of(mined(tmp_path, "gpt2", 3, monkeypatch, force=True)) == first


@pytest.mark.full
def test_memory_that_runs_out_in_one_thread_halves_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text(odd_text())
    model = tiny_model("gpt2")
    whole = mine(model, tmp_path / "text.txt", out=tmp_path / "whole", **OPTIONS)
    split, second, failed = Batch.split, list[Batch](), list[int]()

    def note_second(self: Batch, parts: int) -> list[Batch]:
        shares = split(self, parts)
        second.extend(shares[1:2])
        return shares

    def fail_thrice(share: Batch, *more: Any) -> Places:
        if len(share.lengths) > 1 and len(failed) < 3 and any(share is one for one in second):
            failed.append(len(share.lengths))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Places(share, *more)

    monkeypatch.setattr(Batch, "split", note_second)
    monkeypatch.setattr(batch_reader, "Places", fail_thrice)
    assert_equal_atlases(whole, mine(model, tmp_path / "text.txt", out=tmp_path / "halved", **OPTIONS))
    assert len(failed) == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("another error")])
def test_a_batch_that_fails_is_not_counted_at_all(error: Any) -> None:
    model = tiny_model("gpt2")
    batches = []
    for number in range(2):
        ids = torch.randint(1, 200, (6, 9), generator=torch.Generator().manual_seed(number))
        batches.append(Batch(ids, np.array([3, 3, 5, 5, 5, 8]), torch.arange(6) + 6 * number, sampled=True))

    def read(state: MiningState, fails: bool) -> dict[str, Tensor]:
        reader = batch_reader.BatchReader(model, state)
        reader.read(batches[0])
        if fails:
            before = {name: tensor.clone() for name, tensor in state.tensors().items()}
            with model.layer(1).block.register_forward_pre_hook(fail), pytest.raises((KeyboardInterrupt, RuntimeError)):
                reader.read(batches[1])
            assert all(torch.equal(tensor, before[name]) for name, tensor in state.tensors().items())
        reader.read(batches[1])
        return state.tensors()

    def fail(*_: Any) -> None:
        raise error

    shape = StateShape.of(model, keep=3, random=0)
    undisturbed, disturbed = (read(MiningState(shape), fails) for fails in (False, True))
    assert all(torch.equal(tensor, disturbed[name]) for name, tensor in undisturbed.items())


def test_what_is_not_finite_is_found_in_any_share(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    spoil(model)
    with pytest.raises(NotFinite, match=r"layer 1 .* sentence"):
        mined_text(model, tmp_path, odd_text(), **OPTIONS)


def test_a_thread_sees_its_own_forwards_alone() -> None:
    model, together = tiny_model("opt"), Barrier(2)  # whose blocks flatten [batch, position]
    shapes: dict[int, list[tuple[int, ...]]] = {4: [], 7: []}

    def look(width: int) -> None:
        def note(layer: int, seen: Any) -> None:
            shapes[width].append(tuple((seen if isinstance(seen, Tensor) else seen.coefficients).shape[:2]))

        with read_coefficients(model, note, own_thread=True), read_blocks(model, note, own_thread=True):
            for _ in range(3):
                together.wait(20)
                model.backbone(torch.ones(2, width, dtype=torch.long))
                model.backbone(torch.ones(2, width, dtype=torch.long), stop_after=0)

    ThreadTeam(2).run([partial(look, 4), partial(look, 7)])
    layers = model.sizes.layers
    for width, seen in shapes.items():
        assert seen == [(2, width)] * (3 * (2 * layers + 1))


def test_hooks_see_all_threads_where_nothing_else_is_asked() -> None:
    model, seen = tiny_model("gpt2"), []
    with read_coefficients(model, lambda layer, coefficients: seen.append(layer)):
        ThreadTeam(2).run([lambda: model.backbone(torch.ones(1, 3, dtype=torch.long)), lambda: None])
    assert seen == list(range(model.sizes.layers))


def test_the_library_is_quiet_until_the_last_thread_leaves() -> None:
    before = logging.get_verbosity()
    first, second = Barrier(2), Barrier(2)

    def early() -> None:
        with suppress_warnings():
            first.wait(20)
        second.wait(20)

    def late() -> None:
        first.wait(20)
        with suppress_warnings():
            second.wait(20)
            assert logging.get_verbosity() == logging.ERROR

    ThreadTeam(2).run([early, late])
    assert logging.get_verbosity() == before


class Stranger(nn.Identity):
    """A module of code that nobody here knows."""


def test_a_model_that_could_keep_something_of_a_forward_is_run_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2")
    assert runs_side_by_side(model)
    assert ThreadTeam.of(model).size == 3
    torch.set_num_threads(12)
    assert ThreadTeam.of(model).size == 8  # a part of every promise of bytes: another number shares rows out otherwise
    monkeypatch.setattr(thread_team, "MOST", 2)
    assert ThreadTeam.of(model).size == 2
    down = model.layer(0).ffn.down.module
    down.add_module("extra", Stranger())
    assert ThreadTeam.of(model).size == 1
    del down.extra
    down._hf_hook = object()  # what accelerate leaves on modules whose weights it fetches
    assert ThreadTeam.of(model).size == 1
    del down._hf_hook
    down.rope_type = {"full_attention": "default", "sliding_attention": "longrope"}
    assert ThreadTeam.of(model).size == 1
    del down.rope_type
    assert ThreadTeam.of(model).size == 2


@pytest.mark.parametrize("kept", ["attribute", "buffer"])
def test_a_model_that_keeps_something_of_each_forward_is_run_by_one_thread(kept: str) -> None:
    model = tiny_model("gpt2")

    def keep(module: nn.Module, taken: tuple[Tensor, ...]) -> None:
        if kept == "attribute":
            module.last = taken[0].sum()  # as layers with a recurrent state do
        else:
            module.register_buffer("last", taken[0].sum(), persistent=False)

    model.layer(1).block.register_forward_pre_hook(keep)
    assert not runs_side_by_side(model)
    assert ThreadTeam.of(model).size == 1
