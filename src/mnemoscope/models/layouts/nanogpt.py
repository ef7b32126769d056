"""A checkpoint of nanoGPT as a GPT-2: the same network, with matrices that are stored the other way round.

Without biases (`bias=False`) they are zeros. The checkpoint does not say which GELU it was trained with: nanoGPT has
the exact one, and had the one by tanh until the middle of 2023; the exact one is taken.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config

from mnemoscope.models.layouts.sizes import Shapes, check_depth, check_heads, check_shapes, refuse_others, whole_numbers

_SIZES = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
_KNOWN = (*_SIZES, "bias", "dropout")
_MASKS = (".attn.bias", ".attn.masked_bias")
_TURNED = (".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight")
_GPT2_WORDS, _PADDED = 50_257, 50_304
"""Tokens of GPT-2's tokenizer, the last of which ends a text, and nanoGPT's usual rows for them."""


def as_gpt2(stated: Mapping[str, Any], stored: Mapping[str, Tensor], where: str) -> tuple[Any, dict[str, Tensor]]:
    """The configuration and the weights; raises ModelDamaged, ModelUnsupported."""
    layers, heads, width, context, rows = whole_numbers(stated, _SIZES, where)
    refuse_others(stated, _KNOWN, where)
    check_heads(width, heads, heads, where)
    weights = {name: tensor for name, tensor in stored.items() if not name.endswith(_MASKS)}
    check_depth(layers, weights, where)
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
    check_shapes(weights, matrices | gains | biases, where)
    turned = {name: tensor.T if name.endswith(_TURNED) else tensor for name, tensor in weights.items()}
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
