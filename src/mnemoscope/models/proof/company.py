"""A row's results must not depend on the rows beside it: tested for every model at loading.

In some models the longest row of an input decides how all of it is computed: LongRoPE, `dynamic` NTK. Their lengths are
`boundaries`, which no batch may straddle (`sides`). Other dependencies are found by running rows alone and together,
also on a copy of one layer with every boundary of its configuration at 8; such a model is refused.
"""

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.anatomy.anatomy import text_config
from mnemoscope.models.forward.attention import REFUSALS, eager_attention, switch_to_eager
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.modules.observed import HALF_TOLERANCE, run, with_source
from mnemoscope.models.modules.quiet import suppress_warnings

_LIMIT, _FAR = 1e-4, 1e-2
_NAMED = re.compile(r"(sliding_window|window_size|attention_window|chunk_size|original_max_position_embeddings)$")
"""Configuration entries that are a length beyond which the computation differs."""
_PLACE = 8
"""Their value in the copy of one layer."""


def boundaries_of(config: Any, context: int) -> tuple[int, ...]:
    """The lengths below `context` beyond which positions use another rotary table, ascending: with LongRoPE one; with
    `dynamic` NTK every length from one on.
    """
    lengths: set[int] = set()
    for entries in _dictionaries(config.to_dict()):
        if "long_factor" in entries and "short_factor" in entries:
            stated = (each.get("original_max_position_embeddings") for each in (entries, config.to_dict()))
            lengths.add(next(filter(None, stated), context))
        elif "dynamic" in str(entries.get("rope_type", entries.get("type"))):
            lengths.update(range(config.max_position_embeddings, context))
    return tuple(sorted(length for length in lengths if length < context))


