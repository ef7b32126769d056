"""The planted model mined from its own sentences, and models that are like it and yet others. Not a test itself."""

from pathlib import Path

import torch

from mnemoscope.mining import mine
from mnemoscope.models import load_model
from mnemoscope.models.opening.handmade import models as handmade
from mnemoscope.models.opening.handmade.models import PLANTED_SENTENCES

SPEC = "handmade:planted"


def planted_atlas(folder: Path) -> Path:
    """The folder of the atlas."""
    text = folder / "text.txt"
    text.write_text("\n".join(PLANTED_SENTENCES) + "\n")
    atlas: Path = mine(load_model(SPEC), text, out=folder / "atlas", split="line").path
    return atlas


def other_weights(folder: Path) -> Path:
    """A model of the planted one's shape and vocabulary with one other weight, as a folder."""
    model, tokenizer = handmade.build("planted")
    with torch.no_grad():
        model.get_input_embeddings().weight[3, 0] += 0.125
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
