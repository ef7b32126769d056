"""Routed experts: matrices stacked in one module, and the function of gate and up; found in a block by their interface.

A coefficient is the activation times the router's weight (definitions.md section 7.1). experts.py adds shared experts.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mnemoscope.errors import ModelUnsupported
from mnemoscope.foundation.cache import Cache
from mnemoscope.models.memories.expert_gating import Gating, Layout, gating_of, plainly
from mnemoscope.models.memories.expert_stacks import Piles, Stacks, is_wrapper
from mnemoscope.models.memories.feed_forward import Activation
from mnemoscope.models.modules.linear_maps import LinearMap
from mnemoscope.models.modules.offloading import weight_of


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

    def into_module(self, inputs: Tensor) -> Tensor:
        return inputs if self.narrow is None else self.narrow.into(inputs)

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
        own = getattr(self.module, "_apply_gate", None)
        if own is not None:
            return own(made)  # type: ignore[no-any-return]
        gate, up = made.chunk(2, dim=-1)
        return self.gating(gate, up)


def find_routed(block: nn.Module, latest: Cache | None = None) -> tuple[str, RoutedExperts] | None:
    """The routed experts of a block and the path of their module, or None; raises ModelUnsupported."""
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
    own = {name: getattr(inside, name, None) for name in ("w1", "v1", "w2")}
    if is_wrapper(inside) or not all(type(each) is nn.Parameter and each.is_floating_point() for each in own.values()):
        raise ModelUnsupported(f"its experts ({type(module).__name__}) hold no plain matrices, and cannot be read yet")
    width, activation = int(module.ffn_hidden_size), inside.activation_fn
    stacks, stream = Piles(inside, count), int(module.hidden_size)
    return RoutedExperts(module, stacks, stream, count, width, "halves", plainly(activation), activation, False)
