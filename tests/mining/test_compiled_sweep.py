"""The compiled sweep against PyTorch's, which it must equal to the bit, and against plain Python."""

import json
import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from compiled_functions import require_compiled
from mining.conftest import byte_tokenizer, odd_text, tables_of
from mnemoscope import compiled as library
from mnemoscope.memory import HISTOGRAM_BINS, HISTOGRAM_EDGES
from mnemoscope.mining import compiled_sweep as compiled_module
from mnemoscope.mining import mine
from mnemoscope.mining import observer as observer_module
from mnemoscope.mining.compiled_sweep import CompiledSweep, compiled_sweep
from mnemoscope.mining.observer import Observer, Swept
from mnemoscope.models import load_model
from mnemoscope.tracing import distributions, ranking
from mnemoscope.tracing.readings import compiled_reading
from models.conftest import build
from models.expert_models import build_mixture

CPU = torch.device("cpu")
PLACES = (1, 2, 5, 15, 16, 17, 31, 33, 64, 100, 255, 256, 257, 300, 511, 700, 4097)
"""Around the numbers at which a cascade of sums goes up a level."""


@pytest.fixture
def compiled() -> CompiledSweep:
    return require_compiled(compiled_sweep())


def numbers(rows: int, places: int, memories: int, *, negative: bool = True, seed: int = 0) -> Tensor:
    """Coefficients as they lie in a batch: some zeros of both signs, edges of bins, and columns that lie before."""
    chance = torch.Generator().manual_seed(seed)
    found = torch.randn(rows, places + 2, memories, generator=chance) * torch.exp2(
        torch.randint(-12, 8, (1, 1, memories), generator=chance).float()
    )
    odd = torch.tensor([0.0, -0.0, *HISTOGRAM_EDGES, 1e-42])[torch.randint(38, found.shape, generator=chance)]
    found = torch.where(torch.rand(found.shape, generator=chance) < 0.2, odd, found)
    found[:, :, 0], found[:, :, 1] = -0.0, 1.5
    return (found if negative else found.relu())[:, 2:]


Read = Callable[..., tuple[Swept, Tensor]]


def read(block: Tensor, *, negative: bool, sampled: bool, apart: bool = False) -> tuple[Swept, Tensor]:
    """What an observer reads off a block, with the histogram."""
    observer = Observer()
    swept = observer.sweep(block, negative=negative, sampled=sampled, apart=apart)
    return swept, observer.histogram(block.shape[2], negative=negative or apart, device=CPU)


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> Read:
    def without(block: Tensor, **given: bool) -> tuple[Swept, Tensor]:
        with monkeypatch.context() as patch:
            patch.setattr(observer_module, "compiled_sweep", lambda: None)
            return read(block, **given)

    return without


