"""A checkpoint of a small training code -> a network of transformers. Which code wrote it is told from what it states.

nanoGPT's is a GPT-2 with matrices that are stored the other way round; without biases (`bias=False`) they are zeros. It
does not say which GELU it was trained with: nanoGPT has the exact one, and had the one by tanh until the middle of
2023; the exact one is taken.

llama2.c's is a Llama: its training code's checkpoints, and its `.bin` files (versions 0 and 1). A `.bin` is a header of
whole numbers and then float32 matrices in a fixed order; nothing in it says more, so its length must be exactly what
the header asks for. A head's entries turn in neighbouring pairs there, and half a head apart in transformers: rows of
queries and keys change places.

Read with `torch.load(weights_only=True)`, or as plain numbers; nothing in a file runs. What a file says of its sizes is
held against the weights that it holds.
"""

import zipfile
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from mnemoscope.errors import ModelDamaged, ModelUnsupported
from mnemoscope.models.modules.weight_layouts import without_wrappers

Shapes = dict[str, tuple[int, ...]]

_GPT_SIZES = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
_GPT_KNOWN = (*_GPT_SIZES, "bias", "dropout")
_GPT_MASKS = (".attn.bias", ".attn.masked_bias")
_GPT_TURNED = (".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight")
_GPT2_WORDS, _PADDED = 50_257, 50_304
"""Tokens of GPT-2's tokenizer, the last of which ends a text, and nanoGPT's usual rows for them."""

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


def read_foreign(path: Path) -> Any:
    """The network of a checkpoint of nanoGPT or llama2.c (`.pt`), or of a llama2.c `.bin`. Raises ModelDamaged and
    ModelUnsupported, and whatever torch says of a file that it cannot read.
    """
    if path.suffix == ".bin":
        config, weights = _read_bin(path)
    else:
        where = f"{str(path)!r}"
        stored = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        entries = stored if isinstance(stored, Mapping) else {}
        stated, own = entries.get("model_args"), entries.get("model")
        if not isinstance(stated, Mapping) or not isinstance(own, Mapping):
            holds = f"the entries {', '.join(map(repr, list(entries)[:6]))}" if entries else "no entries"
            raise ModelUnsupported(
                f"{where} is no checkpoint of nanoGPT or llama2.c, which have 'model' and 'model_args': it has {holds};"
                " give the folder of a model that was saved for transformers"
            )
        named = {without_wrappers(str(name)): value for name, value in own.items() if isinstance(value, Tensor)}
        config, weights = (_as_llama if "dim" in stated else _as_gpt2)(stated, named, where)
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        empty = auto.from_config(config)
    load: Any = type(empty).from_pretrained
    return load(None, config=config, state_dict=weights, dtype="auto")


