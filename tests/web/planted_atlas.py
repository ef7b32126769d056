"""The planted model mined from its own sentences, and models that are like it and yet others. Not a test itself."""

from pathlib import Path

import torch

from mnemoscope.models.opening.handmade import models as handmade

SPEC = "handmade:planted"


def other_weights(folder: Path) -> Path:
    """A model of the planted one's shape and vocabulary with one other weight, as a folder."""
    model, tokenizer = handmade.build("planted")
    with torch.no_grad():
        model.get_input_embeddings().weight[3, 0] += 0.125
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
