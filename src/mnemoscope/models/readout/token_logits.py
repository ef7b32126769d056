"""The logit of one token as a linear function of the final stream, with the norms' scales frozen.

A norm's divisor depends on its whole input. With the divisor frozen, the map from the stream to a token's logit is
linear, so each addition to the stream has its own part (definitions.md section 9, attention_share). Everything is in
float64, and before any soft-cap. A head with a transform goes by its linear part, and the difference that its function
makes is a part `head`. A logit under an adaptive softmax is the score of the token's class plus that of the
token in it, neither normalised. Nothing here runs the blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor, nn

from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.modules.linear_maps import matrix_of
from mnemoscope.models.modules.projections import gain_and_bias, scale_of


@final
class FrozenNorm:
    """A norm with its scale at given vectors; no norm is the identity."""

    def __init__(self, model: LanguageModel, norm: nn.Module | None, *, width: int | None = None) -> None:
        self._norm, self._dtype = norm, model.dtype
        self._fold = model.fold_of(norm, width=width)
        bias = None if norm is None else gain_and_bias(norm, width or model.sizes.hidden)[1]
        self._bias = None if bias is None else bias.double()

    def step_back(self, directions: Tensor, vectors: Tensor, *, divided: bool = True) -> tuple[Tensor, Tensor]:
        """Directions `[..., row, hidden]` before the norm of `vectors [row, hidden]`, and its bias's part; those that
        are not `divided` lack the division by the norm's scale.
        """
        if self._norm is None:
            return directions, directions.new_zeros(directions.shape[:-1])
        bias, gain = (None if one is None else one.to(directions.device) for one in (self._bias, self._fold.gain))
        added = directions.new_zeros(directions.shape[:-1]) if bias is None else directions @ bias
        before = directions if gain is None else directions * gain.double()
        if self._fold.centred:
            before = before - before.mean(-1, keepdim=True)
        if not divided:
            return before, added
        return before / self.scale(vectors).to(directions.device)[:, None], added

    @torch.inference_mode()
    def scale(self, vectors: Tensor) -> Tensor:
        """The norm's divisors `[row]`, float64."""
        return scale_of(self._norm, self._fold, vectors.to(self._dtype)).double()


@dataclass(frozen=True)
class LogitDirections:
    """One logit per row: its product with the final stream, plus `bias`, plus `head`, is `logit`, which is computed
    through the unfrozen norm. `head` is what the function of the head's transform changes, 0 without one. Kinds of
    logit may be stacked along a first axis.
    """

    direction: Tensor
    bias: Tensor
    head: Tensor
    logit: Tensor

    @classmethod
    def stack(cls, kinds: Sequence[Self]) -> Self:
        fields = zip(*((one.direction, one.bias, one.head, one.logit) for one in kinds), strict=True)
        return cls(*map(torch.stack, fields))


def head_mean(model: LanguageModel) -> Tensor:
    """The mean `[hidden']` of the rows of the head, float64; cached in the model, since it reads the whole head."""
    with torch.inference_mode(False), torch.no_grad():
        return model.cache.get(head_mean, lambda: model.scorer().mean_vector().to(model.device))


def known_rows(model: LanguageModel) -> Tensor:
    """Which rows of the head have a token, `[vocab]`, on the CPU."""
    return torch.tensor([bool(one) for one in model.vocabulary()[1]])


def token_mean(model: LanguageModel) -> Tensor:
    """The mean `[hidden']`, float64, of the rows of the head that have a token; cached in the model."""
    has_token = known_rows(model)
    if has_token.all():
        return head_mean(model)
    with torch.inference_mode(False), torch.no_grad():
        rows = has_token.to(model.device)
        return model.cache.get(token_mean, lambda: model.head()[rows].mean(0, dtype=torch.float64))


Tokens = Tensor | int | None
"""One token for all rows, one for each row, or None for the mean of all tokens."""


