"""Checkpoints of nanoGPT and llama2.c: read, and equal to networks that are written out here by hand.

The references share nothing with the package or with transformers: they compute from the weights as their training
codes name them.
"""

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, silu

from mining.conftest import byte_tokenizer
from mnemoscope.cli import main
from mnemoscope.errors import MnemoscopeError, ModelDamaged, ModelUnsupported, TokenizerNotFound
from mnemoscope.models import load_model, read_blocks

Weights = dict[str, Tensor]
IDS = torch.tensor([[3, 17, 200, 45, 9, 120, 33], [5, 5, 1, 0, 250, 7, 99]])
ROWS, CONTEXT = 280, 16
GPT = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": CONTEXT, "vocab_size": ROWS, "dropout": 0.2}
LLAMA = {"dim": 16, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": ROWS, "max_seq_len": CONTEXT}
HIDDEN = 24


def randomly(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape))) * 0.3


def gpt_weights(*, biased: bool) -> Weights:
    width = GPT["n_embd"]
    weights = {"transformer.wte.weight": randomly(ROWS, width), "transformer.wpe.weight": randomly(CONTEXT, width)}
    vectors = {"transformer.ln_f": width}
    for layer in range(GPT["n_layer"]):
        block = f"transformer.h.{layer}"
        vectors |= {f"{block}.ln_1": width, f"{block}.ln_2": width}
        for number, (name, outside, inside) in enumerate(
            [
                ("attn.c_attn", 3 * width, width),
                ("attn.c_proj", width, width),
                ("mlp.c_fc", 4 * width, width),
                ("mlp.c_proj", width, 4 * width),
            ]
        ):
            weights[f"{block}.{name}.weight"] = randomly(outside, inside) * (1 + layer + number / 8)
            if biased:
                weights[f"{block}.{name}.bias"] = randomly(outside)
    for name, size in vectors.items():
        weights[f"{name}.weight"] = 1 + randomly(size)
        if biased:
            weights[f"{name}.bias"] = randomly(size)
    return weights | {"lm_head.weight": weights["transformer.wte.weight"]}


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention of [head, position, entry]."""
    scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value


def heads(x: Tensor, count: int) -> Tensor:
    return x.view(len(x), count, -1).transpose(0, 1)


def gpt_by_hand(own: Weights, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The logits [position, row] of one row of ids, and the coefficients of each layer."""

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(x, x.shape[-1:], own[f"{name}.weight"], own.get(f"{name}.bias"), 1e-5)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ own[f"{name}.weight"].T + own.get(f"{name}.bias", torch.zeros(1))

    x, coefficients = own["transformer.wte.weight"][ids] + own["transformer.wpe.weight"][: len(ids)], []
    for layer in range(GPT["n_layer"]):
        block = f"transformer.h.{layer}"
        query, key, value = linear(norm(x, f"{block}.ln_1"), f"{block}.attn.c_attn").chunk(3, dim=-1)
        mixed = attend(*(heads(part, GPT["n_head"]) for part in (query, key, value)))
        x = x + linear(mixed.transpose(0, 1).reshape(len(ids), -1), f"{block}.attn.c_proj")
        coefficients.append(gelu(linear(norm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc")))
        x = x + linear(coefficients[-1], f"{block}.mlp.c_proj")
    return norm(x, "transformer.ln_f") @ own["lm_head.weight"].T, coefficients


def llama_weights(*, tied: bool) -> Weights:
    width, keys = LLAMA["dim"], LLAMA["dim"] * LLAMA["n_kv_heads"] // LLAMA["n_heads"]
    weights = {"tok_embeddings.weight": randomly(ROWS, width), "norm.weight": 1 + randomly(width)}
    weights["output.weight"] = weights["tok_embeddings.weight"] if tied else randomly(ROWS, width) + 0.1
    sizes = {"attention.wq": (width, width), "attention.wk": (keys, width), "attention.wv": (keys, width)}
    sizes |= {"attention.wo": (width, width), "attention_norm": (width,), "ffn_norm": (width,)}
    sizes |= {
        "feed_forward.w1": (HIDDEN, width),
        "feed_forward.w2": (width, HIDDEN),
        "feed_forward.w3": (HIDDEN, width),
    }
    for layer in range(LLAMA["n_layers"]):
        for number, (name, shape) in enumerate(sizes.items()):
            weights[f"layers.{layer}.{name}.weight"] = randomly(*shape) * (1 + layer + number / 8)
    return weights


def turn(x: Tensor) -> Tensor:
    """Turns neighbouring pairs of [head, position, entry] by position times 10,000 ** -(pair / pairs)."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    speeds = 10_000.0 ** -(torch.arange(pairs.shape[-1]) / pairs.shape[-1])
    angles = torch.arange(x.shape[1])[:, None] * speeds
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def llama_by_hand(own: Weights, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * own[f"{name}.weight"]

    x, coefficients, groups = own["tok_embeddings.weight"][ids], [], LLAMA["n_heads"] // LLAMA["n_kv_heads"]
    for layer in range(LLAMA["n_layers"]):
        w = {name: own[f"layers.{layer}.attention.w{name}.weight"].T for name in "qkvo"}
        f = {name: own[f"layers.{layer}.feed_forward.w{name}.weight"].T for name in "123"}
        y = norm(x, f"layers.{layer}.attention_norm")
        key, value = (heads(y @ w[name], LLAMA["n_kv_heads"]) for name in "kv")
        key, value = turn(key).repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
        mixed = attend(turn(heads(y @ w["q"], LLAMA["n_heads"])), key, value)
        x = x + mixed.transpose(0, 1).reshape(len(ids), -1) @ w["o"]
        y = norm(x, f"layers.{layer}.ffn_norm")
        coefficients.append(silu(y @ f["1"]) * (y @ f["3"]))
        x = x + coefficients[-1] @ f["2"]
    return norm(x, "norm") @ own["output.weight"].T, coefficients


ATTENTION, FEED_FORWARD = ["attention.wq", "attention.wk", "attention.wv", "attention.wo"], ["w1", "w2", "w3"]


def write_bin(path: Path, own: Weights, *, version: int, tied: bool, **changed: int) -> Path:
    sizes = LLAMA | changed
    rows = sizes["vocab_size"] * (-1 if version == 0 and not tied else 1)
    header = [sizes["dim"], changed.get("hidden_dim", HIDDEN), sizes["n_layers"], sizes["n_heads"], sizes["n_kv_heads"]]
    raw = struct.pack("<7i", *header, rows, sizes["max_seq_len"])
    matrices = [f"feed_forward.{name}" for name in FEED_FORWARD]
    table = [np.zeros((CONTEXT, LLAMA["dim"] // LLAMA["n_heads"] // 2), "<f4")] * 2
    if version == 0:
        order: list[Any] = ["tok_embeddings", ["attention_norm"], *([name] for name in ATTENTION), ["ffn_norm"]]
        order += [*([name] for name in matrices), "norm", *table]
    else:
        raw = (struct.pack("<Ii", 0x616B3432, version) + raw + bytes([tied])).ljust(256, b"\0")
        order = [["attention_norm"], ["ffn_norm"], "norm", "tok_embeddings"]
        order += [[name] for name in ATTENTION + matrices]
    for part in [*order, *([] if tied else ["output"])]:
        if isinstance(part, np.ndarray):
            raw += part.tobytes()
        else:
            layered = [f"layers.{layer}.{part[0]}" for layer in range(LLAMA["n_layers"])]
            for name in layered if isinstance(part, list) else [part]:
                raw += own[f"{name}.weight"].numpy().astype("<f4").tobytes()
    path.write_bytes(raw)
    return path


def check_equal(path: Path, by_hand: Callable[[Weights, Tensor], tuple[Tensor, list[Tensor]]], own: Weights) -> Any:
    byte_tokenizer().save_pretrained(path.parent)
    model, blocks = load_model(str(path)), {}
    with read_blocks(model, blocks.__setitem__):
        logits = model.logits(IDS)
    for row, ids in enumerate(IDS):
        expected, coefficients = by_hand(own, ids)
        torch.testing.assert_close(logits[row], expected, atol=2e-4, rtol=2e-4)
        for layer, each in enumerate(coefficients):
            torch.testing.assert_close(blocks[layer].coefficients[row], each, atol=1e-4, rtol=1e-4)
    return model


def gpt_file(path: Path, own: Weights, prefix: str = "", **stated: Any) -> Path:
    torch.save({"model": {prefix + name: each for name, each in own.items()}, "model_args": GPT | stated}, path)
    return path


@pytest.mark.fast(2)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module."])
def test_nanogpt_is_the_network_by_hand(biased: bool, prefix: str, tmp_path: Path) -> None:
    own = gpt_weights(biased=biased)
    extra = {"transformer.h.0.attn.bias": torch.ones(1, 1, CONTEXT, CONTEXT)} if biased else {}
    model = check_equal(gpt_file(tmp_path / "ckpt.pt", own | extra, prefix, bias=biased), gpt_by_hand, own)
    assert (model.family, model.activation, model.sizes.context) == ("gpt2", "gelu", CONTEXT)
    for layer in range(GPT["n_layer"]):
        assert torch.equal(model.values(layer), own[f"transformer.h.{layer}.mlp.c_proj.weight"].T)
    in_folder = load_model(str(tmp_path))
    assert in_folder.fingerprint == model.fingerprint


def test_nanogpt_without_a_tokenizer_says_what_to_do_and_reads_ids(tmp_path: Path) -> None:
    path = gpt_file(tmp_path / "ckpt.pt", gpt_weights(biased=False), bias=False)
    with pytest.raises(TokenizerNotFound, match="holds no tokenizer; name a folder or hub id"):
        load_model(str(path))
    assert load_model(str(path), tokenizer="ids").sizes.vocabulary == ROWS


@pytest.mark.fast(2)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("version", [0, 1])
def test_a_bin_of_llama2c_is_the_network_by_hand(version: int, tied: bool, tmp_path: Path) -> None:
    own = llama_weights(tied=tied)
    model = check_equal(write_bin(tmp_path / "m.bin", own, version=version, tied=tied), llama_by_hand, own)
    assert (model.family, model.activation, model.sizes.context) == ("llama", "silu", CONTEXT)
    for layer in range(LLAMA["n_layers"]):
        assert torch.equal(model.values(layer), own[f"layers.{layer}.feed_forward.w2.weight"].T)


@pytest.mark.parametrize("key_heads", [2, None])
def test_a_checkpoint_of_llama2c_is_its_bin(key_heads: int | None, tmp_path: Path) -> None:
    own = llama_weights(tied=True)
    if key_heads is None:  # as many as heads
        own |= {n: each.repeat(2, 1) for n, each in own.items() if n.endswith(("wk.weight", "wv.weight"))}
    torch.save({"model": own, "model_args": LLAMA | {"n_kv_heads": key_heads, "multiple_of": 32}}, tmp_path / "s.pt")
    byte_tokenizer().save_pretrained(tmp_path)
    model = load_model(str(tmp_path / "s.pt"))
    if key_heads is not None:
        binary = write_bin(tmp_path / "s.bin", own, version=1, tied=True)
        assert load_model(str(binary)).fingerprint == model.fingerprint
    assert model.sizes.memories == (HIDDEN, HIDDEN)


def test_sizes_that_do_not_fit_the_weights_are_one_line(tmp_path: Path) -> None:
    own = gpt_weights(biased=False)

    def refused(**stated: Any) -> str:
        with pytest.raises(MnemoscopeError) as caught:
            load_model(str(gpt_file(tmp_path / "ckpt.pt", own, **{"bias": False, **stated})), tokenizer="ids")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "'transformer.wpe.weight' has the shape (16, 16), but its sizes say (32, 16)" in refused(block_size=32)
    assert "lacks 'transformer.h.2.attn.c_attn.weight', which its sizes ask for" in refused(n_layer=3)
    assert "no place for its 'transformer.h.1.attn.c_attn.weight'" in refused(n_layer=1)
    assert "states 1,000,000,000 layers, but holds only 16 weights" in refused(n_layer=10**9)
    assert "a width of 16 does not go with 3 heads" in refused(n_head=3)
    assert "its n_embd is None, not a whole number above 0" in refused(n_embd=None)
    assert "lacks 'transformer.ln_f.bias'" in refused(bias=True)
    assert "states use_relu = True, which is of a changed training code" in refused(use_relu=True)


def test_what_is_no_such_checkpoint_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"weights": torch.ones(2), "step": 3}, path)
    with pytest.raises(ModelUnsupported, match=r"no checkpoint of nanoGPT or llama2\.c.*'weights', 'step'"):
        load_model(str(path), tokenizer="ids")

    class Runs:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    path.write_bytes(pickle.dumps({"model": Runs(), "model_args": GPT}))
    with pytest.raises(ModelUnsupported, match="pickle that would run code"):
        load_model(str(path), tokenizer="ids")
    assert not (tmp_path / "ran").exists()


def test_a_header_that_does_not_fit_its_file_is_refused_before_memory_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, path = llama_weights(tied=True), tmp_path / "m.bin"

    def refused(version: int = 0, **changed: int) -> str:
        write_bin(path, own, version=version, tied=True, **changed)
        assert main(["inspect", str(path), "--tokenizer", "ids"]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    huge = refused(vocab_size=2**31 - 1, dim=2**30, n_heads=1, n_kv_heads=1, n_layers=2**30, hidden_dim=2**30)
    assert "no whole file of llama2.c: with the sizes of its header (dim 1,073,741,824, hidden_dim" in huge
    assert "it would have" in refused(n_layers=3)
    assert "its dim is 0, not a whole number above 0" in refused(dim=0)
    assert "a width of 16 does not go with 4 heads and 3 of keys" in refused(n_kv_heads=3)
    assert "is of version 2 of llama2.c's files (2: in 8 bits)" in refused(version=2)
    path.write_bytes(b"\1\0\0")
    with pytest.raises(ModelDamaged, match="has 3 bytes, fewer than the header"):
        load_model(str(path), tokenizer="ids")
    torch.save({"weight": torch.ones(2)}, path)
    with pytest.raises(ModelUnsupported, match=r"PyTorch's weights; give the folder that holds it and config\.json"):
        load_model(str(path), tokenizer="ids")
