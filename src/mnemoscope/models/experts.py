"""A mixture of experts as memories: stacked matrices, what weighs them, and the shared experts beside them.

A coefficient is the activation times the router's weight (definitions.md section 7.1). A shared expert is a dense
layer whose own gate, if it has one, is its weight. What is here is where the numbers lie; expert_taps.py reads and
changes them as the model runs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.cache import Cache
from mnemoscope.errors import ModelUnsupported
from mnemoscope.memory import Numbering
from mnemoscope.models.expert_gating import Gating, Layout, gating_of, plainly
from mnemoscope.models.expert_stacks import Stacks, is_wrapper
from mnemoscope.models.feed_forward import Activation, DenseFeedForward, coarsest
from mnemoscope.models.offloading import hold_weights, weight_of


@dataclass(frozen=True)
class RoutedExperts:
    """Experts whose matrices lie stacked in one module.

    `layout` says how gate and up share the first stack (None: no gate), `gating` joins them; `transposed` stacks hold
    [in, out]. `weighs_input`: the weight is in the input (Llama 4), so it is inside the activation, and the module
    is given every token once for every expert. What the module gives enters the layer `scale` times, so that belongs
    to the router's weights.
    """

    module: nn.Module
    stacks: Stacks
    count: int
    width: int
    layout: Layout | None
    gating: Gating
    activation: Activation
    transposed: bool
    weighs_input: bool = False
    router: nn.Module | None = None
    scale: float = 1.0

    @property
    def hidden(self) -> int:
        """The width of the stream."""
        return int(self.module.down_proj.shape[2 if self.transposed else 1])  # type: ignore[index]

    def first_map(self, expert: int) -> tuple[Tensor, Tensor | None]:
        """Matrix [memories or twice as many, hidden] before the activation and its bias, as they are stored."""
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

    def gate(self, expert: int) -> tuple[Tensor, Tensor | None]:
        """Keys [memory, hidden] and their bias."""
        return self._half(expert, 0)

    def up(self, expert: int) -> tuple[Tensor, Tensor | None]:
        """Second keys [memory, hidden] and their bias."""
        return self._half(expert, 1)

    def _half(self, expert: int, half: int) -> tuple[Tensor, Tensor | None]:
        matrix, bias = self.first_map(expert)
        if self.layout is None:
            return matrix, bias
        part = slice(half, None, 2) if self.layout == "interleaved" else slice(half * self.width, None)
        part = part if self.layout == "interleaved" or half else slice(0, self.width)
        return matrix[part], None if bias is None else bias[part]

    def maps(self, inputs: Tensor, expert: int) -> list[Tensor]:
        """What the keys of one expert make of inputs, before any function: gate and up, or the one that there is."""
        parts = [self.gate(expert)] if self.layout is None else [self.gate(expert), self.up(expert)]
        return [nn.functional.linear(inputs, *part) for part in parts]

    def join(self, *maps: Tensor) -> Tensor:
        """The activation of what `maps` gives."""
        return self.activation(*maps) if self.layout is None else self.gating(*maps)

    def activate(self, made: Tensor) -> Tensor:
        """The module's own activation of what the first map made."""
        if self.layout is None:
            return self.activation(made)
        own = getattr(self.module, "_apply_gate", None)
        if own is not None:
            return own(made)  # type: ignore[no-any-return]
        gate, up = made.chunk(2, dim=-1)
        return self.gating(gate, up)


@dataclass(frozen=True)
class SharedExpert:
    """An expert that every token goes through; `switch` is the map to one number whose sigmoid weighs it."""

    dense: DenseFeedForward
    switch: nn.Module | None = None
    scale: float = 1.0
    """How many times what it gives enters the layer."""

    def weigh(self, inputs: Tensor) -> Tensor | None:
        """The weight [..., 1] of every token; None where all have 1."""
        if self.switch is None:
            return None if self.scale == 1.0 else inputs.new_full((*inputs.shape[:-1], 1), self.scale)
        return torch.sigmoid(self.switch.forward(inputs)) * self.scale


