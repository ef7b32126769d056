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
from mnemoscope.models.modules.observed import takes_source, with_source
from mnemoscope.models.modules.offloading import hold_all_weights
from mnemoscope.models.modules.taps import Taps

_SEEN = 8


def read_directions(model: LanguageModel, layer: int, *, order: Tensor | None = None) -> Tensor:
    """The read directions [memory, hidden], float32, each with its mean subtracted; on the layer's device.

    A gated memory's is the sum of the unit vectors of gate and up: where its coefficient is positive, it reads both. A
    norm with an unknown gain leaves the keys unchanged. `order` permutes the entries of shuffled keys.
    """
    keys, up, gain = model.keys(layer).float(), model.up_keys(layer), torch.ones(())
    if order is not None:
        keys, up = keys[:, order.to(keys.device)], None if up is None else up[:, order.to(up.device)]
    with suppress(ModelUnsupported):
        gain = _input_gain(model, layer, input_norms(model)[layer])[0]
    directions = keys * gain.to(keys.device)
    if up is not None:
        other = up.float() * gain.to(up.device)
        directions = nn.functional.normalize(directions, dim=1) + nn.functional.normalize(other, dim=1)
    return directions - directions.mean(1, keepdim=True)


def folded_keys(model: LanguageModel, layer: int) -> list[Tensor]:
    """The keys, and behind them the up keys of a gated layer, `[memory, hidden]`, float32, as directions of the stream:
    gain and centring of the norm that stands between folded in (a post-norm block has none). Raises ModelUnsupported
    where that is unknown.
    """
    part = model.layer(layer)
    norm = part.ffn_norm if part.attention is None else input_norms(model)[layer]
    gain, centred = _input_gain(model, layer, norm)
    matrices = [each.float() for each in (model.keys(layer), model.up_keys(layer)) if each is not None]
    folded = [each * gain.to(each.device) for each in matrices]
    return [each - each.mean(1, keepdim=True) * centred.to(each.device) for each in folded]


def _input_gain(model: LanguageModel, layer: int, norm: nn.Module | None) -> tuple[Tensor, Tensor]:
    """By what entries of the stream are multiplied before keys read them, `[1, hidden]`, or `[memory, hidden]` where
    branches have norms of their own; and whether (1) or not (0) they are centred first, `[1, 1]` or `[memory, 1]`.
    """
    branches = model.layer(layer).ffn.branches
    folds = [model.fold_of(branch.before) for branch in branches] or [model.fold_of(norm)]
    gains = [torch.ones(model.sizes.hidden) if each.gain is None else each.gain.cpu() for each in folds]
    rows, centred = torch.stack(gains), torch.tensor([[float(each.centred)] for each in folds])
    if branches:
        return rows[of := model.branch_of(layer)], centred[of]
    return rows * _own_part(model, layer), centred


def _own_part(model: LanguageModel, layer: int) -> Tensor:
    """What keys read of their own position, entry by entry `[hidden]`: 1 unless, as RWKV's, they read a mixture of it
    and the position before, found by least squares in one short forward. Raises ModelUnsupported for anything else.
    """
    part = model.layer(layer)
    if part.output_gate is None or part.ffn_norm is None:  # elsewhere keys read the norm's output itself
        return torch.ones(())
    given, taken = _observe(model, [layer])
    own, read = (each.cpu().double().flatten(0, -2) for each in (given[layer, part.ffn_norm], taken[layer]))
    both = torch.stack([own, torch.cat([torch.zeros_like(own[:1]), own[:-1]])]).permute(2, 1, 0)
    mixed: Tensor = torch.linalg.lstsq(both, read.T[:, :, None]).solution
    misfit = float(((both @ mixed)[:, :, 0] - read.T).norm() / read.norm())
    if not misfit < (1e-3 if model.dtype == torch.float32 else 3e-2):
        raise ModelUnsupported(f"what the keys of layer {layer} read is no mixture of two positions")
    return mixed[:, 0, 0].float()


def input_norms(model: LanguageModel) -> dict[int, nn.Module | None]:
    """The norm whose output each layer's keys read; None if they read the stream, or branches have norms of their own.

    A parallel block's may be attention's, too, and no row names it: it is the module of the block whose output the keys
    read, which one short forward shows. Cached in the model.
    """

    def find() -> dict[int, nn.Module | None]:
        parts = model.anatomy.layers
        unnamed = [layer for layer, part in enumerate(parts) if part.ffn_norm is None and not part.ffn.branches]
        given, taken = _observe(model, unnamed) if unnamed else ({}, {})
        # Linear maps have biases of that length, too, but their output is no layer's input.
        observed = {
            layer: module
            for (layer, module), output in given.items()
            if torch.equal(output.flatten(), taken[layer].flatten())
        }
        return {layer: part.ffn_norm or observed.get(layer) for layer, part in enumerate(parts)}

    return model.cache.get(input_norms, find)


def _observe(model: LanguageModel, layers: list[int]) -> tuple[dict[tuple[int, nn.Module], Tensor], dict[int, Tensor]]:
    """In one short forward, the outputs of the modules that may be norms, and what the keys of each layer read."""
    given, taken = dict[tuple[int, nn.Module], Tensor](), dict[int, Tensor]()

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
        model.backbone(with_source(torch.arange(_SEEN)[None] % model.sizes.vocabulary, model.anatomy.model))
    return given, taken


@torch.inference_mode()
def input_embeddings(model: LanguageModel) -> Tensor | None:
    """The embedding `[token, hidden]` of each token of the head, float32, without positions; None if unknown."""
    module, network = None, model.anatomy.model
    network = network.get_decoder() if takes_source(network) else network  # type: ignore[operator]
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
