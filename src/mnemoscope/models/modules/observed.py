"""The inputs and outputs of every module of a model in one small forward: the evidence for structural inference.

structure.py reasons about it. Tensors are kept flat, [batch * position, entries], and cloned at once, so that a block
that works in place cannot change the evidence.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from threading import local
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from mnemoscope.foundation.reading import SOURCE
from mnemoscope.models.modules.offloading import device_of_module
from mnemoscope.models.modules.quiet import suppress_warnings
from mnemoscope.models.modules.wrappers import run_uncompiled, run_unpacked

SOURCE_IDS = (SOURCE, 6, 2, 9, 5, 3)
IDS = ((5, 1, 8, 3, 11, 2), (7, 4, 0, 9, 6, 10))

# Wide, since sums in another order differ by whole units of half precision; the load-time proof decides.
HALF_TOLERANCE = 8e-2


@dataclass(frozen=True, eq=False)
class ModuleCall:
    path: str
    module: nn.Module
    taken: Tensor
    given: Tensor
    moment: int
    """How many calls ended before it."""

    @property
    def changes(self) -> bool:
        return not same(self.taken, self.given)


@dataclass(frozen=True)
class Observation:
    """The first call of every module, by path, in the order in which they ended; further calls; the model's logits."""

    calls: dict[str, ModuleCall]
    again: list[ModuleCall]
    logits: Tensor

    def after(self, call: ModuleCall) -> list[ModuleCall]:
        every = [*self.calls.values(), *self.again]
        return sorted((each for each in every if each.moment > call.moment), key=lambda each: each.moment)

    def within(self, prefix: str) -> list[ModuleCall]:
        """The calls of the modules inside `prefix`, with relative paths, the last to end first."""
        start = f"{prefix}."
        inside = [call for call in reversed(self.calls.values()) if call.path.startswith(start)]
        return [replace(call, path=call.path.removeprefix(start)) for call in inside]


def takes(module: nn.Module, name: str) -> bool:
    taken = inspect.signature(type(module).forward).parameters
    return name in taken or any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())


def observe(model: Any, rows: int) -> Observation:
    calls: dict[str, ModuleCall] = {}
    again: list[ModuleCall] = []

    def note(path: str, module: nn.Module, taken: Tensor, given: Tensor, _: Any) -> None:
        if taken.numel():
            call = ModuleCall(path, module, taken, given, len(calls) + len(again))
            if calls.setdefault(path, call) is not call:
                again.append(call)

    with ExitStack() as hooks:
        watch_calls(model, note, hooks)
        logits = flat(run(model, ids_for(model, rows)))
    return Observation(calls, again, logits)


