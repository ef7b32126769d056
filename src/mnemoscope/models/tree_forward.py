"""Runs trees of tokens through a model: what sentences share is computed once, and nothing that nobody asks for.

Every token is told its position. Attention, wherever a model asks PyTorch for it, goes to the tokens that a token
follows. A block is given those tokens only on which something asked of it or of a later one depends; of those, its
feed-forward layer computes the ones that are asked for, or that a later block needs.

Whether a model allows it is no row of a table: its attention must be plain and causal, as long as the sentences are,
and the coefficients of some trees must be those of their sentences one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from mnemoscope.models.feed_forward import DenseFeedForward
from mnemoscope.models.hooks import Watched, read_coefficients
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.observed import HALF_TOLERANCE, UNNAMED, stream_of, takes
from mnemoscope.models.token_trees import Branch, Chunk, Ints, TokenRow, Tree

Read = Callable[[int, Tensor], None]
"""Given a layer and the coefficients `[token, memory]` of the tokens that were asked for there, in ascending order."""

_REFUSALS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError)
"""What a model may raise that is given something else than it is used to."""
_SHORTEST, _LONGEST = 8, 2048
"""Tokens of the longest sentence: with fewer there is little to share, with more masks would be large."""
_LONGEST_PROVED = 12
"""Tokens of the longest sentence that is compared."""
_TOLERANCE = 1e-4


@final
class TreeForward:
    """Forwards of trees of tokens through one model; any number of threads may run them side by side.

    `possible` says whether the model allows them, for sentences of up to `longest` tokens, the beginning token's
    included; where it is False, they must not be run.
    """

    def __init__(self, model: LanguageModel, *, longest: int) -> None:
        self._model, self._masked = model, False
        self._mask = torch.zeros(1, 1, 1, 1, dtype=model.dtype, device=model.device)
        self.possible = _SHORTEST <= longest <= _LONGEST and self._is_proved(longest)

    def run(self, row: TokenRow, asked: Mapping[int, Ints], read: Read) -> None:
        """Calls back, layer by layer, with the coefficients of the tokens `asked` for, in ascending order.

        The forward ends with the last of them.
        """
        model = self._model
        with ExitStack() as stack:
            steps = _Steps(model, row, asked)
            for layer in range(max(asked) + 1):
                steps.install(layer, stack)
            stack.enter_context(read_coefficients(model, steps.deliver_to(read), layers=asked, own_thread=True))
            stack.enter_context(_Attention(steps.attend))
            ids, places = (torch.from_numpy(each)[None].to(model.device) for each in (row.ids, row.places))
            told = {"position_ids": places} | ({"attention_mask": self._mask} if self._masked else {})
            model.backbone(ids, told=told, stop_after=max(asked))

    def _is_proved(self, longest: int) -> bool:
        """Whether attention is plain and causal, and some trees have the coefficients of their sentences; settles
        whether the model is handed a mask, so that it makes none of its own as large as the square of the row.
        """
        model = self._model
        network = model.anatomy.backbone or model.anatomy.model
        if not takes(network, "position_ids") or not _is_true(lambda: _attends_causally(model, longest)):
            return False
        for self._masked in [True, False] if takes(network, "attention_mask") else [False]:
            if _is_true(lambda: self._equals_sentences(min(longest, _LONGEST_PROVED))):
                return True
        return False

    def _equals_sentences(self, size: int) -> bool:
        """Whether all layers have the coefficients of sentences of up to so many tokens, run one by one: of trees of
        which less is asked from layer to layer.
        """
        model, half = self._model, size // 2
        first, second, third, fourth = (_numbers(4 * size) % model.sizes.vocabulary).reshape(4, size)
        trees = [
            Tree(first, [Branch(0, second[:3]), Branch(half, third[half:]), Branch(2, fourth[:2])]),
            Tree(second[:half], [Branch(half - 1, fourth[2:5])]),
        ]
        row, count = TokenRow(trees), model.sizes.layers
        until = count - 1 - _numbers(len(row)) % len(row) * count // len(row)  # the last layer that asks for a token
        asked = {layer: np.flatnonzero(until >= layer) for layer in range(count)}
        wanted, equal = self._one_by_one(trees), list[bool]()

        def compare(layer: int, found: Tensor) -> None:
            equal.append(_equal(found, wanted[layer][torch.from_numpy(asked[layer]).to(found.device)]))

        self.run(row, asked, compare)
        return len(equal) == count and all(equal)

    def _one_by_one(self, trees: Sequence[Tree]) -> list[Tensor]:
        """The coefficients `[token, memory]` of every layer, of the trees' sentences, each run alone."""
        found: list[list[Tensor]] = [[] for _ in range(self._model.sizes.layers)]
        for tree in trees:
            for branch in (Branch(0, tree.trunk), *tree.branches):

                def keep(layer: int, coefficients: Tensor, after: int = branch.after) -> None:
                    found[layer].append(coefficients[0, after:].clone())

                ids = torch.from_numpy(np.concatenate([tree.trunk[: branch.after], branch.tokens]))[None]
                with read_coefficients(self._model, keep, own_thread=True):
                    self._model.backbone(ids.to(self._model.device))
        return [torch.cat(each) for each in found]


