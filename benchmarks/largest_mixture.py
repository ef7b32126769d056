"""Measure the memory in which the largest mixture of experts that fits this machine is inspected.

A random Mixtral (layers of 4,096 x 14,336, 8 experts, bfloat16) is written to FOLDER as hubs store one: expert by
expert, a file for each layer. `mnemoscope inspect` then loads it and proves it, and its own memory is read from
/proc/PID/status twenty times a second; pages of mapped files, which the system takes back as it needs them, are counted
apart. The bar: at most 1.2 times the weights.

    python benchmarks/largest_mixture.py FOLDER [--layers N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import MixtralConfig

BAR = 1.2
HIDDEN, WIDTH, EXPERTS, VOCABULARY, KEYS = 4096, 14_336, 8, 32_000, 1024
LAYER_BYTES = 2 * HIDDEN * (EXPERTS * (3 * WIDTH + 1) + 2 * HIDDEN + 2 * KEYS + 2)
REST_BYTES = 2 * (2 * VOCABULARY * HIDDEN + HIDDEN)


def most_layers() -> int:
    """As many as leave room for a fifth more than the weights."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int((memory / BAR - REST_BYTES) / LAYER_BYTES)


def write_model(folder: Path, layers: int) -> int:
    """Writes the model, and gives its bytes; does nothing where it is already there."""
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / "model.safetensors.index.json"
    size = REST_BYTES + layers * LAYER_BYTES
    if index.is_file() and json.loads(index.read_text())["metadata"]["total_size"] == size:
        return size
    chance, places = torch.Generator().manual_seed(0), dict[str, str]()

    def random(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16).normal_(0.0, shape[-1] ** -0.5, generator=chance)

    def write(name: str, tensors: dict[str, torch.Tensor]) -> None:
        save_file(tensors, folder / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(tensors, name))

    for layer in range(layers):
        at, tensors = f"model.layers.{layer}", dict[str, torch.Tensor]()
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{norm}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
        for part, rows in (("q", HIDDEN), ("k", KEYS), ("v", KEYS), ("o", HIDDEN)):
            tensors[f"{at}.self_attn.{part}_proj.weight"] = random(rows, HIDDEN)
        tensors[f"{at}.block_sparse_moe.gate.weight"] = random(EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            inside = f"{at}.block_sparse_moe.experts.{expert}"
            tensors |= {f"{inside}.w1.weight": random(WIDTH, HIDDEN), f"{inside}.w3.weight": random(WIDTH, HIDDEN)}
            tensors[f"{inside}.w2.weight"] = random(HIDDEN, WIDTH)
        write(f"layer-{layer:02d}.safetensors", tensors)
    ends = {"model.embed_tokens.weight": random(VOCABULARY, HIDDEN), "lm_head.weight": random(VOCABULARY, HIDDEN)}
    write("ends.safetensors", ends | {"model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16)})
    config = MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        max_position_embeddings=4096,
        dtype="bfloat16",
        architectures=["MixtralForCausalLM"],
        tie_word_embeddings=False,
    )
    config.save_pretrained(folder)
    index.write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": places}))
    return size


def watch(command: list[str]) -> dict[str, float]:
    """Runs a command to its end: its seconds, and its largest own and mapped memory in bytes."""
    began, most = time.monotonic(), {"RssAnon": 0, "RssFile": 0}
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name in most:
                    most[name] = max(most[name], 1024 * int(rest.split()[0]))
            time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    return {"seconds": time.monotonic() - began, "own": most["RssAnon"], "mapped": most["RssFile"]}


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description="In how much memory the largest mixture that fits is inspected.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=most_layers())
    given = parser.parse_args()
    size = write_model(given.folder, given.layers)
    inspect = ["-m", "mnemoscope", "inspect", str(given.folder), "--dtype", "bfloat16", "--tokenizer", "ids"]
    found = watch([sys.executable, *inspect])
    ratio = round(found["own"] / size, 3)
    print(json.dumps({"layers": given.layers, "weights": size, **found, "ratio": ratio, "met": ratio <= BAR}, indent=1))


if __name__ == "__main__":
    main()