@final
class TokenLogits:
    """Makes the directions of tokens' logits, and of the vocabulary's mean logit; make one per pass."""

    def __init__(self, model: LanguageModel) -> None:
        anatomy = model.anatomy
        self._model, self._head = model, model.scorer()
        self._norm = FrozenNorm(model, anatomy.final_norm)
        of_transform = None if anatomy.transform is None else anatomy.transform.norm
        self._transform_norm = FrozenNorm(model, of_transform, width=model.head_width)
        self._matrix = None if anatomy.project is None else matrix_of(anatomy.project).detach().to(model.device)
        zeros = torch.zeros(1, model.head_width, dtype=model.dtype, device=model.device)
        with torch.inference_mode():
            bias = anatomy.score(zeros)[0].double() if anatomy.two_level is None else None
            self._bias = torch.zeros(model.sizes.vocabulary, device=model.device).double() if bias is None else bias

    def of_tokens(self, stream: Tensor, tokens: Tensor) -> LogitDirections:
        """For each row of the final stream `[row, hidden]` its token's logit."""
        return self._directions(stream, *self.side(tokens))

    def of_mean(self, stream: Tensor) -> LogitDirections:
        """For each row of the final stream the mean of the logits of all tokens."""
        vectors = head_mean(self._model).expand(len(stream), -1)
        return self._directions(stream, vectors, self._bias.mean().expand(len(stream)))

    def of_difference(self, stream: Tensor, token: Tokens, other: Tokens, *, divided: bool = True) -> LogitDirections:
        """For each row of the final stream the logit of one token less that of the other, both as in `side`. Directions
        that are not `divided` lack the division by the final norm's scale, and by that of a transform's norm.
        """
        (vectors, bias), (less, its_bias) = self.side(token), self.side(other)
        count = len(stream)
        bias = (bias - its_bias).expand(count)
        return self._directions(stream, (vectors - less).expand(count, -1), bias, divided=divided)

    def side(self, token: Tokens) -> tuple[Tensor, Tensor]:
        """What `read` multiplies for a token's logit, `[hidden']`, and the head's bias, float64; None is the mean over
        the rows of the head that have a token. For tokens `[row]`: `[row, hidden']` and `[row]`.
        """
        device = self._model.device
        if token is None:
            return token_mean(self._model).to(device), self._bias[known_rows(self._model).to(device)].mean()
        if isinstance(token, int):
            vectors, bias = self.side(torch.tensor([token]))
            return vectors[0], bias[0]
        return self._head.vectors_of(token).to(device), self._bias[token.to(self._bias.device)]

    def read(self, stream: Tensor, vectors: Tensor, bias: Tensor) -> Tensor:
        """The logits `[row]`, float64, of the head's directions for the final stream; keeps gradients."""
        anatomy = self._model.anatomy
        read = anatomy.head_input(stream.to(self._model.dtype))
        return ((read.double() * vectors).sum(-1) + bias) * anatomy.logit_scale

    def _directions(self, stream: Tensor, vectors: Tensor, bias: Tensor, *, divided: bool = True) -> LogitDirections:
        """`vectors [row, hidden']` are the head's directions in its input; `bias [row]` is the head's."""
        anatomy = self._model.anatomy
        with torch.inference_mode():
            logit, head = self.read(stream, vectors, bias), torch.zeros_like(bias)
            behind = torch.ones_like(bias)
            if anatomy.transform is not None:
                projected = anatomy.project_stream(stream.to(self._model.dtype))
                activated = anatomy.transform.activate(projected)
                vectors, of_norm = self._transform_norm.step_back(vectors, activated)
                head, bias = (vectors * (activated.double() - projected.double())).sum(-1), bias + of_norm
                if anatomy.transform.norm is not None and not divided:
                    behind = self._transform_norm.scale(activated).to(bias.device)
            if self._matrix is not None:
                offset = anatomy.project(torch.zeros_like(stream[:1], dtype=self._model.dtype))  # type: ignore[misc]
                bias = bias + vectors @ offset[0].double()
                vectors = vectors @ self._matrix.double()
            direction, added = self._norm.step_back(vectors, stream, divided=divided)
        scale = anatomy.logit_scale
        return LogitDirections(direction * behind[:, None] * scale, (bias + added) * scale, head * scale, logit)
