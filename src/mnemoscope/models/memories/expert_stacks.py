"""The stacked matrices of a module of experts, as it computes with them.

They may differ from the module's own: an adapter around it (peft's `target_parameters`) replaces them during a forward,
and packed ones are unpacked on every access. So they are captured where the module would begin to compute, and those of
the latest layer are cached, since a layer requests each of its experts separately.
"""

from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from mnemoscope.foundation.cache import Cache
from mnemoscope.models.modules.linear_maps import is_of_adapters
from mnemoscope.models.modules.offloading import weight_of
from mnemoscope.models.modules.taps import Reached, Taps, reach

_TORCHS_OWN = ("OptimizedModule", "CheckpointWrapper")
_NAMES = ("gate_up_proj", "up_proj", "down_proj")


def is_wrapper(module: nn.Module) -> bool:
    """Whether a module replaces the one inside it: an adapter, or a wrapper of torch."""
    return is_of_adapters(module) or type(module).__name__ in _TORCHS_OWN


@dataclass(frozen=True)
class Stacks:
    """The stacks [expert, ...] of `module`, by name; the model calls `outer`, and `latest` caches one layer's."""

    module: nn.Module
    outer: nn.Module
    latest: Cache

    @property
    def are_made(self) -> bool:
        return is_of_adapters(self.outer) or is_parametrized(self.module)

    @property
    def parameters(self) -> int:
        """The numbers in the module's own parameters; packed ones count unpacked."""
        named = self.module.named_parameters()
        beside = (each for name, each in named if name not in _NAMES and not name.startswith("parametrizations."))
        return sum(each.numel() for each in (*_stacks_in(self.module).values(), *beside))

    def __getitem__(self, name: str) -> Tensor:
        wrapped = is_of_adapters(self.outer)
        # During the outer module's forward the module holds them; another forward would adapt them twice.
        if wrapped == is_parametrized(self.module):
            return weight_of(self.module, name).detach()
        noted: dict[str, Tensor] = self.latest.get(self.module, self._note)
        return noted[name]

    @torch.inference_mode()
    def _note(self) -> dict[str, Tensor]:
        if not is_of_adapters(self.outer):
            return _stacks_in(self.module)

        stacks: dict[str, Tensor] = {}

        def note(entered: Tensor) -> None:
            stacks.update(_stacks_in(self.module))
            reach(entered)

        with Taps(own_thread=True) as taps, suppress(Reached):
            taps.enters(self.module, note)
            self.outer(torch.zeros(1, 1, device=next(self.module.parameters()).device))
        return stacks


@dataclass(frozen=True)
class Piles:
    """DBRX's experts as stacks: gates (w1), ups (v1) and values (w2), all [expert x memory, hidden], in `module`."""

    module: nn.Module
    count: int
    are_made: bool = False

    @property
    def parameters(self) -> int:
        return sum(each.numel() for each in self.module.parameters())

    def __getitem__(self, name: str) -> "_Pile":
        names = ("w1", "v1") if name == "gate_up_proj" else ("w2",)
        return _Pile([weight_of(self.module, one).detach().chunk(self.count) for one in names], name == "down_proj")


@dataclass(frozen=True)
class _Pile:
    """The matrices of each expert, concatenated on access; `turned` ones become [out, in]."""

    parts: list[tuple[Tensor, ...]]
    turned: bool

    def __getitem__(self, expert: int) -> Tensor:
        own = [part[expert] for part in self.parts]
        return own[0].T if self.turned else torch.cat(own)


def _stacks_in(module: nn.Module) -> dict[str, Tensor]:
    found = {name: getattr(module, name, None) for name in _NAMES}
    return {name: stack.detach() for name, stack in found.items() if isinstance(stack, Tensor)}
