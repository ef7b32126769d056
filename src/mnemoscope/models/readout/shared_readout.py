"""The model's own readout of a block's streams from two products with the head, in place of one for each stream.

What a block gives out is the residual plus the update, and between the stream and the scores stands nothing but a norm,
whose scale is one number a row, and linear maps. So the scores of the output are those of the two, each times a number,
added up; and the update's under the values' projection are its own without what biases add. Scores differ in their last
bits from those of `LanguageModel.scores`.

Whether a model's readout is of this kind is tried out (`SharedReadout.of`); others are read one stream at a time.
"""

from typing import Self, final

import torch
from torch import Tensor

from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.modules.observed import same
from mnemoscope.models.modules.projections import gain_and_bias

_TRIED = 4
"""Rows of made-up streams that are read both ways."""
CANCELS = 8.0
"""Where residual or update is so many times as large as their sum, the sum has a product of its own: the two nearly
cancel, and adding their scores up would lose as many digits."""


@final
class SharedReadout:
    """Products with the head that are `lens` scores (definitions.md section 2) once `offset` is added, and `finish`ed.

    `offset [vocab]` is what the biases of norm, projection and head add; None where they add nothing. Finishing changes
    no order of scores.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model, self._head = model, model.scorer()
        self._scale, self._softcap = model.anatomy.logit_scale, model.anatomy.softcap
        offset = self._biases()
        self.offset = offset if bool(offset.any()) else None

    @classmethod
    def of(cls, model: LanguageModel) -> Self | None:
        """The readout of a model for which it is proved; None for half precision, an adaptive softmax, several devices,
        and blocks whose output is more than a sum.
        """
        anatomy = model.anatomy
        if model.dtype != torch.float32 or anatomy.two_level is not None or anatomy.logit_scale <= 0:
            return None
        if any(layer.kind == "post-norm" for layer in anatomy.layers) or set(model.devices) != {model.device}:
            return None
        with torch.inference_mode():
            readout = cls(model)
            return readout if readout._is_proved() else None

    def prepare(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """What the head multiplies for streams `[row, hidden]`, and what their norm divides by, `[row]`."""
        scale = self.scale(streams)
        return self._model.fold(streams, layer=None) * (self._scale / scale)[:, None], scale

    def scale(self, streams: Tensor) -> Tensor:
        """What the final norm divides each stream by, `[row]`."""
        return self._model.norm_scale(streams, layer=None)

    def products(self, prepared: Tensor, *, out: Tensor) -> Tensor:
        """The products `[row, vocab]` of what was prepared, written to `out`."""
        return self._head.scores(prepared, out=out)

    def multiply(
        self, residual: Tensor, update: Tensor, output: Tensor, *, out: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The products `[row, vocab]` of a block's residual and of its update, in `out [2 row, vocab]`; and `weights`.

        All three streams are `[row, hidden]`; see `add_up`.
        """
        rows = len(residual)
        both, scales = self.prepare(torch.cat([residual, update]))
        weights = (scales.view(2, rows) / self.scale(output))[:, :, None]
        products = self.products(both, out=out[: 2 * rows])
        return products[:rows], products[rows:], weights

    def add_up(
        self, residual: Tensor, update: Tensor, weights: Tensor, outputs: Tensor, *, out: Tensor
    ) -> Tensor:
        """The products `[row, vocab]` of a block's output, of those of its residual and its update; written to `out`.

        `weights [2, row, 1]` are the shares of the two in what the norm leaves of `outputs [row, hidden]`: their own
        scales divided by that of the outputs.
        """
        found = torch.mul(residual, weights[0], out=out).addcmul_(update, weights[1])
        cancelled = (weights.amax((0, 2)) > CANCELS).nonzero()[:, 0]
        if len(cancelled):
            own_room = torch.empty_like(found[: len(cancelled)])
            found[cancelled] = self.products(self.prepare(outputs[cancelled])[0], out=own_room)
        return found

    def add_offset(self, products: Tensor) -> Tensor:
        """Scores that are not finished, in the products' place."""
        return products if self.offset is None else products.add_(self.offset)

    def finish(self, scores: Tensor) -> Tensor:
        """The model's own scores: behind its soft-cap."""
        return scores if self._softcap is None else torch.tanh(scores / self._softcap) * self._softcap

    def _biases(self) -> Tensor:
        """What the head says where a norm gives nothing but its bias, `[vocab]`, times the model's multiplier."""
        model, anatomy = self._model, self._model.anatomy
        hidden = model.sizes.hidden
        bias = None if anatomy.final_norm is None else gain_and_bias(anatomy.final_norm, hidden)[1]
        rows = torch.zeros(1, hidden, device=model.device) if bias is None else bias.to(model.device)[None]
        for module in (anatomy.project, anatomy.head):
            rows = rows if module is None else module(rows)
        return rows[0].float() * self._scale

    def _is_proved(self) -> bool:
        """Whether scores of made-up streams, and of their sums, are those that the model reads off them."""
        model, chance = self._model, torch.Generator().manual_seed(0)
        residual, update = torch.randn(2, _TRIED, model.sizes.hidden, generator=chance).to(model.device) + 0.1
        update *= 3
        room = torch.empty(3, _TRIED, model.sizes.vocabulary, device=model.device)
        scales = []
        for streams, out in zip((residual, update), room[:2], strict=True):
            prepared, scale = self.prepare(streams)
            self.products(prepared, out=out)
            scales.append(scale)
        own = self.scale(residual + update)
        torch.add(room[0] * (scales[0] / own)[:, None], room[1] * (scales[1] / own)[:, None], out=room[2])
        streams = (residual, update, residual + update)
        return all(
            same(self.finish(self.add_offset(found)), model.scores(stream, projection="lens"))
            for stream, found in zip(streams, room, strict=True)
        )
