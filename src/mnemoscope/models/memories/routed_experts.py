"""Routed experts: matrices stacked in one module, and the function of gate and up; found in a block by their interface.

A coefficient is the activation times the router's weight (definitions.md section 7.1). experts.py adds shared experts.
"""

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from mnemoscope.errors import ModelUnsupported
from mnemoscope.foundation.cache import Cache
from mnemoscope.models.memories.feed_forward import Activation
from mnemoscope.models.modules.linear_maps import LinearMap, is_of_adapters
from mnemoscope.models.modules.observed import same
from mnemoscope.models.modules.offloading import device_of_module, weight_of
from mnemoscope.models.modules.taps import Reached, Taps, reach

_TORCHS_OWN = ("OptimizedModule", "CheckpointWrapper")
_NAMES = ("gate_up_proj", "up_proj", "down_proj")


Layout = Literal["halves", "interleaved"]
Gating = Callable[[Tensor, Tensor], Tensor]
"""Gate and up [..., memory] -> activation."""


def plainly(activation: Activation) -> Gating:
    return lambda gate, up: activation(gate) * up


def gating_of(module: Any) -> tuple[Layout, Gating]:
    """The layout and the joining function, found by calling the module."""
    weight = module.gate_up_proj
    generator = torch.Generator().manual_seed(0)
    made = (10 * torch.randn(64, 64, generator=generator)).to(device=device_of_module(module), dtype=weight.dtype)
    apply_gate = getattr(module, "_apply_gate", None)
    activation: Callable[..., Tensor] = getattr(module, "act_fn", nn.functional.silu)
    if apply_gate is None:
        return "halves", plainly(activation)
    limit, alpha = (
        next((float(value) for name in names if isinstance(value := getattr(module, name, None), int | float)), default)
        for names, default in ((("limit", "swiglu_limit"), torch.inf), (("alpha", "swiglu_alpha"), 1.0))
    )
    with torch.inference_mode():
        expected = apply_gate(made)
        halves, interleaved = made.chunk(2, dim=-1), (made[..., ::2], made[..., 1::2])
        ways = plainly(activation), *_bounded_ways(activation, limit, alpha)
        taken = inspect.signature(getattr(activation, "forward", activation)).parameters.values()
        takes_two = sum(parameter.default is parameter.empty for parameter in taken) == 2
        for gating in (activation,) if takes_two else ways:
            for layout, (gate, up) in (("halves", halves), ("interleaved", interleaved)):
                if same(gating(gate, up), expected):
                    return layout, gating  # type: ignore[return-value]
    raise ModelUnsupported(f"how its experts ({type(module).__name__}) combine gate and up is unknown")


def _bounded_ways(activation: Activation, limit: float, alpha: float) -> tuple[Gating, ...]:
    def glu_plus_one(gate: Tensor, up: Tensor) -> Tensor:
        gate = gate.clamp(max=limit)
        return (up.clamp(-limit, limit) + 1) * (gate * torch.sigmoid(gate * alpha))

    return (
        lambda gate, up: activation(gate.clamp(max=limit)) * up.clamp(-limit, limit),
        lambda gate, up: activation(gate).clamp(max=limit) * up.clamp(-limit, limit),
        glu_plus_one,
    )


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
        # During the outer module's forward the module holds them; another forward would adapt them twice.
        if is_of_adapters(self.outer) == is_parametrized(self.module):
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
        matrices = [part[expert] for part in self.parts]
        return matrices[0].T if self.turned else torch.cat(matrices)


def _stacks_in(module: nn.Module) -> dict[str, Tensor]:
    stacks = {name: getattr(module, name, None) for name in _NAMES}
    return {name: stack.detach() for name, stack in stacks.items() if isinstance(stack, Tensor)}


@dataclass(frozen=True)
class Narrowing:
    into: LinearMap
    out: LinearMap


