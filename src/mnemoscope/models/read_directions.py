"""What keys look for, in the space of the words that go in: read directions, and the input's embeddings.

A key reads what the norm before it leaves of the stream. With that norm's gain and centring folded in, the key is a
direction of the stream itself, and so of what an embedding can be (definitions.md section 9, key_agreement).
"""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.offloading import hold_all_weights
from mnemoscope.models.projections import fold_of

_ROWS = 1 << 14
"""Words embedded at a time."""


def read_directions(model: LanguageModel, layer: int) -> Tensor:
    """The read directions [memory, hidden], float32, with every row's mean taken away; on the layer's device.

    A gated memory's is the sum of the unit vectors of gate and up: where its coefficient is positive, it reads both. A
    norm whose gain cannot be told leaves the keys as they are.
    """
    keys, up = model.keys(layer).float(), model.up_keys(layer)
    norm = model.layer(layer).ffn_norm
    gain = None
    with suppress(ModelUnsupported):
        gain = fold_of(norm, model.sizes.hidden, dtype=model.dtype, device=keys.device).gain
    directions = keys if gain is None else keys * gain.to(keys.device)
    if up is not None:
        other = up.float() if gain is None else up.float() * gain.to(up.device)
        directions = nn.functional.normalize(directions, dim=1) + nn.functional.normalize(other, dim=1)
    return directions - directions.mean(1, keepdim=True)


@torch.inference_mode()
def input_embeddings(model: LanguageModel) -> Tensor | None:
    """What each token `[token, hidden]` is when it goes in, float32, without positions; no more rows than the head has.

    None where the model has no such module, or one of another width than its stream.
    """
    module = _embedding(model.anatomy.model)
    if module is None:
        return None
    weight = getattr(module, "weight", None)
    stored = weight.shape[0] if isinstance(weight, Tensor) and weight.dim() == 2 else model.sizes.vocabulary
    ids = torch.arange(min(int(stored), model.sizes.vocabulary))
    with hold_all_weights(module):
        device = next((parameter.device for parameter in module.parameters()), model.device)
        parts = [module(part.to(device)).float() for part in torch.split(ids, _ROWS)]
    found = torch.cat(parts).to(model.device)
    return found if found.dim() == 2 and found.shape[1] == model.sizes.hidden else None


def _embedding(network: Any) -> nn.Module | None:
    """The module that embeds the words: the one that transformers names, or fairseq's."""
    try:
        found = network.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        found = getattr(network, "embed_tokens", None)
    return found if isinstance(found, nn.Module) else None
