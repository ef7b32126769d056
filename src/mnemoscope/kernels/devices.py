"""Whether the host may read numbers that a device computes, and a device's name.

On a graphics card every read (a number, a boolean, a count of non-zero entries) stops the host until the card has
finished its queue, and then the card waits for the host. So the pass over a text queues fixed amounts of work there and
reads results once in many batches.
"""

import torch

from mnemoscope.kernels.choose import card_kernels


def may_look(device: torch.device) -> bool:
    """Whether reading a number from this device costs nothing."""
    return device.type == "cpu"


def device_name(device: torch.device) -> str:
    """Such as "cpu AVX512" or "NVIDIA H200 Triton" (our kernels); another name may give other last bits."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return name if card_kernels(device) is None else f"{name} Triton"
    return f"cpu {torch.backends.cpu.get_cpu_capability()}" if device.type == "cpu" else device.type


def join_names(*devices: str) -> str:
    """The distinct names of all devices, sorted and joined; empty ones are left out."""
    return " + ".join(sorted({name for device in devices for name in split_names(device)}))


def split_names(device: str) -> list[str]:
    return [name for name in device.split(" + ") if name]
