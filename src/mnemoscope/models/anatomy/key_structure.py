"""Finds the linear maps and the function that explain the input of a block's down-projection, by their numbers."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.memories.feed_forward import Activation
from mnemoscope.models.modules.linear_maps import LinearMap, is_plain, stated_sizes
from mnemoscope.models.modules.observed import HALF_TOLERANCE, ModuleCall, distance, same
from mnemoscope.models.modules.offloading import weight_of

FUNCTIONS = ("relu", "gelu", "gelu_pytorch_tanh", "silu", "relu2", "tanh", "sigmoid", "quick_gelu", "mish")


@dataclass(frozen=True)
class Keys:
    """Candidate keys of a layer: f (a path or a function), and the error against the observed coefficients."""

    error: float
    gate: ModuleCall
    activation: str | Activation
    name: str
    up: ModuleCall | None = None
    fused: tuple[str, str] | None = None
    inner_norm: str | None = None


def find_maps(inside: list[ModuleCall]) -> dict[ModuleCall, bool]:
    """The calls of linear maps, and whether each stores its matrix as [in, out]; without maps inside such a map."""
    maps = {call: transposed for call in inside if (transposed := _is_transposed(call)) is not None}
    paths = [f"{call.path}." for call in maps]
    return {call: turned for call, turned in maps.items() if not call.path.startswith(tuple(paths))}


def _is_transposed(call: ModuleCall) -> bool | None:
    """Whether a linear map stores its matrix as [in, out]; None for a module that is no linear map, by its numbers."""
    if not is_plain(call.module):
        return False if _is_probed_map(call) else None
    weight, bias = weight_of(call.module, "weight"), getattr(call.module, "bias", None)
    if isinstance(bias, Tensor) and bias.shape != call.given.shape[1:]:  # a norm of several heads
        return None
    rest: Tensor | float = weight_of(call.module, "bias") if isinstance(bias, Tensor) else 0.0
    for transposed, matrix in ((False, weight.T), (True, weight)):
        if matrix.shape != (call.taken.shape[1], call.given.shape[1]):
            continue
        if same(call.taken @ matrix + rest, call.given):
            return transposed
    return None


def _is_probed_map(call: ModuleCall) -> bool:
    """Whether a module without a plain matrix is a linear map from its input to its output."""
    if stated_sizes(call.module) != (call.given.shape[1], call.taken.shape[1]):
        return False
    try:
        return same(LinearMap.whole(call.module)(call.taken), call.given)
    except (ModelUnsupported, RuntimeError):
        if isinstance(call.module, nn.Linear):  # must be one, and the error says what to do
            raise
        return False


def find_keys(inside: list[ModuleCall], maps: list[ModuleCall], down: ModuleCall) -> Keys | None:
    """The keys and f that best explain the down-projection's input, or that of a norm right before it; or None."""
    norms = [call for call in inside if call.changes and call is not down and same(call.given, down.taken)]
    for norm in (None, *(call for call in norms if call.taken.shape == call.given.shape)):
        keys = _keys_of(inside, maps, down, down.taken if norm is None else norm.taken)
        if keys is not None:
            return keys if norm is None else replace(keys, inner_norm=norm.path)
    return None


def _keys_of(inside: list[ModuleCall], maps: list[ModuleCall], down: ModuleCall, target: Tensor) -> Keys | None:
    # Candidates for f: the block's own modules with at most scalar parameters, then the well-known functions.
    functions: list[tuple[str | Activation, str, Activation]] = [
        (call.path, type(call.module).__name__.lower(), call.module)
        for call in inside
        if all(weight.numel() == 1 for weight in call.module.parameters())
        and not list(call.module.children())
        and call.taken.shape == call.given.shape == target.shape
        and call.changes
    ]
    functions += [(ACT2FN[name], name, ACT2FN[name]) for name in FUNCTIONS]
    candidates = []
    for function, name, f in functions:
        for gate in maps:
            if gate.given.shape == target.shape and gate is not down:
                raw = f(gate.given)
                candidates.append(Keys(distance(raw, target), gate, function, name))
                for up in maps:
                    if up is not gate and up.given.shape == target.shape and same(up.taken, gate.taken):
                        candidates.append(Keys(distance(raw * up.given, target), gate, function, name, up=up))
            elif gate.given.shape == (target.shape[0], 2 * target.shape[1]):
                one, two = gate.given.chunk(2, dim=1)
                for raw, other, fused in ((one, two, ("gate", "up")), (two, one, ("up", "gate"))):
                    candidates.append(Keys(distance(f(raw) * other, target), gate, function, name, fused=fused))
    best = min(candidates, key=lambda keys: keys.error, default=None)
    limit = 1e-4 if target.dtype == torch.float32 else HALF_TOLERANCE
    return best if best is not None and best.error < limit else None
