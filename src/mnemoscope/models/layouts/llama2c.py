"""A model of llama2.c as a Llama: its `.bin` files (versions 0 and 1), and its training code's checkpoints.

A `.bin` is a header of whole numbers and then float32 matrices in a fixed order; nothing in it says more, so its length
must be exactly what the header asks for. A head's entries turn in neighbouring pairs there, and half a head apart in
transformers: rows of queries and keys change places.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig

from mnemoscope.errors import ModelDamaged, ModelUnsupported
from mnemoscope.models.layouts.sizes import Shapes, check_depth, check_heads, check_shapes, refuse_others, whole_numbers

_HEADER = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len")
_KNOWN = (*_HEADER, "multiple_of", "norm_eps", "dropout")
_MAGIC = 0x616B3432
_NEW_HEADER = 256
_EPSILON = 1e-5
_NAMES = {
    "tok_embeddings": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}
_ATTENTION = ("attention.wq", "attention.wk", "attention.wv", "attention.wo")
_LAYER = ("feed_forward.w1", "feed_forward.w2", "feed_forward.w3")
_ORDERS = {
    0: ("tok_embeddings", "attention_norm", *_ATTENTION, "ffn_norm", *_LAYER, "norm", "freqs_cos", "freqs_sin"),
    1: ("attention_norm", "ffn_norm", "norm", "tok_embeddings", *_ATTENTION, *_LAYER),
}
"""The weights of a version's file, each of all layers together; the head is last, unless it is the embedding."""


def read_bin(path: Path) -> tuple[Any, dict[str, Tensor]]:
    """The configuration and the weights of a `.bin`; raises ModelDamaged, ModelUnsupported before it allocates them."""
    where = f"{str(path)!r}"
    with path.open("rb") as file:
        head = file.read(_NEW_HEADER)
    if head.startswith((b"PK", b"\x80")):
        raise ModelUnsupported(f"{where} is a file of PyTorch's weights; give the folder that holds it and config.json")
    is_new = len(head) == _NEW_HEADER and unpack_from("<I", head)[0] == _MAGIC
    version, start = (unpack_from("<i", head, 4)[0], _NEW_HEADER) if is_new else (0, 4 * len(_HEADER))
    if version not in _ORDERS:
        raise ModelUnsupported(
            f"{where} is of version {version} of llama2.c's files (2: in 8 bits); export it anew as version 0 or 1"
        )
    if len(head) < start:
        raise ModelDamaged(f"{where} has {len(head)} bytes, fewer than the header of a llama2.c file")
    sizes = dict(zip(_HEADER, unpack_from("<7i", head, 8 if is_new else 0), strict=True))
    tied = head[36] != 0 if is_new else sizes["vocab_size"] > 0
    sizes["vocab_size"] = abs(sizes["vocab_size"])
    whole_numbers(sizes, _HEADER, where)
    shapes = _shapes(sizes, where)
    order = [*_ORDERS[version], *(() if tied else ("output",))]
    times = {name: sizes["n_layers"] if _is_of_layer(name) else 1 for name in order}
    needed = start + 4 * sum(times[name] * prod(shapes[name]) for name in order)
    if (size := path.stat().st_size) != needed:
        stated = ", ".join(f"{name} {number:,}" for name, number in sizes.items())
        raise ModelDamaged(
            f"{where} is no whole file of llama2.c: with the sizes of its header ({stated}) it would have {needed:,}"
            f" bytes, but it has {size:,}"
        )
    numbers = np.memmap(path, dtype="<f4", mode="r", offset=start)
    weights, begin = dict[str, Tensor](), 0
    for name in order:
        for layer in range(times[name]):
            end = begin + prod(shapes[name])
            if name in _NAMES:
                place = f"layers.{layer}.{name}" if _is_of_layer(name) else name
                weights[f"{place}.weight"] = torch.from_numpy(np.array(numbers[begin:end])).view(shapes[name])
            begin = end
    return _config(sizes, tied=tied, epsilon=_EPSILON), _as_llama(weights, sizes)


def as_llama(stated: Mapping[str, Any], weights: Mapping[str, Tensor], where: str) -> tuple[Any, dict[str, Tensor]]:
    """The configuration and the weights of a checkpoint of the training code; raises ModelDamaged, ModelUnsupported."""
    refuse_others(stated, _KNOWN, where)
    first = weights.get("layers.0.feed_forward.w1.weight", torch.empty(0))
    # Of the width of a layer the checkpoint states only what it is made from.
    own = {"hidden_dim": len(first), "n_kv_heads": stated.get("n_kv_heads") or stated.get("n_heads")}
    sizes = dict(zip(_HEADER, whole_numbers({**stated, **own}, _HEADER, where), strict=True))
    check_depth(sizes["n_layers"], weights, where)
    shapes: Shapes = {}
    for name, shape in _shapes(sizes, where).items():
        places = [f"layers.{layer}.{name}" for layer in range(sizes["n_layers"])] if _is_of_layer(name) else [name]
        shapes |= {f"{place}.weight": shape for place in places if name in _NAMES}
    check_shapes(weights, shapes, where)
    tied = torch.equal(weights["output.weight"], weights["tok_embeddings.weight"])
    return _config(sizes, tied=tied, epsilon=float(stated.get("norm_eps") or _EPSILON)), _as_llama(weights, sizes)


def _is_of_layer(name: str) -> bool:
    return name.startswith(("attention", "ffn", "feed_forward"))


def _shapes(sizes: Mapping[str, int], where: str) -> Shapes:
    width, memories, _, heads, key_heads, rows, context = (sizes[name] for name in _HEADER)
    check_heads(width, heads, key_heads, where)
    of_head = width // heads
    if of_head % 2:
        raise ModelDamaged(f"{where}: heads of {of_head} entries cannot be turned in pairs")
    vectors = dict.fromkeys(("attention_norm", "ffn_norm", "norm"), (width,))
    words = dict.fromkeys(("tok_embeddings", "output"), (rows, width))
    keys = dict.fromkeys(("attention.wk", "attention.wv"), (key_heads * of_head, width))
    turning = dict.fromkeys(("freqs_cos", "freqs_sin"), (context, of_head // 2))
    queries = dict.fromkeys(("attention.wq", "attention.wo"), (width, width))
    layer = {"feed_forward.w1": (memories, width), "feed_forward.w2": (width, memories)}
    return {**vectors, **words, **keys, **turning, **queries, **layer, "feed_forward.w3": (memories, width)}


def _config(sizes: Mapping[str, int], *, tied: bool, epsilon: float) -> Any:
    return LlamaConfig(
        hidden_size=sizes["dim"],
        intermediate_size=sizes["hidden_dim"],
        num_hidden_layers=sizes["n_layers"],
        num_attention_heads=sizes["n_heads"],
        num_key_value_heads=sizes["n_kv_heads"],
        vocab_size=sizes["vocab_size"],
        max_position_embeddings=sizes["max_seq_len"],
        rms_norm_eps=epsilon,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
    )


def _as_llama(weights: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, Tensor]:
    renamed = {}
    of_head = sizes["dim"] // sizes["n_heads"]
    for name, tensor in weights.items():
        inside = name.removesuffix(".weight")
        layer, _, inside = inside[7:].partition(".") if inside.startswith("layers.") else ("", "", inside)
        if inside in ("attention.wq", "attention.wk"):
            pairs = tensor.view(-1, of_head // 2, 2, sizes["dim"])
            tensor = pairs.transpose(1, 2).reshape(tensor.shape)
        own = _NAMES[inside]
        renamed[f"model.layers.{layer}.{own}.weight" if layer else f"{own}.weight"] = tensor
    return renamed
