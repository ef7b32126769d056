"""The network of a fairseq language model in plain torch: embedding, sinusoidal positions, blocks, head.

Written from the description of the format; parts have the checkpoint's names, so every weight loads under its own name.
For evaluation only: no dropout, no cache, no mask but the causal one. opening.py ties weights; the adaptive softmax is
in models/modules/projections.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from mnemoscope.models.modules.projections import AdaptiveSoftmax, Bands

_FIRST_POSITION = 2
"""The row of the first token: one after that of padding."""


_tanh_gelu = partial(functional.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "relu_squared": lambda x: functional.relu(x).square(),
    "gelu": functional.gelu,
    "gelu_fast": _tanh_gelu,
    "gelu_accurate": _tanh_gelu,
    "swish": functional.silu,
    "tanh": torch.tanh,
    "linear": lambda x: x,
}


@dataclass(frozen=True)
class DecoderShape:
    """`input_bands` None: one embedding of `rows` words of width `input_width`. `output_bands` None: one matrix of
    width `output_width`, which is the embedding's if `tied_words`.
    """

    rows: int
    layers: int
    hidden: int
    memories: int
    heads: int
    context: int
    activation: str
    pre_norm: bool
    final_norm: bool
    scaled: bool
    input_width: int
    output_width: int
    input_bands: Bands | None
    output_bands: Bands | None
    tied_words: bool
    tied_projections: bool


class AdaptiveInput(nn.Module):
    """Ids [batch, position] -> vectors [batch, position, hidden]."""

    def __init__(self, bands: Bands, hidden: int) -> None:
        super().__init__()
        self._starts = (0, *bands.edges[:-1])
        self._hidden = hidden
        self.embeddings = nn.ModuleList(
            nn.Sequential(nn.Embedding(size, width), nn.Linear(width, hidden, bias=False))
            for size, width in zip(bands.sizes(), bands.widths, strict=True)
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Looks each word up in its band and projects it; an id beyond the last band is an IndexError there."""
        first: Tensor = self.embeddings[0].get_parameter("1.weight")
        vectors = torch.empty(*ids.shape, self._hidden, dtype=first.dtype, device=first.device)
        band = torch.bucketize(ids, torch.tensor(self._starts[1:], device=ids.device), right=True)
        for number, (start, words) in enumerate(zip(self._starts, self.embeddings, strict=True)):
            here = band == number
            vectors[here] = words(ids[here] - start)
        return vectors


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(hidden, hidden) for _ in range(4))

    def forward(self, stream: Tensor) -> Tensor:
        """[batch, position, hidden] -> the same shape."""
        query, key, value = (self._split_heads(project(stream)) for project in (self.q_proj, self.k_proj, self.v_proj))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        output: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(-2))
        return output

    def weights(self, stream: Tensor) -> Tensor:
        """Attention weights: [batch, position, hidden] -> [batch, head, position, position]."""
        query, key = (self._split_heads(project(stream)) for project in (self.q_proj, self.k_proj))
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(later, -math.inf).softmax(-1)

    def _split_heads(self, vectors: Tensor) -> Tensor:
        batch, length, hidden = vectors.shape
        return vectors.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)


