"""Texts of unequal length in batches: how many tokens a forward has, what may share one, how rows are padded."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.foundation.budget import BUDGET
from mnemoscope.foundation.reading import SOURCE, Reading
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.modules.observed import split_source


def default_batch_tokens(model: LanguageModel) -> int:
    """Positions in a batch: a function of sizes, dtype, device kind and its memory, not of timing."""
    widest = max(map(model.anatomy.memories_at_once, range(model.sizes.layers)))
    if model.device.type == "cpu":
        # Experts share a batch's tokens among them, so more of them keep the products large.
        return max(256, min(8192, (2 if model.numberings else 1) * BUDGET.coefficients // widest))
    memory = torch.cuda.get_device_properties(model.device).total_memory if model.device.type == "cuda" else 1 << 33
    room = (memory - 2 * model.sizes.parameters * model.dtype.itemsize) // 8
    return int(max(1024, min(65_536, 1 << (max(1, room // (16 * widest)).bit_length() - 1))))


def sides(model: LanguageModel, lengths: NDArray[Any] | Sequence[int]) -> NDArray[np.int64]:
    """A number per row length (with the beginning token), ascending: rows with equal numbers may share a forward."""
    return np.searchsorted(np.array(model.boundaries, np.int64), lengths, side="left").astype(np.int64)


def pad(
    rows: Sequence[NDArray[np.integer]], model: LanguageModel, sources: Sequence[NDArray[np.integer]] | None = None
) -> Tensor:
    """Token ids `[batch, position]` on the model's device: a row in its frame, and padding, which only a causal model
    may get; behind them, of an encoder-decoder, the rows' `sources`, of one length, or that of its prompts.
    """
    reading, lengths = model.reading, [len(row) for row in rows]
    assert reading.causal or len({*lengths}) == 1
    before = reading.before
    ids = np.full((len(rows), reading.columns(max(lengths))), before[0] if before else 0, np.int64)
    ids[:, : len(before)], ids[:, ids.shape[1] - len(reading.after) :] = before, reading.after
    for row, tokens in enumerate(rows):
        ids[row, reading.own(len(tokens))] = tokens
    if reading.source is not None:
        given = np.array([reading.given] * len(rows) if sources is None else sources, np.int64)
        ids = np.concatenate([ids, np.full((len(rows), 1), SOURCE), given], axis=1)
    return send(ids, model.device)


def texts_in(ids: Tensor, reading: Reading) -> Tensor:
    """Rows of ids without the sources behind them."""
    return ids if reading.source is None else split_source(ids)[0]


def send(array: NDArray[np.int64], device: torch.device) -> Tensor:
    """The array on the device, copied asynchronously to a card."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def pack(lengths: NDArray[np.int64], *, area: int, rows: int, apart: NDArray[np.int64] | None = None) -> list[slice]:
    """Neighbouring items in batches of at most `rows` and `area`, or one item; unequal `apart` are separated."""
    batches: list[slice] = []
    start, longest = 0, 0
    for k, length in enumerate(lengths.tolist()):
        wider = max(longest, length)
        full = (k + 1 - start) * wider > area or k - start >= rows
        if k > start and (full or (apart is not None and apart[k] != apart[k - 1])):
            batches.append(slice(start, k))
            start, wider = k, length
        longest = wider
    if len(lengths):
        batches.append(slice(start, len(lengths)))
    return batches
