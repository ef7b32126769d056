"""A network that its owner may change: what is compared before each use, and what follows from a difference.

Code that runs a model or reads its weights holds it (`LanguageModel.in_use`); the first holder compares the network
with its state when it was proved. If weights, adapters, configuration, modules' classes or forwards differ, all caches
are dropped and the model is read and proved again, with a new fingerprint. For a network that this package opened or
copied this is refused, since its name would refer to another one, and so is such a change while the model is in use.
Hooks that the owner set since then must not change the results of a verb (mine, trace, intervene and such): no
fingerprint covers them. Training flags are off during a use; each module's own is restored after it.

Not detected: an edit through `.data` of entries that are not sampled (four of each tensor are); a hook or forward whose
behaviour varies, or that acts on other tokens than those tested; numbers that are no tensor of the network's
(attributes of modules, state of a hook), buffers that are not stored, and weights that accelerate keeps on disk.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from threading import RLock
from typing import Any, TypeVar, cast, final

import torch
from torch import Tensor, nn
from torch.nn.modules import module as all_of
from transformers import PretrainedConfig

from mnemoscope.errors import ModelChanged
from mnemoscope.foundation.shared_change import shared_change
from mnemoscope.models.modules.fingerprint import active_adapters, plain_parts
from mnemoscope.models.modules.linear_maps import is_of_adapters
from mnemoscope.models.modules.observed import ids_for, run
from mnemoscope.models.modules.offloading import weights_at_hand
from mnemoscope.models.modules.switches import steady

_SAMPLED = 4
_AS_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtypes by item size: NaN equals NaN, and all formats can be joined."""
_KEPT = ("lock", "usage", "_running")
"""Attributes that survive rereading, since current users hold them."""
F = TypeVar("F", bound=Callable[..., Any])


def _holding(*, compare: bool) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        @wraps(function)
        def hold_and_run(model: Any, *given: Any, **named: Any) -> Any:
            with hold_model(model, compare=compare):
                return function(model, *given, **named)

        return cast(F, hold_and_run)

    return decorate


held = _holding(compare=False)
"""Decorates a method of a model, which holds the model meanwhile."""
whole_use = _holding(compare=True)
"""Decorates a verb whose first argument is a model, which is compared at its start, also within another use."""


def hold_model(model: Any, *, compare: bool = True, steadily: bool = True) -> AbstractContextManager[None]:
    """`LanguageModel.in_use` with switches: those of `ObjectInUse.hold`."""
    return nullcontext() if model.usage is None else model.usage.hold(model, compare=compare, steadily=steadily)


def check_unchanged(model: Any) -> None:
    with hold_model(model):
        pass


@contextmanager
def at_rest(network: nn.Module) -> Iterator[None]:
    """Puts all modules in evaluation mode; the last of all threads to leave restores every module's own flag."""
    with _restore_training(network) as trained:
        for module in network.modules():
            if module.training:
                trained.append(module)
                module.training = False
        yield


@shared_change
def _restore_training(network: nn.Module) -> Iterator[list[nn.Module]]:
    trained: list[nn.Module] = []
    try:
        yield trained
    finally:
        for module in trained:
            module.training = True


@dataclass(frozen=True)
class ObjectState:
    """The compared state of a network. `forms` are the modules' classes, foreign forwards, and configurations. `hooks`
    are the foreign ones, by torch's numbers, which are unique. Nothing in it is shared with the network.
    """

    tensors: list[tuple[object, ...]]
    entries: list[Tensor]
    adapters: list[list[object]]
    forms: list[object]
    hooks: frozenset[int]

    @staticmethod
    def of(network: nn.Module) -> "ObjectState":
        """The state now; takes a few microseconds per tensor."""
        tensors: list[tuple[object, ...]] = []
        samples: dict[tuple[torch.device, int], list[Tensor]] = {}
        forms: list[object] = []
        modules = list(network.named_modules())
        # Peft adds to the parameters of these in every forward and subtracts it again, which changes their version.
        wrappers: list[Any] = [module for _, module in modules if type(module).__name__ == "ParamWrapper"]
        moved = {id(getattr(each.get_base_layer(), each.parameter_name)) for each in wrappers}
        with torch.no_grad():
            for _, module in modules:
                forward = vars(module).get("forward")
                forms.append((type(module), None if _is_ours(forward) else forward))  # held: an id is used again
                for tensor in weights_at_hand(module):
                    for _, part in plain_parts("", tensor):
                        version = None if part.is_inference() or id(tensor) in moved else part._version
                        tensors.append((id(tensor), part.data_ptr(), version, part.dtype, part.shape))
                        place = part.device, part.element_size()
                        if part.numel() and place[1] in _AS_WHOLE:
                            samples.setdefault(place, []).append(_sample(part, len(tensors)))
            entries = [torch.cat(own_samples).cpu() for own_samples in samples.values()]
        stated = {id(config): config for _, module in modules if (config := vars(module).get("config")) is not None}
        for config in stated.values():
            if isinstance(config, PretrainedConfig):
                forms += [repr(config.to_dict()), config._attn_implementation]
        forms.append(repr(getattr(getattr(network, "generation_config", None), "eos_token_id", None)))
        hooks = frozenset(number for _, own, _ in _foreign_hooks(modules) for number in own)
        adapters = active_adapters(network) if any(is_of_adapters(module) for _, module in modules) else []
        return ObjectState(tensors, entries, adapters, forms, hooks)

    def difference(self, now: "ObjectState", *, busy: bool) -> str:
        """The difference apart from hooks: `adapters`, `weights`, `modules or configuration`, or empty."""
        if self.adapters != now.adapters:
            return "adapters"
        if self.tensors != now.tensors or not all(map(torch.equal, self.entries, now.entries)):
            return "weights"
        return "" if busy or self.forms == now.forms else "modules or configuration"


