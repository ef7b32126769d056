"""What a row gives must not depend on the rows beside it: tried out on every model, before anybody sees it.

Some models compute a long row otherwise than a short one, and settle which of the two it is by the longest row of an
input: LongRoPE, `dynamic` NTK. Their lengths are `boundaries`, which no batch may have inside (`sides`). Whatever else
company changes is found by running the same rows alone, together and among others, also on a copy of one layer whose
configuration puts every boundary that it names at 8; such a model is refused. Rows beyond a boundary are tried on the
model itself where a text has them (`prove_long_rows`).
"""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import init_empty_weights
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.anatomy import text_config
from mnemoscope.models.attention import REFUSALS, eager_attention
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.loaded_parts import suppress_warnings
from mnemoscope.models.observed import HALF_TOLERANCE, run

Forward = Callable[[Tensor], Tensor]
"""Numbers `[batch, position, ...]` for ids `[batch, position]`."""

_NAMED = re.compile(r"(sliding_window|window_size|attention_window|chunk_size|original_max_position_embeddings)$")
"""Entries of a configuration that are a length, beyond which something is computed otherwise."""
_PLACE = 8
"""Where the copy of one layer has them."""


def boundaries_of(config: Any, context: int) -> tuple[int, ...]:
    """The lengths below `context` beyond which the table of positions is another one, ascending.

    With LongRoPE one; with `dynamic` NTK every length from one on, since each has a table of its own.
    """
    found: set[int] = set()
    for entries in _dictionaries(config.to_dict()):
        kind = str(entries.get("rope_type", entries.get("type")))
        original = entries.get("original_max_position_embeddings")
        if "long_factor" in entries and "short_factor" in entries:
            original = original or getattr(config, "original_max_position_embeddings", None)
            found |= {int(original or config.max_position_embeddings)}
        elif "dynamic" in kind:
            found |= set(range(config.max_position_embeddings, context))
    return tuple(sorted(length for length in found if length < context))