def _as_gpt2(stated: Mapping[str, Any], stored: Mapping[str, Tensor], where: str) -> tuple[Any, dict[str, Tensor]]:
    """The configuration and the weights; raises ModelDamaged, ModelUnsupported."""
    layers, heads, width, context, rows = _whole_numbers(stated, _GPT_SIZES, where)
    _refuse_others(stated, _GPT_KNOWN, where)
    _check_heads(width, heads, heads, where)
    weights = {name: tensor for name, tensor in stored.items() if not name.endswith(_GPT_MASKS)}
    _check_depth(layers, weights, where)
    matrices: Shapes = {"transformer.wte.weight": (rows, width), "transformer.wpe.weight": (context, width)}
    matrices |= {"lm_head.weight": (rows, width)}
    vectors: Shapes = {"transformer.ln_f.bias": (width,)}
    for block in (f"transformer.h.{layer}" for layer in range(layers)):
        for name, outside, inside in (
            ("attn.c_attn", 3 * width, width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", 4 * width, width),
            ("mlp.c_proj", width, 4 * width),
        ):
            matrices[f"{block}.{name}.weight"] = outside, inside
            vectors[f"{block}.{name}.bias"] = (outside,)
        vectors |= {f"{block}.{norm}.bias": (width,) for norm in ("ln_1", "ln_2")}
    gains = {name.replace(".bias", ".weight"): shape for name, shape in vectors.items() if ".ln_" in name}
    # The oldest checkpoints have biases and no entry.
    biases = vectors if stated.get("bias", True) else {}
    _check_shapes(weights, matrices | gains | biases, where)
    turned = {name: tensor.T if name.endswith(_GPT_TURNED) else tensor for name, tensor in weights.items()}
    kind = weights["transformer.wte.weight"].dtype
    zeros = {name: torch.zeros(shape, dtype=kind) for name, shape in (vectors.items() if not biases else ())}
    end = _GPT2_WORDS - 1 if _GPT2_WORDS <= rows <= _PADDED else None
    config = GPT2Config(
        vocab_size=rows,
        n_positions=context,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        activation_function="gelu",
        tie_word_embeddings=torch.equal(weights["lm_head.weight"], weights["transformer.wte.weight"]),
        bos_token_id=end,
        eos_token_id=end,
    )
    return config, turned | zeros


def _read_bin(path: Path) -> tuple[Any, dict[str, Tensor]]:
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
    _whole_numbers(sizes, _HEADER, where)
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
    return _config(sizes, tied=tied, epsilon=_EPSILON), _for_llama(weights, sizes)


def _as_llama(stated: Mapping[str, Any], weights: Mapping[str, Tensor], where: str) -> tuple[Any, dict[str, Tensor]]:
    """The configuration and the weights of a checkpoint of the training code; raises ModelDamaged, ModelUnsupported."""
    _refuse_others(stated, _KNOWN, where)
    first = weights.get("layers.0.feed_forward.w1.weight", torch.empty(0))
    # Of the width of a layer the checkpoint states only what it is made from.
    own = {"hidden_dim": len(first), "n_kv_heads": stated.get("n_kv_heads") or stated.get("n_heads")}
    sizes = dict(zip(_HEADER, _whole_numbers({**stated, **own}, _HEADER, where), strict=True))
    _check_depth(sizes["n_layers"], weights, where)
    shapes: Shapes = {}
    for name, shape in _shapes(sizes, where).items():
        places = [f"layers.{layer}.{name}" for layer in range(sizes["n_layers"])] if _is_of_layer(name) else [name]
        shapes |= {f"{place}.weight": shape for place in places if name in _NAMES}
    _check_shapes(weights, shapes, where)
    tied = torch.equal(weights["output.weight"], weights["tok_embeddings.weight"])
    return _config(sizes, tied=tied, epsilon=float(stated.get("norm_eps") or _EPSILON)), _for_llama(weights, sizes)


def _is_of_layer(name: str) -> bool:
    return name.startswith(("attention", "ffn", "feed_forward"))


def _shapes(sizes: Mapping[str, int], where: str) -> Shapes:
    width, memories, _, heads, key_heads, rows, context = (sizes[name] for name in _HEADER)
    _check_heads(width, heads, key_heads, where)
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


def _for_llama(weights: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, Tensor]:
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


def _whole_numbers(stated: Mapping[str, Any], names: Iterable[str], where: str) -> list[int]:
    """The numbers of these names, each above 0; raises ModelDamaged."""
    for name in names:
        value = stated.get(name)
        if type(value) is not int or value < 1:
            raise ModelDamaged(f"{where}: its {name} is {str(value)[:40]}, not a whole number above 0")
    return [stated[name] for name in names]


def _refuse_others(stated: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raises ModelUnsupported for an entry that is on and that the training code itself does not have."""
    if strange := [name for name in stated.keys() - set(known) if stated[name]]:
        raise ModelUnsupported(
            f"{where} states {min(strange)} = {str(stated[min(strange)])[:40]}, which is of a changed training code and"
            " cannot be read; save the model for transformers, and give its folder"
        )


def _check_heads(width: int, heads: int, key_heads: int, where: str) -> None:
    if width % heads or heads % key_heads:
        keys = "" if key_heads == heads else f" and {key_heads:,} of keys"
        raise ModelDamaged(f"{where}: a width of {width:,} does not go with {heads:,} heads{keys}")


def _check_depth(layers: int, weights: Mapping[str, Tensor], where: str) -> None:
    """Before shapes are listed layer by layer."""
    if layers > len(weights):
        raise ModelDamaged(f"{where}: it states {layers:,} layers, but holds only {len(weights):,} weights")


def _check_shapes(weights: Mapping[str, Tensor], shapes: Shapes, where: str) -> None:
    """Raises ModelDamaged for a weight that is missing, that has no place, or of another shape than stated."""
    for name, shape in shapes.items():
        if name not in weights:
            raise ModelDamaged(f"{where}: it lacks {name!r}, which its sizes ask for; take a complete copy")
        if (own := tuple(weights[name].shape)) != shape:
            raise ModelDamaged(f"{where}: its {name!r} has the shape {own}, but its sizes say {shape}")
    if others := sorted(weights.keys() - shapes.keys()):
        raise ModelDamaged(f"{where}: its sizes have no place for its {others[0]!r}")
