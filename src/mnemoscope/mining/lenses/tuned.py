"""The `tuned` translator: affine maps trained so that every layer predicts what the model predicts in the end.

Belrose et al. 2023 (Eliciting Latent Predictions from Transformers with the Tuned Lens): the loss is the
Kullback-Leibler divergence of a layer's readout from the model's own prediction. It starts from the `ridge` map instead
of the identity, from which the first layers would need many more steps. All layers learn from the same positions of one
forward. Training is seeded; a saved state resumes with the same numbers.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemoscope.models import LanguageModel
from mnemoscope.models.readout.translators import Lens, Translator

STEPS = 300
"""Training steps; each takes one batch of the text, cyclically."""
POSITIONS = 128
"""Positions of a batch per step."""
RATE = 1e-3
"""Adam's initial learning rate; it falls linearly to zero."""


class TunedFit:
    def __init__(self, model: LanguageModel, begin: Lens, *, seed: int) -> None:
        self._model, self._layers, self._seed = model, tuple(begin), seed
        eye = torch.eye(model.sizes.hidden)
        self._offset = torch.stack([each.weight - eye for each in begin.values()]).requires_grad_()
        self._bias = torch.stack([each.bias for each in begin.values()]).requires_grad_()
        self._adam = torch.optim.Adam([self._offset, self._bias], lr=RATE)
        for weight in (self._offset, self._bias):  # there from the first step on, so that saving needs no exceptions
            self._adam.state[weight] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }

    def step(self, number: int, streams: dict[int, Tensor], final: Tensor) -> None:
        """One step from the streams `[position, hidden]` of every layer and the final ones of the same positions."""
        positions = np.random.default_rng((self._seed, 12, number)).permutation(len(final))[:POSITIONS]
        places = torch.from_numpy(np.sort(positions))
        readout = self._model.anatomy.readout
        with torch.no_grad():
            target = readout(final[places.to(final.device)].clone()).float().log_softmax(-1)
        for group in self._adam.param_groups:
            group["lr"] = RATE * max(0.0, 1 - number / STEPS)
        self._adam.zero_grad()
        for place, layer in enumerate(self._layers):
            with torch.inference_mode(False), torch.enable_grad():
                stream = streams[layer][places.to(streams[layer].device)].clone().float()
                moved = stream + stream @ self._offset[place].to(stream.device) + self._bias[place].to(stream.device)
                scores = readout(moved.to(self._model.dtype).to(final.device)).float().log_softmax(-1)
                loss = torch.nn.functional.kl_div(scores, target.clone(), log_target=True, reduction="batchmean")
                torch.autograd.backward(loss)
        self._adam.step()

    def state(self) -> dict[str, Tensor]:
        """The maps and Adam's state, by name; the tensors themselves."""
        tensors = {"offset": self._offset.detach(), "bias": self._bias.detach()}
        for name, weight in (("offset", self._offset), ("bias", self._bias)):
            tensors |= {f"{name}.{key}": value for key, value in self._adam.state[weight].items()}
        return tensors

    def translators(self) -> dict[int, Translator]:
        eye = torch.eye(self._model.sizes.hidden)
        return {
            layer: Translator(self._offset[place].detach() + eye, self._bias[place].detach().clone())
            for place, layer in enumerate(self._layers)
        }

    @staticmethod
    def facts() -> dict[str, Any]:
        return {"steps": STEPS, "positions": POSITIONS, "rate": RATE}