def watch_calls(
    network: nn.Module, note: Callable[[str, nn.Module, Tensor, Tensor, Any], None], hooks: ExitStack
) -> None:
    """Hooks that call `note(path, module, taken, given, output)` as each module ends; `taken` and `given` are flat
    copies of its first hidden states, `taken` empty without. A module that gives none is left out, and so is an encoder
    of a source.
    """
    outside = set()
    if takes_source(network):
        outside = {*network.get_encoder().modules()} - {*network.get_decoder().modules()}  # type: ignore[operator]

    def watch(path: str, module: nn.Module) -> None:
        taken: list[Tensor] = []

        def start(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            streams = [value for value in (*inputs, *named.values()) if _is_hidden(value)]
            taken.append(flat(streams[0]).clone() if streams else torch.empty(0, 0))

        def end(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            before, given = taken.pop(), first(output) if isinstance(output, tuple | list) and output else output
            if _is_hidden(given):
                note(path, module, before, flat(given).clone(), output)

        hooks.enter_context(module.register_forward_pre_hook(start, with_kwargs=True))
        hooks.enter_context(module.register_forward_hook(end))

    for path, module in network.named_modules():
        if path and module not in outside:
            watch(path, module)


def mixes_positions(model: nn.Module, path: str, rows: int) -> bool:
    """Whether a module's output at one position depends on its input at an earlier one, by two small forwards."""
    module, given = model.get_submodule(path), []

    def disturb(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        changed = {id(value): value.clone() for value in (*inputs, *named.values()) if _is_hidden(value)}
        for value in changed.values():
            value.view(len(IDS), len(IDS[0]), -1)[:, 0] *= -2
        return tuple(changed.get(id(each), each) for each in inputs), {
            name: changed.get(id(each), each) for name, each in named.items()
        }

    def note(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        given.append(first(output).reshape(len(IDS), len(IDS[0]), -1)[:, 1:].clone())

    with ExitStack() as hooks:
        hooks.enter_context(module.register_forward_hook(note))
        run(model, ids_for(model, rows))
        hooks.enter_context(module.register_forward_pre_hook(disturb, with_kwargs=True))
        run(model, ids_for(model, rows))
    return not same(given[0], given[-1])


def ids_for(model: nn.Module, rows: int, *, columns: int | None = None) -> Tensor:
    return with_source(torch.tensor(IDS, device=device_of_module(model))[:, :columns] % rows, model)


def takes_source(network: nn.Module) -> bool:
    """Whether a network is an encoder-decoder."""
    return bool(getattr(getattr(network, "config", None), "is_encoder_decoder", False))


def with_source(ids: Tensor, network: nn.Module) -> Tensor:
    """The rows of ids, each with a small source behind it where the network reads one."""
    if not takes_source(network):
        return ids
    return torch.cat([ids, torch.tensor(SOURCE_IDS, device=ids.device).expand(len(ids), -1)], dim=1)


def split_source(ids: Tensor) -> tuple[Tensor, Tensor | None]:
    """Rows of ids without their sources, and these, which all begin in one column."""
    at = (ids[0] == SOURCE).nonzero()
    return (ids[:, : int(at[0, 0])], ids[:, int(at[0, 0]) + 1 :]) if len(at) else (ids, None)


def encode(network: Any, sources: Tensor) -> Any:
    """What the encoder makes of sources `[row, token]`, of equal ones once; what reads it may have gradients."""
    with torch.inference_mode(False), torch.no_grad(), suppress_warnings(), run_uncompiled():
        different, row = torch.unique(sources.clone(), dim=0, return_inverse=True)
        made = network.get_encoder()(input_ids=different)
        made.last_hidden_state = made.last_hidden_state[row]
        return made


def encode_behind(network: nn.Module, ids: Tensor, kept: local) -> tuple[Tensor, Any]:
    """Rows of ids without the sources behind them, and what the encoder makes of these; `kept` keeps a thread's last
    one, for many questions about one prompt.
    """
    ids, sources = split_source(ids)
    assert sources is not None
    last, encoded = getattr(kept, "encoded", (None, None))
    if last is None or not torch.equal(last, sources):
        encoded = encode(network, sources)
        kept.encoded = sources, encoded
    return ids, encoded


def run(module: nn.Module, ids: Tensor, *, gradients: bool = False, past: Any = None, encoded: Any = None) -> Tensor:
    """The logits of a language model, or the last hidden states of a backbone; with `gradients` hooks may require some
    of what they put in. `past` is the library's cache of what was read before the ids, and gets what these add.
    `encoded` is what the encoder made of the sources, if ids hold none.
    """
    if takes_source(module):
        ids, sources = split_source(ids)
        encoded = encoded if sources is None else encode(module, sources)
    given = {"input_ids": ids} if encoded is None else {"decoder_input_ids": ids, "encoder_outputs": encoded}
    waits = ids.device.type != "cpu"
    with ExitStack() as around:
        around.enter_context(torch.inference_mode(not gradients))
        around.enter_context(torch.set_grad_enabled(gradients))
        for one in (suppress_warnings(), run_uncompiled(), run_unpacked() if waits else nullcontext()):
            around.enter_context(one)
        keywords = {"use_cache": past is not None} if takes(module, "use_cache") else {}
        output = module(**given, **keywords, **({} if past is None else {"past_key_values": past}))
    if isinstance(output, Tensor):
        return output
    values = output if isinstance(output, tuple) else output.values()
    return next(value for value in values if _is_hidden(value))


def first(output: Any) -> Tensor:
    """The hidden states of a module's output: itself, or the first of a tuple."""
    return output[0] if isinstance(output, tuple | list) else output  # type: ignore[no-any-return]


def flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def same(a: Tensor, b: Tensor) -> bool:
    return distance(a, b) < (1e-4 if b.dtype == torch.float32 else HALF_TOLERANCE)


def distance(a: Tensor, b: Tensor) -> float:
    """max|a - b| / max(rms(b), 1e-6); infinite for different shapes."""
    if a.shape != b.shape or not b.numel():
        return float("inf")
    return float((a.float() - b.float()).abs().max() / b.float().square().mean().sqrt().clamp_min(1e-6))


def factor_between(one: Tensor, other: Tensor) -> float:
    one, other = one.double(), other.double()  # sums in half precision would err by more than the tolerance
    return float((one * other).sum() / one.square().sum().clamp_min(1e-30))


def _is_hidden(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() in (2, 3)


UNNAMED: Mapping[str, Any] = {}
"""Replaces the named arguments that torch omits while another thread sets or removes its hook."""


def stream_of(inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor:
    """The hidden states among a block's arguments: the first floating-point tensor."""
    values = (*inputs, *named.values())
    return next(value for value in values if isinstance(value, Tensor) and value.is_floating_point())
