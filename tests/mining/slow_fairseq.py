"""A tiny random checkpoint in fairseq's format, and the slow model of it: plain sums in float64, word by word.

The network is written out here once more from the description of the format (adaptive input, sinusoidal positions,
pre-norm ReLU blocks, two-level softmax); nothing of the package is used. See `slow_model.py` for what is asked of it.
"""

import argparse
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mining.slow_model import Place

HIDDEN, HEADS, MEMORIES, LAYERS = 16, 2, 20, 3
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "home", "bird", "in", "tree", "x", "y", "z")
EDGES = (7, 12, 20)  # four special words and sixteen others, in three bands
WIDTHS = (16, 8, 4)
END = 2


@dataclass(frozen=True)
class Variant:
    """How a checkpoint ties its weights, and whether its last block is followed by a norm."""

    tied: bool
    final_norm: bool


def write_checkpoint(path: Path, variant: Variant, *, seed: int = 0) -> dict[str, Tensor]:
    """Writes `path` and the `dict.txt` beside it; returns the weights, float32."""
    chance = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float = 0.4, middle: float = 0.0) -> Tensor:
        return middle + scale * torch.randn(*shape, generator=chance)

    weights: dict[str, Tensor] = {"decoder.version": torch.tensor([3.0])}
    sizes = [b - a for a, b in zip((0, *EDGES), EDGES, strict=False)]
    for band, (size, width) in enumerate(zip(sizes, WIDTHS, strict=True)):
        weights[f"decoder.embed_tokens.embeddings.{band}.0.weight"] = draw(size, width)
        weights[f"decoder.embed_tokens.embeddings.{band}.1.weight"] = draw(HIDDEN, width)
    for layer in range(LAYERS):
        name = f"decoder.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            weights[f"{name}.self_attn.{part}.weight"] = draw(HIDDEN, HIDDEN)
            weights[f"{name}.self_attn.{part}.bias"] = draw(HIDDEN)
        for norm in ("self_attn_layer_norm", "final_layer_norm"):
            weights[f"{name}.{norm}.weight"], weights[f"{name}.{norm}.bias"] = draw(HIDDEN, middle=1.0), draw(HIDDEN)
        weights[f"{name}.fc1.weight"], weights[f"{name}.fc1.bias"] = draw(MEMORIES, HIDDEN), draw(MEMORIES)
        weights[f"{name}.fc2.weight"], weights[f"{name}.fc2.bias"] = draw(HIDDEN, MEMORIES), draw(HIDDEN)
    if variant.final_norm:
        weights["decoder.layer_norm.weight"] = draw(HIDDEN, middle=1.0)
        weights["decoder.layer_norm.bias"] = draw(HIDDEN)
    softmax = "decoder.adaptive_softmax"
    weights[f"{softmax}.version"] = torch.tensor([1.0])
    if variant.tied:
        weights[f"{softmax}.head.word_proj.weight"] = weights["decoder.embed_tokens.embeddings.0.0.weight"]
        weights[f"{softmax}.head.class_proj.weight"] = draw(2, HIDDEN)
    else:
        weights[f"{softmax}.head.weight"] = draw(EDGES[0] + 2, HIDDEN)
    for tail in (0, 1):
        words = f"decoder.embed_tokens.embeddings.{tail + 1}"
        projection, rows = weights[f"{words}.1.weight"], weights[f"{words}.0.weight"]
        free = draw(WIDTHS[tail + 1], HIDDEN), draw(sizes[tail + 1], WIDTHS[tail + 1])
        weights[f"{softmax}.tail.{tail}.0.weight"], weights[f"{softmax}.tail.{tail}.2.weight"] = (
            (projection, rows) if variant.tied else free
        )
    args = argparse.Namespace(
        arch="transformer_lm_wiki103",
        decoder_embed_dim=HIDDEN,
        decoder_input_dim=HIDDEN,
        decoder_output_dim=HIDDEN,
        decoder_ffn_embed_dim=MEMORIES,
        decoder_layers=LAYERS,
        decoder_attention_heads=HEADS,
        decoder_normalize_before=True,
        no_decoder_final_norm=not variant.final_norm,
        activation_fn="relu",
        adaptive_input=True,
        adaptive_input_cutoff="7,12",
        adaptive_input_factor=2.0,
        adaptive_softmax_cutoff="7,12",
        adaptive_softmax_factor=2.0,
        tie_adaptive_weights=variant.tied,
        tie_adaptive_proj=variant.tied,
        max_target_positions=48,
        tokens_per_sample=48,
    )
    torch.save({"args": args, "model": weights}, path)
    (path.parent / "dict.txt").write_text("".join(f"{word} {100 - i}\n" for i, word in enumerate(WORDS)))
    return weights


def split_words(text: str, **_: object) -> dict[str, list[Any]]:
    """The ids and spans of a text's words, in the form of a transformers tokenizer; unknown words are id 3."""
    spans = [found.span() for found in re.finditer(r"\S+", text)]
    words = [text[start:end] for start, end in spans]
    ids = [4 + WORDS.index(word) if word in WORDS else 3 for word in words]
    return {"input_ids": ids, "offset_mapping": spans}


