"""Measure the resident memory of a whole `mine` at two sizes of text, to see whether it grows.

Each size runs in a process of its own; the figure is its VmHWM, the most that was ever resident (Linux). The model is a
random ReLU decoder of 2 layers x 64 with a small vocabulary, so that the model itself hides nothing. The text is varied
and synthetic: nearly every sentence is distinct, the worst case. The bar: at most 1.4 times the memory of the first
size, and 24 bytes for each distinct sentence.

    python benchmarks/memory.py --tokens 1000000 10000000
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

WORDS = 4_000
ALLOWED_RATIO = 1.4
ALLOWED_BYTES = 24


def write_text(path: Path, tokens: int) -> None:
    """Write a text of about so many words: sentences of English-like length, three to a paragraph."""
    chance = np.random.default_rng(tokens)
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < tokens:
            lengths = np.clip(chance.lognormal(2.9, 0.6, 3_000), 1, 120).astype(int)
            numbers = iter((chance.zipf(1.3, int(lengths.sum())) % WORDS).tolist())
            for count, length in enumerate(lengths.tolist()):
                words = " ".join(f"w{next(numbers)}" for _ in range(length))
                file.write(f"The {words} ." + ("\n\n" if count % 3 == 2 else " "))
            written += int(lengths.sum()) + 2 * len(lengths)


def build_model() -> Any:
    """Return the random model, read as a language model."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

    from mnemoscope import load_model

    words = ["<s>", "<unk>", "The", ".", *(f"w{i}" for i in range(WORDS))]
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=len(words),
        hidden_size=64,
        word_embed_proj_dim=64,
        ffn_dim=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        activation_function="relu",
        dropout=0.0,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
    )
    network = OPTForCausalLM(config).eval()
    return load_model(network, tokenizer=PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>"))


def resident_peak() -> int:
    """Return the most bytes that this process ever had in memory."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/self/status has no VmHWM; this needs Linux")


def measure(path: Path) -> dict[str, Any]:
    """Mine the text in this process; return its peaks after every stage, its sizes and its time."""
    from mnemoscope import mine

    model = build_model()
    peaks = {"start": resident_peak()}
    began = time.perf_counter()

    def watch(stage: str, done: float, total: float | None, note: str) -> None:
        peaks[stage] = resident_peak()

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = mine(model, str(path), out=Path(folder) / "atlas", progress=watch)
        counts = json.loads((made / "manifest.json").read_text(encoding="utf-8"))["corpus"]["counts"]
    return {
        "tokens": counts["tokens"],
        "distinct_sentences": counts["sentences"],
        "seconds": round(time.perf_counter() - began, 1),
        "peak_bytes": resident_peak(),
        "peak_mb_after": {stage: round(peak / 1e6, 1) for stage, peak in peaks.items()},
    }


def main() -> None:
    """Print one JSON line for each size, then the ratio and whether the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs=2, default=[1_000_000, 10_000_000])
    parser.add_argument("--text", type=Path, help="measure this text, in this process")
    arguments = parser.parse_args()
    if arguments.text:
        print(json.dumps(measure(arguments.text)))
        return
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for tokens in arguments.tokens:
            path = Path(folder) / f"{tokens}.txt"
            write_text(path, tokens)
            command = [sys.executable, __file__, "--text", str(path)]
            results.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
            print(json.dumps(results[-1]), flush=True)
    small, large = results
    above = large["peak_bytes"] - ALLOWED_RATIO * small["peak_bytes"]
    share = above / large["distinct_sentences"]
    print(f"ratio {large['peak_bytes'] / small['peak_bytes']:.3f}")
    print(f"above {ALLOWED_RATIO} x: {max(0.0, share):.1f} bytes per distinct sentence (at most {ALLOWED_BYTES})")
    if share > ALLOWED_BYTES:
        raise SystemExit("missed")


if __name__ == "__main__":
    main()
