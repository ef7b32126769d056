"""A mixture of experts as memories: routed experts, and the shared ones beside them.

A coefficient is the activation times the router's weight (definitions.md section 7.1). A shared expert is a dense layer
whose own gate, if any, is its weight, and is tapped at its down-projection, like a dense layer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from mnemoscope.foundation.memory_names import Numbering
from mnemoscope.models.memories.expert_taps import tap_experts
from mnemoscope.models.memories.feed_forward import Branch, DenseFeedForward, Overwrite, coarsest, dips, parameters_of
from mnemoscope.models.memories.groups import Group, place, taken_from
from mnemoscope.models.memories.routed_experts import RoutedExperts
from mnemoscope.models.modules.observed import flat
from mnemoscope.models.modules.offloading import hold_weights
from mnemoscope.models.modules.taps import Taps


@dataclass(frozen=True)
class SharedExpert:
    """An expert that every token uses; `switch` is the map to one number whose sigmoid weights it."""

    dense: DenseFeedForward
    switch: nn.Module | None = None
    scale: float = 1.0

    def weigh(self, inputs: Tensor) -> Tensor | None:
        """The weight [..., 1] of every token; None if all are 1."""
        if self.switch is None:
            return None if self.scale == 1.0 else inputs.new_full((*inputs.shape[:-1], 1), self.scale)
        return torch.sigmoid(self.switch.forward(inputs)) * self.scale


@dataclass(frozen=True)
class MixtureFeedForward:
    """Routed and shared experts of one layer; with `branches`, `entry` takes the stream and `exits` are the norms."""

    entry: nn.Module
    exits: tuple[nn.Module, ...]
    routed: RoutedExperts
    shared: tuple[SharedExpert, ...]
    branches: tuple[Branch, ...] = ()

    @cached_property
    def numbering(self) -> Numbering:
        widths = [self.routed.width] * self.routed.count + [each.dense.numbering.count for each in self.shared]
        return Numbering(tuple(widths), self.routed.count)

    @property
    def hidden(self) -> int:
        return self.routed.hidden

    @property
    def has_gate(self) -> bool:
        return self.routed.layout is not None

    @property
    def is_probed(self) -> bool:
        around = any(each.is_probed for each in self.routed.around)
        return around or self.routed.stacks.are_made or any(each.dense.is_probed for each in self.shared)

    @property
    def precision(self) -> torch.dtype:
        routed = [self.routed.second_map(0)[0].dtype, *(each.precision for each in self.routed.around)]
        return coarsest([*routed, *(each.dense.precision for each in self.shared)])

    @property
    def parameters(self) -> int:
        around = parameters_of(self.routed.around)
        return self.routed.stacks.parameters + around + sum(each.dense.parameters for each in self.shared)

    def goes_negative(self, *, dtype: torch.dtype, device: torch.device) -> bool:
        return self.has_gate or dips(self.routed.activation, dtype=dtype, device=device)

    def keys(self) -> Tensor:
        return torch.cat([*map(self.routed.keys, self._experts()), *(each.dense.keys() for each in self.shared)])

    def up_keys(self) -> Tensor | None:
        if not self.has_gate:
            return None
        shared = [up for each in self.shared if (up := each.dense.up_keys()) is not None]
        return torch.cat([*map(self.routed.up_keys, self._experts()), *shared])

    def values(self) -> Tensor:
        return torch.cat([*map(self.routed.values, self._experts()), *(each.dense.values() for each in self.shared)])

    def recall(self, inputs: Tensor, weights: Tensor | None) -> Tensor:
        """From keys, formula and weights alone, without the tapped forward."""
        return self._of_each(inputs, weights, lambda maps: self.routed.join(*maps))

    def rounding(self, inputs: Tensor, weights: Tensor | None) -> Tensor:
        """The sensitivity to gate and up, which round; exceeds the coefficients where a sum cancels (GPT-OSS)."""
        small = 2.0**-10

        def sensitivity(given: list[Tensor]) -> Tensor:
            maps = [each.float() for each in given]
            made = self.routed.join(*maps)
            moved = (
                self.routed.join(*(each * (1 + small) if each is one else each for each in maps)) - made for one in maps
            )
            return torch.stack([each.abs() for each in moved]).sum(0) / small

        return self._of_each(inputs, weights, sensitivity)

    def _of_each(self, inputs: Tensor, weights: Tensor | None, make: Callable[[list[Tensor]], Tensor]) -> Tensor:
        """`make` of every routed expert's maps, weighted, and the coefficients of the shared ones."""
        assert weights is not None
        parts, narrow, entering = [], self.routed.narrow, self._before(0, inputs)
        entering = entering if narrow is None else narrow.into(entering)
        for expert in self._experts():
            weight = weights[..., expert, None].to(inputs.dtype)
            made = make(self.routed.maps(entering * weight if self.routed.weighs_input else entering, expert))
            parts.append(made.where(weight != 0, 0) if self.routed.weighs_input else made * weight)
        for branch, each in enumerate(self.shared, start=1):
            weight = weights[..., self.routed.count + branch - 1, None].to(inputs.dtype)
            parts.append(each.dense.recall(self._before(branch, inputs)) * weight)
        return torch.cat(parts, dim=-1)

    def write(self, coefficients: Tensor) -> Tensor:
        """One expert at a time, to avoid a copy of all values."""
        firsts, total = self.numbering.firsts, torch.zeros((), device=coefficients.device)
        for expert in self._experts():
            part = coefficients[..., firsts[expert] : firsts[expert] + self.routed.width].float()
            total = total + part @ self.routed.second_map(expert)[0].T.float()
        total = self._behind(0, self.routed.out_of_module(total))
        for number, (first, each) in enumerate(zip(firsts[self.routed.count :], self.shared, strict=True), start=1):
            part = each.dense.write(coefficients[..., first : first + each.dense.numbering.count])
            total = total + self._behind(number, part)
        return total

    def _before(self, branch: int, inputs: Tensor) -> Tensor:
        return self.branches[branch].before(inputs) if self.branches else inputs

    def _behind(self, branch: int, written: Tensor) -> Tensor:
        """The values' sum [..., hidden], float32, as it leaves their branch."""
        return self.branches[branch].behind(written.to(self.precision)).float() if self.branches else written

    def bias(self, weights: Tensor | None) -> Tensor | None:
        assert weights is not None
        routed = _sum_by_weight(weights, [self.routed.second_map(e)[1] for e in self._experts()])
        shared = _sum_by_weight(weights[..., self.routed.count :], [each.dense.down.bias() for each in self.shared])
        narrow = self.routed.narrow
        outer = None if narrow is None or (bias := narrow.out.bias()) is None else bias.float() * self.routed.scale
        inner = None if routed is None else self.routed.out_of_module(routed)
        terms = [term for term in (inner, outer, shared) if term is not None]
        return sum(terms[1:], start=terms[0]) if terms else None

    def _experts(self) -> Iterator[int]:
        with hold_weights(self.routed.stacks.module):
            yield from range(self.routed.count)

    def watch(self, callback: Callable[[Group], None], taps: Taps) -> None:
        weights: list[Tensor] = []

        def take(group: Group) -> Group:
            if weights:
                group = replace(group, weights=weights.pop()[group.tokens, group.experts])
            callback(group)
            return group

        if self.routed.router is not None:  # whose weights are in the inputs
            taps.leaves(self.routed.router, weights.append)
        taps.enter_context(tap_experts(self.routed, take, looks=taps.act))
        self._tap_shared(lambda _, group: callback(group), taps)

    def overwrite(self, change: Overwrite, taps: Taps) -> None:
        def wanted_of(group: Group) -> Tensor | None:
            whole = group.coefficients.new_zeros(group.of, self.numbering.count)
            place(whole, group)
            made = change(whole)
            return None if made is None else taken_from(made, group)

        def take(group: Group) -> Group:
            wanted = wanted_of(group)
            return group if wanted is None else replace(group, coefficients=wanted)

        def tap(entered: Tensor, group: Group) -> Tensor | None:
            wanted = wanted_of(group)
            if wanted is not None and group.weights is not None:
                # Unchanged entries keep the activation itself, without the rounding of the weight; the zero that is
                # added to it has the gradient of what was put in.
                weight = group.weights[:, None].where(group.weights[:, None] != 0, 1)
                kept = flat(entered) + (wanted - group.coefficients) / weight
                changed = (wanted / weight).where(group.weights[:, None] != 0, 0)
                wanted = kept.where(wanted == group.coefficients, changed)
            return None if wanted is None else wanted.reshape(entered.shape)

        taps.enter_context(tap_experts(self.routed, take, looks=taps.act))
        self._tap_shared(tap, taps)

    def _tap_shared(self, tap: Callable[[Tensor, Group], Tensor | None], taps: Taps) -> None:
        """Calls `tap(down-projection's input, group)` as each shared expert computes; a result replaces that input."""

        def leaving(number: int, taken: list[Tensor], entered: Tensor) -> Tensor | None:
            coefficients, weight = flat(entered), self.shared[number].weigh(taken.pop())
            if weight is not None:
                coefficients, weight = coefficients * weight, weight[:, 0]
            expert = self.routed.count + number
            first = self.numbering.firsts[expert]
            return tap(entered, Group(coefficients, len(coefficients), expert=expert, first=first, weights=weight))

        for number, shared in enumerate(self.shared):
            taken: list[Tensor] = []
            taps.enters(shared.dense.entry, lambda entered, taken=taken: taken.append(flat(entered)))  # type: ignore[misc]
            taps.enters(shared.dense.down.module, partial(leaving, number, taken))

    def end(self, tap: Callable[[Tensor], None], taps: Taps) -> None:
        taps.leaves(self.exits[-1], tap)


def _sum_by_weight(weights: Tensor, biases: list[Tensor | None]) -> Tensor | None:
    terms = [weights[..., e, None].float() * bias.float() for e, bias in enumerate(biases) if bias is not None]
    return torch.stack(terms).sum(0) if terms else None