@final
class _Steps:
    """What the hooks of one forward do, block by block, for the thread that made it.

    `_kept` are the tokens that the running block was given, `_rows` which of them its feed-forward layer computes.
    """

    def __init__(self, model: LanguageModel, row: TokenRow, asked: Mapping[int, Ints]) -> None:
        self._model, self._row, self._asked = model, row, asked
        self._deepest = row.deepest(asked)
        self._kept = self._rows = np.arange(len(row))
        self._chunks: list[Chunk] = []
        self._looks = Watched(own_thread=True)

    def install(self, layer: int, hooks: ExitStack) -> None:
        """Sets the hooks of one layer, but for what reads its coefficients."""
        parts = self._model.layer(layer)

        def enter(_: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any] = UNNAMED) -> Any:
            return self._narrow(layer, inputs, named) if self._looks() else None

        hooks.enter_context(parts.block.register_forward_pre_hook(enter, with_kwargs=True))
        if isinstance(parts.ffn, DenseFeedForward):
            for module in {each.module for each in parts.ffn.maps[:-1]}:
                hooks.enter_context(module.register_forward_pre_hook(self._choose))
            hooks.enter_context(parts.ffn.down.module.register_forward_hook(self._spread))

    def deliver_to(self, read: Read) -> Read:
        """What takes all that a layer computed from its hook, and hands on what was asked for."""

        def deliver(layer: int, coefficients: Tensor) -> None:
            computed = self._kept[self._rows] if coefficients.shape[1] == len(self._rows) else self._kept
            read(layer, _pick(coefficients[0], 0, np.searchsorted(computed, self._asked[layer])))

        return deliver

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **rest: Any) -> Tensor:
        """Attention of every token to those that it follows; raises ValueError for another number of tokens."""
        if not len(self._kept) == query.shape[-2] == key.shape[-2]:
            raise ValueError("attention among other tokens than those of the trees")
        if not self._chunks or self._chunks[0].mask.device != query.device:
            self._chunks = self._row.chunks(self._kept, like=query)
        kinds = {name: each for name, each in rest.items() if name not in ("attn_mask", "is_causal")}
        outputs = []
        for chunk in self._chunks:
            own, stem = slice(chunk.first, chunk.last), chunk.trunk
            keys, values = (
                torch.cat([each[..., stem, :], each[..., own, :]], -2) if stem.stop else each[..., own, :]
                for each in (key, value)
            )
            found = scaled_dot_product_attention(query[..., own, :], keys, values, attn_mask=chunk.mask, **kinds)
            outputs.append(found)
        return torch.cat(outputs, -2)

    def _narrow(self, layer: int, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """A block's arguments for those tokens only on which something depends there or later."""
        before, kept = self._kept, np.flatnonzero(self._deepest >= layer)
        needed = np.union1d(np.flatnonzero(self._deepest > layer), self._asked.get(layer, kept[:0]))
        self._rows = np.searchsorted(kept, needed)
        if len(kept) < len(before):
            self._kept, self._chunks = kept, []
        self._model.go_on_with(len(kept))
        if len(kept) == len(self._row):
            return None
        stream, onward, count = stream_of(inputs, named), np.searchsorted(before, kept), len(self._row)

        def cut(value: Any) -> Any:
            if value is stream:
                return _pick(value, -2, onward)
            if isinstance(value, tuple | list):
                return type(value)(map(cut, value))
            told = isinstance(value, Tensor) and count in value.shape
            return _pick(value, value.shape.index(count), kept) if told else value

        return tuple(map(cut, inputs)), {name: cut(value) for name, value in named.items()}

    def _choose(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """What a feed-forward layer reads, of the tokens that it computes."""
        if not self._looks() or len(self._rows) == len(self._kept):
            return None
        self._model.go_on_with(len(self._rows))
        return _pick(inputs[0], -2, self._rows), *inputs[1:]

    def _spread(self, _: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """What a feed-forward layer gives, for all tokens of the block: nothing for those that it left out."""
        if not self._looks() or len(self._rows) == len(self._kept):
            return None
        self._model.go_on_with(len(self._kept))
        whole = output.new_zeros(*output.shape[:-2], len(self._kept), output.shape[-1])
        return whole.index_copy_(-2, torch.from_numpy(self._rows).to(output.device), output)


@final
class _Attention(TorchFunctionMode):
    """Has somebody else attend, wherever this thread asks PyTorch for attention."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self._attend = attend

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called = self._attend if func is scaled_dot_product_attention else func
        return called(*args, **(kwargs or {}))


def _is_true(said: Callable[[], bool]) -> bool:
    """Whether that is so; not, where the model refuses what it is given."""
    try:
        return said()
    except _REFUSALS:
        return False


def _attends_causally(model: LanguageModel, longest: int) -> bool:
    """Whether every token of a sentence attends to itself and to all before it alike, as far as PyTorch is asked."""
    plain = list[bool]()

    def attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **rest: Any) -> Tensor:
        if attn_mask is None:
            plain.append(bool(rest.get("is_causal")))
        else:
            seen = attn_mask if attn_mask.dtype == torch.bool else attn_mask == 0
            hidden = ~seen if attn_mask.dtype == torch.bool else attn_mask < torch.finfo(attn_mask.dtype).min / 4
            causal = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=seen.device).tril()
            plain.append(bool((seen == causal).all() & (hidden == ~causal).all()))
        return scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, **rest)

    ids = torch.from_numpy(_numbers(longest) % model.sizes.vocabulary)[None].to(model.device)
    with _Attention(attend):
        model.backbone(ids)
    return len(plain) > 0 and all(plain)


def _equal(found: Tensor, wanted: Tensor) -> bool:
    """Whether two tensors are the same numbers up to rounding, of their own size and of what is usual there."""
    limit = _TOLERANCE if wanted.dtype in (torch.float32, torch.float64) else HALF_TOLERANCE
    found, wanted = found.double(), wanted.double()
    usual = wanted.square().mean().sqrt()
    return found.shape == wanted.shape and bool(((found - wanted).abs() <= limit * (wanted.abs() + usual)).all())


def _numbers(count: int) -> Ints:
    """So many numbers far apart."""
    return 31 + 7919 * np.arange(count)


def _pick(tensor: Tensor, dimension: int, places: Ints) -> Tensor:
    return tensor.index_select(dimension, torch.from_numpy(places).to(tensor.device))
