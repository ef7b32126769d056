"""The model of a site, loaded and compared with the one that was mined."""

import os

import torch

from mnemoscope.atlas import Atlas
from mnemoscope.errors import ModelDiffers
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.web.model_side.turns import ModelSide
from mnemoscope.web.settings import Settings


def load(settings: Settings, atlas: Atlas) -> ModelSide:
    """The model that the settings name, if it is the one that was mined, or forced and of the same shape.

    Raises ModelError, and ModelDiffers.
    """
    assert settings.model is not None
    # A core stays with the readers.
    torch.set_num_threads(max(1, min(torch.get_num_threads(), (os.cpu_count() or 2) - 1)))
    mined = atlas.manifest.model
    model = load_model(settings.model, revision=mined.revision if settings.model == mined.spec else None)
    side = ModelSide(model, settings.model, differs=difference(settings, model, atlas))
    side.warm()
    return side


def difference(settings: Settings, model: LanguageModel, atlas: Atlas) -> str:
    """Why this is not the model that was mined, in a sentence; empty where it is. Raises ModelDiffers unless forced."""
    mined = atlas.manifest.model
    if model.is_model_of(atlas.manifest["model"]):
        return ""
    said = f"{settings.model} is not the model that {atlas.path} was mined from ({mined.spec}):"
    shape = list(model.sizes.memories)
    if shape != list(mined.sizes.memories):
        raise ModelDiffers(f"{said} its layers have {_shape(shape)} memories; name the model that was mined")
    if model.sizes.vocabulary != mined.sizes.vocabulary:
        raise ModelDiffers(f"{said} it has {model.sizes.vocabulary:,} tokens; name the model that was mined")
    if not settings.force_model:
        prints = f"fingerprint {model.fingerprint[:12]}, not {mined.fingerprint[:12]}"
        raise ModelDiffers(f"{said} {prints}; name that one, or use this one all the same with --force-model")
    return f"{settings.model} is not the model that was mined."


def _shape(sizes: list[int]) -> str:
    return " or ".join(f"{len(sizes)} times {size:,}" for size in sorted(set(sizes)))
