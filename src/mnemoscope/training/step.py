"""One training step: the loss, its gradient, and the division of a batch among threads.

The gradient of the loss is computed in chunks of positions, so the logits of a whole batch are never in memory. On a
CPU the batch is divided among threads.
"""

import copy
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from mnemoscope.training.terms import BalanceTerm, MemoryTerms

Terms = MemoryTerms | BalanceTerm
CHUNK = 256
"""Positions whose logits are in memory at a time; they fit into a CPU's cache."""


class Workers:
    """Each part of a batch has a thread and a replica that shares the model's weights: on few cores faster than several
    threads per product (docs/log). Gradients are averaged in order, so the result is deterministic.
    """

    def __init__(self, model: Any, batch: int, *, balance: float = 0.0) -> None:
        on_cpu = next(model.parameters()).device.type == "cpu"
        count = math.gcd(batch, torch.get_num_threads()) if on_cpu else 1
        self._models = [model, *(copy.deepcopy(model) for _ in range(count - 1))]
        for replica in self._models[1:]:
            for own, shared in zip(replica.parameters(), model.parameters(), strict=True):
                own.data = shared.data
        mixture = model.config.model_type == "mixtral"
        self._terms: list[Terms] = [BalanceTerm(one, balance) if mixture else MemoryTerms(one) for one in self._models]
        # OpenMP's number of threads is per thread.
        self._pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) if count > 1 else None

    def share_out(self, take: Callable[[Any, Terms, Tensor], float], batch: Tensor) -> float:
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
    """Mean cross-entropy of `hidden @ head.T`; its gradient is computed in the forward pass."""

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
    """In nats per token. `inputs` and `targets` are `[batch, position]`; products are in `dtype`."""
    network: Any = model
    with torch.autocast(inputs.device.type, dtype=dtype, enabled=dtype != torch.float32):
        hidden = network.base_model(inputs, use_cache=False).last_hidden_state
    head = network.get_output_embeddings().weight
    loss: Tensor = _ChunkedLoss.apply(hidden.reshape(-1, hidden.shape[-1]), head, targets.reshape(-1), dtype)  # type: ignore[no-untyped-call]
    return loss


def faster_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU and on a CPU with AMX tiles, else float32. Not by timing: a continued run needs the same."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.9 has no such function
    return torch.bfloat16 if device.type != "cpu" or capabilities.get("amx_tile") else torch.float32
