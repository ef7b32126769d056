"""Whether the host may look at numbers that a device computes.

On a graphics card every look (a number, a boolean, how many entries are not zero) stops the host until the card has
done all that it was asked for, and then the card waits for the host. So the pass over a text asks for fixed amounts of
work there and looks at what came out of it once in many batches.
"""

import torch


def may_look(device: torch.device) -> bool:
    """Whether looking at a number on this device costs nothing."""
    return device.type == "cpu"


def device_name(device: torch.device) -> str:
    """What a device is called, so that states of different kinds are told apart: last bits differ between these."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu {torch.backends.cpu.get_cpu_capability()}" if device.type == "cpu" else device.type
