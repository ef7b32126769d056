"""Measures a model: its held-out loss, that of an n-gram model, and the share of its memories that never fire."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from torch.nn.utils.rnn import pad_sequence

from mnemoscope.models import Group
from mnemoscope.models.memories.expert_taps import tap_experts
from mnemoscope.models.memories.routed_experts import find_routed
from mnemoscope.training.text import Text

Ids = NDArray[np.int64]
Counts = NDArray[np.int32]


@dataclass(frozen=True)
class Loss:
    nats: float
    tokens: int
    text_bytes: int

    @property
    def per_token(self) -> float:
        return self.nats / max(1, self.tokens)

    @property
    def per_byte(self) -> float:
        return self.nats / max(1, self.text_bytes)


@torch.inference_mode()
def held_out_loss(model: Any, text: Text, context: int, *, most: int | None = None, batch: int = 32) -> Loss:
    """Documents are read in windows of `context` tokens after a beginning token. `most` limits them to the first ones,
    whose bytes are estimated from their tokens.
    """
    ends = np.append(text.documents[1:], len(text.tokens))
    windows = [
        text.tokens[begin : min(begin + context, end)].astype(np.int64)
        for first, end in list(zip(text.documents, ends, strict=True))[:most]
        for begin in range(int(first) + 1, int(end), context)
    ]
    nats, count = 0.0, 0
    device = next(model.parameters()).device
    for ids, own in _pad(windows, batch):
        scores = model(ids[:, :-1].to(device), use_cache=False).logits.float()
        targets = ids.masked_fill(~own, -100)[:, 1:].flatten().to(device)
        nats += float(cross_entropy(scores.flatten(0, 1), targets, reduction="sum"))
        count += int(own.sum())
    everything = len(text.tokens) - len(text.documents)
    return Loss(nats, count, round(text.text_bytes * count / max(1, everything)))


@torch.inference_mode()
def dead_shares(model: Any, sentences: list[list[int]], *, batch: int = 64) -> list[float]:
    """The share of memories per layer that are above zero at no token; each sentence is read alone."""

    def mark_fired(fired: Tensor, _: Any, inputs: tuple[Tensor, ...]) -> None:
        fired |= (inputs[0] > 0)[own].any(0)

    def mark_experts(fired: Tensor, group: Group) -> Group:
        assert group.experts is not None
        rows = own.flatten()[group.tokens]
        some = (group.coefficients > 0)[rows]
        for expert in range(group.count):
            fired[expert] |= some[group.experts[rows] == expert].any(0)
        return group

    alive = []
    with ExitStack() as hooks:
        for block in model.base_model.layers:
            if (found := find_routed(block)) is None:
                values = block.mlp.dense_4h_to_h
                alive.append(torch.zeros(values.in_features, dtype=torch.bool))
                hooks.enter_context(values.register_forward_pre_hook(partial(mark_fired, alive[-1])))
            else:
                alive.append(torch.zeros(found[1].count, found[1].width, dtype=torch.bool))
                hooks.enter_context(tap_experts(found[1], partial(mark_experts, alive[-1]), looks=lambda: True))
        for ids, own in _pad([np.array(sentence, np.int64) for sentence in sentences], batch):  # noqa: B007
            model.base_model(ids, use_cache=False)
    return [1 - float(fired.float().mean()) for fired in alive]


def _pad(pieces: Sequence[Ids], batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches `[batch, 1 + position]` by length, with the beginning token first, and masks of the pieces' tokens."""
    ordered = sorted(pieces, key=len)
    for start in range(0, len(ordered), batch):
        group = [torch.from_numpy(piece) for piece in ordered[start : start + batch]]
        ids = pad_sequence(group, batch_first=True)
        own = pad_sequence([torch.ones_like(piece, dtype=torch.bool) for piece in group], batch_first=True)
        yield pad(ids, (1, 0)), pad(own, (1, 0))


class NgramModel:
    """Interpolated Kneser-Ney with one discount per order (Kneser and Ney 1995; Chen and Goodman 1999, section 4.1.6).

    Of each order it keeps `keys` (the index of the (n-1)-gram times the vocabulary plus the last token, ascending), the
    n-grams' `counts`, the `totals` and `kinds` of the (n-1)-grams' continuations, and the discount. The last entry of
    every array but `keys` is 0, for unseen n-grams, whose index is -1.
    """

    def __init__(self, tokens: NDArray[np.integer], *, order: int = 5, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        stream = tokens.astype(np.int64)
        keys: list[Ids] = []
        counts: list[Ids] = []
        numbers = np.zeros(len(stream) + 1, np.int64)  # index of the (n-1)-gram that begins at each token
        for n in range(1, order + 1):
            grams = numbers[:-1] * vocabulary + stream[n - 1 :]
            distinct, first_at, inverse = np.unique(grams, return_index=True, return_inverse=True)
            if n > 1:  # the distinct tokens before an (n-1)-gram are the n-grams that end in it
                counts.append(np.bincount(numbers[first_at + 1], minlength=len(keys[-1])))
            keys.append(distinct)
            numbers = inverse
        counts.append(np.bincount(numbers))
        self._orders: list[tuple[Ids, Counts, Counts, Counts, float]] = []
        for own, count, size in zip(keys, counts, [1, *map(len, keys)], strict=False):
            contexts = own // vocabulary
            totals, kinds = (np.bincount(contexts, weights=w, minlength=size) for w in (count, count > 0))
            of_gram, of_context, different = (np.append(one, 0).astype(np.int32) for one in (count, totals, kinds))
            self._orders.append((own, of_gram, of_context, different, _discount(count)))

    def nats(self, tokens: NDArray[np.integer], *, skip: NDArray[np.int64]) -> float:
        """The negative log-likelihood of `tokens`, without the targets at positions `skip`."""
        stream = tokens.astype(np.int64)
        probability = np.full(len(stream), 1.0 / self.vocabulary)
        context = np.zeros(len(stream), np.int64)  # index of the (n-1)-gram that ends before each token
        for keys, counts, totals, kinds, discount in self._orders:
            wanted = context * self.vocabulary + stream
            place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            number = np.where(keys[place] == wanted, place, -1)
            total = totals[context]
            discounted = np.maximum(counts[number] - discount, 0.0)
            mixed = (discounted + discount * kinds[context] * probability) / np.maximum(total, 1)
            probability = np.where(total > 0, mixed, probability)
            context = np.append(-1, number[:-1])
        chosen = np.ones(len(stream), bool)
        chosen[skip] = False
        return float(-np.log(probability[chosen]).sum())


def _discount(counts: Ids) -> float:
    """The absolute discount n1 / (n1 + 2 n2); a half if nothing occurs once, so that unseen n-grams stay possible."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return once / (once + 2 * twice) if once else 0.5