def _dictionaries(entries: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield entries
    for each in entries.values():
        if isinstance(each, dict):
            yield from _dictionaries(each)


def sides(model: LanguageModel, lengths: NDArray[Any] | Sequence[int]) -> NDArray[np.int64]:
    """On which side of the model's boundaries rows lie, the beginning token counted: equal numbers may share a forward.

    It ascends with the length, and is 0 everywhere in a model without boundaries.
    """
    return np.searchsorted(np.array(model.boundaries, np.int64), lengths, side="left").astype(np.int64)


def prove_company(model: LanguageModel, sentences: list[list[int]], together: Tensor, *, half: bool) -> None:
    """Raises ModelUnsupported where the logits `together [batch, position, vocab]` are not those of the rows alone.

    And settles whether plain attention (`eager`) is the same function; else the model's attention weights are unknown.
    """
    ids = _padded(sentences, model)
    mixed = (ids.roll(1, 0) + torch.tensor([[1], [0], [0], [1]], device=ids.device)) % model.sizes.vocabulary
    among = model.logits(mixed)
    for row, found in ((0, among[1]), (1, among[2]), (0, _alone(model.logits, ids, sentences, 0)),
                       (3, _alone(model.logits, ids, sentences, 3))):  # fmt: skip
        own = len(sentences[row])
        _refuse(model, _differ(found[:own], together[row, :own], half=half), "")
    try:
        with eager_attention(model):
            plain = model.logits(ids)
        pairs = [(plain[row, : len(own)], together[row, : len(own)]) for row, own in enumerate(sentences)]
        model.eager = not any(_differ(*pair, half=half) for pair in pairs)
    except REFUSALS:
        model.eager = False
    _prove_copy(model, half=half)


def prove_long_rows(model: LanguageModel, longest: int) -> None:
    """Tries rows on both sides of every boundary that a text's longest row (beginning token counted) lies beyond.

    Raises ModelUnsupported where company changes what they give.
    """
    for place in _named(text_config(model.anatomy.model), model.sizes.context):
        if place < longest:
            half = model.dtype not in (torch.float32, torch.float64)
            with torch.inference_mode():
                apart = place in model.boundaries
                wrong = _wrong(lambda ids: _stream(model, ids), model, place, apart=apart, half=half)
            _refuse(model, wrong, f" where one is longer than {place} tokens")


def _stream(model: LanguageModel, ids: Tensor) -> Tensor:
    found = model.backbone(ids)
    assert found is not None
    return found


def _refuse(model: LanguageModel, wrong: bool, where: str) -> None:
    if wrong:
        raise ModelUnsupported(
            f"the {model.anatomy.family!r} model gives a row other numbers beside other rows than alone{where}; "
            "only models whose rows do not depend on one another can be read"
        )


def _named(config: Any, context: int) -> list[int]:
    """All lengths below `context` that a configuration names as boundaries, ascending."""
    items = [item for entries in _dictionaries(config.to_dict()) for item in entries.items()]
    named = {value for name, value in items if _NAMED.search(str(name)) and type(value) is int}
    return sorted(value for value in named.union(boundaries_of(config, context)) if 0 < value < context)


def _prove_copy(model: LanguageModel, *, half: bool) -> None:
    """Raises ModelUnsupported where company counts around a boundary, which a copy of one layer has at 8."""
    network = model.anatomy.model
    config = getattr(network, "config", None)
    if config is None or text_config(network) is not config or not _named(config, model.sizes.context):
        return
    try:
        short = _one_layer(network, config, model)
        forward = lambda ids: run(short, ids)  # noqa: E731
        wrong = _wrong(forward, model, _PLACE, apart=bool(model.boundaries), half=half)
    except REFUSALS:  # it is tried on the model itself, where a text has such rows
        return
    _refuse(model, wrong, f" around a length that its configuration names ({_named(config, model.sizes.context)[0]})")


def _one_layer(network: Any, config: Any, model: LanguageModel) -> nn.Module:
    """A model of this configuration with one layer, and all boundaries at 8; it shares the weights that fit."""
    layers, entries = config.num_hidden_layers, copy.deepcopy(config.to_dict())
    for each in _dictionaries(entries):
        for name, value in each.items():
            if _NAMED.search(str(name)) and isinstance(value, int) and value > 0:
                each[name] = _PLACE
            elif isinstance(value, list) and len(value) == layers and "factor" not in str(name):
                each[name] = value[:1]
            elif value == layers and name in (config.attribute_map.get("num_hidden_layers"), "num_hidden_layers"):
                each[name] = 1
    changed = type(config).from_dict(entries)
    changed._attn_implementation_internal = config._attn_implementation_internal
    with init_empty_weights(include_buffers=False), suppress_warnings():
        made: nn.Module = type(network)(changed)
    wanted, found = dict(made.named_parameters()), {}
    weights = {name: weight.detach() for name, weight in network.named_parameters(remove_duplicate=False)}
    for name, empty in wanted.items():
        own = weights.get(name)
        fits = own is not None and own.shape == empty.shape and own.dtype == model.dtype and not own.is_meta
        size = 1.0 if empty.dim() < 2 else empty.shape[-1] ** -0.5
        found[name] = own if fits else torch.randn(empty.shape, dtype=model.dtype, device=model.device) * size
    made.load_state_dict(found, strict=False, assign=True)
    return made.to(model.device).eval()


def _wrong(forward: Forward, model: LanguageModel, place: int, *, apart: bool, half: bool) -> bool:
    """Whether company changes the numbers of rows up to a boundary at `place`, or beyond it.

    Not `apart`, rows of both sides are also put together.
    """
    lengths = (place, min(5, place), place + 2, place + 1)
    lengths = tuple(min(length, model.sizes.context) for length in lengths)
    rows = [[(31 + 7919 * (97 * row + at)) % model.sizes.vocabulary for at in range(length)]
            for row, length in enumerate(lengths)]  # fmt: skip
    groups = [[0, 1], [2, 3]] if apart else [[0, 1], [2, 3], [2, 0, 1, 3]]
    alone: dict[int, Tensor] = {}
    for group in groups:
        ids = _padded([rows[row] for row in group], model)
        together = forward(ids)
        for at, row in enumerate(group):
            own = alone[row] = alone[row] if row in alone else forward(_padded([rows[row]], model))[0]
            if _differ(together[at, : lengths[row]], own, half=half):
                return True
    again = forward(_padded([rows[0]], model))[0]  # after a longer row
    return _differ(again, alone[0], half=half)


def _alone(forward: Forward, ids: Tensor, sentences: list[list[int]], row: int) -> Tensor:
    return forward(ids[row : row + 1, : len(sentences[row])])[0]


def _padded(rows: list[list[int]], model: LanguageModel) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(model.device)


def _differ(found: Tensor, wanted: Tensor, *, half: bool) -> bool:
    """Whether numbers `[position, ...]` are others than rounding explains: at any position, in half precision at most.

    There a token at the edge between two experts goes the other way, whatever lies beside it.
    """
    found, wanted = found.flatten(1).float(), wanted.flatten(1).float().to(found.device)
    size = torch.linalg.vector_norm(wanted, dim=1).clamp_min(1e-6)
    error = torch.linalg.vector_norm(found - wanted, dim=1) / size
    if half:
        return bool(2 * (~(error <= HALF_TOLERANCE)).sum() > len(error))
    return bool((~(error <= 1e-4)).any())
