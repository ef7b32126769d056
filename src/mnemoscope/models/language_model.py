"""A language model whose feed-forward layers can be read: sizes, tokens, keys, values, scores and the forward pass.

Owns a network and what reads text for it, and changes neither. Loading is loading.py, which has every model proved
(proof.py) before anybody sees it. Reading coefficients while it runs is hooks.py; what is done with the numbers
(mining, tracing) lies in other rooms.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from threading import RLock
from typing import Any, final

import torch
from torch import Tensor, nn

from mnemoscope.errors import MemoryIdError
from mnemoscope.models.anatomy import Anatomy, Layer, LinearMap, goes_negative
from mnemoscope.models.fingerprint import fingerprint, is_mined_model
from mnemoscope.models.loaded_parts import LoadedParts
from mnemoscope.models.observed import run
from mnemoscope.models.projections import Head, Projection, Readout


@dataclass(frozen=True)
class Sizes:
    """How large a model is; `memories` per layer, `vocabulary` in rows of the head."""

    layers: int
    hidden: int
    memories: tuple[int, ...]
    vocabulary: int
    context: int
    parameters: int
    ffn_parameters: int


@dataclass(frozen=True)
class Proof:
    """The largest error of each check, and those of each layer (residual, ablation, keys)."""

    residual: float
    ablation: float
    keys: float
    scores: float
    layers: tuple[tuple[float, float, float], ...]


class _Abandoned(Exception):
    """Carries control out of a forward pass whose rest nobody needs."""


@final
class LanguageModel:
    """One language model, proved readable; see the module's docstring.

    `block` is the blocks' kind (pre-norm, post-norm, sandwich, parallel); `has_negative` says whether coefficients can
    lie below zero, `signs` with which signs they occur: (1, -1) or (1,); `longest` is how many tokens of its own a
    sentence may have, after the beginning token; `ends` are the tokens after which a text that it writes is over: its
    end-of-text tokens, and the beginning token, with which another text would begin; `linear_head` says whether the
    head is one matrix (an adaptive softmax is not).
    `lock` is held by whoever runs it with hooks, which see every forward: one thread at a time, which may enter again.
    `fingerprint` names the model and how its sentences begin, `content` the model alone.
    """

    def __init__(self, parts: LoadedParts, anatomy: Anatomy, *, revision: str | None, content: str) -> None:
        beginning = parts.beginning(anatomy.rows)
        layers = anatomy.layers
        down = layers[0].down.weight()
        self.anatomy = anatomy
        self.spec = parts.spec
        self.revision = revision
        self.content = content
        self.fingerprint = fingerprint(content, beginning)
        self.family = anatomy.family
        self.block = layers[0].kind
        self.gated = layers[0].up is not None
        self.activation = anatomy.activation
        self.dtype = down.dtype
        self.device = down.device
        self.final_norm = anatomy.final_norm is not None
        self.has_negative = self.gated or goes_negative(layers[0].activation, dtype=self.dtype, device=self.device)
        self.signs = (1, -1) if self.has_negative else (1,)
        self.linear_head = anatomy.two_level is None
        self.shape = (0, 0)
        """[batch, position] of the ids that the running forward, or the last one, was given."""
        self.lock = RLock()
        self._tokens = parts.tokens
        self.beginning = beginning
        self.ends = parts.ends(anatomy.rows).union(beginning.tokens)
        self.sizes = Sizes(
            layers=len(layers),
            hidden=down.shape[0],
            memories=tuple(layer.down.weight().shape[1] for layer in layers),
            vocabulary=anatomy.rows,
            context=parts.context,
            parameters=sum(parameter.numel() for parameter in anatomy.model.parameters()),
            ffn_parameters=sum(_ffn_parameters(layer) for layer in layers),
        )
        self.longest = self.sizes.context - beginning.length
        self._readout = Readout(anatomy, hidden=self.sizes.hidden, dtype=self.dtype, device=self.device)
        self.proof: Proof

    def is_model_of(self, mined: Mapping[str, Any]) -> bool:
        """Whether this is the model that an atlas was mined from; `mined` is its manifest's entry `model`."""
        return is_mined_model(mined, fingerprint=self.fingerprint, content=self.content, beginning=self.beginning)

    @property
    def attention(self) -> str:
        """The attention kernel that transformers runs, such as `sdpa`; `own` for networks that it does not know."""
        config = getattr(self.anatomy.model, "config", None)
        return str(getattr(config, "_attn_implementation", None) or "own")

    @property
    def tokenizer_fingerprint(self) -> str:
        """The sha256, in hex, of how text becomes tokens."""
        return hashlib.sha256(json.dumps(self._tokens.description, sort_keys=True, default=str).encode()).hexdigest()

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The token ids of each text: no special tokens, special strings are plain text."""
        return self._tokens.encode(texts)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of every token of `encode([text])[0]`."""
        return self._tokens.offsets(text)

    def vocabulary(self) -> tuple[list[str], list[bytes]]:
        """Text and bytes of every row of the head; empty for rows without a token. Made once: not to be changed."""
        return self._vocabulary

    @cached_property
    def _vocabulary(self) -> tuple[list[str], list[bytes]]:
        return self._tokens.vocabulary(self.sizes.vocabulary)

    @cached_property
    def known_votes(self) -> list[Tensor]:
        """The top token of every value with either sign, `[2 * memory]` for each layer; -1 where not projected yet.

        A vote depends on the weights alone, so tracing keeps those that it has projected here.
        """
        return [torch.full((2 * count,), -1, device=self.device) for count in self.sizes.memories]

    def keys(self, layer: int) -> Tensor:
        """The keys [memory, hidden]; of a gated layer the gates."""
        return self.layer(layer).gate.weight().detach()

    def up_keys(self, layer: int) -> Tensor | None:
        """The second keys [memory, hidden] of a gated layer, else None."""
        up = self.layer(layer).up
        return None if up is None else up.weight().detach()

    def key_bias(self, layer: int) -> Tensor | None:
        """The bias of keys or gates [memory], or None."""
        return _bias(self.layer(layer).gate)

    def up_bias(self, layer: int) -> Tensor | None:
        """The bias of the second keys [memory], or None."""
        up = self.layer(layer).up
        return None if up is None else _bias(up)

    def values(self, layer: int) -> Tensor:
        """The values [memory, hidden]: row i is v_i."""
        return self.layer(layer).down.weight().detach().T

    def value_bias(self, layer: int) -> Tensor | None:
        """The bias of the down-projection [hidden], or None."""
        return _bias(self.layer(layer).down)

    def head(self) -> Tensor:
        """The matrix E [vocab, hidden'], float32, whose products with folded vectors are their `gain` scores.

        Raises ModelUnsupported for a head that is not one matrix.
        """
        return self._readout.head()

    def scorer(self) -> Head:
        """What turns folded vectors into `gain` scores, in float32; of a model in half precision a copy of its head."""
        return self._readout.scorer()

    def fold(self, vectors: Tensor, *, layer: int | None) -> Tensor:
        """Vectors [n, hidden] -> [n, hidden'], float32: centring and gain of the norms before the head folded in.

        `layer` names the block whose output norm (sandwich, post-norm) comes first; None where the vector is already
        in the stream.
        """
        self._check_layer(layer)
        return self._readout.fold(vectors, layer=layer)

    def scores(self, vectors: Tensor, *, projection: Projection, layer: int | None = None) -> Tensor:
        """Scores [..., vocab], float32, of vectors [..., hidden] (definitions.md section 2); `layer` as in `fold`."""
        self._check_layer(layer)
        with torch.inference_mode():
            return self._readout.scores(vectors, projection=projection, layer=layer)

    def backbone(self, ids: Tensor, *, stop_after: int | None = None) -> Tensor | None:
        """The blocks' output [batch, position, hidden'] for ids [batch, position], without the head.

        No attention mask is used: padding on the right is harmless in a causal model. With `stop_after` the forward
        ends as soon as that layer's coefficients were read, and None is returned.
        """
        stop = None if stop_after is None else self.layer(stop_after).down.module
        caught: list[Tensor] = []

        def at_stop(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            raise _Abandoned

        def at_head(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            caught.append(inputs[0])
            raise _Abandoned

        target = self.anatomy.model if self.anatomy.backbone is None else self.anatomy.backbone
        handles = []
        if stop is not None:
            handles.append(stop.register_forward_pre_hook(at_stop))
        if self.anatomy.backbone is None:
            handles.append(self.anatomy.head.register_forward_pre_hook(at_head))
        try:
            return self._forward(target, ids)
        except _Abandoned:
            return caught[0] if caught else None
        finally:
            for handle in handles:
                handle.remove()

    def logits(self, ids: Tensor) -> Tensor:
        """The model's own logits [batch, position, vocab], float32, for ids [batch, position]."""
        return self._forward(self.anatomy.model, ids).float()

    def _forward(self, module: nn.Module, ids: Tensor) -> Tensor:
        self.shape = (ids.shape[0], ids.shape[1])
        return run(module, ids)

    def layer(self, layer: int) -> Layer:
        """The parts of one layer's block; raises MemoryIdError for a layer that there is not."""
        self._check_layer(layer)
        return self.anatomy.layers[layer]

    def _check_layer(self, layer: int | None) -> None:
        count = len(self.anatomy.layers)
        if layer is not None and not 0 <= layer < count:
            raise MemoryIdError(f"layer {layer} does not exist; the model has layers 0 to {count - 1}")


def _bias(linear: LinearMap) -> Tensor | None:
    bias = linear.bias()
    return None if bias is None else bias.detach()


def _ffn_parameters(layer: Layer) -> int:
    maps = [linear for linear in (layer.gate, layer.up, layer.down) if linear is not None]
    biases = [bias for bias in (linear.bias() for linear in maps) if bias is not None]
    return sum(linear.weight().numel() for linear in maps) + sum(bias.numel() for bias in biases)
