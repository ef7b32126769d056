"""The `ridge` translator: the affine map from a layer's stream to the final stream with the least squared error.

The same is fitted from the words' embeddings to a layer's stream, for its keys. The solution is in closed form, from
moments added up over the text in a fixed order, in float64. The map is shrunk towards the identity, so that a layer
with little data is read as by the logit lens; the strength is chosen by the error on documents that were not fitted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mnemoscope.mining.text.batches import Ints
from mnemoscope.models import LanguageModel
from mnemoscope.models.readout.read_directions import input_embeddings
from mnemoscope.models.readout.translators import Translator

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Added to every variance, in units of the mean variance of the stream's entries."""


@dataclass
class Moments:
    """Float64 sums over positions of streams h `[hidden]` that a map takes and t that it should give."""

    count: Tensor
    of_stream: Tensor
    of_final: Tensor
    squares: Tensor
    products: Tensor

    @classmethod
    def empty(cls, hidden: int) -> "Moments":
        shapes = ((1,), (hidden,), (hidden,), (hidden, hidden), (hidden, hidden))
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    def copy(self) -> "Moments":
        return Moments(*(tensor.clone() for tensor in vars(self).values()))

    def add(self, stream: Tensor, final: Tensor) -> None:
        """Adds positions `[row, hidden]` of both; products are float32, sums float64."""
        self.add_stream(stream)
        self.add_final(stream, final)

    def add_stream(self, stream: Tensor, times: Tensor | None = None) -> None:
        """Adds the part of h alone; `times [row]` is how many positions have this h, None: one each."""
        stream = stream.float()
        every = stream if times is None else stream * times[:, None]
        self.count += len(stream) if times is None else times.sum().cpu()
        self.of_stream += every.double().sum(0).cpu()
        self.squares += _product(stream, every)

    def add_final(self, stream: Tensor, final: Tensor) -> None:
        """Adds the part of t; a row of it may be the sum over the positions of its h."""
        final = final.float()
        self.of_final += final.double().sum(0).cpu()
        self.products += _product(stream.float(), final)

    def covariances(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Means of h and t `[hidden]`, covariance of h, and of h with t `[hidden, hidden]`."""
        count = self.count.clamp_min(1)
        mean, other = self.of_stream / count, self.of_final / count
        return mean, other, self.squares / count - mean.outer(mean), self.products / count - mean.outer(other)


def _product(stream: Tensor, other: Tensor) -> Tensor:
    """`stream.T @ other`, float64, from float32 products of the centred stream: an entry that is large at every
    position would otherwise leave a covariance of rounding errors.
    """
    mean = stream.mean(0)
    return ((stream - mean).T @ other).double().cpu() + mean.double().outer(other.double().sum(0)).cpu()


class RidgeFit:
    """The sums that give the maps of all layers; `state()` has the tensors themselves. Two maps per layer: from its
    stream to the final one, and from the embedding of the input word to its stream. The latter need embeddings of the
    stream's width.
    """

    def __init__(self, model: LanguageModel, layers: Sequence[int]) -> None:
        self._words = input_embeddings(model)
        empty = Moments.empty(model.sizes.hidden)
        # Each twice: of what is fitted, and of what chooses the penalty.
        self._put_in = (empty, empty.copy())
        self.to_final = {layer: (empty.copy(), empty.copy()) for layer in layers}
        # The sums of the words are those of all layers.
        self.from_words = {
            layer: tuple(
                replace(one, of_final=one.of_final.clone(), products=one.products.clone()) for one in self._put_in
            )
            for layer in layers
        }

    def add(self, tokens: Ints, streams: Mapping[int, Tensor], final: Tensor, *, judged: bool) -> None:
        """Adds positions: their tokens, the streams `[position, hidden]` of every layer, and the final ones."""
        words, once, of = None, *np.unique(tokens, return_inverse=True)
        if self._words is not None:
            words = self._words[torch.from_numpy(once).to(self._words.device)]
            self._put_in[judged].add_stream(words, torch.from_numpy(np.bincount(of)).to(words.device))
        for layer, stream in streams.items():
            self.to_final[layer][judged].add(stream, final.to(stream.device))
            if words is not None:  # all positions of a token begin from the same embedding, so that their sum will do
                sums = torch.zeros(len(once), stream.shape[1], device=stream.device)
                sums.index_add_(0, torch.from_numpy(of).to(stream.device), stream.float())
                self.from_words[layer][judged].add_final(words.to(stream.device), sums)

    def state(self) -> dict[str, Tensor]:
        pairs = {"words": self._put_in, **{f"final {layer}": pair for layer, pair in self.to_final.items()}}
        sums = {
            f"{name} {judged} {key}": tensor
            for name, pair in pairs.items()
            for judged, moments in enumerate(pair)
            for key, tensor in vars(moments).items()
        }
        for layer, pair in self.from_words.items():
            for judged, one in enumerate(pair):
                sums |= {f"words {layer} {judged} of_final": one.of_final}
                sums |= {f"words {layer} {judged} products": one.products}
        return sums


Fitted = tuple[Translator, float | None]
"""A translator, and the penalty chosen (None: nothing was fitted)."""


def fit_ridge(fitted: Moments, judged: Moments) -> Fitted:
    """The translator of `fitted` positions, with the penalty of least squared error on the `judged` ones: the middle
    one without judged positions. Without fitted ones it is the identity.
    """
    hidden = len(fitted.of_stream)
    if not fitted.count:
        return Translator.identity(hidden), None
    mean, final_mean, covariance, shared = fitted.covariances()
    size = float(covariance.diagonal().mean().clamp_min(torch.finfo(torch.float64).tiny))
    candidates = []
    for penalty in PENALTIES:
        wide = covariance + penalty * size * torch.eye(hidden, dtype=torch.float64)
        # Of the difference from the identity, which the penalty draws to zero.
        weight = torch.eye(hidden, dtype=torch.float64) + torch.linalg.solve(wide, shared - covariance)
        candidates.append((penalty, weight, final_mean - mean @ weight))
    errors = [squared_error(judged, weight, bias) for _, weight, bias in candidates]
    best = min(range(len(candidates)), key=errors.__getitem__) if judged.count else len(candidates) // 2
    penalty, weight, bias = candidates[best]
    return Translator(weight.float(), bias.float()), penalty


def squared_error(moments: Moments, weight: Tensor, bias: Tensor) -> float:
    """The mean squared error over the positions, without the variance of the final stream."""
    mean, final_mean, covariance, shared = moments.covariances()
    off = mean @ weight + bias - final_mean
    return float((weight * (covariance @ weight)).sum() - 2 * (weight * shared).sum() + off @ off)
