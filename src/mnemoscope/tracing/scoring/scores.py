"""The numbers of a layer at a position: contributions, votes, activity; and the models and atlases that give them.

The contribution of a memory is c_i = |m_i| norm(v_i); its vote is top(sign(m_i) v_i) under the values' projection
(definitions.md sections 2 and 4).
"""

import os
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

import polars as pl
import torch
from torch import Tensor

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.errors import ModelDiffers, OptionError
from mnemoscope.foundation.budget import BUDGET, rows_within
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.modules.projections import scale_of
from mnemoscope.tracing.scoring.ranking import top

F = TypeVar("F", bound=Callable[..., Any])
MAJOR = 0.9
"""Share of the sum of c_i = |m_i| norm(v_i) that the major memories hold together."""
EVENTS = ("residual", "agreement", "ffn", "composition")
"""How a layer's output comes about (Figure 11)."""


def opens(function: F) -> F:
    """Decorates a function whose `model` may also be a name that `load_model` takes, and whose `atlas` a folder;
    raises ModelUnsupported for an encoder alone.
    """
    declared = signature(function)

    @wraps(function)
    def open_and_call(*given: Any, **named: Any) -> Any:
        bound = declared.bind(*given, **named)
        for name, kind, opening in (("model", LanguageModel, load_model), ("atlas", Atlas, open_atlas)):
            one = bound.arguments.get(name)
            if isinstance(one, str | os.PathLike) and not isinstance(one, kind):
                bound.arguments[name] = opening(one)
        if isinstance(model := bound.arguments.get("model"), LanguageModel):
            model.require_head()
        return function(*bound.args, **bound.kwargs)

    return cast(F, open_and_call)


def check_wide_numbers(model: LanguageModel) -> None:
    """Raises OptionError on a device without float64, in which contributions and sums are computed."""
    if model.device.type == "mps":
        raise OptionError("mps has no numbers of 64 bits, which sums need; take --device cpu (inspect can use mps)")


def event_of(residual: int, ffn: int, output: int) -> str:
    """One of EVENTS, from the top tokens of the residual, the feed-forward update and the output."""
    if output == residual:
        return "agreement" if output == ffn else "residual"
    return "ffn" if output == ffn else "composition"


def contributions(coefficients: Tensor, norm: Tensor) -> Tensor:
    """c_i `[row, memory]`, float64, of `coefficients [row, memory]` and the values' norms `[memory]`."""
    return coefficients.double().abs() * norm.double()


def value_norms(model: LanguageModel, layer: int) -> Tensor:
    """The length `[memory]`, float32, of every value of a layer; cached in the model."""
    return model.cache.get((value_norms, layer), lambda: norms_of(model.values(layer)))


def norms_of(vectors: Tensor) -> Tensor:
    """The lengths `[row]`, float32, of vectors `[row, hidden]`."""
    if vectors.dtype == torch.float32 and vectors.stride(1) == 1:
        lengths: Tensor = torch.linalg.vector_norm(vectors, dim=1)
        return lengths
    # For others PyTorch's norm sums the squares serially: five times as slow, with an error of 1e-6 instead of 1e-7.
    parts = torch.split(vectors, rows_within(BUDGET.in_cache, vectors.shape[1]))
    squares = [part.float().square().sum(1) for part in parts]
    return (squares[0] if len(squares) == 1 else torch.cat(squares)).sqrt_()


def activity_of(coefficients: Tensor, norm: Tensor) -> dict[str, Tensor]:
    """How many memories are active (m_i > 0), `effective` ((sum c)^2 / sum c^2) and `major` (the smallest set with 90 %
    of the sum; `is_major [row, memory]`) in each row of `coefficients [row, memory]`; `top_share` is the largest c over
    their sum; 0 where nothing is active. `norm [memory]` are the values' lengths.
    """
    weight = contributions(coefficients, norm)
    total = weight.sum(1)
    some = total > 0
    safe = torch.where(some, total, 1.0)
    ordered, memory = weight.sort(dim=1, descending=True, stable=True)
    # The memories up to the one that reaches the share. The running sum is computed on the CPU: a GPU may add in
    # another order each time, and the memory that reaches the share would vary.
    needed = (ordered.cpu().cumsum(1).to(weight.device) < MAJOR * total[:, None]).sum(1) + 1
    major = torch.where(some, needed.clamp(max=weight.shape[1]), 0)
    rank = torch.arange(weight.shape[1], device=weight.device)
    is_major = torch.zeros_like(weight, dtype=torch.bool).scatter_(1, memory, rank[None] < major[:, None])
    return {
        "active": (coefficients > 0).sum(1),
        "effective": torch.where(some, total.square() / torch.where(some, weight.square().sum(1), 1.0), 0.0),
        "top_share": ordered[:, 0] / safe,
        "major": major,
        "is_major": is_major,
    }


