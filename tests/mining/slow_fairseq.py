"""The slow network of models/checkpoints.py, in float64, asked what `slow_model.py` says that references ask."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mining.slow_model import Place
from models.checkpoints import END, UNKNOWN, WORDS, Kind, Slow, args_of, weights_of, write

IDS = {word: id for id, word in enumerate(WORDS, 4) if not word.startswith("madeup")}


@dataclass(frozen=True)
class Variant:
    """How a checkpoint of three layers ties its weights, and whether its last block is followed by a norm."""

    tied: bool
    final_norm: bool

    @property
    def kind(self) -> Kind:
        return Kind(tied=self.tied, tied_projections=self.tied, final_norm=self.final_norm, layers=3)

    def args(self) -> Any:
        return args_of(self.kind, tokens_per_sample=48)


def write_checkpoint(path: Path, variant: Variant, *, seed: int = 0) -> dict[str, Tensor]:
    """Writes `path` and the `dict.txt` beside it; returns the weights, float32."""
    weights = weights_of(variant.kind, seed=seed)
    write(path.parent, variant.args(), weights)
    (path.parent / "model.pt").rename(path)
    return weights


def split_words(text: str, **_: object) -> dict[str, list[Any]]:
    """The ids and spans of a text's words, in the form of a transformers tokenizer."""
    found = list(re.finditer(r"\S+", text))
    return {"input_ids": [IDS.get(one[0], UNKNOWN) for one in found], "offset_mapping": [one.span() for one in found]}


class SlowFairseq(Slow):
    """The checkpoint's weights, computed with."""

    def __init__(self, weights: dict[str, Tensor], variant: Variant) -> None:
        super().__init__(variant.args(), weights)
        self.layers, self.beginning = variant.kind.layers, END
        self._normed = variant.final_norm

    def read(self, tokens: list[int]) -> tuple[list[Place], Tensor]:
        blocks = ([rows[-1] for rows in block] for block in self.blocks([END, *tokens]))
        places = [Place(*rows, ffn_output=rows[2]) for rows in blocks]
        return places, self.lens(places[-1].output)

    def scale(self, layer: int, tokens: list[int], branch: int = 0) -> float:
        """What the final norm divides by at the last token, if there is one; the same for every layer."""
        if not self._normed:
            return 1.0
        stream = self.read(tokens)[0][-1].output
        return float(torch.sqrt(((stream - stream.mean()) ** 2).mean() + 1e-5))

    def lens(self, stream: Tensor) -> Tensor:
        return self.scores(self.read_out(stream[None]))[0]

    def bare(self, vector: Tensor) -> Tensor:
        project = self.weights.get("project_out_dim.weight")
        return self.scores((vector if project is None else project @ vector)[None])[0]

    def branch(self, memory: int) -> int:
        return 0

    def value_scores(self, layer: int, vector: Tensor, branch: int = 0) -> Tensor:
        return self.gain(layer, vector[None])[0]

    def update_scores(self, layer: int, update: Tensor) -> Tensor:
        return self.value_scores(layer, update)
