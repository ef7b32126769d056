"""A network that its owner may change: compared with what was proved as a use begins and ends, refused if it differs.

Nothing is read again: who changed a network gives it to `load_model` once more. Hooks that others set since then are
tried by verbs (mine, trace, intervene and such) in one small forward, since no fingerprint covers what they change.
Training flags are off during a use; each module's own is restored after it.

Not seen: an edit through `.data` or in inference mode, which has no version; a hook that acts on other tokens than
those tried; numbers of modules that are no tensor; buffers that are not stored; weights that accelerate keeps on disk.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, TypeVar, cast, final

import torch
from torch import Tensor, nn
from torch.nn.modules import module as all_of
from transformers import PretrainedConfig

from mnemoscope.errors import ModelChanged
from mnemoscope.foundation.shared_change import shared_change
from mnemoscope.models.modules.fingerprint import active_adapters, essentials, plain_parts
from mnemoscope.models.modules.linear_maps import is_of_adapters
from mnemoscope.models.modules.observed import ids_for, run
from mnemoscope.models.modules.offloading import weights_at_hand
from mnemoscope.models.modules.switches import steady

F = TypeVar("F", bound=Callable[..., Any])


def _holding(*, of_verb: bool) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        @wraps(function)
        def hold_and_run(model: Any, *given: Any, **named: Any) -> Any:
            with hold_model(model, of_verb=of_verb):
                return function(model, *given, **named)

        return cast(F, hold_and_run)

    return decorate


held = _holding(of_verb=False)
"""Decorates a method of a model, which holds the model meanwhile."""
whole_use = _holding(of_verb=True)
"""Decorates a verb whose first argument is a model, which it holds."""


@contextmanager
def hold_model(model: Any, *, steadily: bool = True, of_verb: bool = True) -> Iterator[None]:
    """Holds a network in evaluation mode; uses inside one another share it, and the first and the last compare it.
    `steadily` holds the global switches, too. Raises ModelChanged, also at the end.
    """
    with nullcontext() if model.usage is None else _use(model.usage, of_verb), steady() if steadily else nullcontext():
        yield


def check_unchanged(model: Any) -> None:
    """Raises ModelChanged, also within a use: before what was computed is sealed."""
    if model.usage is not None:
        model.usage.check()


@shared_change
def at_rest(network: nn.Module) -> Iterator[None]:
    """Puts all modules in evaluation mode; the last of all threads to leave restores every module's own flag."""
    training = [module for module in network.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@shared_change
def _use(guard: "NetworkGuard", of_verb: bool) -> Iterator[None]:
    guard.check()
    with at_rest(guard.network):
        if of_verb:
            guard.try_hooks()
        yield
    guard.check()


def state_of(network: nn.Module) -> tuple[dict[str, list[Any]], list[Tensor]]:
    """What is compared, by its name in an error, and the tensors, to be kept: an `id` is given again. It shares nothing
    else with the network but functions. Takes a few microseconds per tensor.
    """
    modules = list(network.modules())
    # Peft adds to the parameters of these in every forward and subtracts it again, which changes their version.
    wrappers: list[Any] = [module for module in modules if type(module).__name__ == "ParamWrapper"]
    moved = {id(getattr(each.get_base_layer(), each.parameter_name)) for each in wrappers}
    weights, tensors = list[Any](), list[Tensor]()
    for whole in (each for module in modules for each in weights_at_hand(module)):
        for _, tensor in plain_parts("", whole):
            version = None if tensor.is_inference() or id(whole) in moved else tensor._version
            weights.append((id(tensor), tensor.data_ptr(), version, tensor.dtype, tensor.shape))
            tensors.append(tensor)
    forms: list[Any] = [repr(getattr(getattr(network, "generation_config", None), "eos_token_id", None))]
    for module in modules:
        forward = vars(module).get("forward")
        forms.append((type(module), None if _is_ours(forward) else forward))
    configs = {id(one): one for module in modules if isinstance(one := vars(module).get("config"), PretrainedConfig)}
    forms += [(repr(essentials(one.to_dict())), one._attn_implementation) for one in configs.values()]
    return {"adapters": active_adapters(network), "weights": weights, "modules or configuration": forms}, tensors


@final
class NetworkGuard:
    """A network as it was proved, named `spec` in errors, for token ids below `rows`."""

    def __init__(self, network: nn.Module, *, spec: str, rows: int) -> None:
        self.network, self._spec, self._rows = network, spec, rows
        self._state, self._kept = state_of(network)
        self._hooks, self._said = foreign_hooks(network), self._says()

    def _says(self) -> Tensor:
        with steady():
            return run(self.network, ids_for(self.network, self._rows, columns=2)[:1])

    def check(self) -> None:
        now, _ = state_of(self.network)
        if what := next((what for what, before in self._state.items() if before != now[what]), ""):
            raise ModelChanged(
                f"the {what} of {self._spec} were changed after it was loaded; give it to load_model again, or put back"
                " what was changed"
            )

    def try_hooks(self) -> None:
        """Raises ModelChanged if hooks of others that came or went since loading change what the network computes."""
        hooks = foreign_hooks(self.network)
        changed = {number: hooks.get(number, self._hooks.get(number)) for number in hooks.keys() ^ self._hooks.keys()}
        if not changed:
            return
        try:
            says = self._says()
        except Exception:
            return  # a hook that raises does so in real use
        if not torch.equal(says, self._said):
            raise ModelChanged(
                f"hooks that were set or removed after loading (on {next(iter(changed.values()))}) change what the"
                " model computes, and no fingerprint covers them; undo that, or change memories with intervene"
            )
        self._hooks = hooks  # those that only watch are tried once


def foreign_hooks(network: nn.Module) -> dict[int, str]:
    """The forward hooks that this package did not set: torch's numbers, which are unique, and their places."""
    places: list[tuple[str, dict[int, Any]]] = [
        ("every module", all_of._global_forward_hooks),
        ("every module", all_of._global_forward_pre_hooks),
    ]
    for path, module in network.named_modules():
        places += [(repr(path), module._forward_hooks), (repr(path), module._forward_pre_hooks)]
    return {number: where for where, hooks in places for number, hook in list(hooks.items()) if not _is_ours(hook)}


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]


def share_state(one: nn.Module, other: nn.Module) -> bool:
    """Whether both are one network, or share adapters: a switch in one is a switch in the other."""
    parts = ({network, *filter(is_of_adapters, network.modules())} for network in (one, other))
    return bool(set.intersection(*parts))
