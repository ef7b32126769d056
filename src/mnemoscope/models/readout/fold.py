"""Values in the head's space: the norms behind a layer folded in, with those of its branches (branches.py)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.modules.projections import fold_of, scale_of


def fold_values(model: LanguageModel, layer: int, vectors: Tensor, *, memories: Tensor | None = None) -> Tensor:
    """Values of `memories [n]` (None: all), `[n, hidden]` -> `[n, hidden']`, float32, with all norms folded in."""
    ffn = model.layer(layer).ffn
    if ffn.branches:
        of = branch_of(model, layer, memories)
        vectors = vectors.float().clone()
        for number, branch in enumerate(ffn.branches):
            rows = (of == number).nonzero()[:, 0].to(vectors.device)
            fold = fold_of(branch.behind, model.sizes.hidden, dtype=model.dtype, device=model.device)
            vectors[rows] = fold(vectors[rows]).to(vectors.device)
    return model.fold(vectors, layer=layer)


def branch_of(model: LanguageModel, layer: int, memories: Tensor | None = None) -> Tensor:
    """The number `[n]` of each memory's branch, on the CPU: 0 are the routed experts; 0 in a layer without branches."""
    numbering = model.numbering(layer)
    memories = torch.arange(numbering.count) if memories is None else memories.cpu()
    if not model.layer(layer).ffn.branches:
        return torch.zeros_like(memories)
    edges = torch.tensor(numbering.firsts[numbering.routed :])
    return torch.bucketize(memories, edges, right=True)


def branch_scales(model: LanguageModel, layer: int, entered: Sequence[Tensor]) -> Tensor | None:
    """The divisors `[row, branch]` of the norms behind branches, for their inputs `entered [row, hidden]`; or None."""
    branches = model.layer(layer).ffn.branches
    if not branches:
        return None
    with torch.inference_mode():
        scales = []
        for branch, vectors in zip(branches, entered, strict=True):
            fold = fold_of(branch.behind, model.sizes.hidden, dtype=model.dtype, device=model.device)
            scales.append(scale_of(branch.behind, fold, vectors.to(model.dtype)).to(model.device))
        return torch.stack(scales, 1)