class SlowFairseq:
    """The checkpoint's weights, computed with."""

    def __init__(self, weights: dict[str, Tensor], variant: Variant) -> None:
        self.layers, self.beginning = LAYERS, END
        self._variant = variant
        self._weights = {name.removeprefix("decoder."): weight.double() for name, weight in weights.items()}

    def _norm(self, name: str, vector: Tensor) -> Tensor:
        centred = vector - vector.mean()
        scaled = centred / torch.sqrt((centred * centred).mean() + 1e-5)
        return scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]

    def _linear(self, name: str, vector: Tensor) -> Tensor:
        return self._weights[f"{name}.weight"] @ vector + self._weights[f"{name}.bias"]

    def _embedded(self, token: int, place: int) -> Tensor:
        band = sum(token >= edge for edge in EDGES)
        words = f"embed_tokens.embeddings.{band}"
        vector = self._weights[f"{words}.0.weight"][token - (0, *EDGES)[band]]
        half = HIDDEN // 2
        angles = [(place + 2) * math.exp(-i * math.log(10_000) / (half - 1)) for i in range(half)]
        position = [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
        return math.sqrt(HIDDEN) * (self._weights[f"{words}.1.weight"] @ vector) + torch.tensor(position).double()

    def _attended(self, name: str, normed: list[Tensor]) -> list[Tensor]:
        found = []
        width = HIDDEN // HEADS
        query, key, value = ([self._linear(f"{name}.{p}_proj", x) for x in normed] for p in "qkv")
        for j in range(len(normed)):
            pieces = []
            for head in range(HEADS):
                part = slice(head * width, (head + 1) * width)
                marks = torch.stack([query[j][part] @ key[i][part] / math.sqrt(width) for i in range(j + 1)])
                shares = torch.softmax(marks, 0)
                pieces.append(sum((shares[i] * value[i][part] for i in range(j + 1)), torch.zeros(width).double()))
            found.append(self._linear(f"{name}.out_proj", torch.cat(pieces)))
        return found

    def read(self, tokens: list[int]) -> tuple[list[Place], Tensor]:
        stream = [self._embedded(token, place) for place, token in enumerate([END, *tokens])]
        places = []
        for layer in range(LAYERS):
            name = f"layers.{layer}"
            attended = self._attended(
                f"{name}.self_attn", [self._norm(f"{name}.self_attn_layer_norm", x) for x in stream]
            )
            residual = [x + a for x, a in zip(stream, attended, strict=True)]
            coefficients = [
                self._linear(f"{name}.fc1", self._norm(f"{name}.final_layer_norm", r)).clamp(min=0) for r in residual
            ]
            update = [self._linear(f"{name}.fc2", m) for m in coefficients]
            stream = [r + u for r, u in zip(residual, update, strict=True)]
            places.append(Place(residual[-1], coefficients[-1], update[-1], stream[-1]))
        return places, self.lens(stream[-1])

    def values(self, layer: int) -> Tensor:
        return self._weights[f"layers.{layer}.fc2.weight"].T

    def scale(self, layer: int, tokens: list[int], branch: int = 0) -> float:
        """What the final norm divides by at the last token, if there is one; the same for every layer."""
        if not self._variant.final_norm:
            return 1.0
        stream = self.read(tokens)[0][-1].output
        return float(torch.sqrt(((stream - stream.mean()) ** 2).mean() + 1e-5))

    def lens(self, stream: Tensor) -> Tensor:
        return self._log_p(self._norm("layer_norm", stream) if self._variant.final_norm else stream)

    def branch(self, memory: int) -> int:
        return 0

    def value_scores(self, layer: int, vector: Tensor, branch: int = 0) -> Tensor:
        """Centring and gain of the final norm, if there is one; then both levels, at the vector's own length."""
        if self._variant.final_norm:
            vector = (vector - vector.mean()) * self._weights["layer_norm.weight"]
        return self._log_p(vector)

    def update_scores(self, layer: int, update: Tensor) -> Tensor:
        return self.value_scores(layer, update)

    def _log_p(self, vector: Tensor) -> Tensor:
        """Log p(word) = log p(its class) plus that of p(word in the class); words of band 0 are their own classes."""
        softmax = "adaptive_softmax"
        if self._variant.tied:
            rows = [self._weights[f"{softmax}.head.{part}_proj.weight"] for part in ("word", "class")]
            head = torch.log_softmax(torch.cat(rows) @ vector, 0)
        else:
            head = torch.log_softmax(self._weights[f"{softmax}.head.weight"] @ vector, 0)
        found = [head[: EDGES[0]]]
        for tail in (0, 1):
            projection = self._weights[f"{softmax}.tail.{tail}.0.weight"]
            # The trap of the format: tied, the projection is stored the other way round.
            narrow = projection.T @ vector if self._variant.tied else projection @ vector
            within = torch.log_softmax(self._weights[f"{softmax}.tail.{tail}.2.weight"] @ narrow, 0)
            found.append(head[EDGES[0] + tail] + within)
        return torch.cat(found)
