"""Switches of the process: the same numbers whatever they say, and all of them as they were afterwards."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import polars as pl
import pytest
import torch

import mnemoscope as ms
from mining.conftest import byte_tokenizer
from mnemoscope.errors import MnemoscopeError, OptionError
from mnemoscope.models import load_model
from mnemoscope.models.modules.switches import IN_PLAN, kernels_chosen, refuse_coarse_products, steady
from mnemoscope.models.readout.token_logits import head_mean
from mnemoscope.runs.plan import MiningPlan
from models.conftest import build

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions.md"

Switch = tuple[Callable[[], Any], Callable[[Any], object], Any, Any]


def _attribute(owner: Any, name: str, other: Any, held: Any) -> Switch:
    return (lambda: getattr(owner, name)), (lambda value: setattr(owner, name, value)), other, held


def _functions(name: str, other: Any, held: Any) -> Switch:
    return getattr(torch, f"get_{name}"), getattr(torch, f"set_{name}"), other, held


cuda, cudnn, mkldnn = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn
SWITCHES: dict[str, Switch] = {
    "torch.set_float32_matmul_precision": _functions("float32_matmul_precision", "medium", "highest"),
    "torch.backends.fp32_precision": _attribute(torch.backends, "fp32_precision", "tf32", "ieee"),
    "torch.backends.cudnn.fp32_precision": _attribute(cudnn, "fp32_precision", "tf32", "ieee"),
    "torch.backends.cudnn.conv.fp32_precision": _attribute(cudnn.conv, "fp32_precision", "none", "ieee"),
    "torch.backends.cuda.matmul.fp32_precision": _attribute(cuda.matmul, "fp32_precision", "tf32", "ieee"),
    "torch.backends.cuda.matmul.allow_tf32": _attribute(cuda.matmul, "allow_tf32", True, False),
    "torch.backends.mkldnn.matmul.fp32_precision": _attribute(mkldnn.matmul, "fp32_precision", "bf16", "ieee"),
    "torch.backends.mkldnn.conv.fp32_precision": _attribute(mkldnn.conv, "fp32_precision", "bf16", "ieee"),
    "torch.set_default_dtype": _functions("default_dtype", torch.float64, torch.float32),
    "torch.set_default_device": (lambda: torch.get_default_device().type, torch.set_default_device, "meta", "cpu"),
}
"""How each is asked, how it is told, a value that somebody may want, and the one that it is held at."""


@contextmanager
def set_otherwise(name: str) -> Iterator[None]:
    asked, told, other, _ = SWITCHES[name]
    before = asked()
    try:
        told(other)
        yield
    finally:
        with steady():  # torch refuses to answer or to be told where its older and newer names differ
            pass
        told(before)
        if "fp32_precision" in name or "float32" in name or "tf32" in name:
            for each in (cuda.matmul, mkldnn.matmul, mkldnn.conv):
                each.fp32_precision = "none"


@pytest.mark.parametrize("name", SWITCHES)
def test_each_switch_is_held_and_put_back(name: str) -> None:
    asked, _, other, held = SWITCHES[name]
    with set_otherwise(name):
        assert asked() == other
        with steady():
            assert asked() == held
            with steady():
                assert asked() == held
            assert asked() == held
        assert asked() == other


def test_every_switch_stands_in_the_list_of_decisions() -> None:
    listed = set(re.findall(r"`([\w.]+)`", DECISIONS.read_text(encoding="utf-8").partition("## Switches")[2]))
    assert listed >= {*SWITCHES, *IN_PLAN, "torch.autocast"}, {*SWITCHES, *IN_PLAN} - listed


def test_autocast_ends_where_numbers_are_made() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with steady():
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")


def test_what_raises_inside_puts_switches_back_too() -> None:
    @steady()
    def fail() -> None:
        assert torch.get_default_dtype() == torch.float32
        raise ValueError("inside")

    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ValueError, match="inside"):
            fail()
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_last_thread_to_leave_puts_back() -> None:
    torch.set_default_dtype(torch.float64)
    entered, seen = Barrier(2, timeout=60), []

    def other() -> None:
        with steady():
            entered.wait()
            entered.wait()  # the first one has left
            seen.append(torch.get_default_dtype())
            entered.wait()

    thread = Thread(target=other)
    try:
        with steady():
            thread.start()
            entered.wait()
        entered.wait()
        entered.wait()
        thread.join(60)
        assert (seen, torch.get_default_dtype()) == ([torch.float32], torch.float64)
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def hostile_process() -> Iterator[None]:
    """A notebook that was set up for something else."""
    torch.set_float32_matmul_precision("medium")
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")


def _tables(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


@pytest.mark.full
def test_an_atlas_and_a_trace_do_not_depend_on_the_process(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(f"a line of text, number {number} of it" for number in range(40)))
    (folder := tmp_path / "model").mkdir()
    build("llama").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)

    def everything(out: Path) -> tuple[dict[str, bytes], str, pl.DataFrame]:
        ms.mine(ms.load_model(str(folder)), str(tmp_path / "text.txt"), out=out, split="line")
        ms.extend(out, model=ms.load_model(str(folder)))
        traced = ms.trace(ms.load_model(str(folder)), "a line of text").to_dict()
        return _tables(out), str(traced), ms.answer(ms.open_atlas(out), "value_agreement")

    plain = everything(tmp_path / "plain")
    with hostile_process():
        other = everything(tmp_path / "other")
        assert torch.get_default_device().type == "meta"
    assert plain[0].keys() == other[0].keys()
    assert ([name for name in plain[0] if plain[0][name] != other[0][name]], plain[1]) == ([], other[1])
    assert plain[2].equals(other[2])


def test_a_model_s_own_methods_do_not_depend_on_the_process() -> None:
    model = load_model(build("gpt2-relu"), tokenizer=byte_tokenizer())
    ids = torch.tensor([[5, 6, 7]])
    vectors = torch.ones(2, model.sizes.hidden)
    asked: dict[str, Callable[[], torch.Tensor]] = {
        "values": lambda: model.values(0),
        "keys": lambda: model.keys(0),
        "head_mean": lambda: head_mean(model),
        "logits": lambda: model.logits(ids),
        "gain": lambda: model.scores(vectors, projection="gain", layer=0),
        "lens": lambda: model.scores(vectors, projection="lens"),
    }
    plain = {name: each() for name, each in asked.items()}
    model = load_model(build("gpt2-relu"), tokenizer=byte_tokenizer())
    with hostile_process():
        for name, each in asked.items():
            found = each()
            assert found.dtype == plain[name].dtype, name
            assert torch.equal(found, plain[name]), name


def test_what_runs_inside_a_block_that_intervenes_keeps_its_own_switches() -> None:
    model = load_model(build("gpt2-relu"), tokenizer=byte_tokenizer())
    with torch.autocast("cpu", dtype=torch.bfloat16), ms.intervene(model, {"L0.M0": 0.0}):
        assert torch.is_autocast_enabled("cpu")


def test_a_hook_that_changes_its_mind_is_named() -> None:
    network = build("gpt2-relu")
    network.transformer.h[1].register_forward_hook(lambda _module, _given, out: out + torch.rand_like(out))
    with pytest.raises(MnemoscopeError, match=r"hooks of others \(on 'transformer.h.1'\) may be why: remove them"):
        load_model(network, tokenizer=byte_tokenizer())


def test_variables_that_make_products_coarse_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_coarse_products({"ONEDNN_DEFAULT_FPMATH_MODE": "strict", "NVIDIA_TF32_OVERRIDE": "0"})
    coarse = {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16", "DNNL_DEFAULT_FPMATH_MODE": "any", "NVIDIA_TF32_OVERRIDE": "1"}
    for name, value in coarse.items():
        with pytest.raises(OptionError, match=f"{name}={value} makes products"):
            refuse_coarse_products({name: value})
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    with pytest.raises(OptionError, match="start the process without it"):
        load_model("handmade:planted")


def test_variables_that_choose_kernels_stand_in_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels_chosen({}) is None
    chosen = kernels_chosen({"MKL_CBWR": "COMPATIBLE", "HOME": "x", "ATEN_CPU_CAPABILITY": "default"})
    assert chosen == "ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE"
    (tmp_path / "text.txt").write_text("one\ntwo\nthree words here\n")
    for name in IN_PLAN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    model = load_model(build("gpt2-relu"), tokenizer=byte_tokenizer())
    part = ms.mine(model, tmp_path / "text.txt", out=tmp_path / "part", split="line", part="1/1")
    stored = ms.open_atlas(part).manifest.plan
    assert stored["kernels"] == "MKL_CBWR=COMPATIBLE"
    monkeypatch.delenv("MKL_CBWR")
    other = MiningPlan.from_document({**stored, "kernels": None}, tmp_path)
    told = other.difference({"plan": stored, "part": [1, 1], "counts": {}}, (1, 1), {})
    assert told == ("kernels was 'MKL_CBWR=COMPATIBLE', now None", "the old options")
    assert "MKL_CBWR" not in os.environ
