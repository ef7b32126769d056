"""Tiny random checkpoints in fairseq's format, and what they compute, written out slowly from the format's description.

The network here works on one sentence in float64, one position and one word after the other where that is plainest,
and reads the options of the checkpoint itself. It shares no code with the package and none with fairseq.
"""

import argparse
import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu, silu

WORDS = (
    *("the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "home", "bird", "in", "tree", ",", ".", "@-@"),
    *("naïve", "東京", "1 1/2", "line\u2028end", "next\x85line", "no\xa0break", "fox", "=", "madeupword0000"),
    "madeupword0001",
)
ROWS = 4 + len(WORDS)
HIDDEN, HEADS, MEMORIES, LAYERS, CONTEXT = 16, 2, 24, 2, 32
END, UNKNOWN = 2, 3


@dataclass(frozen=True)
class Kind:
    """What a checkpoint is like; the defaults are those of the paper's model, made small."""

    cutoffs: str | None = "9,20"
    softmax_cutoffs: str | None = "9,20"
    factor: float = 2
    softmax_factor: float = 2.0
    tied: bool = True
    tied_projections: bool = True
    pre_norm: bool = True
    final_norm: bool = False
    activation: str = "relu"
    version: float | None = 3.0
    adaptive_input: bool = True
    shared: bool = False
    input_width: int = HIDDEN
    output_width: int = HIDDEN
    layers: int = LAYERS


_PLAIN = Kind(adaptive_input=False, cutoffs=None, softmax_cutoffs=None, tied=False)
KINDS = {
    "tied": Kind(),
    "untied": Kind(tied=False, tied_projections=False),
    "words tied, projections not": Kind(tied_projections=False),
    "other bands and factors": Kind(tied=False, tied_projections=False, softmax_cutoffs="5,12,25", softmax_factor=1.5),
    "a band of no width": Kind(tied=False, tied_projections=False, softmax_factor=5.0),
    "projections asked to be tied, words not": Kind(tied=False),
    "square projections, tied": Kind(factor=1, softmax_factor=1.0),
    "square projections, not tied": Kind(factor=1, softmax_factor=1.0, tied_projections=False),
    "last cutoff is the end": Kind(cutoffs=f"9,{ROWS}", softmax_cutoffs=f"9,{ROWS}"),
    "one band": Kind(cutoffs=str(ROWS), softmax_cutoffs=str(ROWS), tied=False),
    "final norm": Kind(final_norm=True),
    "post-norm": Kind(pre_norm=False),
    "post-norm, gelu, untied": Kind(pre_norm=False, activation="gelu", tied=False, tied_projections=False),
    "tanh gelu": Kind(activation="gelu_accurate"),
    "narrow input and output": Kind(tied=False, tied_projections=False, input_width=12, output_width=8),
    "plain input": Kind(adaptive_input=False, cutoffs=None, tied=False, tied_projections=False, input_width=10),
    "plain": replace(_PLAIN, tied_projections=False, output_width=12),
    "plain, shared": replace(_PLAIN, shared=True, final_norm=True),
}


def edges_of(cutoffs: str) -> list[int]:
    """The end of each band."""
    found = [int(part) for part in cutoffs.split(",")]
    return found if found[-1] == ROWS else [*found, ROWS]


def args_of(kind: Kind, **changes: Any) -> argparse.Namespace:
    """The options, as fairseq 0.9 keeps them; the architecture's name misleads."""
    fields: dict[str, Any] = {
        "arch": "transformer_lm_gpt2_big",
        "task": "language_modeling",
        "fp16": True,
        "lr": [1e-4],
    }
    fields |= {
        "decoder_embed_dim": HIDDEN,
        "decoder_input_dim": kind.input_width,
        "decoder_output_dim": kind.output_width,
        "decoder_ffn_embed_dim": MEMORIES,
        "decoder_layers": kind.layers,
        "decoder_attention_heads": HEADS,
        "decoder_normalize_before": kind.pre_norm,
        "no_decoder_final_norm": not kind.final_norm,
        "adaptive_input": kind.adaptive_input,
        "adaptive_input_cutoff": kind.cutoffs,
        "adaptive_input_factor": kind.factor,
        "adaptive_softmax_cutoff": kind.softmax_cutoffs,
        "adaptive_softmax_factor": kind.softmax_factor,
        "tie_adaptive_weights": kind.tied,
        "tie_adaptive_proj": kind.tied_projections,
        "share_decoder_input_output_embed": kind.shared,
        "activation_fn": kind.activation,
    }
    fields |= {
        "adaptive_softmax_dropout": 0.2,
        "dropout": 0.3,
        "decoder_learned_pos": False,
        "character_embeddings": False,
    }
    fields |= {"decoder_layers_to_keep": None, "tokens_per_sample": CONTEXT, "max_target_positions": None}
    return argparse.Namespace(**(fields | changes))


def weights_of(kind: Kind, *, seed: int = 0) -> "OrderedDict[str, Tensor]":
    """Random weights under today's names; norms and biases are random too, and so is the row of `<pad>`."""
    chance = torch.Generator().manual_seed(seed)
    weights: OrderedDict[str, Tensor] = OrderedDict()

    def draw(name: str, *shape: int, middle: float = 0.0, scale: float = 0.3) -> Tensor:
        weights[f"decoder.{name}"] = middle + scale * torch.randn(*shape, generator=chance)
        return weights[f"decoder.{name}"]

    if kind.version is not None:
        weights["decoder.version"] = torch.tensor([kind.version])
    words = []
    if kind.cutoffs is not None:
        start = 0
        for band, end in enumerate(edges_of(kind.cutoffs)):
            width = int(kind.input_width // kind.factor**band)
            word = draw(f"embed_tokens.embeddings.{band}.0.weight", end - start, width)
            words.append((word, draw(f"embed_tokens.embeddings.{band}.1.weight", HIDDEN, width)))
            start = end
        weights["decoder.embed_tokens._float_tensor"] = torch.tensor([math.nan])
    else:
        words.append((draw("embed_tokens.weight", ROWS, kind.input_width), torch.empty(0)))
        if kind.input_width != HIDDEN:
            draw("project_in_dim.weight", HIDDEN, kind.input_width)
    weights["decoder.embed_positions._float_tensor"] = torch.tensor([math.nan])
    for layer in range(kind.layers):
        for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
            draw(f"layers.{layer}.self_attn.{part}.weight", HIDDEN, HIDDEN)
            draw(f"layers.{layer}.self_attn.{part}.bias", HIDDEN)
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            draw(f"layers.{layer}.{name}.weight", HIDDEN, middle=1.0)
            draw(f"layers.{layer}.{name}.bias", HIDDEN)
        draw(f"layers.{layer}.fc1.weight", MEMORIES, HIDDEN)
        draw(f"layers.{layer}.fc1.bias", MEMORIES)
        draw(f"layers.{layer}.fc2.weight", HIDDEN, MEMORIES)
        draw(f"layers.{layer}.fc2.bias", HIDDEN)
    if kind.final_norm and kind.pre_norm:
        draw("layer_norm.weight", HIDDEN, middle=1.0)
        draw("layer_norm.bias", HIDDEN)
    if kind.output_width != HIDDEN:
        draw("project_out_dim.weight", kind.output_width, HIDDEN)
    if kind.softmax_cutoffs is None:
        if not kind.shared:
            draw("embed_out", ROWS, kind.output_width)
        return weights
    first, *later = edges_of(kind.softmax_cutoffs)
    softmax = "decoder.adaptive_softmax"
    if kind.tied:
        weights[f"{softmax}.head.word_proj.weight"] = words[0][0]
        draw("adaptive_softmax.head.class_proj.weight", len(later), HIDDEN)
        weights[f"{softmax}.head._float_tensor"] = torch.tensor([math.nan])
    else:
        draw("adaptive_softmax.head.weight", first + len(later), kind.output_width)
    for tail, (start, end) in enumerate(zip([first, *later], later, strict=False)):
        width = int(kind.output_width // kind.softmax_factor ** (tail + 1))
        if kind.tied and kind.tied_projections:
            weights[f"{softmax}.tail.{tail}.0.weight"] = words[tail + 1][1]
        else:
            draw(f"adaptive_softmax.tail.{tail}.0.weight", width, kind.output_width)
        if kind.tied:
            weights[f"{softmax}.tail.{tail}.2.weight"] = words[tail + 1][0]
        else:
            draw(f"adaptive_softmax.tail.{tail}.2.weight", end - start, width)
    weights[f"{softmax}.version"] = torch.tensor([1])
    return weights


def write(
    folder: Path, args: Any, weights: Any, *, legacy: bool = False, words: tuple[str, ...] = WORDS, **others: Any
) -> str:
    """Writes `model.pt` and `dict.txt` into a new folder; returns the MODEL that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"args": args, "model": weights, "optimizer_history": [{"num_updates": 9}], "extra_state": {}, **others}
    torch.save(whole, folder / "model.pt", _use_new_zipfile_serialization=not legacy)
    lines = "".join(f"{word} {1000 - number}\n" for number, word in enumerate(words))
    (folder / "dict.txt").write_bytes(lines.encode())
    return f"fairseq:{folder / 'model.pt'}"


class Slow:
    """A checkpoint computed with, in float64."""

    def __init__(self, args: argparse.Namespace, weights: dict[str, Tensor]) -> None:
        self.args = args
        self.weights = {name.removeprefix("decoder."): tensor.double() for name, tensor in weights.items()}

    def blocks(self, ids: list[int]) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Of every layer what its ffn reads, its coefficients, its update and its output, rows `[position, ...]`."""
        stream = torch.stack([self.embedded(token) + _position(place) for place, token in enumerate(ids)])
        for layer in range(self.args.decoder_layers):
            name = f"layers.{layer}."
            if self.args.decoder_normalize_before:
                residual = stream + self._attended(name, self.normed(f"{name}self_attn_layer_norm", stream))
                ffn_input = self.normed(f"{name}final_layer_norm", residual)
            else:
                residual = self.normed(f"{name}self_attn_layer_norm", stream + self._attended(name, stream))
                ffn_input = residual
            coefficients = _ACTIVATIONS[self.args.activation_fn](self._mapped(f"{name}fc1", ffn_input))
            update = self._mapped(f"{name}fc2", coefficients)
            stream = residual + update
            if not self.args.decoder_normalize_before:
                stream = self.normed(f"{name}final_layer_norm", stream)
            yield residual, coefficients, update, stream

    def hidden(self, ids: list[int]) -> tuple[Tensor, list[Tensor]]:
        """What the head reads `[position, width]`, and every layer's coefficients `[position, memory]`."""
        found = list(self.blocks(ids))
        return self.read_out(found[-1][-1]), [coefficients for _, coefficients, _, _ in found]

    def read_out(self, stream: Tensor) -> Tensor:
        """The final norm and the projection before the head, each where there is one."""
        if "layer_norm.weight" in self.weights:
            stream = self.normed("layer_norm", stream)
        return stream @ self.weights["project_out_dim.weight"].T if "project_out_dim.weight" in self.weights else stream

    def values(self, layer: int) -> Tensor:
        """The values `[memory, hidden]`."""
        return self.weights[f"layers.{layer}.fc2.weight"].T

    def gain(self, layer: int, vectors: Tensor) -> Tensor:
        """Scores of values: centring and gain of the norms on the way, never their scale."""
        after = [] if self.args.decoder_normalize_before else [f"layers.{layer}.final_layer_norm"]
        for norm in [*after, *(["layer_norm"] if "layer_norm.weight" in self.weights else [])]:
            vectors = (vectors - vectors.mean(-1, keepdim=True)) * self.weights[f"{norm}.weight"]
        project = self.weights.get("project_out_dim.weight")
        return self.scores(vectors if project is None else vectors @ project.T)

    def scores(self, hidden: Tensor) -> Tensor:
        """Log-probabilities `[row, vocab]` of the two-level softmax, word by word; plain products without one."""
        if self.args.adaptive_softmax_cutoff is None:
            shared = self.args.share_decoder_input_output_embed
            return hidden @ self.weights["embed_tokens.weight" if shared else "embed_out"].T
        edges = edges_of(self.args.adaptive_softmax_cutoff)
        if self.args.tie_adaptive_weights:
            parts = [self.weights[f"adaptive_softmax.head.{part}_proj.weight"] for part in ("word", "class")]
            head = torch.log_softmax(hidden @ torch.cat(parts).T, 1)
        else:
            head = torch.log_softmax(hidden @ self.weights["adaptive_softmax.head.weight"].T, 1)
        columns = [head[:, word] for word in range(edges[0])]
        for tail in range(len(edges) - 1):
            narrow = self.weights[f"adaptive_softmax.tail.{tail}.0.weight"]
            if self.args.tie_adaptive_weights and self.args.tie_adaptive_proj:
                narrow = self.weights[f"embed_tokens.embeddings.{tail + 1}.1.weight"].T
            words = self.weights[f"adaptive_softmax.tail.{tail}.2.weight"]
            inside = torch.log_softmax((hidden @ narrow.T) @ words.T, 1)
            columns += [head[:, edges[0] + tail] + inside[:, word] for word in range(len(words))]
        return torch.stack(columns, 1)

    def embedded(self, token: int) -> Tensor:
        """What a word is when it goes in, without its position."""
        scale = math.sqrt(HIDDEN)
        if not self.args.adaptive_input:
            vector = scale * self.weights["embed_tokens.weight"][token]
            into = self.weights.get("project_in_dim.weight")
            return vector if into is None else into @ vector
        edges = edges_of(self.args.adaptive_input_cutoff)
        band = next(number for number, end in enumerate(edges) if token < end)
        words = self.weights[f"embed_tokens.embeddings.{band}.0.weight"]
        start = [0, *edges][band]
        return scale * (self.weights[f"embed_tokens.embeddings.{band}.1.weight"] @ words[token - start])

    def _mapped(self, name: str, rows: Tensor) -> Tensor:
        return rows @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def normed(self, name: str, rows: Tensor) -> Tensor:
        centred = rows - rows.mean(1, keepdim=True)
        scale = (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
        return centred / scale * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attention_weights(self, name: str, rows: Tensor) -> Tensor:
        """How much each row attends to each `[head, position, position]`."""
        query, key = (self._mapped(f"{name}.{part}_proj", rows) for part in "qk")
        width = HIDDEN // HEADS
        found = torch.zeros(HEADS, len(rows), len(rows)).double()
        for head in range(HEADS):
            own = slice(head * width, (head + 1) * width)
            for j in range(len(rows)):
                marks = torch.stack([query[j, own] @ key[i, own] / math.sqrt(width) for i in range(j + 1)])
                found[head, j, : j + 1] = torch.softmax(marks, 0)
        return found

    def _attended(self, name: str, rows: Tensor) -> Tensor:
        value = self._mapped(f"{name}self_attn.v_proj", rows)
        width = HIDDEN // HEADS
        heads = [slice(head * width, (head + 1) * width) for head in range(HEADS)]
        weights = self.attention_weights(f"{name}self_attn", rows)
        mixed = torch.cat([own @ value[:, part] for own, part in zip(weights, heads, strict=True)], dim=1)
        return self._mapped(f"{name}self_attn.out_proj", mixed)


_ACTIVATIONS = {
    "relu": relu,
    "gelu": gelu,
    "gelu_accurate": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_fast": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "swish": silu,
    "tanh": torch.tanh,
    "linear": lambda x: x,
    "relu_squared": lambda x: relu(x) ** 2,
}


def _position(place: int) -> Tensor:
    """Sines of one half, cosines of the other; the first token stands at 2, one after the id of padding."""
    half = HIDDEN // 2
    angles = [(place + 2) * math.exp(-i * math.log(10_000) / (half - 1)) for i in range(half)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
