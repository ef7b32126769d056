"""Cosines between the keys, and between the values, of two models' memories. The one file here that needs models."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import cosine_similarity

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.manifest import open_as_mined
from mnemoscope.foundation.options.model_options import AS_USUAL
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.weight_changes import weight_changes
from mnemoscope.tracing.scoring.scores import require_model_of

__all__ = ["mean_cosines", "open_models", "weight_changes"]


def open_models(models: Sequence[LanguageModel | str], atlases: Sequence[Atlas]) -> list[LanguageModel]:
    """The models, opened as their atlases say."""
    opened = []
    for model, atlas in zip(models, atlases, strict=True):
        if not isinstance(model, LanguageModel):
            name, opening = open_as_mined(atlas.path, model, AS_USUAL)
            model = load_model(name, **opening.keywords())
        require_model_of(model, atlas)
        opened.append(model)
    return opened


def mean_cosines(models: Sequence[LanguageModel], layer: int, order: Any) -> dict[str, float | None]:
    """The mean cosines of keys (gated: gates), second keys and values; of the second model the memories in this
    `order`. None where a model has no such vectors, or of another size.
    """
    cosines: dict[str, float | None] = {}
    for name, kind in {"key_cosine": "keys", "up_cosine": "up_keys", "value_cosine": "values"}.items():
        first, second = (getattr(model, kind)(layer) for model in models)
        same = first is not None and second is not None and first.shape == second.shape
        with torch.inference_mode():
            cosines[name] = float(cosine_similarity(first, second[order].to(first)).mean()) if same else None
    return cosines
