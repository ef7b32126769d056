"""Names of devices, how they say that memory ran out, and whether the host may read results without waiting."""

import torch

from mnemoscope.kernels.choose import card_kernels


def may_look(device: torch.device) -> bool:
    """Whether reading a number from this device costs nothing; a GPU is synchronised with the host by every read."""
    return device.type == "cpu"


def device_name(device: torch.device) -> str:
    """Such as "cpu AVX512", or "NVIDIA H200 Triton" if our kernels run there; other names may give other last bits."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return name if card_kernels(device) is None else f"{name} Triton"
    return f"cpu {torch.backends.cpu.get_cpu_capability()}" if device.type == "cpu" else device.type


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; CUDA and CPU word it differently."""
    words = ("can't allocate memory", "out of memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(word in str(error) for word in words)


def join_names(*devices: str) -> str:
    return " + ".join(sorted({name for device in devices for name in split_names(device)}))


def split_names(device: str) -> list[str]:
    return [name for name in device.split(" + ") if name]
