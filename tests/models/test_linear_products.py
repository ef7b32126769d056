"""Products by oneDNN where they are faster: equal to those in float64 up to rounding; PyTorch's own everywhere else."""

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, pytorch_utils

import mnemoscope as ms
from mnemoscope.models import linear_products
from mnemoscope.models.linear_products import faster_product, use_faster_products, write_product
from mnemoscope.models.projections import LinearHead, room_for_scores

Choose = Callable[..., None]


@pytest.fixture
def on_processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Choose]:
    """Says who made the processor, and what it can do."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkl.is_available():
        pytest.skip("PyTorch was built without one of the two libraries")

    def choose(name: str, instructions: str = "AVX512") -> None:
        monkeypatch.setattr(linear_products, "vendor", lambda: name)
        monkeypatch.setattr(linear_products, "instructions", lambda: instructions)
        faster_product.cache_clear()

    yield choose
    faster_product.cache_clear()


@pytest.fixture
def products(on_processor: Choose, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the rows of all products that oneDNN makes from here on."""
    on_processor("AuthenticAMD")
    made, own = list[tuple[int, ...]](), linear_products._by_onednn

    def note(rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        made.append(tuple(rows.shape))
        return own(rows, matrix, bias)

    monkeypatch.setattr(linear_products, "_by_onednn", note)
    assert faster_product() is note
    made.clear()
    return made


def maps() -> list[nn.Module]:
    torch.manual_seed(0)
    conv = pytorch_utils.Conv1D(96, 64)
    nn.init.normal_(conv.bias)
    return [nn.Linear(64, 96), nn.Linear(64, 96, bias=False), conv]


def exact(module: nn.Module, rows: Tensor) -> Tensor:
    """What a map gives, in float64."""
    return copy.deepcopy(module).double()(rows.double())


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("shape", [(64,), (1, 64), (300, 64), (3, 50, 64)])
def test_the_same_numbers_up_to_rounding(
    number: int, shape: tuple[int, ...], products: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_products, "_LEAST", 0)
    plain = maps()[number]
    module, rows = copy.deepcopy(plain), torch.randn(shape, generator=torch.Generator().manual_seed(1))
    use_faster_products(module)
    with torch.inference_mode():
        made = module(rows)
        again = module(rows)
    assert products == [shape, shape]
    assert made.shape == (*shape[:-1], 96)
    assert torch.equal(made, again)
    torch.testing.assert_close(made.double(), exact(plain, rows), rtol=1e-5, atol=1e-5)
    assert type(module).__name__ == type(plain).__name__


def test_large_products_alone_and_the_others_to_the_bit(products: list[Any]) -> None:
    plain = nn.Linear(256, 1024)
    module = copy.deepcopy(plain)
    use_faster_products(module)
    large, small = torch.randn(512, 256), torch.randn(511, 256)
    with torch.inference_mode():
        module(large)
        assert products == [(512, 256)]
        assert torch.equal(module(small), plain(small))
    assert torch.equal(module(large), plain(large))  # gradients are wanted
    with torch.inference_mode():
        half = copy.deepcopy(module).bfloat16()(large.bfloat16())
        assert torch.equal(half, copy.deepcopy(plain).bfloat16()(large.bfloat16()))
    assert products == [(512, 256)]


def test_gradients_are_those_of_the_map(products: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_products, "_LEAST", 0)
    plain = nn.Linear(64, 96)
    module = copy.deepcopy(plain)
    use_faster_products(module)
    for one in (plain, module):
        one(torch.ones(5, 64)).square().sum().backward()
    assert plain.weight.grad is not None
    assert module.weight.grad is not None
    assert torch.equal(plain.weight.grad, module.weight.grad)
    assert products == []


def test_few_shapes_are_kept_prepared_unless_the_user_says_otherwise(
    on_processor: Choose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "1")  # so that what is set is taken back
    monkeypatch.delenv("LRU_CACHE_CAPACITY")
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    for maker, kept in (("GenuineIntel", None), ("AuthenticAMD", "32")):
        on_processor(maker)
        faster_product()
        found = [os.environ.get(name) for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")]
        assert found == [kept, "7"]


@pytest.mark.parametrize("processor", [("GenuineIntel",), ("",), ("AuthenticAMD", "AVX2")])
def test_on_other_processors_nothing_changes(processor: tuple[str, ...], on_processor: Choose) -> None:
    on_processor(*processor)
    module = nn.Linear(64, 96)
    use_faster_products(module)
    assert faster_product() is None
    assert type(module) is nn.Linear


@pytest.mark.parametrize("fault", ["missing", "wrong"])
def test_a_library_that_does_not_do_it_is_not_taken(
    fault: str, on_processor: Choose, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_processor("AuthenticAMD")

    def broken(rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        if fault == "missing":
            raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")
        return rows @ matrix.T

    monkeypatch.setattr(linear_products, "_by_onednn", broken)
    assert faster_product() is None


def test_who_made_the_processor() -> None:
    linear_products.vendor.cache_clear()
    stated = Path("/proc/cpuinfo")
    if not stated.exists():
        assert linear_products.vendor() == ""
    else:
        assert f": {linear_products.vendor()}\n" in stated.read_text(encoding="utf-8")


@pytest.mark.parametrize("rows", [3, 200])
def test_the_head_multiplies_by_it(rows: int, products: list[Any]) -> None:
    chance = torch.Generator().manual_seed(0)
    head = LinearHead(torch.randn(2500, 400, generator=chance))
    hidden = torch.randn(rows, 400, generator=chance)
    with torch.inference_mode():
        made = head.scores(hidden, out=room_for_scores(rows, 2500, device=torch.device("cpu")))
    torch.testing.assert_close(made.double(), hidden.double() @ head.matrix.double().T, rtol=1e-5, atol=1e-4)
    assert products == ([(200, 400)] if rows == 200 else [])  # the last 452 tokens are too few


def test_what_is_written_stays_in_its_place(products: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_products, "_LEAST", 0)
    room = torch.full((5, 12), torch.nan)
    write_product(torch.ones(5, 4), torch.ones(3, 4), out=room[:, 2:5])
    assert products == []  # gradients might be wanted
    with torch.inference_mode():
        write_product(torch.ones(5, 4), torch.full((3, 4), 2.0), out=room[:, 6:9])
    assert products == [(5, 4)]
    four, eight, none = torch.full((3,), 4.0), torch.full((3,), 8.0), torch.full((1,), torch.nan)
    wanted = torch.cat([none, none, four, none, eight, none, none, none]).expand(5, -1)
    assert torch.equal(room.nan_to_num(0), wanted.nan_to_num(0))


def test_a_loaded_model_has_it_and_one_in_memory_stays_as_it_is(
    tmp_path: Path, products: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_products, "_LEAST", 0)
    torch.manual_seed(0)
    network = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=100, n_positions=64)).eval()
    network.save_pretrained(tmp_path)
    own = ms.load_model(network, tokenizer="ids")
    ids = torch.arange(64).repeat(40, 1)
    products.clear()
    wanted = own.logits(ids)
    assert products == []
    assert type(network.transformer.h[0].mlp.c_fc) is pytorch_utils.Conv1D
    loaded = ms.load_model(tmp_path, tokenizer="ids")
    products.clear()
    made = loaded.logits(ids)
    assert len(products) == 9  # four a block, and the head
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)
    assert loaded.fingerprint == own.fingerprint