def _dictionaries(entries: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield entries
    for each in entries.values():
        if isinstance(each, dict):
            yield from _dictionaries(each)


def prove_company(model: LanguageModel, rows: list[list[int]], *, half: bool) -> None:
    """Raises ModelUnsupported if the logits of rows differ alone and together, of one length where they are read whole;
    sets `eager`: plain attention is the same.
    """
    _refuse(model, _differs(model.outputs, model, rows, [[0, 3], [1, 3, 0]], half=half), "")
    try:
        with eager_attention(model):
            plain = model.outputs(_pad_rows(rows[:1], model))
        model.eager = not _is_far(plain, model.outputs(_pad_rows(rows[:1], model)), half=half)
    except REFUSALS:
        model.eager = False
    config = getattr(model.anatomy.model, "config", None)
    if config is None or text_config(model.anatomy.model) is not config or not _lengths_in(config, model.sizes.context):
        return
    try:
        short = _one_layer(model, config)
        wrong = _differs_around(lambda ids: run(short, ids), model, _PLACE, apart=len(model.boundaries) > 0, half=half)
        ids = _pad_rows([list(range(_PLACE + 2))], model)
        usual = run(short, ids)
        with switch_to_eager(short):
            model.eager &= not _is_far(run(short, ids), usual, half=half)
    except REFUSALS:  # tested on the model itself if a text has such rows
        return
    named = _lengths_in(config, model.sizes.context)[0]
    _refuse(model, wrong, f" around a length that its configuration names ({named})")


def prove_long_rows(model: LanguageModel, longest: int) -> None:
    """Raises ModelUnsupported if rows affect each other around a boundary below `longest`, beginning token included."""
    config = getattr(model.anatomy.model, "config", None)
    most = min(longest, model.sizes.context)
    for place in () if config is None else _lengths_in(text_config(model.anatomy.model), most):
        half, apart = model.dtype not in (torch.float32, torch.float64), place in model.boundaries
        wrong = _differs_around(lambda ids: torch.as_tensor(model.backbone(ids)), model, place, apart=apart, half=half)
        _refuse(model, wrong, f" where one is longer than {place} tokens")


def _refuse(model: LanguageModel, wrong: bool, where: str) -> None:
    if wrong:
        raise ModelUnsupported(
            f"the {model.anatomy.family!r} model gives a row different numbers in a batch than alone{where}; "
            "only models whose rows do not depend on one another can be read"
        )


def _lengths_in(config: Any, context: int) -> list[int]:
    items = [item for entries in _dictionaries(config.to_dict()) for item in entries.items()]
    named = {value for name, value in items if _NAMED.search(str(name)) and type(value) is int}
    return sorted(value for value in named.union(boundaries_of(config, context)) if 0 < value < context)


def _one_layer(model: LanguageModel, config: Any) -> Any:
    """A network of this configuration with one layer, and all boundaries at 8; shares the weights that fit."""
    network, entries = model.anatomy.model, copy.deepcopy(config.to_dict())
    for each in _dictionaries(entries):
        for name, value in each.items():
            if _NAMED.search(str(name)) and type(value) is int and value > 0:
                each[name] = _PLACE
            elif isinstance(value, list) and len(value) == config.num_hidden_layers and "factor" not in str(name):
                each[name] = value[:1]
    entries[config.attribute_map.get("num_hidden_layers", "num_hidden_layers")] = 1
    changed = type(config).from_dict(entries, attn_implementation=config._attn_implementation)
    with init_empty_weights(include_buffers=False), suppress_warnings():
        made = type(network)(changed)
    weights, tensors = dict(network.named_parameters(remove_duplicate=False)), {}
    seeded = torch.Generator(model.device).manual_seed(0)
    for name, empty in made.named_parameters():
        weight = weights.get(name, empty)
        fits = weight.shape == empty.shape and weight.dtype == model.dtype and not weight.is_meta
        random = torch.randn(() if fits else empty.shape, dtype=model.dtype, device=model.device, generator=seeded)
        tensors[name] = weight.detach() if fits else random * empty.shape[-1] ** -0.5
    made.load_state_dict(tensors, strict=False, assign=True)
    return made.to(model.device).eval()


def _differs_around(
    forward: Callable[[Tensor], Tensor], model: LanguageModel, place: int, *, apart: bool, half: bool
) -> bool:
    """Whether other rows change a row up to a boundary at `place`, or beyond it; unless `apart`, also across it."""
    unequal = (place, min(5, place), place + 2, place + 1)
    lengths = (min(length, model.sizes.context) for length in (unequal if model.reading.causal else [place + 2] * 4))
    rows = [[31 + 7919 * (97 * row + at) for at in range(length)] for row, length in enumerate(lengths)]
    return _differs(forward, model, rows, [[0, 1], [2, 3], *([] if apart else [[2, 0, 1]])], half=half)


def _differs(
    forward: Callable[[Tensor], Tensor],
    model: LanguageModel,
    rows: list[list[int]],
    groups: list[list[int]],
    *,
    half: bool,
) -> bool:
    """Whether the rows of any group differ from the rows alone, or a repeated first row does."""
    alone: dict[int, Tensor] = {}
    with torch.inference_mode():
        for group in [*groups, [0]]:
            for row, together in zip(group, forward(_pad_rows([rows[row] for row in group], model)), strict=True):
                lone = alone[row] = alone[row] if row in alone else forward(_pad_rows([rows[row]], model))[0]
                if _is_far(together[: len(lone)], lone, half=half):
                    return True
    return False


def _pad_rows(rows: list[list[int]], model: LanguageModel) -> Tensor:
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(model.device) % model.sizes.vocabulary
    return with_source(ids, model.anatomy.model)


def _is_far(actual: Tensor, expected: Tensor, *, half: bool) -> bool:
    """Whether numbers `[..., entries]` differ beyond rounding: for most tokens, or, in float32, far for any. One token
    in thousands amplifies rounding a hundredfold; in half precision a token between two experts may switch.
    """
    size = torch.linalg.vector_norm(expected.float(), dim=-1)
    error = torch.linalg.vector_norm(actual.float() - expected.float(), dim=-1)
    most = ~(error <= (HALF_TOLERANCE if half else _LIMIT) * size)
    return bool(2 * most.sum() > most.numel() or (not half and (error > _FAR * size).any()))
