"""The model's own readout of a block's streams from two products with the head, instead of one per stream.

A block's output is the residual plus the update, and between the stream and the scores there are only a norm, whose
scale is one number per row, and linear maps. So the output's scores are a weighted sum of those of the two; and the
update's under the values' projection are its own without the biases' part. Scores differ in their last bits from those
of `LanguageModel.scores`.

Whether a model's readout is of this kind is tested (`SharedReadout.of`); otherwise each stream is read separately.
"""

from typing import Self, final

import torch
from torch import Tensor

from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.modules.observed import same
from mnemoscope.models.modules.projections import gain_and_bias

_TRIED = 4
CANCELS = 8.0
"""If residual or update is so many times as large as their sum, the sum gets its own product: the two nearly cancel,
and adding their scores would lose as many digits."""


@final
class SharedReadout:
    """Products with the head that become `lens` scores (definitions.md section 2) after `offset [vocab]`, the biases'
    part (None: zero), and `finish`, which keeps their order.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model, self._head = model, model.scorer()
        self._scale, self._softcap = model.anatomy.logit_scale, model.anatomy.softcap
        offset = self._biases()
        self.offset = offset if bool(offset.any()) else None

    @classmethod
    def of(cls, model: LanguageModel) -> Self | None:
        """The readout if proved; None for half precision, a head that is not one matrix alone, several devices, and
        post-norm blocks.
        """
        anatomy = model.anatomy
        if model.dtype != torch.float32 or anatomy.head_kind != "linear" or anatomy.logit_scale <= 0:
            return None
        if any(layer.kind == "post-norm" for layer in anatomy.layers) or set(model.devices) != {model.device}:
            return None
        with torch.inference_mode():
            readout = cls(model)
            return readout if readout._is_proved() else None

    def prepare(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """The head's inputs for streams `[row, hidden]`, and their norm's divisors, `[row]`."""
        scale = self.scale(streams)
        return self._model.fold(streams) * (self._scale / scale)[:, None], scale

    def scale(self, streams: Tensor) -> Tensor:
        """The final norm's divisor for each stream, `[row]`."""
        return self._model.norm_scale(streams, layer=None)

    def products(self, prepared: Tensor, *, out: Tensor) -> Tensor:
        """The products `[row, vocab]` of prepared streams, written to `out`."""
        return self._head.scores(prepared, out=out)

    def multiply(
        self, residual: Tensor, update: Tensor, output: Tensor, *, out: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The products `[row, vocab]` of a block's residual and update, in `out [2 row, vocab]`; and the `weights` of
        `add_up`.
        """
        rows = len(residual)
        both, scales = self.prepare(torch.cat([residual, update]))
        weights = (scales.view(2, rows) / self.scale(output))[:, :, None]
        products = self.products(both, out=out[: 2 * rows])
        return products[:rows], products[rows:], weights

    def add_up(self, residual: Tensor, update: Tensor, weights: Tensor, outputs: Tensor, *, out: Tensor) -> Tensor:
        """The output's products `[row, vocab]` from those of residual and update. `weights [2, row, 1]` are the two's
        own scales divided by that of the normed `outputs [row, hidden]`.
        """
        products = torch.mul(residual, weights[0], out=out).addcmul_(update, weights[1])
        cancelled = (weights.amax((0, 2)) > CANCELS).nonzero()[:, 0]
        if len(cancelled):
            own_room = torch.empty_like(products[: len(cancelled)])
            products[cancelled] = self.products(self.prepare(outputs[cancelled])[0], out=own_room)
        return products

    def add_offset(self, products: Tensor) -> Tensor:
        return products if self.offset is None else products.add_(self.offset)

    def finish(self, scores: Tensor) -> Tensor:
        return scores if self._softcap is None else torch.tanh(scores / self._softcap) * self._softcap

    def _biases(self) -> Tensor:
        """The head's scores for a norm output of its bias only, `[vocab]`, times the model's multiplier."""
        model, anatomy = self._model, self._model.anatomy
        hidden = model.sizes.hidden
        bias = None if anatomy.final_norm is None else gain_and_bias(anatomy.final_norm, hidden)[1]
        rows = torch.zeros(1, hidden, device=model.device) if bias is None else bias.to(model.device)[None]
        return anatomy.score(rows if anatomy.project is None else anatomy.project(rows))[0].float() * self._scale

    def _is_proved(self) -> bool:
        model, chance = self._model, torch.Generator().manual_seed(0)
        residual, update = torch.randn(2, _TRIED, model.sizes.hidden, generator=chance).to(model.device) + 0.1
        update *= 3
        room = torch.empty(3, _TRIED, model.sizes.vocabulary, device=model.device)
        scales = []
        for streams, out in zip((residual, update), room[:2], strict=True):
            prepared, scale = self.prepare(streams)
            self.products(prepared, out=out)
            scales.append(scale)
        whole = self.scale(residual + update)
        torch.add(room[0] * (scales[0] / whole)[:, None], room[1] * (scales[1] / whole)[:, None], out=room[2])
        streams = (residual, update, residual + update)
        return all(
            same(self.finish(self.add_offset(products)), model.scores(stream, projection="lens"))
            for stream, products in zip(streams, room, strict=True)
        )
