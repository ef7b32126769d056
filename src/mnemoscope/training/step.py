"""What a step of training computes, and how a processor does it fast: the loss, its gradient, and who takes what part.

The loss is computed in chunks whose gradient is taken at once, so logits of the whole batch never exist. On a CPU a
batch is shared out among threads, products are taken in the faster precision, and attention always in float32 (the
gradient of torch's bfloat16 attention takes twice as long there, which more than pays for the conversions). Figures are
in LOG.md. What is saved does not know of this.
"""

import copy
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from mnemoscope.training.balance import BalanceTerm
from mnemoscope.training.sparsity import MemoryTerms

Terms = MemoryTerms | BalanceTerm
"""What stands beside the loss."""
CHUNK = 256
"""Positions whose logits exist at one time: few enough that they stay in a processor's cache."""


class Workers:
    """Equal parts of a batch, each on a thread and a replica of its own; the replicas share the model's weights.

    On a processor with few cores this is faster than several threads at one product, which at these sizes wait for one
    another (LOG.md). A GPU has one worker. The gradients' mean is taken in the order of the parts.
    """

    def __init__(self, model: Any, batch: int, *, balance: float = 0.0) -> None:
        on_cpu = next(model.parameters()).device.type == "cpu"
        count = math.gcd(batch, torch.get_num_threads()) if on_cpu else 1
        self._models = [model, *(copy.deepcopy(model) for _ in range(count - 1))]
        for replica in self._models[1:]:
            for own, shared in zip(replica.parameters(), model.parameters(), strict=True):
                own.data = shared.data
        mixture = model.config.model_type == "mixtral"
        self._terms: list[Terms] = [
            BalanceTerm(one, balance) if mixture else MemoryTerms(one) for one in self._models
        ]
        # OpenMP's number of threads is each thread's own.
        self._pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) if count > 1 else None

    def share_out(self, take: Callable[[Any, Terms, Tensor], float], batch: Tensor) -> float:
        """Takes each part of the batch, which leaves its gradient; the mean of what is given back.

        The model's gradients are then the mean of the parts'.
        """
        if self._pool is None:
            return take(self._models[0], self._terms[0], batch)
        parts = batch.chunk(len(self._models))
        losses = list(self._pool.map(take, self._models, self._terms, parts))
        for own, *others in zip(*(one.parameters() for one in self._models), strict=True):
            for other in others:
                own.grad += other.grad
                other.grad = None
            own.grad /= len(parts)
        return sum(losses) / len(losses)


class _ChunkedLoss(torch.autograd.Function):
    """Mean cross-entropy of `hidden @ head.T`, gradients taken chunk by chunk in the forward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
        count = targets.numel()
        low = head.to(dtype)
        hidden_low = hidden.to(dtype)
        d_hidden = torch.empty_like(hidden_low)
        d_head = torch.zeros_like(head, dtype=torch.float32)
        total = hidden.new_zeros((), dtype=torch.float32)
        for start in range(0, count, CHUNK):
            part = slice(start, start + CHUNK)
            scores = (hidden_low[part] @ low.T).float()
            scores -= scores.amax(dim=1, keepdim=True)
            picked = scores.gather(1, targets[part, None])
            scores.exp_()
            norm = scores.sum(dim=1, keepdim=True)
            total += (norm.log() - picked).sum()
            scores /= norm * count
            scores.scatter_add_(1, targets[part, None], torch.full_like(picked, -1.0 / count))
            gradient = scores.to(dtype)
            d_hidden[part] = gradient @ low
            d_head += (gradient.T @ hidden_low[part]).float()
        ctx.save_for_backward(d_hidden.to(hidden.dtype), d_head.to(head.dtype))
        return total / count

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None, None]:
        d_hidden, d_head = ctx.saved_tensors
        return d_hidden * outer[0], d_head * outer[0], None, None


def batch_loss(model: torch.nn.Module, inputs: Tensor, targets: Tensor, *, dtype: torch.dtype) -> Tensor:
    """The mean loss of `targets [batch, position]` after `inputs [batch, position]`, in nats; products in `dtype`."""
    network: Any = model
    with torch.autocast(inputs.device.type, dtype=dtype, enabled=dtype != torch.float32):
        hidden = network.base_model(inputs, use_cache=False).last_hidden_state
    head = network.get_output_embeddings().weight
    loss: Tensor = _ChunkedLoss.apply(hidden.reshape(-1, hidden.shape[-1]), head, targets.reshape(-1), dtype)  # type: ignore[no-untyped-call]
    return loss


def faster_dtype(device: torch.device) -> torch.dtype:
    """What matrices are multiplied in: bfloat16 on a GPU and on a CPU with tiles for it (AMX), else float32.

    Told by what the processor has, never by timing: a run that goes on must multiply as it did.
    """
    has_tiles = device.type == "cpu" and torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if device.type != "cpu" or has_tiles else torch.float32


def attend_in_float32(model: Any) -> None:
    """Lets `model` compute its attention in float32; its inputs must come without padding on the left."""
    AttentionInterface.register("mnemoscope_float32", _attend)
    model.set_attn_implementation("mnemoscope_float32")


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
