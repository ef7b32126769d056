"""What a graphics card measures, computed by Triton's interpreter on the CPU; and compiled, which needs no card either.

Triton comes with PyTorch for cards and is none of the tests' own packages: .ci/run has a part for them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mining.conftest import odd_text, spoil, tables_of, tiny_model
from mining.test_accumulators import MEMORIES, POSITIONS, SIGNS, ids_of, oracle, rows, streams
from mnemoscope.errors import Interrupted, NotFinite
from mnemoscope.foundation.memory_names import HISTOGRAM_EDGES
from mnemoscope.kernels import choose as card
from mnemoscope.kernels import devices as host
from mnemoscope.kernels.reference import count_bins
from mnemoscope.mining import mine
from mnemoscope.mining.text import batch_reader, triggers
from mnemoscope.mining.text.batches import Batch
from mnemoscope.mining.text.exact_sums import value_of
from mnemoscope.mining.text.measures import Measures
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.mining.text.thread_team import ThreadTeam
from mnemoscope.mining.text.triggers import Triggers
from support.mined import mined_text
from support.waits import Watch

pytest.importorskip("triton")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def kernels() -> Iterator[card.CardKernels]:
    """Those of a card, interpreted: few programs, so that each has several rows."""
    with pytest.MonkeyPatch.context() as patch:
        from mnemoscope.kernels import cards as triton_kernels

        patch.setattr(card, "PROGRAMS", 2)
        patch.setattr(card, "CHOSEN", 32)
        patch.setattr(card, "ROWS", 8)
        patch.setattr(card, "RANKED", 4)
        interpreted = card.CardKernels(triton_kernels)
        patch.setattr(triggers, "card_kernels", lambda device: interpreted)
        yield interpreted


@pytest.fixture
def on_card(kernels: card.CardKernels, one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_reader, "card_kernels", lambda device: kernels)
    monkeypatch.setattr(batch_reader, "may_look", lambda device: False)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadTeam, "of", classmethod(lambda cls, model: cls(1)))


FEW_LINES = "".join(odd_text().splitlines(keepends=True)[:8])


def of_rows(lengths: list[int], ids: torch.Tensor, *, first: int = 0) -> card.BatchRows:
    return card.BatchRows.of(torch.tensor(lengths), ids, positions=sum(lengths), first=first)


def take(triggers: Triggers, kernels: card.CardKernels, block: torch.Tensor, own: card.BatchRows) -> None:
    """Measures a block as on a card, and counts its best."""
    thresholds = {sign: threshold for sign, _, threshold in triggers.by_sign()}
    _, best = kernels.measure(block, own, thresholds, keep=triggers.keep, sampled=False)
    triggers.update(Measures(candidates=[best]))


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(streams(), st.integers(0, 5))
def test_the_best_are_what_sorting_everything_gives(kernels: card.CardKernels, stream: Any, seed: int) -> None:
    keep, batches = stream
    ids, found = ids_of(batches, seed), Triggers(MEMORIES, keep, SIGNS)
    for block, sentences in zip(batches, ids, strict=True):
        take(found, kernels, block, of_rows([POSITIONS] * len(block), sentences))
    assert rows(found) == oracle(keep, batches, ids, all_=False)


@pytest.mark.parametrize("spread", [1.0, 40.0])
def test_more_rows_than_are_kept_with_ties_among_the_last(kernels: card.CardKernels, spread: float) -> None:
    generator = torch.Generator().manual_seed(3)
    blocks = [(torch.randn(23, POSITIONS, MEMORIES, generator=generator) * spread).round() for _ in range(3)]
    ids = list(torch.randperm(69, generator=generator).split(23))
    for keep in (1, 9, 22):
        found = Triggers(MEMORIES, keep, SIGNS)
        for block, sentences in zip(blocks, ids, strict=True):
            take(found, kernels, block, of_rows([POSITIONS] * 23, sentences, first=2))
        assert rows(found) == oracle(keep, blocks, ids, all_=False, first=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("negative", [True, False])
def test_what_is_read_off_rows_of_all_lengths(kernels: card.CardKernels, dtype: torch.dtype, negative: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    lengths = [0, 1, 1, 3, 6, 6]
    scales = torch.exp2(torch.randint(-14, 9, (6, 7, 11), generator=generator))
    block = torch.randn(6, 7, 11, generator=generator) * scales
    block.view(-1)[: len(HISTOGRAM_EDGES)] = torch.tensor(HISTOGRAM_EDGES)
    block[4, 1] = -0.0
    block = (block if negative else block.relu()).to(dtype)
    inside = torch.arange(6)[None, :, None] < torch.tensor(lengths)[:, None, None]
    own, ids = block[:, 1:].float(), torch.arange(6)
    peaks, sums = kernels.sweep(block[:, 1:], of_rows(lengths, ids), negative=negative, sampled=True)
    high, low = own.masked_fill(~inside, -torch.inf), own.masked_fill(~inside, torch.inf)
    assert torch.equal(peaks[1][0], high.amax(1))
    assert torch.equal(peaks[1][1][1:], high.argmax(1)[1:].int())
    assert set(peaks) == ({1, -1} if negative else {1})
    if negative:
        assert torch.equal(peaks[-1][0], low.amin(1))
        assert torch.equal(peaks[-1][1][1:], low.argmin(1)[1:].int())
    assert sums.positions == sum(lengths)
    assert torch.equal(sums.greatest, high.amax((0, 1)))
    assert torch.equal(sums.least, low.amin((0, 1)))
    assert torch.equal(sums.positive, (high > 0).sum((0, 1)))
    wide = own.double().masked_fill(~inside, 0.0)
    assert sums.squares is not None
    assert sums.histogram is not None
    torch.testing.assert_close(sums.total, wide.sum((0, 1)), rtol=1e-12, atol=0)
    torch.testing.assert_close(sums.squares, wide.square().sum((0, 1)), rtol=1e-12, atol=0)
    assert torch.equal(sums.histogram, count_bins(own[inside[..., 0]][None]))
    _, plain = kernels.sweep(block[:, 1:], of_rows(lengths, ids), negative=negative, sampled=False)
    assert (plain.squares, plain.histogram) == (None, None)
    torch.testing.assert_close(plain.total, wide.sum((0, 1)), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("name", ["gpt2-relu", "llama"])
@pytest.mark.usefixtures("one_thread")
def test_mining_finds_what_pytorch_finds(name: str, kernels: card.CardKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but sums, whose order is another."""
    found = []
    for measured_by in (None, kernels):
        monkeypatch.setattr(batch_reader, "card_kernels", lambda device, own=measured_by: own)
        found.append(read_batches(tiny_model(name), keep=3))
    own, others = found
    for key, tensor in own.items():
        if key.rpartition("/")[2] in ("total", "sampled_total", "squares"):
            torch.testing.assert_close(value_of(tensor), value_of(others[key]), rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(tensor, others[key]), key


@pytest.mark.usefixtures("on_card")
def test_every_position_of_a_sentence_is_pytorch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_batches(tiny_model("gpt2"), keep=3, everywhere=True)
    monkeypatch.setattr(batch_reader, "card_kernels", lambda device: None)
    others = read_batches(tiny_model("gpt2"), keep=3, everywhere=True)
    assert [name for name in found if not torch.equal(found[name], others[name])] == []


def read_batches(model: Any, *, keep: int, everywhere: bool = False) -> dict[str, torch.Tensor]:
    """The state after some batches, of which every other one is sampled."""
    state = MiningState(StateShape.of(model, keep=keep))
    reader = batch_reader.BatchReader(model, state, everywhere=everywhere)
    for number in range(3):
        generator = torch.Generator().manual_seed(number)
        lengths = np.sort(torch.randint(1, 9, (9,), generator=generator).numpy())
        ids = torch.randint(1, 200, (9, int(lengths[-1]) + model.reading.offset), generator=generator)
        reader.read(Batch(ids, lengths, torch.randperm(9, generator=generator) + 9 * number, number % 2 == 0))
    reader.check()
    return {name: tensor.clone() for name, tensor in state.tensors().items()}


@pytest.mark.usefixtures("on_card")
def test_a_run_that_is_stopped_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text(FEW_LINES)
    options: dict[str, Any] = {"split": "line", "triggers": 4, "batch_tokens": 60, "checkpoint_every": 0.0}
    whole = tables_of(mine(tiny_model("gpt2"), tmp_path / "text.txt", out=tmp_path / "whole", **options))
    read = batch_reader.BatchReader.read
    taken: list[Batch] = []

    def read_some(self: batch_reader.BatchReader, batch: Batch) -> bool:
        if len(taken) == 2:
            raise KeyboardInterrupt
        taken.append(batch)
        return read(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(batch_reader.BatchReader, "read", read_some)
        with pytest.raises(Interrupted):
            mine(tiny_model("gpt2"), tmp_path / "text.txt", out=tmp_path / "stopped", **options)
    again = tables_of(mine(tiny_model("gpt2"), tmp_path / "text.txt", out=tmp_path / "stopped", **options))
    assert again == whole


@pytest.mark.usefixtures("on_card")
def test_a_number_that_is_not_finite_is_found_and_nothing_of_it_is_saved(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    spoil(model)
    with pytest.raises(NotFinite, match=r"layer 1 .* sentence"):
        mined_text(model, tmp_path, FEW_LINES, triggers=5, batch_tokens=60, checkpoint_every=0.0)
    assert not (tmp_path / "atlas" / "work" / "state.safetensors").exists()


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.usefixtures("on_card")
def test_nothing_is_waited_for(sampled: bool) -> None:
    """But for the interpreter's own looks, which are no operations of PyTorch, and one look in sixteen batches."""
    model = tiny_model("gpt2")
    state = MiningState(StateShape.of(model, keep=3))
    reader = batch_reader.BatchReader(model, state)
    watch, alone = Watch(), Watch()
    for number in range(4):
        ids = torch.randint(1, 200, (6, 9), generator=torch.Generator().manual_seed(number))
        batch = Batch(ids, np.array([3, 3, 5, 5, 5, 8]), torch.arange(6) + 6 * number, sampled)
        with watch:
            reader.read(batch)
        with alone:
            model.backbone(ids, stop_after=reader.layers[-1])
    assert watch.waited == alone.waited  # for what transformers' own forward asks
    assert state.triggers[0].magnitude.any()


def test_kernels_that_do_something_else_are_not_taken(kernels: card.CardKernels, monkeypatch: Any) -> None:
    assert card.agrees_with_pytorch(kernels, CPU)
    from mnemoscope.kernels import cards as real

    class Launched:
        """A kernel that leaves what it should write as it is."""

        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **named: None

    for idle in ("sweep_rows", "choose_best", "merge_best"):
        names = ("sweep_rows", "choose_best", "merge_best")
        others = {name: Launched() if name == idle else getattr(real, name) for name in names}
        monkeypatch.setattr(torch, "empty", torch.zeros)
        assert not card.agrees_with_pytorch(card.CardKernels(SimpleNamespace(**others)), CPU), idle


def test_where_there_is_no_card_or_no_triton_pytorch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert card.card_kernels(CPU) is None
    assert card.card_kernels(torch.device("cuda:7")) is None, "of a card that is not there nothing can be asked"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some Card")
    assert host.device_name(torch.device("cuda:7")) == "Some Card"
    monkeypatch.setattr(host, "card_kernels", lambda device: object())
    assert host.device_name(torch.device("cuda:7")) == "Some Card Triton"


def test_more_triggers_than_a_program_ranks_and_other_formats_are_pytorch_s() -> None:
    assert card.CardKernels.fit(50, torch.bfloat16)
    assert not card.CardKernels.fit(1000, torch.bfloat16)
    assert not card.CardKernels.fit(50, torch.float64)


COMPILE = """
import json
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from mnemoscope.kernels import cards as kernels

KINDS = {"block": "*bf16", "sentences": "*i64", "sums": "*fp64", "squares": "*fp64"}
FLOATS = ("peaks", "lows", "greatest", "least", "threshold")
NUMBERS = ("row_stride", "place_stride", "rows", "groups", "memories", "keep", "first")

def kind(name):
    if name in KINDS: return KINDS[name]
    if name in NUMBERS: return "i32"
    if name in FLOATS or name.endswith("magnitude"): return "*fp32"
    return "*i64" if name.endswith("sentence") else "*i32"

made = {}
for name, constants in {
    "sweep_rows": {"NEGATIVE": True, "SAMPLED": True, "ZERO": 18, "BLOCK": 512},
    "choose_best": {"SIGN": -1, "ROWS": 128, "BLOCK": 8},
    "merge_best": {"WIDTH": 64, "CHUNK": 16},
}.items():
    kernel = getattr(kernels, name)
    signature = {a: "constexpr" if a in constants else kind(a) for a in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    made[name] = len(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"])
print(json.dumps(made))
"""


def test_the_kernels_compile_for_a_card(tmp_path: Path) -> None:
    """The interpreter takes more than the compiler does."""
    surroundings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    surroundings |= {"TRITON_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=surroundings, timeout=200)
    assert ran.returncode == 0, ran.stderr
    made = json.loads(ran.stdout)
    assert set(made) == {"sweep_rows", "choose_best", "merge_best"}
    assert min(made.values()) > 1000
