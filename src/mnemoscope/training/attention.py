"""Attention for training on a CPU: torch's own, computed in float32.

On a CPU the gradient of torch's bfloat16 attention takes twice as long as that of its float32 attention, which more
than pays for the conversions (figures in LOG.md). On a GPU nothing is changed. What is saved does not know of this.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

NAME = "mnemoscope_float32"


def attend_in_float32(model: Any) -> None:
    """Let `model` compute its attention in float32; its inputs must come without padding on the left."""
    AttentionInterface.register(NAME, _attend)
    model.set_attn_implementation(NAME)


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Causal attention of `query`, `key` and `value`, each `[batch, head, position, hidden]`; no mask is ever given."""
    with torch.autocast(query.device.type, enabled=False):
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query.float(), key.float(), value.float(), is_causal=True, scale=scaling
        )
    return mixed.to(value.dtype).transpose(1, 2).contiguous(), None
