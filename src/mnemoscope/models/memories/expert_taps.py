"""Reads or changes coefficients of routed experts as a model runs.

No module takes or returns an activation times its router's weight. So while a tap is set, the module of the routed
experts computes with the forward of this file, and gets its own back afterwards; the load-time proof compares the two
in every layer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.foundation.shared_change import shared_change
from mnemoscope.models.memories.groups import Group
from mnemoscope.models.memories.routed_experts import RoutedExperts
from mnemoscope.models.modules.observed import flat
from mnemoscope.models.modules.offloading import hold_weights

Looks = Callable[[], bool]
"""Whether the hooks act in the running forward."""
Take = Callable[[Group], Group]
"""Takes the experts' output and returns its replacement."""


@contextmanager
def tap_experts(routed: RoutedExperts, take: Take, *, looks: Looks) -> Iterator[None]:
    """Calls `take` with the routed experts' results in the forwards for which `looks` is true; for any threads."""
    tap = (looks, take)
    with _replaced_forward(routed.module, routed) as taps:
        taps.append(tap)
        try:
            yield
        finally:
            taps.remove(tap)


@shared_change
def _replaced_forward(module: nn.Module, routed: RoutedExperts) -> Iterator[list[tuple[Looks, Take]]]:
    taps: list[tuple[Looks, Take]] = []
    before = module.__dict__.get("forward")  # libraries that offload set one
    module.forward = _forward_of(routed, taps, module.forward)
    try:
        yield taps
    finally:
        del module.__dict__["forward"]
        if before is not None:
            module.forward = before


def _forward_of(
    routed: RoutedExperts, taps: list[tuple[Looks, Take]], usual: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    def forward(*inputs: Any, **named: Any) -> Tensor:
        looking = [take for looks, take in list(taps) if looks()]
        if not looking:
            return usual(*inputs, **named)
        compute = _compute_every if routed.weighs_input else _compute
        with hold_weights(routed.stacks.module):
            return compute(routed, looking, *inputs, *named.values())

    return forward


def _compute(routed: RoutedExperts, takes: list[Take], hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """The output, of the shape of `hidden`, for `top_k_index` and `top_k_weights` `[token, choice]`."""
    shape, hidden = hidden.shape, flat(hidden)
    # An expert that a token names twice counts once; an index beyond the last means no expert.
    table = torch.zeros(len(hidden), routed.count + 1, dtype=weights.dtype, device=hidden.device)
    table.scatter_add_(1, index.clamp(max=routed.count), weights)
    experts, tokens = table[:, : routed.count].T.nonzero(as_tuple=True)
    rows = Group(
        hidden,
        len(hidden),
        count=routed.count,
        experts=experts,
        tokens=tokens,
        weights=table[tokens, experts].to(hidden.dtype) * routed.scale,
    )
    return _run(routed, takes, rows).view(shape)


def _compute_every(routed: RoutedExperts, takes: list[Take], hidden: Tensor) -> Tensor:
    """The output `[expert * token, hidden]` for inputs that the router has weighted; zero where it chose another."""
    each = hidden.view(routed.count, -1, hidden.shape[-1])
    experts, tokens = each.any(dim=-1).nonzero(as_tuple=True)
    return _run(routed, takes, Group(hidden, each.shape[1], count=routed.count, experts=experts, tokens=tokens))


def _run(routed: RoutedExperts, takes: list[Take], rows: Group) -> Tensor:
    """The output for a group whose `coefficients` are still the inputs, by token; computes the coefficients."""
    inputs, experts, tokens = rows.coefficients, rows.experts, rows.tokens
    assert experts is not None
    assert tokens is not None
    # With weighted inputs, every expert has its own input per token.
    places = experts * rows.of + tokens if routed.weighs_input else tokens
    edges = [0, *torch.bincount(experts, minlength=routed.count).cumsum(0).tolist()]
    made = inputs.new_empty(len(tokens), routed.width)
    for number, (a, b) in enumerate(pairwise(edges)):
        if b > a:
            activated = routed.activate(nn.functional.linear(inputs[places[a:b]], *routed.first_map(number)))
            made[a:b] = activated if rows.weights is None else activated * rows.weights[a:b, None]
    group = replace(rows, coefficients=made)
    for take in takes:
        group = take(group)
    total = torch.zeros_like(inputs, dtype=torch.float32)
    for number, (a, b) in enumerate(pairwise(edges)):
        if b > a:
            matrix, bias = routed.second_map(number)
            written = nn.functional.linear(group.coefficients[a:b], matrix)
            if bias is not None:
                written = written + (bias if rows.weights is None else rows.weights[a:b, None] * bias)
            total.index_add_(0, places[a:b], written.float())
    # The coefficients include the layer's factor on this module's output.
    return (total / routed.scale).to(inputs.dtype)