def folded_updates(model: LanguageModel, layer: int, update: Tensor) -> Tensor:
    """Updates u `[row, hidden]` folded for the values' projection; a post-norm block's has not passed its norm."""
    return model.fold(model.fold_of(model.output_norm(layer))(update) if model.block == "post-norm" else update)


def own_norm_scales(
    model: LanguageModel, layer: int, residual: Tensor, ffn_output: Tensor, branches: Sequence[Tensor]
) -> Tensor:
    """The divisors `[row, branch]` of a layer's own norms that its values pass; 1 without such norms, one column
    without branches. With the final norm's scale they lead to the head (definitions.md section 2, typical activation).
    """
    read = residual + ffn_output if model.block == "post-norm" else ffn_output
    divisors = model.norm_scale(read, layer=layer)[:, None]
    if not branches:
        return divisors
    with torch.inference_mode():
        each = zip([branch.behind for branch in model.layer(layer).ffn.branches], branches, strict=True)
        scales = [scale_of(norm, model.fold_of(norm), entered.to(model.dtype)) for norm, entered in each]
        return divisors * torch.stack([scale.to(model.device) for scale in scales], 1)


def tops_of_folded(model: LanguageModel, folded: Sequence[Tensor]) -> Tensor:
    """The top token `[row]` of folded vectors under the head, in as few products as memory allows."""
    head = model.scorer()
    return torch.cat([top(head.scores(rows), 1)[0][:, 0] for rows in split_rows(model, torch.cat(list(folded)))])


def split_rows(model: LanguageModel, rows: Tensor) -> tuple[Tensor, ...]:
    return torch.split(rows, rows_within(BUDGET.prompt_scores, model.sizes.vocabulary))


def vote_codes(memories: Tensor, coefficients: Tensor) -> Tensor:
    """One number for each memory and sign of its coefficient, which determine the vote."""
    return 2 * memories + (coefficients < 0)


def known_votes(model: LanguageModel) -> list[Tensor]:
    """The votes `[2 * memory]` by `vote_codes` of each layer, -1 if not projected yet; cached in the model."""
    each = zip(model.sizes.memories, model.devices, strict=True)
    return model.cache.get(known_votes, lambda: [torch.full((2 * count,), -1, device=device) for count, device in each])


def votes(model: LanguageModel, codes: Sequence[Tensor]) -> list[Tensor]:
    """The votes of each layer's `vote_codes`, in their shape; projected once, and cached in the model."""
    kept = known_votes(model)
    codes = [code.to(voted.device) for code, voted in zip(codes, kept, strict=True)]
    new = [torch.unique(code[voted[code] < 0]) for code, voted in zip(codes, kept, strict=True)]
    folded = [folded_values(model, layer, code // 2, 1 - 2 * (code % 2)) for layer, code in enumerate(new)]
    tops = torch.split(tops_of_folded(model, folded), [len(code) for code in new])
    for code, tokens, voted in zip(new, tops, kept, strict=True):
        voted[code] = tokens.to(voted.device)
    return [voted[code] for code, voted in zip(codes, kept, strict=True)]


def votes_in(values: pl.DataFrame) -> tuple[Tensor, Tensor]:
    """The votes `[memory]` of a table `values`: with a positive coefficient, with a negative one."""
    positive, negative = (values[f"{end}_tokens"].list.first().cast(pl.Int64).to_torch() for end in ("top", "bottom"))
    return positive, negative


def require_model_of(model: LanguageModel, atlas: Atlas) -> None:
    mined = atlas.manifest.model
    if model.fingerprint != mined.fingerprint:
        raise ModelDiffers(
            f"{atlas.path} was mined from another model than {model.spec} (fingerprint {mined.fingerprint[:12]}..., not"
            f" {model.fingerprint[:12]}...); load {mined.spec}"
        )


def adopt_votes(model: LanguageModel, atlas: Atlas) -> bool:
    """Copies the votes that mining projected; returns whether it could: the atlas must be the model's, in its number
    format.
    """
    mined = atlas.manifest
    if model.fingerprint != mined.model.fingerprint or str(model.dtype) != f"torch.{mined.plan.get('dtype')}":
        return False
    kept = known_votes(model)
    for layer in atlas.layers:
        values = atlas.table("values", layer=layer, columns=["top_tokens", "bottom_tokens"])
        mined_votes = torch.stack(votes_in(values), 1).flatten()
        if len(mined_votes) == len(kept[layer]) and int(mined_votes.max()) < model.sizes.vocabulary:
            kept[layer].copy_(mined_votes)
    return True


def folded_values(model: LanguageModel, layer: int, memories: Tensor, signs: Tensor) -> Tensor:
    """sign(m) v `[row, hidden']` of some memories `[row]` of a layer, folded; their top tokens are their votes."""
    folded = model.folded_values(layer, memories)
    return folded * signs.to(folded)[:, None]
