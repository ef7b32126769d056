"""Coefficients as a layer computes them: those of experts of one width together, in the order of their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.foundation.memory_names import Numbering


@dataclass(frozen=True)
class Group:
    """The results of experts of one width: `coefficients [row, memory]`, one row per token and expert.

    Rows are ordered by expert, then token. There are `count` experts, the first of which is number `expert` of the
    layer and has memory `first`; `experts [row]` count from it, None for a single one. `tokens [row]` count through the
    batch, None stands for all `of` them; `weights [row]` are the router's, None if they are 1. A dense layer is one
    expert.
    """

    coefficients: Tensor
    of: int
    expert: int = 0
    first: int = 0
    count: int = 1
    experts: Tensor | None = None
    tokens: Tensor | None = None
    weights: Tensor | None = None


def join(groups: Sequence[Group], numbering: Numbering) -> tuple[Tensor, Tensor]:
    """The coefficients `[token, memory]` and weights `[token, expert]` of a layer, from all of its groups."""
    whole = groups[-1].coefficients.new_zeros(groups[-1].of, numbering.count)
    for group in groups:
        place(whole, group)
    return whole, torch.stack([weights_of(group, len(numbering.widths)) for group in groups]).sum(0)


def place(whole: Tensor, group: Group) -> None:
    part = _part_of(whole, group)
    if group.tokens is None:
        part[:, 0] = group.coefficients
    else:
        part[group.tokens, group.experts] = group.coefficients


def taken_from(whole: Tensor, group: Group) -> Tensor:
    part = _part_of(whole, group)
    return part[:, 0] if group.tokens is None else part[group.tokens, group.experts]


def _part_of(whole: Tensor, group: Group) -> Tensor:
    """The group's part of a layer, as a view `[token, expert, memory]`."""
    width = group.coefficients.shape[-1]
    columns = whole[:, group.first : group.first + group.count * width]
    return columns.as_strided((len(whole), group.count, width), (whole.stride(0), width, 1), columns.storage_offset())


def weights_of(group: Group, experts: int) -> Tensor:
    """The router's weights `[token, expert]` of all experts of the layer, float32, zero outside this group."""
    whole = torch.zeros(group.of, experts, device=group.coefficients.device)
    weights = 1.0 if group.weights is None else group.weights.float()
    if group.tokens is None or group.experts is None:
        whole[:, group.expert] = weights
    else:
        whole[group.tokens, group.expert + group.experts] = weights
    return whole
