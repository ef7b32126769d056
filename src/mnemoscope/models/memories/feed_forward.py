"""The feed-forward layer of one block as memories: keys, values, and their coefficients for an input.

A dense layer is three linear maps and a function; a mixture of experts (experts.py) is many of them. Both implement
`FeedForward`, the interface for the rest of the package: another kind of layer is one more class.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from mnemoscope.foundation.memory_names import Numbering
from mnemoscope.models.memories.groups import Group
from mnemoscope.models.modules.linear_maps import LinearMap
from mnemoscope.models.modules.observed import flat
from mnemoscope.models.modules.taps import Taps

Activation = Callable[[Tensor], Tensor]
Overwrite = Callable[[Tensor], Tensor | None]
"""Coefficients to their replacement, a new tensor of the same shape; None leaves them."""


@dataclass(frozen=True)
class Branch:
    """The norm through which a branch's keys read the stream, and the norm behind its values.

    Gemma 4 adds a dense layer and its experts, each with its own norms, before the block's norm. The norm behind is an
    output norm (definitions.md sections 1 and 7.1), folded into the values of its branch; its divisor depends on the
    text.
    """

    before: nn.Module
    behind: nn.Module


class FeedForward(Protocol):
    """Computes the coefficients of a layer and writes its values.

    Memories are numbered through all experts. `weights [..., expert]` is each expert's weight for a token; None in a
    dense layer.
    """

    @property
    def numbering(self) -> Numbering:
        """The numbers and names of the layer's memories."""

    @property
    def hidden(self) -> int:
        """The width of the stream."""

    @property
    def has_gate(self) -> bool:
        """Whether every memory has two keys."""

    @property
    def entry(self) -> nn.Module:
        """The module whose input the keys read."""

    @property
    def exits(self) -> tuple[nn.Module, ...]:
        """The modules whose outputs sum to the layer's, in the order in which they end."""

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The branches with norms of their own: the routed experts', then each shared one's; mostly none."""

    @property
    def is_probed(self) -> bool:
        """Whether a matrix consists of its module's outputs for unit vectors."""

    @property
    def precision(self) -> torch.dtype:
        """The dtype in which its matrices are multiplied, the coarsest if they differ."""

    @property
    def parameters(self) -> int:
        """Weights and biases, counted unpacked."""

    def goes_negative(self, *, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether coefficients can be below zero."""

    def keys(self) -> Tensor:
        """The keys [memory, hidden]; of a gated layer the gates."""

    def up_keys(self) -> Tensor | None:
        """The second keys [memory, hidden] of a gated layer, else None."""

    def values(self) -> Tensor:
        """The values [memory, hidden]."""

    def recall(self, inputs: Tensor, weights: Tensor | None) -> Tensor:
        """The coefficients [..., memory] of the keys for inputs [..., hidden]."""

    def rounding(self, inputs: Tensor, weights: Tensor | None) -> Tensor | None:
        """The size [..., memory] of the terms that round in coefficients; None if it is their own."""

    def write(self, coefficients: Tensor) -> Tensor:
        """`coefficients @ values` [..., hidden], float32."""

    def bias(self, weights: Tensor | None) -> Tensor | None:
        """The addition to the values' sum, [hidden] or [..., hidden], float32; None for nothing."""

    def watch(self, callback: Callable[[Group], None], taps: Taps) -> None:
        """Taps the coefficients: one group of a dense layer; the routed experts' and each shared one's of a mixture."""

    def overwrite(self, change: Overwrite, taps: Taps) -> None:
        """Replaces the coefficients `[token, memory]` by `change` of them: of each group of `watch`, with zeros in
        place of the others. The result counts only where a token was routed.
        """

    def end(self, tap: Callable[[Tensor], None], taps: Taps) -> None:
        """Calls `tap` with some tensor once all coefficients were watched."""


def parameters_of(maps: Iterable[LinearMap]) -> int:
    shapes = [(*linear.shape, linear.bias() is not None) for linear in maps]
    return sum(out * (inside + biased) for out, inside, biased in shapes)


@dataclass(frozen=True)
class DenseFeedForward:
    """f(x K) V, or f(x G) * (x U) V with an `up`; `inner_norm` is between the activation and V."""

    gate: LinearMap
    up: LinearMap | None
    down: LinearMap
    activation: Activation
    inner_norm: nn.Module | None = None

    @property
    def branches(self) -> tuple[Branch, ...]:
        return ()

    @cached_property
    def numbering(self) -> Numbering:
        return Numbering((self.down.shape[1],))

    @property
    def hidden(self) -> int:
        return self.down.shape[0]

    @property
    def has_gate(self) -> bool:
        return self.up is not None

    @property
    def entry(self) -> nn.Module:
        return self.gate.module

    @property
    def exits(self) -> tuple[nn.Module, ...]:
        return (self.down.module,)

    @property
    def maps(self) -> tuple[LinearMap, ...]:
        return tuple(each for each in (self.gate, self.up, self.down) if each is not None)

    @property
    def is_probed(self) -> bool:
        return any(each.is_probed for each in self.maps)

    @property
    def precision(self) -> torch.dtype:
        return coarsest(each.precision for each in self.maps)

    @property
    def parameters(self) -> int:
        return parameters_of(self.maps)

    def goes_negative(self, *, dtype: torch.dtype, device: torch.device) -> bool:
        return self.has_gate or self.inner_norm is not None or dips(self.activation, dtype=dtype, device=device)

    def keys(self) -> Tensor:
        return self.gate.weight()

    def up_keys(self) -> Tensor | None:
        return None if self.up is None else self.up.weight()

    def values(self) -> Tensor:
        return self.down.weight().T

    def recall(self, inputs: Tensor, weights: Tensor | None = None) -> Tensor:
        made = self.activation(self.gate(inputs))
        made = made if self.up is None else made * self.up(inputs)
        return made if self.inner_norm is None else self.inner_norm(made)

    def rounding(self, inputs: Tensor, weights: Tensor | None = None) -> None:
        """None: coefficients round by their own size."""

    def write(self, coefficients: Tensor) -> Tensor:
        return coefficients.float() @ self.values().float()

    def bias(self, weights: Tensor | None = None) -> Tensor | None:
        bias = self.down.bias()
        return None if bias is None else bias.float()

    def watch(self, callback: Callable[[Group], None], taps: Taps) -> None:
        def tap(entered: Tensor) -> None:
            coefficients = flat(entered)
            callback(Group(coefficients, len(coefficients)))

        taps.enters(self.down.module, tap)

    def overwrite(self, change: Overwrite, taps: Taps) -> None:
        def tap(entered: Tensor) -> Tensor | None:
            changed = change(flat(entered))
            return None if changed is None else changed.reshape(entered.shape)

        taps.enters(self.down.module, tap)

    def end(self, tap: Callable[[Tensor], None], taps: Taps) -> None:
        taps.enters(self.down.module, tap)


def coarsest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def dips(activation: Activation, *, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether f is below zero anywhere, by evaluating it, since its names are many."""
    with torch.inference_mode():
        return bool((activation(torch.linspace(-30, 30, 2401, dtype=dtype, device=device)) < 0).any())