def _sample(tensor: Tensor, seed: int) -> Tensor:
    """A few of the tensor's entries, chosen by its size and `seed`; a view if it is contiguous."""
    count = tensor.numel()
    kept = min(_SAMPLED, count)
    step = max(1, (count - 1) // kept)
    first = seed * 2654435761 % (count - step * (kept - 1))
    if tensor.is_contiguous():
        entries = torch.as_strided(tensor, (kept,), (step,), tensor.storage_offset() + first)
    else:
        entries = tensor.take(torch.arange(first, count, step, device=tensor.device)[:kept])
    return entries.view(_AS_WHOLE[tensor.element_size()])


def _foreign_hooks(modules: Iterable[tuple[str, nn.Module]]) -> list[tuple[str, list[int], dict[int, Any]]]:
    """The hooks that this package did not set: the place, their numbers, and torch's mapping that holds them."""
    hooks: list[tuple[str, dict[int, Any]]] = [
        ("every module", all_of._global_forward_hooks),
        ("every module", all_of._global_forward_pre_hooks),
        *((repr(path), own) for path, one in modules for own in (one._forward_hooks, one._forward_pre_hooks) if own),
    ]
    foreign = [(where, [one for one, hook in list(own.items()) if not _is_ours(hook)], own) for where, own in hooks]
    return [each for each in foreign if each[1]]


def share_state(one: nn.Module, other: nn.Module) -> bool:
    """Whether both are one network, or share adapters: a switch in one is a switch in the other."""
    parts = ({network, *filter(is_of_adapters, network.modules())} for network in (one, other))
    return bool(set.intersection(*parts))


def where_hooked(network: nn.Module) -> str:
    return next((where for where, _, _ in _foreign_hooks(network.named_modules())), "")


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]


def _refuse_changing_hooks(network: nn.Module, rows: int) -> None:
    foreign = _foreign_hooks(network.named_modules())
    with at_rest(network):
        try:
            outputs = [run(network, ids_for(network, rows))]
        except Exception:
            return  # a hook that raises will do so in real use
        before = [dict(every_one) for _, _, every_one in foreign]
        try:
            for _, own, every_one in foreign:
                for number in own:
                    del every_one[number]
            outputs.append(run(network, ids_for(network, rows)))
        finally:
            for (_, _, every_one), order in zip(foreign, before, strict=True):
                every_one.clear()
                every_one.update(order)
    if not torch.equal(*outputs):
        raise ModelChanged(
            f"hooks that were set after loading (on {foreign[0][0]}) change what the model computes, and no fingerprint"
            " covers them; remove them, or change memories with intervene"
        )


@final
class ObjectInUse:
    """The users of a network, and its state when it was proved. `again` reads and proves it anew, if it is its owner's
    object.
    """

    def __init__(self, network: nn.Module, spec: str, rows: int, lock: Any, again: Callable[[], object] | None) -> None:
        self._network, self._spec, self._rows, self._again = network, spec, rows, again
        self._model_lock, self._lock = lock, RLock()
        self._users = 0
        self._state = ObjectState.of(network)
        self._first_hooks = self._known_hooks = self._state.hooks

    @contextmanager
    def hold(self, model: object, *, compare: bool, steadily: bool) -> Iterator[None]:
        """Holds the network in evaluation mode; if it has changed, `model` becomes the model read anew. `steadily` also
        holds the global switches. Later holders join the first, and check again, hooks too, only to `compare`. Raises
        ModelChanged, and the errors of reading and proving a model.
        """
        with ExitStack() as held:
            if not self._join(compare):
                with self._model_lock, self._lock:
                    if not self._join(compare):
                        with torch.inference_mode(False):
                            self._settle(model, compare)
                        self._users += 1
                        compare = True
            held.callback(self._leave)
            if compare:
                held.enter_context(at_rest(self._network))
            if steadily:
                held.enter_context(steady())
            yield

    def _join(self, compare: bool) -> bool:
        """Joins the present holders; returns False without any."""
        with self._lock:
            if not self._users:
                return False
            if compare:
                now = ObjectState.of(self._network)
                what = self._state.difference(now, busy=True) or ("hooks" if now.hooks - self._known_hooks else "")
                if what:
                    raise ModelChanged(
                        f"the {what} of {self._spec} were changed while it was in use; change them between runs,"
                        " outside of blocks that read it or intervene"
                    )
            self._users += 1
            return True

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1

    def _settle(self, model: object, compare: bool) -> None:
        """Updates what is known of the network, reading it anew if needed."""
        now = ObjectState.of(self._network)
        what = self._state.difference(now, busy=False) or ("hooks" if self._first_hooks - now.hooks else "")
        if compare and now.hooks - self._known_hooks:
            _refuse_changing_hooks(self._network, self._rows)
            self._known_hooks = now.hooks
        if what:
            if self._again is None:
                raise ModelChanged(
                    f"the {what} of {self._spec} were changed after it was loaded, and its name means the model"
                    " before; give the changed one to load_model(model, tokenizer=...)"
                )
            anew = vars(self._again())
            kept = {name: vars(model)[name] for name in _KEPT}
            vars(model).update(anew | kept)
            for name in vars(model).keys() - anew.keys() - kept.keys():  # lazily made attributes
                del vars(model)[name]
            self._first_hooks = now.hooks
        self._state = ObjectState.of(self._network) if what else now
