"""Keys, the gain of the norm before them and the words' embeddings, taken by hand from models of transformers."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

Matrices = tuple[Tensor, Tensor | None, Tensor, Tensor]
"""Gate (or only) keys and up keys `[memory, hidden]`, the gain of the norm before them, the embeddings."""


def _gpt2(hf: Any, layer: int) -> Matrices:
    block = hf.transformer.h[layer]
    return block.mlp.c_fc.weight.T, None, block.ln_2.weight, hf.transformer.wte.weight


def _llama(hf: Any, layer: int) -> Matrices:
    block = hf.model.layers[layer]
    gain = block.post_attention_layernorm.weight
    return block.mlp.gate_proj.weight, block.mlp.up_proj.weight, gain, hf.model.embed_tokens.weight


def _gemma(hf: Any, layer: int) -> Matrices:
    gate, up, gain, words = _llama(hf, layer)
    return gate, up, 1 + gain, words


def _neox(hf: Any, layer: int) -> Matrices:
    block = hf.gpt_neox.layers[layer]
    words = hf.gpt_neox.embed_in.weight
    return block.mlp.dense_h_to_4h.weight, None, block.post_attention_layernorm.weight, words


def _olmo2(hf: Any, layer: int) -> Matrices:
    gate, up, gain, words = _llama(hf, layer)
    return gate, up, gain * 0 + 1, words  # its norms stand behind the layers


READ: dict[str, Callable[[Any, int], Matrices]] = {
    "gpt2-relu": _gpt2,
    "llama": _llama,
    "gemma": _gemma,
    "gpt_neox": _neox,
    "olmo2": _olmo2,
}


def direction(gate: np.ndarray, up: np.ndarray | None, gain: np.ndarray) -> np.ndarray:
    """What one key looks for in the stream, by its definition; not centred."""
    if up is None:
        return gate * gain
    one, other = gate * gain, up * gain
    return one / np.linalg.norm(one) + other / np.linalg.norm(other)