def assert_same_bits(found: tuple[Swept, Tensor], wanted: tuple[Swept, Tensor]) -> None:
    assert found[1].tolist() == wanted[1].tolist()
    for field in fields(Swept):
        one, other = getattr(found[0], field.name), getattr(wanted[0], field.name)
        if field.name in ("peak_places", "low_places"):
            continue  # only the compiled sweep finds them on its way
        if isinstance(one, Tensor):
            assert (one.dtype, one.shape) == (other.dtype, other.shape), field.name
            assert one.numpy().tobytes() == other.numpy().tobytes(), field.name
        else:
            assert one == other, field.name


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("places", PLACES)
def test_every_bit_is_that_of_pytorch(
    places: int, negative: bool, sampled: bool, compiled: CompiledSweep, by_torch: Read
) -> None:
    for rows, memories in ((3, 64), (1, 512), (2, 832)):
        block = numbers(rows, places, memories, negative=negative, seed=places)
        given = {"negative": negative, "sampled": sampled}
        assert_same_bits(read(block, **given), by_torch(block, **given))


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_read_as_their_float32(
    dtype: torch.dtype, sampled: bool, compiled: CompiledSweep, by_torch: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer_module, "_SLICE", 5000)  # so that what is copied is copied in parts
    block = numbers(7, 40, 64, seed=4).clamp(-60000, 60000).to(dtype)
    found = read(block, negative=True, sampled=sampled)
    assert_same_bits(found, by_torch(block, negative=True, sampled=sampled))
    assert_same_bits(found, read(block.float(), negative=True, sampled=sampled))


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_places_are_the_first_of_peaks_and_lows(
    dtype: torch.dtype, negative: bool, compiled: CompiledSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer_module, "_SLICE", 5000)
    block = numbers(6, 300, 128, negative=negative, seed=7).clamp(-60000, 60000).to(dtype)
    block[:, 40:90] = block[:, 150:200]  # the same numbers again
    swept = read(block, negative=negative, sampled=False)[0]
    assert swept.peak_places is not None
    wide = block.float().numpy()
    assert swept.peak_places.tolist() == wide.argmax(1).tolist()
    if negative:
        assert swept.low_places is not None
        assert swept.low_places.tolist() == wide.argmin(1).tolist()
    else:
        assert swept.low_places is None


def test_rows_of_several_experts(compiled: CompiledSweep, by_torch: Read) -> None:
    block = numbers(5, 21, 128, seed=2)
    given = {"negative": False, "sampled": True, "apart": True}
    assert_same_bits(read(block, **given), by_torch(block, **given))


def test_the_same_as_in_plain_python(compiled: CompiledSweep) -> None:
    block = numbers(2, 37, 64, seed=9)
    swept, counts = read(block, negative=True, sampled=True)
    assert swept.lows is not None
    assert swept.squares is not None
    assert swept.peak_places is not None
    assert swept.low_places is not None
    for memory in range(64):
        rows = block[:, :, memory].tolist()
        assert swept.peaks[:, memory].tolist() == [max(row) for row in rows]
        assert swept.peak_places[:, memory].tolist() == [row.index(max(row)) for row in rows]
        assert swept.low_places[:, memory].tolist() == [row.index(min(row)) for row in rows]
        assert swept.lows[:, memory].tolist() == [min(row) for row in rows]
        assert swept.least[memory] == min(map(min, rows))
        assert swept.fired[:, memory].tolist() == [sum(number > 0 for number in row) for row in rows]
        sizes = [math.fsum(map(abs, row)) for row in rows]
        for row, size, total, squares in zip(
            rows, sizes, swept.sums[:, memory].tolist(), swept.squares[:, memory].tolist(), strict=True
        ):
            assert total == pytest.approx(math.fsum(row), abs=1e-14 * size + 1e-300)
            assert squares == pytest.approx(math.fsum(number * number for number in row), rel=1e-14)
        bins = [0] * HISTOGRAM_BINS
        for number in (number for row in rows for number in row):
            bins[bisect_right(HISTOGRAM_EDGES, number)] += 1
        assert counts[memory].tolist() == bins


def test_more_positions_of_one_bin_than_a_counter_holds(compiled: CompiledSweep) -> None:
    block = torch.full((2, 70_000, 64), 3.0)
    block[0, :9, 5] = -0.25
    swept, counts = read(block, negative=True, sampled=True)
    assert counts[5, bisect_right(HISTOGRAM_EDGES, 3.0)] == 140_000 - 9
    assert counts[5, bisect_right(HISTOGRAM_EDGES, -0.25)] == 9
    assert counts.sum(1).tolist() == [140_000] * 64
    assert swept.fired[:, 5].tolist() == [70_000 - 9, 70_000]


def test_what_is_not_a_number_shows_in_the_sums(compiled: CompiledSweep) -> None:
    for strange in (math.nan, math.inf, -math.inf):
        for sampled in (False, True):
            block = numbers(3, 20, 64, seed=1)
            block[1, 7, 3] = strange
            sums = read(block, negative=True, sampled=sampled)[0].sums
            assert torch.isfinite(sums).logical_not().nonzero().tolist() == [[1, 3]]


