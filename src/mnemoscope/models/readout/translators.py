"""Affine maps from a layer's stream to the final one, through which values and streams of lower layers can be read.

A translator of layer l maps the stream there to the space of the final norm and the head (definitions.md section 9,
lenses). For a value, which is added to the stream, only the linear part applies.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.models.language_model import LanguageModel


@dataclass(frozen=True)
class Translator:
    """`stream @ weight + bias`; `weight [hidden, hidden]` and `bias [hidden]`, float32."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def identity(cls, hidden: int) -> "Translator":
        """The logit lens."""
        return cls(torch.eye(hidden), torch.zeros(hidden))

    def __call__(self, stream: Tensor) -> Tensor:
        """Streams `[row, hidden]` as the final stream, float32."""
        return stream.float() @ self.weight.to(stream.device) + self.bias.to(stream.device)

    def linear(self, vectors: Tensor) -> Tensor:
        """The addition to the final stream, float32, of vectors `[row, hidden]` added to the layer's."""
        return vectors.float() @ self.weight.to(vectors.device)


Lens = Mapping[int, Translator]
"""The translator of each layer that has one; others are read without."""


def translated_values(model: LanguageModel, layer: int, translator: Translator) -> Tensor:
    """A layer's values `[memory, hidden']` through a translator, folded for the head's products."""
    return model.fold(translator.linear(model.values_in_stream(layer)))


def translated_scores(model: LanguageModel, streams: Tensor, translator: Translator | None) -> Tensor:
    """The model's own readout `[row, vocab]`, float32, of streams `[row, hidden]` through a translator."""
    moved = streams if translator is None else translator(streams)
    return model.scores(moved, projection="lens")
