"""The nearest values of every value, by cosine (definitions.md section 4). The directions of all values are made once
for all layers, 4 bytes per number, beside the model.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from mnemoscope.atlas.schema import TABLES
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.passes.vectors.projector import Projector, Share
from mnemoscope.mining.text.batches import Ints
from mnemoscope.models import LanguageModel
from mnemoscope.models.modules.projections import LinearHead
from mnemoscope.tracing import top


class NeighbourPass:
    def __init__(self, model: LanguageModel, layers: Sequence[int], *, most: int) -> None:
        self._model, self._layers, self._most = model, list(layers), most
        self._sizes = [model.sizes.memories[layer] for layer in layers]
        self._owner = np.repeat(np.array(self._layers), self._sizes)
        self._number = np.concatenate([np.arange(size) for size in self._sizes])

    @cached_property
    def _projector(self) -> Projector:
        directions = self._directions
        return Projector(LinearHead(directions), len(directions), device=directions.device)

    @cached_property
    def _directions(self) -> Tensor:
        """All values at length 1, `[memory, hidden]`, float32; one of length 0 stays zero."""
        tiny = torch.finfo(torch.float32).tiny
        device, size = self._model.device, (sum(self._sizes), self._model.sizes.hidden)
        directions = torch.empty(size, dtype=torch.float32, device=device)
        for layer, rows in zip(self._layers, torch.split(directions, self._sizes), strict=True):
            rows.copy_(normalize(self._model.values(layer).float(), eps=tiny))
        return directions

    def columns(self, layer: int) -> dict[str, Any]:
        """The columns of `neighbours` for one layer, without the value itself; empty with `most` 0."""
        at = self._layers.index(layer)
        exits = (self._model.layer(each).ffn.exits for each in self._layers)
        weights = [{id(weight) for module in modules for weight in module.parameters()} for modules in exits]
        same = [place for place, each in enumerate(weights) if place == at or (each and each == weights[at])]
        kept = min(self._most, sum(self._sizes) - len(same))
        if kept == 0:
            return {name: [] for name in TABLES["neighbours"].columns.names}
        begins = [sum(self._sizes[:place]) for place in range(len(self._sizes))]

        def read(share: Share) -> tuple[Ints, NDArray[np.float32]]:
            cosines, vectors = share.scores, share.vectors
            with torch.inference_mode():
                for place in same:
                    cosines[:, begins[place] + vectors.start :].diagonal().fill_(-torch.inf)
                nearest, value = top(cosines, kept)
            return nearest.cpu().numpy(), value.clamp(-1, 1).cpu().numpy()

        directions = self._directions[begins[at] : begins[at] + self._sizes[at]]
        places, cosines = zip(*self._projector.read_all(directions, read), strict=True)
        place = np.concatenate(places).reshape(-1)
        return {
            "memory": np.repeat(np.arange(self._sizes[at], dtype=np.int32), kept),
            "rank": np.tile(np.arange(kept, dtype=np.int16), self._sizes[at]),
            "other_layer": self._owner[place].astype(np.int16),
            "other_memory": self._number[place].astype(np.int32),
            "cosine": np.concatenate(cosines).reshape(-1),
        }


def write_layer_neighbours(run: MiningRun, layer: int) -> None:
    """Writes `neighbours` of one layer."""
    plan = run.plan
    asked = run.keep(NeighbourPass, lambda: NeighbourPass(run.model, plan.layers, most=plan.neighbours))
    run.write("neighbours", asked.columns(layer), layer)
