"""Whether the host may look at numbers that a device computes, and what a device is called.

On a graphics card every look (a number, a boolean, how many entries are not zero) stops the host until the card has
done all that it was asked for, and then the card waits for the host. So the pass over a text asks for fixed amounts of
work there and looks at what came out of it once in many batches.
"""

import torch

from mnemoscope.kernels.choose import card_kernels


def may_look(device: torch.device) -> bool:
    """Whether looking at a number on this device costs nothing."""
    return device.type == "cpu"


def device_name(device: torch.device) -> str:
    """What computes there, by name: "cpu AVX512", or that of a graphics card; another name may give other last bits.

    Cards that measure by kernels of our own say so: "NVIDIA H200 Triton".
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return name if card_kernels(device) is None else f"{name} Triton"
    return f"cpu {torch.backends.cpu.get_cpu_capability()}" if device.type == "cpu" else device.type


def join_names(*devices: str) -> str:
    """The names of all devices as one, each once, in order; what has no name is left out."""
    return " + ".join(sorted({name for device in devices for name in split_names(device)}))


def split_names(device: str) -> list[str]:
    """The names that `join_names` joined."""
    return [name for name in device.split(" + ") if name]
