"""Weights stored elsewhere than where they are used: fetched for as long as they are needed.

A model larger than its device is spread by accelerate (spreading.py): some modules are on other devices, the weights of
some are in main memory or on disk and come only while their module runs. In between such a weight is on torch's `meta`
device, a shape without numbers. Code that reads a weight outside of a forward gets the real one here. Several threads
may run a module of a model spread here at one time: the first fetches, the last releases.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from mnemoscope.errors import ModelDamaged, ModelUnsupported
from mnemoscope.foundation.shared_change import shared_change

_shared: "WeakSet[nn.Module]" = WeakSet()
"""Modules whose hook was replaced by one that threads may share."""


def hold_weights(module: nn.Module) -> AbstractContextManager[None]:
    """Keeps a module's own weights, not those inside it, on its device."""
    hook = _hook_of(module)
    return nullcontext() if hook is None or not hook.offload else _fetch(module, hook)


@shared_change
def _fetch(module: nn.Module, hook: Any) -> Iterator[None]:
    """Puts the missing weights into the module, in their target dtype."""
    away = {name: weight for name, weight in module._parameters.items() if weight is not None and weight.is_meta}
    device, real_weights = _device(hook.execution_device), {}
    with torch.inference_mode(False), torch.no_grad():
        for name, weight in away.items():
            real = _read_stored(hook, name, module).to(device=device, dtype=weight.dtype)
            # requires_grad also affects how torch multiplies, and so last bits.
            real_weights[name] = nn.Parameter(real, weight.requires_grad)
    module._parameters.update(real_weights)
    try:
        yield
    finally:  # the previous parameter objects, so that tied ones stay tied
        module._parameters.update(away)


@contextmanager
def hold_all_weights(module: nn.Module) -> Iterator[None]:
    with ExitStack() as holds:
        for part in module.modules():
            holds.enter_context(hold_weights(part))
        yield


def weight_of(module: nn.Module, name: str) -> Tensor:
    with hold_weights(module):
        weight: Tensor = getattr(module, name)
        return weight


def device_of_module(module: nn.Module) -> torch.device:
    """The device on which a module computes: that of its own weights while it runs, or of those inside it."""
    for part in module.modules():
        if (hook := _hook_of(part)) is not None and hook.offload:
            return _device(hook.execution_device)
        weight = next((each for each in (*part.parameters(False), *part.buffers(False)) if not each.is_meta), None)
        if weight is not None:
            return weight.device
    return torch.device("cpu")


def own_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter once, by its first name, also where accelerate has untied offloaded ones."""
    every = dict(model.named_parameters())
    tied: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    away = {name for name, weight in every.items() if weight.is_meta}
    return {name: weight for name, weight in every.items() if not (name in away and tied.get(name) in away)}


def weights_at_hand(module: nn.Module) -> list[Tensor]:
    """A module's own weights and stored buffers; of offloaded ones, those in main memory."""
    tensors = [*module._parameters.items(), *module._buffers.items()]
    hook = _hook_of(module) if "_hf_hook" in vars(module) else None
    if hook is None or not hook.offload:
        unstored = module._non_persistent_buffers_set
        return [weight for name, weight in tensors if weight is not None and name not in unstored]
    prefix, held = _in_main_memory(hook)
    return [held[f"{prefix}{name}"] for name, _ in tensors if f"{prefix}{name}" in held]


def is_spread(model: nn.Module) -> bool:
    return any(getattr(module, "_hf_hook", None) is not None for module in model.modules())


def places_of(model: nn.Module) -> tuple[str, ...]:
    """Where a model's weights are: graphics cards first, then `cpu`, then `disk`."""
    names = set()
    for module in model.modules():
        hook = _hook_of(module)
        for name, weight in module._parameters.items():
            if weight is not None and weight.is_meta:
                prefix, held = _in_main_memory(hook)
                names.add("cpu" if f"{prefix}{name}" in held else "disk")
            elif weight is not None:
                names.add(str(weight.device))
    return tuple(sorted(names, key=lambda name: (name == "disk", name == "cpu", name)))


def share_modules(model: nn.Module) -> None:
    """Lets several threads run a model of `load_spread`; changes the model."""
    _shared.add(model)
    for module in model.modules():
        hook = _hook_of(module)
        if hook is not None and hook.offload:
            module.forward = _shared_forward(module, hook)
        if hook is not None:
            _shared.add(module)


def is_placed(model: nn.Module) -> bool:
    return model in _shared


def may_be_shared(module: nn.Module) -> bool:
    """Whether threads may run a module at the same time, as far as fetching its weights goes."""
    return getattr(module, "_hf_hook", None) is None or module in _shared


def check_reachable(model: nn.Module) -> None:
    """Raises ModelUnsupported, naming the weight, if a weight has no numbers and none can be fetched."""
    for path, module in model.named_modules():
        hook = _hook_of(module)
        for name, weight in (*module._parameters.items(), *module._buffers.items()):
            if weight is None or not weight.is_meta:
                continue
            stored = hook is not None and hook.offload and hook.weights_map is not None and name in hook.weights_map
            if not stored or name in module._buffers:
                where = f"{path}.{name}" if path else name
                raise ModelUnsupported(
                    f"weight {where!r} has no numbers (it is on 'meta', and no hook of accelerate loads it); "
                    "give it a device or the disk in the device map"
                )


def _hook_of(module: nn.Module) -> Any:
    # A private name of accelerate: it has no public way to find out where an offloaded weight is.
    hook = getattr(module, "_hf_hook", None)
    if hook is None:
        return None
    from accelerate.hooks import AlignDevicesHook, SequentialHook

    hooks = hook.hooks if isinstance(hook, SequentialHook) else (hook,)
    placing = [each for each in hooks if isinstance(each, AlignDevicesHook)]
    return next((each for each in placing if each.offload), placing[0] if placing else None)


def _shared_forward(module: Any, hook: Any) -> Callable[..., Any]:
    from accelerate.utils import send_to_device

    def forward(*inputs: Any, **named: Any) -> Any:
        with hold_weights(module):
            device = hook.execution_device
            sent = send_to_device(inputs, device), send_to_device(named, device, skip_keys=hook.skip_keys)
            return module._old_forward(*sent[0], **sent[1])

    return forward


def _in_main_memory(hook: Any) -> tuple[str, Mapping[str, Tensor]]:
    """The prefix of a module's weights, and the offloaded weights of the model that are not on disk, by name."""
    loader = getattr(hook.weights_map, "dataset", hook.weights_map)
    return getattr(hook.weights_map, "prefix", ""), getattr(loader, "state_dict", loader)


def _read_stored(hook: Any, name: str, module: nn.Module) -> Tensor:
    try:
        weight: Tensor = hook.weights_map[name]
        return weight
    except (KeyError, OSError, RuntimeError, TypeError) as error:
        raise ModelDamaged(
            f"the weight {name!r} of a {type(module).__name__} cannot be read from where it was put ({error}); "
            "leave the model's files and the folder for temporary files alone while it is in use"
        ) from None


def _device(place: Any) -> torch.device:
    return torch.device(f"cuda:{place}" if isinstance(place, int) else place)
