"""The `ridge` translator: the affine map from a layer's stream to the final stream with the least squared error.

The same is fitted from the words' embeddings to a layer's stream, for its keys. Closed form, of moments that are added
up over the text batch by batch in a fixed order, in float64. The map is drawn towards the identity, so that a layer of
which little was seen is read as the logit lens would; how strongly is chosen by the error on documents that were not
fitted.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mnemoscope.models.translators import Translator

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Of the mean variance of the stream's entries: what is added to every one of them."""


@dataclass
class Moments:
    """Sums over positions, of streams h `[hidden]` that a map begins from and of those t it leads to; all float64."""

    count: Tensor
    of_stream: Tensor
    of_final: Tensor
    squares: Tensor
    products: Tensor

    @classmethod
    def empty(cls, hidden: int) -> "Moments":
        """Of no position."""
        shapes = ((1,), (hidden,), (hidden,), (hidden, hidden), (hidden, hidden))
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    def copy(self) -> "Moments":
        """The same sums, to be added to apart."""
        return Moments(*(tensor.clone() for tensor in vars(self).values()))

    def add(self, stream: Tensor, final: Tensor) -> None:
        """Adds positions `[row, hidden]` of both; products are taken in float32, sums in float64."""
        self.add_stream(stream)
        self.add_final(stream, final)

    def add_stream(self, stream: Tensor) -> None:
        """Adds what positions tell of h alone."""
        stream = stream.float()
        self.count += len(stream)
        self.of_stream += stream.double().sum(0).cpu()
        self.squares += (stream.T @ stream).cpu()

    def add_final(self, stream: Tensor, final: Tensor) -> None:
        """Adds what the same positions tell of t."""
        final = final.float()
        self.of_final += final.double().sum(0).cpu()
        self.products += (stream.float().T @ final).cpu()

    def with_another_final(self) -> "Moments":
        """Sums of another t with the same h: what is added of h here is added there."""
        final, products = torch.zeros_like(self.of_final), torch.zeros_like(self.products)
        return replace(self, of_final=final, products=products)

    def state(self) -> dict[str, Tensor]:
        """The sums by name; what is changed in them is changed here."""
        return dict(vars(self))

    def covariances(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Means of h and t `[hidden]`, covariance of h, and of h with t `[hidden, hidden]`."""
        count = self.count.clamp_min(1)
        mean, other = self.of_stream / count, self.of_final / count
        return mean, other, self.squares / count - mean.outer(mean), self.products / count - mean.outer(other)


@dataclass(frozen=True)
class Fitted:
    """A translator, the penalty that was chosen, and what was measured of it."""

    translator: Translator
    facts: dict[str, Any]


def fit_ridge(fitted: Moments, judged: Moments) -> Fitted:
    """The translator of `fitted` positions, with the penalty that has the least squared error on the `judged` ones.

    Without judged positions the middle penalty is taken; without fitted ones it is the identity.
    """
    hidden = len(fitted.of_stream)
    if not fitted.count:
        return Fitted(Translator.identity(hidden), {"penalty": None})
    mean, final_mean, covariance, shared = fitted.covariances()
    size = float(covariance.diagonal().mean().clamp_min(torch.finfo(torch.float64).tiny))
    found = []
    for penalty in PENALTIES:
        wide = covariance + penalty * size * torch.eye(hidden, dtype=torch.float64)
        # Of the difference from the identity, which the penalty draws to zero.
        weight = torch.eye(hidden, dtype=torch.float64) + torch.linalg.solve(wide, shared - covariance)
        found.append((penalty, weight, final_mean - mean @ weight))
    errors = [squared_error(judged, weight, bias) for _, weight, bias in found]
    best = min(range(len(found)), key=errors.__getitem__) if judged.count else len(found) // 2
    penalty, weight, bias = found[best]
    return Fitted(Translator(weight.float(), bias.float()), {"penalty": penalty})


def squared_error(moments: Moments, weight: Tensor, bias: Tensor) -> float:
    """The mean squared error over the positions of the moments, but for the final stream's own variance."""
    mean, final_mean, covariance, shared = moments.covariances()
    off = mean @ weight + bias - final_mean
    return float((weight * (covariance @ weight)).sum() - 2 * (weight * shared).sum() + off @ off)