@dataclass(frozen=True)
class MixtureFeedForward:
    """Routed and shared experts of one layer; see `FeedForward` for what it answers."""

    entry: nn.Module
    exits: tuple[nn.Module, ...]
    routed: RoutedExperts
    shared: tuple[SharedExpert, ...]

    @cached_property
    def numbering(self) -> Numbering:
        """See `FeedForward`."""
        widths = [self.routed.width] * self.routed.count + [each.dense.numbering.count for each in self.shared]
        return Numbering(tuple(widths), self.routed.count)

    @property
    def hidden(self) -> int:
        """See `FeedForward`."""
        return self.routed.hidden

    @property
    def has_gate(self) -> bool:
        """See `FeedForward`."""
        return self.routed.layout is not None

    @property
    def activation(self) -> Activation:
        """See `FeedForward`."""
        return self.routed.activation

    @property
    def is_probed(self) -> bool:
        """See `FeedForward`."""
        return self.routed.stacks.are_made or any(each.dense.is_probed for each in self.shared)

    @property
    def precision(self) -> torch.dtype:
        """See `FeedForward`."""
        return coarsest([self.routed.second_map(0)[0].dtype, *(each.dense.precision for each in self.shared)])

    @property
    def parameters(self) -> int:
        """See `FeedForward`."""
        return self.routed.stacks.parameters + sum(each.dense.parameters for each in self.shared)

    def keys(self) -> Tensor:
        """See `FeedForward`."""
        return torch.cat([*(self.routed.gate(e)[0] for e in self._experts()), *(s.dense.keys() for s in self.shared)])

    def up_keys(self) -> Tensor | None:
        """See `FeedForward`."""
        if not self.has_gate:
            return None
        shared = [up for each in self.shared if (up := each.dense.up_keys()) is not None]
        return torch.cat([*(self.routed.up(e)[0] for e in self._experts()), *shared])

    def values(self) -> Tensor:
        """See `FeedForward`."""
        routed = (self.routed.second_map(e)[0].T for e in self._experts())
        return torch.cat([*routed, *(each.dense.values() for each in self.shared)])

    def recall(self, inputs: Tensor, weights: Tensor | None) -> Tensor:
        """Of keys, formula and weights alone: nothing of the forward that is tapped."""
        return self._of_each(inputs, weights, lambda maps: self.routed.join(*maps))

    def rounding(self, inputs: Tensor, weights: Tensor | None) -> Tensor:
        """How far the coefficients move with one part of gate and up each, which round: their sensitivity.

        It is larger than they are where a sum cancels, as GPT-OSS's up + 1 does.
        """
        small = 2.0**-10

        def sensitivity(given: list[Tensor]) -> Tensor:
            maps = [each.float() for each in given]
            made = self.routed.join(*maps)
            moved = (
                self.routed.join(*(each * (1 + small) if each is one else each for each in maps)) - made for one in maps
            )
            return torch.stack([each.abs() for each in moved]).sum(0) / small

        return self._of_each(inputs, weights, sensitivity)

    def _of_each(
        self, inputs: Tensor, weights: Tensor | None, make: Callable[[list[Tensor]], Tensor]
    ) -> Tensor:
        """What `make` makes of every routed expert's maps, weighed, and the coefficients of the shared ones."""
        assert weights is not None
        found = []
        for expert in self._experts():
            weight = weights[..., expert, None].to(inputs.dtype)
            made = make(self.routed.maps(inputs * weight if self.routed.weighs_input else inputs, expert))
            found.append(made.where(weight != 0, 0) if self.routed.weighs_input else made * weight)
        for place, each in enumerate(self.shared, start=self.routed.count):
            found.append(each.dense.recall(inputs) * weights[..., place, None].to(inputs.dtype))
        return torch.cat(found, dim=-1)

    def write(self, coefficients: Tensor) -> Tensor:
        """An expert at a time: the values of all are not copied."""
        total = torch.zeros(*coefficients.shape[:-1], self.hidden, device=coefficients.device)
        firsts = self.numbering.firsts
        for expert in self._experts():
            own = coefficients[..., firsts[expert] : firsts[expert] + self.routed.width].float()
            total += own @ self.routed.second_map(expert)[0].T.float()
        for first, each in zip(firsts[self.routed.count :], self.shared, strict=True):
            total += each.dense.write(coefficients[..., first : first + each.dense.numbering.count])
        return total

    def bias(self, weights: Tensor | None) -> Tensor | None:
        """The experts' biases by their weights [..., hidden]."""
        assert weights is not None
        biases = [self.routed.second_map(e)[1] for e in self._experts()]
        biases += [each.dense.down.bias() for each in self.shared]
        terms = [weights[..., e, None].float() * bias.float() for e, bias in enumerate(biases) if bias is not None]
        return torch.stack(terms).sum(0) if terms else None

    def _experts(self) -> Iterator[int]:
        """The routed experts; their matrices are at hand meanwhile, wherever they lie."""
        with hold_weights(self.routed.module):
            yield from range(self.routed.count)


def find_routed(block: nn.Module, latest: Cache | None = None) -> tuple[str, RoutedExperts] | None:
    """The routed experts of a block and the path of their module; None in a block that has none.

    `latest` is where the stacks of one layer of the model are kept.
    Raises ModelUnsupported for experts that compute in a way that we do not know.
    """
    for path, module in block.named_modules():
        if is_wrapper(module):  # it answers for what is inside, which comes next
            continue
        weighs_input = type(module).__name__ in _WEIGH_INPUT
        if weighs_input or isinstance(getattr(module, "is_concatenated", None), bool):
            while is_wrapper(around := block.get_submodule(path.rpartition(".")[0])):
                path = path.rpartition(".")[0]
            stacks = Stacks(module, block.get_submodule(path), Cache(1) if latest is None else latest)
            return path, _routed_of(module, around, stacks, weighs_input=weighs_input)
        if type(module).__name__.endswith("Experts") or _is_list_of_experts(path, module):
            raise ModelUnsupported(f"its experts ({type(module).__name__} at {path!r}) cannot be read yet")
    return None


_WEIGH_INPUT = ("Llama4TextExperts",)
"""Classes that compute every expert of inputs which the router has weighed."""


def _is_list_of_experts(path: str, module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList) and path.rpartition(".")[2] == "experts" and len(module) > 1


def _routed_of(module: Any, around: Any, stacks: Stacks, *, weighs_input: bool) -> RoutedExperts:
    name = type(module).__name__
    if getattr(module, "has_post_expert_norm", False):
        raise ModelUnsupported(f"its experts ({name}) have a norm of their own each, which cannot be read yet")
    if not is_stack(module.down_proj):
        raise ModelUnsupported(f"its experts ({name}) hold no plain matrices; load it with --dequantize")
    transposed = weighs_input or bool(module.is_transposed)
    count, *shape = module.down_proj.shape
    activation = getattr(module, "act_fn", nn.functional.silu)
    layout, gating = (None, plainly(activation)) if not getattr(module, "has_gate", True) else gating_of(module)
    return RoutedExperts(
        module, stacks, int(count), int(shape[0] if transposed else shape[1]), layout, gating, activation, transposed,
        weighs_input, around.router if weighs_input else None,
    )  # fmt: skip


def is_stack(weight: object) -> bool:
    """Whether a parameter is a plain stack of matrices."""
    return type(weight) in (Tensor, nn.Parameter) and weight.dim() == 3 and weight.is_floating_point()  # type: ignore
