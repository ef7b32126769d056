"""One layer after one prefix as the sum that it is: weighted values, the others, the bias (paper, Figure 1).

The numbers of the picture, for one position; show/figures/figure1.py draws them. `along` is the part of a vector in the
direction of the sum y: over the listed memories, the others and the bias these add up to the length of y.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch
from torch import Tensor

from mnemoscope.atlas import Atlas
from mnemoscope.errors import ModelUnsupported, OptionError
from mnemoscope.foundation.memory_changes import Interventions
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.origin import made_by
from mnemoscope.models import Block, LanguageModel, read_blocks
from mnemoscope.models.object_state import hold_model
from mnemoscope.tracing.interventions import intervene
from mnemoscope.tracing.predictions import best_predictions, ids_of
from mnemoscope.tracing.records import Prediction, Record, Token
from mnemoscope.tracing.rendering import choose_position
from mnemoscope.tracing.scoring.ranking import top as best_of
from mnemoscope.tracing.scoring.scores import (
    check_wide_numbers,
    contributions,
    folded_values,
    opens,
    require_model_of,
    value_norms,
)

TOP = 5
"""Tokens of each value and stream."""
_READ = ("residual", "coefficients", "ffn_output", "ffn_update", "layer_output", "weights")


@dataclass(frozen=True, slots=True)
class WeightedValue(Record):
    """m v of one memory: `contribution` is its length |m| norm(v), `top` the best tokens of sign(m) v under the values'
    projection, `label` that of the memory's feature of this sign in an atlas.
    """

    memory: MemoryId
    coefficient: float
    contribution: float
    along: float
    top: tuple[Token, ...]
    label: str | None


@dataclass(frozen=True, slots=True)
class SumPart(Record):
    """A part of the sum that is no listed memory, or the sum: how many memories it has, its length, and `along`."""

    memories: int
    length: float
    along: float


@dataclass(frozen=True, slots=True)
class LayerSum(Record):
    """`tokens` are the prefix. `normed`: the layer adds not y, but what its own norm or gate makes of it."""

    model: str
    fingerprint: str
    layer: int
    position: int
    tokens: tuple[Token, ...]
    memories: tuple[WeightedValue, ...]
    others: SumPart
    bias: SumPart
    total: SumPart
    normed: bool
    residual: tuple[Prediction, ...]
    ffn: tuple[Prediction, ...]
    output: tuple[Prediction, ...]
    made_by: Mapping[str, Any]


@opens
def layer_sum(
    model: LanguageModel,
    prompt: str,
    layer: int,
    *,
    position: int | None = None,
    memories: int = 10,
    atlas: Atlas | None = None,
    interventions: Interventions = None,
) -> LayerSum:
    """The layer's sum after a position of the prompt, with its `memories` largest contributions; an atlas labels them.

    Raises OptionError for a layer that the model lacks, ModelUnsupported for one whose branches have norms of their
    own, so that its values do not add up; and what `trace` raises.
    """
    if not 0 <= layer < model.sizes.layers:
        raise OptionError(f"there is no layer {layer}: the model has layers 0 to {model.sizes.layers - 1}")
    if memories < 1:
        raise OptionError(f"memories={memories} is impossible; it must be 1 or more")
    ffn = model.layer(layer).ffn
    if ffn.branches:
        raise ModelUnsupported(f"layer {layer} of {model.spec} has a norm behind each branch: its values do not add up")
    check_wide_numbers(model)
    if atlas is not None:
        require_model_of(model, atlas)
    tokens = model.prompt_tokens(prompt)
    place = choose_position(len(tokens), position)
    column = model.reading.own(len(tokens)).start + place
    read: dict[str, Tensor] = {}

    def keep(_: int, block: Block) -> None:
        read.update(
            {name: getattr(block, name)[0, column].clone() for name in _READ if getattr(block, name) is not None}
        )

    with hold_model(model), model.lock, torch.inference_mode(), intervene(model, interventions) as changes:
        with read_blocks(model, keep, layers=[layer]):
            model.backbone(ids_of(model, tokens))
        m, y, weights, values = (
            read["coefficients"],
            read["ffn_output"].float(),
            read.get("weights"),
            model.values(layer),
        )
        best, sizes = best_of(contributions(m[None], value_norms(model, layer)), memories)
        listed = best[0, : int((sizes > 0).sum())]
        parts = m[listed, None].float() * values[listed.to(values.device)].float().to(m.device)
        rest = m.index_fill(0, listed, 0)
        others = rest.float() @ values.float().to(m.device) if weights is None else ffn.write(rest)
        bias = ffn.bias(weights)
        bias = torch.zeros_like(y) if bias is None else bias.reshape(y.shape)
        along = torch.stack([*parts, others, bias, y]).double() @ (y.double() / y.double().norm().clamp_min(1e-30))
        signs = m[listed].sign()
        tops = best_of(model.scorer().scores(folded_values(model, layer, listed, signs)), TOP)[0].tolist()
        streams = torch.stack([read[name] for name in ("residual", "ffn_update", "layer_output")])
        guesses = list(best_predictions(model, streams.to(model.device), TOP, changed=bool(changes)))
    texts, naming = model.vocabulary()[0], model.numbering(layer)

    def token(id: int) -> Token:
        return Token(id, texts[id])

    rows = [
        WeightedValue(name := naming.name(layer, i), c, size, part, tuple(map(token, top)), _label(atlas, name, c > 0))
        for i, c, size, part, top in zip(
            listed.tolist(), m[listed].tolist(), sizes[0].tolist(), along.tolist(), tops, strict=False
        )
    ]
    counts = (int((rest != 0).sum()), 0, int((m != 0).sum()))
    others_share, bias_share, total = (
        SumPart(count, float(vector.norm()), part)
        for count, vector, part in zip(counts, (others, bias, y), along[-3:].tolist(), strict=True)
    )
    residual, update, output = guesses
    options = {"prompt": prompt, "layer": layer, "position": place, "interventions": list(map(str, changes))}
    mined = None if atlas is None else atlas.manifest_hash
    return LayerSum(
        model.spec,
        model.fingerprint,
        layer,
        place,
        tuple(map(token, tokens[: place + 1])),
        tuple(rows),
        others_share,
        bias_share,
        total,
        model.layer(layer).post_norm is not None or model.layer(layer).output_gate is not None,
        residual,
        update,
        output,
        made_by(model=model.fingerprint, atlas=mined, options=options, seed=None),
    )


def _label(atlas: Atlas | None, memory: MemoryId, positive: bool) -> str | None:
    if atlas is None or memory.layer not in atlas.layers or not atlas.has("labels"):
        return None
    labels = atlas[memory].labels()
    return next(iter(labels.filter(pl.col("sign") == (1 if positive else -1))["label"]), None)
