"""Runs that go on where the beginning of another run ends: only the tokens behind it are computed.

Attention looks back at keys and values alone, so those of a whole sentence serve every run that begins as it does. They
are kept by a cache of transformers' kind that each model fills and reads; masks and positions are given, since every
row of a batch goes on from a place of its own. Coefficients differ in their last bits from those of whole runs.

Whether a model allows it is no row of a table: `SharedPrefix.of` compares such a run with a whole one at every layer,
on a sentence as long as any that will be asked about (a window of attention would show only there).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor
from transformers import DynamicCache

from mnemoscope.models.hooks import read_coefficients
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.observed import same

_REFUSALS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, NotImplementedError, AssertionError)
"""What a model may raise that has no such cache, or takes no such mask."""

_SHORT = 8
"""Positions of the two rows that are run together as a proof; a third, as long as any, is run alone."""

KeysAndValues = Mapping[int, tuple[Tensor, Tensor]]
"""By block `[sentence, head, position, width]` each."""


class _Kept(DynamicCache):
    """Keeps what a run from the beginning hands over, and hands back the same."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        self.found[layer_idx] = key_states.clone(), value_states.clone()  # they may be views of something larger
        return key_states, value_states

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0


@dataclass(frozen=True)
class Beginning:
    """The first `length` positions, beginning token included, of a row of a run that was kept."""

    kept: KeysAndValues
    row: int
    length: int


class _Past(DynamicCache):
    """Hands every block the keys and values of the rows' beginnings before the block's own; keeps nothing."""

    def __init__(self, beginnings: Sequence[Beginning], longest: int) -> None:
        super().__init__()
        self._beginnings, self._longest = beginnings, longest

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        return tuple(self._join(own, layer_idx, which) for which, own in enumerate((key_states, value_states)))

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return self._longest

    def get_mask_sizes(self, query_length: int, *_: Any, **__: Any) -> tuple[int, int]:
        return self._longest + query_length, 0

    def _join(self, own: Tensor, layer: int, which: int) -> Tensor:
        rows, heads, positions, width = own.shape
        whole = own.new_zeros(rows, heads, self._longest + positions, width)
        for row, beginning in enumerate(self._beginnings):
            whole[row, :, : beginning.length] = beginning.kept[layer][which][beginning.row, :, : beginning.length]
        whole[:, :, self._longest :] = own
        return whole


@final
class SharedPrefix:
    """Forwards of one model that share beginnings; any number of threads may run them side by side."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.bytes_per_position = 0
        """What is kept of one position of a sentence, in all blocks."""

    @classmethod
    def of(cls, model: LanguageModel, *, longest: int) -> Self | None:
        """For sentences of up to `longest` tokens; None for models that do not allow it, and in half precision."""
        shared = cls(model)
        if model.dtype != torch.float32 or longest < 3:
            return None
        try:
            with torch.inference_mode():
                whole = longest + model.beginning.length
                short = min(whole, _SHORT)
                proved = shared._is_proved(short, [1, short - 2]) and shared._is_proved(whole, [whole // 2])
                return shared if proved else None
        except _REFUSALS:
            return None

    def keep(self, ids: Tensor, *, stop_after: int) -> KeysAndValues:
        """A forward of ids `[batch, position]` from the beginning on, whose keys and values are kept."""
        kept = _Kept()
        self._model.backbone(ids, stop_after=stop_after, past_key_values=kept, use_cache=True)
        return kept.found

    def go_on(self, beginnings: Sequence[Beginning], ids: Tensor, *, lengths: Sequence[int], stop_after: int) -> None:
        """A forward of ids `[batch, position]` that follow each row's beginning, `lengths` of them and then padding."""
        starts = torch.tensor([one.length for one in beginnings], device=ids.device)
        ends = starts + torch.tensor(lengths, device=ids.device)
        longest, count = int(starts.max()), ids.shape[1]
        steps = torch.arange(count, device=ids.device)
        before = torch.arange(longest, device=ids.device) < starts[:, None]
        seen = torch.cat(
            [before[:, None].expand(-1, count, -1), (steps <= steps[:, None]).expand(len(ids), -1, -1)], -1
        )
        mask = torch.zeros(seen.shape, dtype=self._model.dtype, device=ids.device)
        mask.masked_fill_(~seen, torch.finfo(mask.dtype).min)
        self._model.backbone(
            ids, stop_after=stop_after, past_key_values=_Past(beginnings, longest), attention_mask=mask[:, None],
            # The padding's may not lie beyond the model's context.
            position_ids=torch.minimum(starts[:, None] + steps, ends[:, None] - 1), use_cache=True,
        )  # fmt: skip

    def _is_proved(self, length: int, gaps: Sequence[int]) -> bool:
        """Whether rows without the tokens at `gaps`, one each, have the coefficients of whole runs, in every layer."""
        model, last = self._model, self._model.sizes.layers - 1
        chance = torch.Generator().manual_seed(0)
        ids = torch.randint(model.sizes.vocabulary, (len(gaps), length), generator=chance).to(model.device)
        with read_coefficients(model, lambda *_: None, own_thread=True):
            kept = self.keep(ids, stop_after=last)
        if not kept:
            return False
        self.bytes_per_position = sum(2 * keys[0, :, 0].numel() * keys.itemsize for keys, _ in kept.values())
        short = [torch.cat([row[:gap], row[gap + 1 :]]) for row, gap in zip(ids, gaps, strict=True)]
        whole = self._coefficients(lambda: model.backbone(torch.stack(short), stop_after=last))
        lengths = [length - 1 - gap for gap in gaps]
        rest = torch.zeros(len(gaps), max(lengths), dtype=ids.dtype, device=ids.device)
        for row, (one, count) in enumerate(zip(short, lengths, strict=True)):
            rest[row, :count] = one[-count:]
        beginnings = [Beginning(kept, row, gap) for row, gap in enumerate(gaps)]
        found = self._coefficients(lambda: self.go_on(beginnings, rest, lengths=lengths, stop_after=last))
        return all(
            same(found[layer][row, : lengths[row]], whole[layer][row, gap:])
            for layer in whole
            for row, gap in enumerate(gaps)
        )

    def _coefficients(self, run: Any) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}

        def keep(layer: int, coefficients: Tensor) -> None:
            found[layer] = coefficients.clone()

        with read_coefficients(self._model, keep, own_thread=True):
            run()
        return found