@dataclass(frozen=True)
class RoutedExperts:
    """Experts whose matrices are stacked in one module.

    `layout`: how gate and up share the first stack (None: no gate); `gating` joins them; `transposed` stacks hold [in,
    out]. `weighs_input`: the weight is in the input (Llama 4), so it is inside the activation, and the module receives
    every token once for every expert. `scale` is the factor of the module's output in the layer, so it belongs to the
    router's weights. `narrow`: the module works in a stream narrower than the layer's, so keys and values are products;
    `stream` is the width of its own.
    """

    module: nn.Module
    stacks: Stacks | Piles
    stream: int
    count: int
    width: int
    layout: Layout | None
    gating: Gating
    activation: Activation
    transposed: bool
    weighs_input: bool = False
    router: nn.Module | None = None
    scale: float = 1.0
    narrow: Narrowing | None = None

    @property
    def hidden(self) -> int:
        return self.stream if self.narrow is None else self.narrow.out.shape[0]

    @property
    def around(self) -> tuple[LinearMap, ...]:
        return () if self.narrow is None else (self.narrow.into, self.narrow.out)

    def first_map(self, expert: int) -> tuple[Tensor, Tensor | None]:
        """Matrix [memories or twice as many, hidden] before the activation and its bias, as stored."""
        name = "up_proj" if self.layout is None else "gate_up_proj"
        return self._matrix(name, expert), self._bias(name, expert)

    def second_map(self, expert: int) -> tuple[Tensor, Tensor | None]:
        """Matrix [hidden, memory] after the activation and its bias."""
        return self._matrix("down_proj", expert), self._bias("down_proj", expert)

    def _matrix(self, name: str, expert: int) -> Tensor:
        matrix = self.stacks[name][expert]
        return matrix.T if self.transposed else matrix

    def _bias(self, name: str, expert: int) -> Tensor | None:
        has_one = isinstance(getattr(self.module, f"{name}_bias", None), Tensor)
        return weight_of(self.module, f"{name}_bias").detach()[expert] if has_one else None

    def keys(self, expert: int) -> Tensor:
        """The keys [memory, hidden]; of gated experts the gates."""
        return self._in_stream(self._half(expert, 0)[0])

    def up_keys(self, expert: int) -> Tensor:
        """The second keys [memory, hidden] of a gated expert."""
        return self._in_stream(self._half(expert, 1)[0])

    def _in_stream(self, keys: Tensor) -> Tensor:
        return keys if self.narrow is None else keys.float() @ self.narrow.into.weight().float()

    def values(self, expert: int) -> Tensor:
        matrix = self.second_map(expert)[0]
        return matrix.T if self.narrow is None else matrix.T.float() @ self.narrow.out.weight().float().T

    def out_of_module(self, written: Tensor) -> Tensor:
        """The values' sum [..., hidden of the module] in the layer's stream, float32; no bias."""
        return written if self.narrow is None else written @ self.narrow.out.weight().float().T

    def _half(self, expert: int, half: int) -> tuple[Tensor, Tensor | None]:
        """Gate (0) or up (1) of the module, [memory, hidden of the module], and their bias."""
        matrix, bias = self.first_map(expert)
        if self.layout is None:
            return matrix, bias
        start, interleaved = half * self.width, self.layout == "interleaved"
        part = slice(half, None, 2) if interleaved else slice(start, start + self.width)
        return matrix[part], None if bias is None else bias[part]

    def maps(self, inputs: Tensor, expert: int) -> list[Tensor]:
        """One expert's linear outputs for the module's input: gate and up, or the only one."""
        halves = (0,) if self.layout is None else (0, 1)
        return [nn.functional.linear(inputs, *self._half(expert, half)) for half in halves]

    def join(self, *maps: Tensor) -> Tensor:
        return self.activation(*maps) if self.layout is None else self.gating(*maps)

    def activate(self, made: Tensor) -> Tensor:
        if self.layout is None:
            return self.activation(made)
        apply_gate = getattr(self.module, "_apply_gate", None)
        if apply_gate is not None:
            return apply_gate(made)  # type: ignore[no-any-return]
        gate, up = made.chunk(2, dim=-1)
        return self.gating(gate, up)


def find_routed(block: nn.Module, latest: Cache | None = None) -> tuple[str, RoutedExperts] | None:
    """The routed experts of a block and the path of their module, or None."""
    for path, module in block.named_modules():
        if is_wrapper(module):  # the module inside comes next
            continue
        # Computes every expert on inputs weighted by the router.
        weighs_input = type(module).__name__ == "Llama4TextExperts"
        if weighs_input or isinstance(getattr(module, "is_concatenated", None), bool):
            while is_wrapper(around := block.get_submodule(path.rpartition(".")[0])):
                path = path.rpartition(".")[0]
            stacks = Stacks(module, block.get_submodule(path), Cache(1) if latest is None else latest)
            return path, _routed_of(module, around, stacks, weighs_input=weighs_input)
        if type(module).__name__ == "DbrxExperts":
            return path, _piled_of(module)
        is_list = isinstance(module, nn.ModuleList) and path.rpartition(".")[2] == "experts" and len(module) > 1
        if is_list or type(module).__name__.endswith("Experts"):
            raise ModelUnsupported(f"its experts ({type(module).__name__} at {path!r}) cannot be read yet")
    return None


def _routed_of(module: Any, around: Any, stacks: Stacks, *, weighs_input: bool) -> RoutedExperts:
    name = type(module).__name__
    if getattr(module, "has_post_expert_norm", False):
        raise ModelUnsupported(f"its experts ({name}) have a norm of their own each, which cannot be read yet")
    down: Any = module.down_proj
    if type(down) not in (Tensor, nn.Parameter) or down.dim() != 3 or not down.is_floating_point():
        raise ModelUnsupported(f"its experts ({name}) hold no plain matrices; load it with --dequantize")
    transposed = weighs_input or bool(module.is_transposed)
    count, *shape = down.shape
    activation = getattr(module, "act_fn", nn.functional.silu)
    layout, gating = (None, plainly(activation)) if not getattr(module, "has_gate", True) else gating_of(module)
    width, stream = map(int, shape if transposed else reversed(shape))
    return RoutedExperts(
        module,
        stacks,
        stream,
        int(count),
        width,
        layout,
        gating,
        activation,
        transposed,
        weighs_input,
        around.router if weighs_input else None,
    )


def _piled_of(module: Any) -> RoutedExperts:
    inside, count = module.mlp, int(module.num_experts)
    piles = {name: getattr(inside, name, None) for name in ("w1", "v1", "w2")}
    if is_wrapper(inside) or not all(
        type(each) is nn.Parameter and each.is_floating_point() for each in piles.values()
    ):
        raise ModelUnsupported(f"its experts ({type(module).__name__}) hold no plain matrices, and cannot be read yet")
    width, activation = int(module.ffn_hidden_size), inside.activation_fn
    stacks, stream = Piles(inside, count), int(module.hidden_size)
    return RoutedExperts(module, stacks, stream, count, width, "halves", plainly(activation), activation, False)