def test_what_does_not_fit_is_pytorchs(compiled: CompiledSweep, by_torch: Read) -> None:
    assert not compiled.fits(96, CPU)
    assert not compiled.fits(64, torch.device("meta"))
    assert not compiled.reads(torch.float16)
    block = numbers(3, 20, 96, seed=1)
    assert_same_bits(read(block, negative=True, sampled=True), by_torch(block, negative=True, sampled=True))


def test_what_would_be_written_elsewhere_is_refused(compiled: CompiledSweep) -> None:
    block, counts = numbers(2, 3, 64), torch.zeros(64, HISTOGRAM_BINS, dtype=torch.int64)
    for wrong in (block[:, :0], block[:0], block[:, :, :63], block.half(), block.to("meta")):
        with pytest.raises(ValueError, match="cannot be measured"):
            compiled.count(wrong, counts)
    for room in (counts.int(), counts[:8], counts.T.contiguous().T):
        with pytest.raises(ValueError, match="no room"):
            compiled.count(block, room)
    assert not counts.any()
    compiled.count(block.transpose(0, 2).contiguous().transpose(0, 2), counts)
    assert counts.sum() == block.numel()


def test_a_library_that_is_no_library_or_counts_otherwise_is_left_alone(
    compiled: CompiledSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spec:
        origin = str(tmp_path / "broken.so")

    Path(Spec.origin).write_bytes(b"\x7fELF garbage")
    for found in (Spec, None):
        monkeypatch.setattr(library, "find_spec", lambda _, found=found: found)
        assert library._library.__wrapped__() is None
    monkeypatch.undo()
    assert compiled_sweep.__wrapped__() is not None
    assert compiled_reading.__wrapped__() is not None
    monkeypatch.setattr(compiled_module.CompiledSweep, "count", lambda self, block, counts: counts.add_(1))
    assert compiled_sweep.__wrapped__() is None
    for module, name, otherwise in (
        (ranking, "_rank", lambda scores, tokens, _: tokens),
        (distributions, "_measure", lambda scores: distributions.Distribution(*(scores.new_ones(len(scores)),) * 3)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, otherwise)
            assert compiled_reading.__wrapped__() is None
    for older in (None, object()):
        monkeypatch.setattr(library, "_library", lambda older=older: older)
        assert compiled_sweep.__wrapped__() is None
        assert compiled_reading.__wrapped__() is None


WIDE = {
    "gpt2": lambda: build("gpt2", n_inner=128),
    "gpt2-relu": lambda: build("gpt2-relu", n_inner=64),
    "mixtral": lambda: build_mixture("mixtral", intermediate_size=64),
}


@pytest.mark.parametrize("name", WIDE)
def test_an_atlas_does_not_depend_on_it(
    name: str, compiled: CompiledSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(WIDE[name](), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    (tmp_path / "text.txt").write_text(odd_text())
    options: dict[str, Any] = {"split": "line", "triggers": 5, "batch_tokens": 60}
    measured = Counted(compiled.measure)
    monkeypatch.setattr(compiled, "measure", measured)
    with_it = mine(model, tmp_path / "text.txt", out=tmp_path / "with", **options)
    calls = measured.calls
    assert calls
    assert json.loads((with_it / "run.json").read_text())["compiled_sweep"]
    monkeypatch.setattr(observer_module, "compiled_sweep", lambda: None)
    without = mine(model, tmp_path / "text.txt", out=tmp_path / "without", **options)
    assert measured.calls == calls
    assert tables_of(with_it) == tables_of(without)


class Counted:
    """A function that counts how often it is called."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function, self.calls = function, 0

    def __call__(self, *given: Any, **named: Any) -> None:
        self.calls += 1
        self._function(*given, **named)