class DecoderBlock(nn.Module):
    """Attention, then the feed-forward layer; each norm before its part or after it."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self._pre_norm = shape.pre_norm
        self._activation = ACTIVATIONS[shape.activation]
        self.self_attn = Attention(shape.hidden, shape.heads)
        self.self_attn_layer_norm = nn.LayerNorm(shape.hidden)
        self.fc1 = nn.Linear(shape.hidden, shape.memories)
        self.fc2 = nn.Linear(shape.memories, shape.hidden)
        self.final_layer_norm = nn.LayerNorm(shape.hidden)

    def forward(self, stream: Tensor) -> Tensor:
        if self._pre_norm:
            stream = stream + self.self_attn(self.self_attn_layer_norm(stream))
            return stream + self._feed_forward(self.final_layer_norm(stream))
        stream = self.self_attn_layer_norm(stream + self.self_attn(stream))
        normed: Tensor = self.final_layer_norm(stream + self._feed_forward(stream))
        return normed

    def _feed_forward(self, ffn_input: Tensor) -> Tensor:
        output: Tensor = self.fc2(self._activation(self.fc1(ffn_input)))
        return output


class WordVectors(nn.Module):
    """Word embeddings without positions: ids [...] -> vectors [..., hidden]."""

    def __init__(self, embedding: nn.Module, projection: nn.Module | None, scale: float) -> None:
        super().__init__()
        self._embedding, self._projection, self._scale = embedding, projection, scale

    def forward(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self._scale * self._embedding(ids)
        return vectors if self._projection is None else self._projection(vectors)


class Decoder(nn.Module):
    """Everything but the head's computation; holds the head's weights, as the checkpoint does."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self._scale = math.sqrt(shape.hidden) if shape.scaled else 1.0
        self._hidden = shape.hidden
        self.embed_tokens: nn.Module
        self.project_in_dim: nn.Module | None = None
        if shape.input_bands is not None:
            self.embed_tokens = AdaptiveInput(shape.input_bands, shape.hidden)
        else:
            self.embed_tokens = nn.Embedding(shape.rows, shape.input_width)
            if shape.input_width != shape.hidden:
                self.project_in_dim = nn.Linear(shape.input_width, shape.hidden, bias=False)
        self.layers = nn.ModuleList(DecoderBlock(shape) for _ in range(shape.layers))
        self.layer_norm = nn.LayerNorm(shape.hidden) if shape.final_norm else None
        width, bands = shape.output_width, shape.output_bands
        self.project_out_dim = None if width == shape.hidden else nn.Linear(shape.hidden, width, bias=False)
        self.output_projection = nn.Linear(width, shape.rows, bias=False) if bands is None else None
        self.adaptive_softmax: AdaptiveSoftmax | None = None
        if bands is not None:
            tied = {"tied_words": shape.tied_words, "tied_projections": shape.tied_projections}
            self.adaptive_softmax = AdaptiveSoftmax(bands, width, **tied)

    def words(self) -> WordVectors:
        return WordVectors(self.embed_tokens, self.project_in_dim, self._scale)

    def forward(self, input_ids: Tensor) -> Tensor:
        """The head's input, [batch, position, width], for ids [batch, position]."""
        stream: Tensor = self.words()(input_ids)
        stream = stream + positions(input_ids.shape[1], self._hidden, device=stream.device).to(stream.dtype)
        for block in self.layers:
            stream = block(stream)
        if self.layer_norm is not None:
            stream = self.layer_norm(stream)
        return stream if self.project_out_dim is None else self.project_out_dim(stream)


class Network(nn.Module):
    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.decoder = Decoder(shape)

    def get_input_embeddings(self) -> nn.Module:
        """The module that embeds words, under transformers' name for it."""
        return self.decoder.words()

    def head(self) -> nn.Module:
        decoder = self.decoder
        head = decoder.output_projection if decoder.adaptive_softmax is None else decoder.adaptive_softmax
        assert head is not None
        return head

    def forward(self, input_ids: Tensor) -> Tensor:
        """Log-probabilities under an adaptive softmax, else logits."""
        scores: Tensor = self.head()(self.decoder(input_ids))
        return scores


def positions(count: int, hidden: int, *, device: torch.device) -> Tensor:
    """The position vectors [position, hidden], float32: sines, then cosines, of frequencies from 1 to 1/10,000."""
    half = hidden // 2
    # In float32 throughout, as in training: at position 500 the rounding of an angle is not small.
    frequency = torch.exp(torch.arange(half, dtype=torch.float32) * -(math.log(10_000) / (half - 1)))
    place = torch.arange(_FIRST_POSITION, _FIRST_POSITION + count, dtype=torch.float32)
    angle = place[:, None] * frequency
    vectors = torch.cat([angle.sin(), angle.cos()], dim=1)
    return functional.pad(vectors, (0, hidden % 2)).to(device)
