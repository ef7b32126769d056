"""Measure how fast a layer's matrix is probed, against the product of the same sizes with a plain matrix.

Of every kind of layer that is installed here (LoRA, DoRA, 4 bits of bitsandbytes, int8 weight-only of torchao), both
ways round: the down-projection [hidden, memories] and the keys [memories, hidden]. The product is that of as many unit
vectors with the plain matrix, in the same dtype. A figure is the best of several turns, in each of which all kinds run.
The bar: probing at half the product's rate or more.

    python benchmarks/probing.py --hidden 768 --memories 3072
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mnemoscope.models.modules.linear_maps import probe

BAR = 0.5


def adapted(plain: nn.Linear, *, dora: bool) -> nn.Module:
    """The layer with a low-rank adapter of rank 16."""
    import peft

    config = peft.LoraConfig(r=16, target_modules=["0"], init_lora_weights=False, use_dora=dora)
    return peft.inject_adapter_in_model(config, nn.Sequential(plain)).eval()[0]


def four_bits(plain: nn.Linear) -> nn.Module:
    """The layer in four bits, multiplied in its own dtype."""
    from bitsandbytes.nn import Linear4bit

    layer = Linear4bit(
        plain.in_features, plain.out_features, bias=False, compute_dtype=plain.weight.dtype, quant_type="nf4"
    )
    layer.load_state_dict({"weight": plain.weight.detach()})
    return layer.to(plain.weight.device)


def eight_bits(plain: nn.Linear) -> nn.Module:
    """The layer with weights of eight bits."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    packed = nn.Sequential(plain)
    quantize_(packed, Int8WeightOnlyConfig())
    return packed[0]


KINDS: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "plain": lambda plain: plain,
    "lora": lambda plain: adapted(plain, dora=False),
    "dora": lambda plain: adapted(plain, dora=True),
    "nf4": four_bits,
    "int8": eight_bits,
}


def measure(inside: int, outside: int, *, dtype: torch.dtype, device: str, turns: int) -> dict[str, Any]:
    """Seconds of the product, and for each kind seconds of probing and the share of the product's rate."""
    torch.manual_seed(0)
    weight = torch.randn(outside, inside, dtype=dtype, device=device) / inside**0.5

    def layer() -> nn.Linear:
        made = nn.Linear(inside, outside, bias=False, device="meta")
        made.weight = nn.Parameter(weight.clone(), requires_grad=False)
        return made

    units = torch.eye(inside, dtype=dtype, device=device)
    ways: dict[str, Callable[[], object]] = {"product": lambda: nn.functional.linear(units, weight)}
    for name, make in KINDS.items():
        try:
            module = make(layer())
            probe(module)
        except ImportError:
            continue
        ways[name] = lambda module=module: probe(module)  # type: ignore[misc]
    best = dict.fromkeys(ways, float("inf"))
    with torch.inference_mode():
        for _ in range(turns):
            for name, run in ways.items():
                started = time.perf_counter()
                run()
                if device != "cpu":
                    torch.cuda.synchronize()
                best[name] = min(best[name], time.perf_counter() - started)
    share = {name: round(best["product"] / seconds, 2) for name, seconds in best.items() if name != "product"}
    return {"milliseconds": {name: round(1000 * seconds, 2) for name, seconds in best.items()}, "share": share}


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description="How fast layers are probed.")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--memories", type=int, default=3072)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    options = {"dtype": getattr(torch, given.dtype), "device": given.device, "turns": given.turns}
    sizes = {"values": (given.memories, given.hidden), "keys": (given.hidden, given.memories)}
    found = {name: measure(*size, **options) for name, size in sizes.items()}
    shares = [share for one in found.values() for share in one["share"].values()]
    print(json.dumps(vars(given) | found | {"bar": BAR, "met": min(shares) >= BAR}, indent=1))


if __name__ == "__main__":
    main()
