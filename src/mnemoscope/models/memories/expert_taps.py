"""Reads or changes coefficients of experts as a model runs.

No module takes or returns an activation times its router's weight. So while a tap is set, the module of the routed
experts computes with the forward of this file, and gets its own back afterwards; the load-time proof compares the two
in every layer. A shared expert is tapped at its down-projection, like a dense layer.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.foundation.shared_change import shared_change
from mnemoscope.models.memories.experts import MixtureFeedForward
from mnemoscope.models.memories.routed_experts import RoutedExperts
from mnemoscope.models.modules.observed import first, flat
from mnemoscope.models.modules.offloading import hold_weights


@dataclass(frozen=True)
class Group:
    """The results of experts of one width: `coefficients [row, memory]`, one row per token and expert.

    Rows are ordered by expert, then token. There are `count` experts, the first of which is number `expert` of the
    layer and has memory `first`; `experts [row]` count from it, None for a single one. `tokens [row]` count through the
    batch, None stands for all `of` them; `weights [row]` are the router's, None if they are 1.
    """

    coefficients: Tensor
    of: int
    expert: int = 0
    first: int = 0
    count: int = 1
    experts: Tensor | None = None
    tokens: Tensor | None = None
    weights: Tensor | None = None


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
    """The taps of a module that computes with the forward of this file meanwhile."""
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
    routed: RoutedExperts, taps: list[tuple[Looks, Take]], own: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    def forward(*inputs: Any, **named: Any) -> Tensor:
        looking = [take for looks, take in list(taps) if looks()]
        if not looking:
            return own(*inputs, **named)
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
        hidden, len(hidden), count=routed.count, experts=experts, tokens=tokens,
        weights=table[tokens, experts].to(hidden.dtype) * routed.scale,
    )  # fmt: skip
    return _run(routed, takes, rows).view(shape)


def _compute_every(routed: RoutedExperts, takes: list[Take], hidden: Tensor) -> Tensor:
    """The output `[expert * token, hidden]` for inputs that the router has weighted; zero where it chose another."""
    each = hidden.view(routed.count, -1, hidden.shape[-1])
    experts, tokens = each.any(dim=-1).nonzero(as_tuple=True)
    rows = Group(hidden, each.shape[1], count=routed.count, experts=experts, tokens=tokens)
    return _run(routed, takes, rows)


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
            if rows.weights is None:
                made[a:b] = activated
            else:
                torch.mul(activated, rows.weights[a:b, None], out=made[a:b])
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


def visit(ffn: MixtureFeedForward, visitor: Callable[[Group], None], *, looks: Looks, hooks: ExitStack) -> None:
    """Sets hooks that call `visitor` with the results of the routed experts and of each shared one, in order."""
    router, given = ffn.routed.router if ffn.routed.weighs_input else None, []

    def note(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if looks():
            given.append(first(output))

    def take(group: Group) -> Group:
        if given:
            group = replace(group, weights=given.pop()[group.tokens, group.experts])
        visitor(group)
        return group

    if router is not None:
        hooks.enter_context(router.register_forward_hook(note))
    hooks.enter_context(tap_experts(ffn.routed, take, looks=looks))
    for number in range(len(ffn.shared)):
        _tap_shared(ffn, number, lambda _, group: visitor(group), hooks, looks)


def change(
    ffn: MixtureFeedForward,
    overwrite: Callable[[Tensor], Tensor | None],
    *,
    looks: Looks,
    hooks: ExitStack,
) -> None:
    """Sets hooks that replace coefficients by `overwrite` of the layer's `[token, memory]`.

    It is called for all routed experts together and for each shared one, with zeros in place of the others; its result
    counts only where a token was routed.
    """

    def wanted_of(group: Group) -> Tensor | None:
        whole = group.coefficients.new_zeros(group.of, ffn.numbering.count)
        place(whole, group)
        made = overwrite(whole)
        return None if made is None else taken_from(made, group)

    def take(group: Group) -> Group:
        wanted = wanted_of(group)
        return group if wanted is None else replace(group, coefficients=wanted)

    def tap(inputs: tuple[Any, ...], group: Group) -> tuple[Any, ...] | None:
        wanted = wanted_of(group)
        if wanted is None:
            return None
        if group.weights is not None:
            # Unchanged entries keep the activation itself, without the rounding of the weight.
            weight = group.weights[:, None]
            wanted = flat(inputs[0]).where(wanted == group.coefficients, (wanted / weight).where(weight != 0, 0))
        return (wanted.reshape(inputs[0].shape), *inputs[1:])

    hooks.enter_context(tap_experts(ffn.routed, take, looks=looks))
    for number in range(len(ffn.shared)):
        _tap_shared(ffn, number, tap, hooks, looks)


def _tap_shared(
    ffn: MixtureFeedForward,
    number: int,
    tap: Callable[[tuple[Any, ...], Group], tuple[Any, ...] | None],
    hooks: ExitStack,
    looks: Looks,
) -> None:
    """Sets hooks that call `tap(inputs of the down-projection, Group)` as a shared expert computes."""
    shared, expert, taken = ffn.shared[number], ffn.routed.count + number, []

    def entering(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        if looks():
            taken.append(flat(inputs[0]))

    def leaving(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not looks():
            return None
        coefficients, weight = flat(inputs[0]), shared.weigh(taken.pop())
        if weight is not None:
            coefficients, weight = coefficients * weight, weight[:, 0]
        first_memory = ffn.numbering.firsts[expert]
        own = Group(coefficients, len(coefficients), expert=expert, first=first_memory, weights=weight)
        return tap(inputs, own)

    hooks.enter_context(shared.dense.entry.register_forward_pre_hook(entering))
    hooks.enter_context(shared.dense.exits[-1].register_forward_pre_hook(leaving))


def place(whole: Tensor, group: Group) -> None:
    """Writes a group's coefficients into those of the layer, `[token, memory]`."""
    own = _own(whole, group)
    if group.tokens is None:
        own[:, 0] = group.coefficients
    else:
        own[group.tokens, group.experts] = group.coefficients


def taken_from(whole: Tensor, group: Group) -> Tensor:
    own = _own(whole, group)
    return own[:, 0] if group.tokens is None else own[group.tokens, group.experts]


def _own(whole: Tensor, group: Group) -> Tensor:
    """The group's part of a layer, as a view `[token, expert, memory]`."""
    width = group.coefficients.shape[-1]
    own = whole[:, group.first : group.first + group.count * width]
    return own.as_strided(
        (len(whole), group.count, width), (whole.stride(0), width, 1), own.storage_offset()
    )


def weights_of(group: Group, experts: int) -> Tensor:
    """The router's weights `[token, expert]` of all experts of the layer, float32, zero outside this group."""
    whole = torch.zeros(group.of, experts, device=group.coefficients.device)
    weights = 1.0 if group.weights is None else group.weights.float()
    if group.tokens is None or group.experts is None:
        whole[:, group.expert] = weights
    else:
        whole[group.tokens, group.expert + group.experts] = weights
    return whole
