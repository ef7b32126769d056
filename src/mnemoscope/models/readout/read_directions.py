"""The directions that keys read, in the space of the input embeddings, and these embeddings.

A key reads the output of the norm before it. With that norm's gain and centring folded in, the key is a direction of
the stream itself, and so comparable with an embedding (definitions.md section 9, key_agreement).
"""

from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.errors import ModelUnsupported
from mnemoscope.foundation.budget import BUDGET
from mnemoscope.models.forward.hooks import read_blocks
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.modules.offloading import hold_all_weights
from mnemoscope.models.modules.taps import Taps

_SEEN = 4


def read_directions(model: LanguageModel, layer: int, *, order: Tensor | None = None) -> Tensor:
    """The read directions [memory, hidden], float32, each with its mean subtracted; on the layer's device.

    A gated memory's is the sum of the unit vectors of gate and up: where its coefficient is positive, it reads both. A
    norm with an unknown gain leaves the keys unchanged. `order` permutes the entries of shuffled keys.
    """
    keys, up, gain = model.keys(layer).float(), model.up_keys(layer), torch.ones(())
    if order is not None:
        keys, up = keys[:, order.to(keys.device)], None if up is None else up[:, order.to(up.device)]
    with suppress(ModelUnsupported):
        # Of the norm that the keys read, `[hidden]`, or of those of their branches, `[memory, hidden]`.
        branches = model.layer(layer).ffn.branches
        norms = [branch.before for branch in branches] if branches else [input_norms(model)[layer]]
        gains = [model.fold_of(norm).gain for norm in norms]
        rows = torch.stack([torch.ones(model.sizes.hidden) if each is None else each.cpu() for each in gains])
        gain = rows[model.branch_of(layer)] if branches else rows[0]
    directions = keys * gain.to(keys.device)
    if up is not None:
        other = up.float() * gain.to(up.device)
        directions = nn.functional.normalize(directions, dim=1) + nn.functional.normalize(other, dim=1)
    return directions - directions.mean(1, keepdim=True)


def input_norms(model: LanguageModel) -> dict[int, nn.Module | None]:
    """The norm whose output each layer's keys read; None if they read the stream, or branches have norms of their own.

    A parallel block's may be attention's, too, and no row names it: it is the module of the block whose output the keys
    read, which one short forward shows. Cached in the model.
    """

    def find() -> dict[int, nn.Module | None]:
        parts = model.anatomy.layers
        unnamed = [layer for layer, part in enumerate(parts) if part.ffn_norm is None and not part.ffn.branches]
        observed = _observe(model, unnamed) if unnamed else {}
        return {layer: part.ffn_norm or observed.get(layer) for layer, part in enumerate(parts)}

    return model.cache.get(input_norms, find)


def _observe(model: LanguageModel, layers: list[int]) -> dict[int, nn.Module]:
    given: dict[tuple[int, nn.Module], Tensor] = {}
    taken: dict[int, Tensor] = {}

    def keep(layer: int, module: nn.Module, output: Any) -> None:
        if isinstance(output, Tensor):
            given[layer, module] = output.clone()

    with Taps(own_thread=True) as taps, torch.inference_mode():
        for layer in layers:
            for module in model.layer(layer).block.modules():
                if any(weight.shape == (model.sizes.hidden,) for weight in module.parameters(recurse=False)):
                    taps.leaves(module, partial(keep, layer, module))
        reading = read_blocks(model, lambda layer, block: taken.update({layer: block.ffn_input.clone()}), layers=layers)
        taps.enter_context(reading)
        model.backbone(torch.arange(_SEEN)[None] % model.sizes.vocabulary)
    # Linear maps have biases of that length, too, but their output is no layer's input.
    return {
        layer: module
        for (layer, module), output in given.items()
        if torch.equal(output.flatten(), taken[layer].flatten())
    }


@torch.inference_mode()
def input_embeddings(model: LanguageModel) -> Tensor | None:
    """The embedding `[token, hidden]` of each token of the head, float32, without positions; None if unknown."""
    module, network = None, model.anatomy.model
    with suppress(AttributeError, NotImplementedError):
        module = network.get_input_embeddings()  # type: ignore[operator]
    if not isinstance(module, nn.Module):
        return None
    weight = getattr(module, "weight", None)
    stored = weight.shape[0] if isinstance(weight, Tensor) and weight.dim() == 2 else model.sizes.vocabulary
    ids = torch.arange(min(int(stored), model.sizes.vocabulary))
    with hold_all_weights(module):
        device = next((parameter.device for parameter in module.parameters()), model.device)
        parts = [module(part.to(device)).float() for part in torch.split(ids, BUDGET.embedded_tokens)]
    embeddings = torch.cat(parts).to(model.device)
    return embeddings if embeddings.dim() == 2 and embeddings.shape[1] == model.sizes.hidden else None
