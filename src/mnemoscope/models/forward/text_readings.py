"""Reads coefficients and streams of texts, in batches as mining reads them: sorted by length, padded on the right.

Of a batch's numbers only what is asked for is kept, as each layer computes it: beside a batch nothing exists that is
larger than the result. Positions of different texts do not meet, so every number is that of its text alone, but for
the order of sums.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.errors import MemoryIdError, ModelUnsupported, NotFinite, OptionError, PromptError
from mnemoscope.foundation.memory_changes import At
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.options.chat_prompt import Prompt, as_written, choose_position, first_position, own_tokens
from mnemoscope.foundation.origin import made_by
from mnemoscope.models.forward.attention import find_attention, read_attention
from mnemoscope.models.forward.batches import default_batch_tokens, pack, pad, sides
from mnemoscope.models.forward.hooks import Block, read_blocks, read_coefficients
from mnemoscope.models.language_model import LanguageModel, Memories, Texts
from mnemoscope.models.modules.taps import Taps, reach
from mnemoscope.models.object_state import hold_model
from mnemoscope.models.text_arrays import Floats32, TextArrays

Ints = NDArray[np.int64]
Put = Callable[[Ints, Floats32], None]
"""Takes numbers `[row, position, entry]` of these texts."""
REDUCED = ("mean", "max", "last")
STREAMS = ("residual", "attention", "ffn_input", "ffn_output", "ffn_update", "layer_output")


class _AskedTexts:
    """The tokens of the texts, the batches that they make, and which of their positions are asked about."""

    def __init__(self, model: LanguageModel, texts: Texts, at: At, reduce: str | None) -> None:
        whole = isinstance(at, int) and not isinstance(at, bool)
        if not whole and at not in ("all", "last"):
            raise OptionError(f"at={at!r} is not known; choose all, last, or the number of a position")
        if reduce is not None and reduce not in REDUCED:
            raise OptionError(f"reduce={reduce!r} is not known; choose {', '.join(REDUCED)}, or None")
        at, self._reduce = ("last" if (at, reduce) == ("all", "last") else at), reduce
        self.model, self.single = model, _is_prompt(texts)
        self.prompts: list[str] = []
        self.tokens: list[list[int]] = []
        places: list[int] = []
        given: list[Any] = [texts] if self.single else _listed(texts)
        for number, text in enumerate(given):
            try:
                prompt = model.prompt_text(text)
                tokens = model.prompt_tokens(prompt)
                if at != "all":
                    asked, first = (None if at == "last" else int(at)), first_position(prompt)
                    places.append(choose_position(len(tokens), asked, first=first, own=own_tokens(prompt)))
            except PromptError as error:
                raise error if self.single else PromptError(f"texts[{number}] cannot be read: {error}") from None
            self.prompts.append(prompt)
            self.tokens.append(tokens)
        self.lengths = np.array([len(one) for one in self.tokens], np.int64)
        self._places = None if at == "all" else np.array(places, np.int64)
        self.firsts = tuple(map(first_position, self.prompts))
        self.is_reduced = reduce is not None
        self.counts = self.lengths if self._places is None and not self.is_reduced else np.ones_like(self.lengths)
        """How many numbers of an entry a text gives."""
        self.axes = ("text", "position") if self._places is None and not self.is_reduced else ("text",)
        self.origin = made_by(
            model=model.fingerprint,
            atlas=None,
            options={"texts": [as_written(one) for one in self.prompts], "at": at, "reduce": reduce},
            seed=None,
        )

    def positions(self, number: int) -> NDArray[np.int32]:
        """Which positions of a text stand in the result, counted from its first token, if they are not reduced."""
        places = np.arange(self.lengths[number]) if self._places is None else self._places[number : number + 1]
        return places.astype(np.int32)

    def batches(self) -> Iterator[tuple[Ints, Tensor]]:
        """The numbers of the texts of each batch, which ascend in length, and its ids `[batch, position]`."""
        order = np.argsort(self.lengths, kind="stable")
        columns, area = self.model.reading.columns(self.lengths[order]), default_batch_tokens(self.model)
        for part in pack(columns, area=area, rows=area, apart=sides(self.model, columns)):
            numbers = order[part]
            yield numbers, pad([np.array(self.tokens[one]) for one in numbers.tolist()], self.model)

    def cut(self, numbers: Ints, tensor: Tensor, put: Put, what: str) -> None:
        """Gives `put` what is asked of a batch's `tensor [batch, position, entry]`."""
        reading, device = self.model.reading, tensor.device
        if self._places is not None:
            columns = torch.from_numpy(reading.columns(self._places[numbers])).to(device)
            pieces = [(numbers, tensor[torch.arange(len(numbers), device=device), columns][:, None])]
        else:
            lengths = self.lengths[numbers]
            edges = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)]
            pieces = [(numbers[a:b], tensor[a:b, reading.own(int(lengths[a]))]) for a, b in pairwise(edges)]
        for rows, piece in pieces:
            if self._reduce == "max":
                piece = piece.amax(1, keepdim=True)
            elif self._reduce == "mean":
                piece = piece.mean(1, keepdim=True, dtype=torch.float32)
            found = piece.float().cpu().numpy()
            if not np.isfinite(found).all():
                raise NotFinite(f"{what} has NaN or infinite numbers for these texts; try --dtype float32")
            put(rows, found)

    def empty(self, width: int) -> Floats32:
        """The array of a layer before it is filled."""
        shape = (len(self.tokens), *([int(self.counts.max())] if "position" in self.axes else []), width)
        return np.full(shape, np.nan, np.float32)

    def put_into(self, array: Floats32) -> Put:
        def put(numbers: Ints, found: Floats32) -> None:
            if "position" in self.axes:
                array[numbers, : found.shape[1]] = found
            else:
                array[numbers] = found[:, 0]

        return put

    def arrays(
        self, entry: str, arrays: Mapping[Any, Floats32], memories: Mapping[int, tuple[int, ...]], **options: Any
    ) -> TextArrays:
        texts = self.model.vocabulary()[0]
        tokens = tuple(tuple(texts[token] for token in one) for one in self.tokens)
        origin = self.origin | {"options": self.origin["options"] | options}
        return TextArrays((*self.axes, entry), arrays, tokens, self.firsts, memories, origin)


def _is_prompt(texts: Any) -> bool:
    chat = isinstance(texts, list | tuple) and len(texts) > 0 and isinstance(texts[0], Mapping)
    return isinstance(texts, str) or chat


def _listed(texts: Any) -> list[Prompt]:
    listed = [] if isinstance(texts, Mapping) or not isinstance(texts, Iterable) else list(texts)
    if not listed or not all(map(_is_prompt, listed)):
        raise OptionError(f"texts={texts!r:.60} is neither a text nor a list of texts; give one of them")
    return listed


def _chosen(model: LanguageModel, layers: Iterable[int] | None, memories: Memories) -> dict[int, tuple[int, ...]]:
    """The numbers of the memories asked for, by layer."""
    every = dict.fromkeys(range(model.sizes.layers) if layers is None else map(int, layers))
    counts = {layer: model.numbering(layer).count for layer in every}
    if not every:
        raise OptionError("layers names none; name one or more, or leave it out for all")
    if memories is None:
        return {layer: tuple(range(count)) for layer, count in counts.items()}
    chosen: dict[int, dict[int, None]] = {}
    for one in [memories] if isinstance(memories, str | MemoryId | int) else memories:
        if isinstance(one, int | np.integer):
            places = [(layer, int(one) if 0 <= one < count else None) for layer, count in counts.items()]
        else:
            name = one if isinstance(one, MemoryId) else MemoryId.parse(one)
            if layers is not None and name.layer not in every:
                raise OptionError(f"{name} is in none of the layers {list(every)}; name its layer, or no layers")
            places = [(name.layer, model.numbering(name.layer).number(name))]
        for layer, number in places:
            if number is None:
                has = model.numbering(layer).range_text()
                raise MemoryIdError(f"memory {one} is not in layer {layer} of {model.spec}, which has {has}")
            chosen.setdefault(layer, {})[number] = None
    if not chosen:
        raise OptionError("memories names none; name one or more, or leave it out for all")
    return {layer: tuple(numbers) for layer, numbers in chosen.items()}


def read_text_coefficients(
    model: LanguageModel,
    texts: Texts,
    layers: Iterable[int] | None,
    memories: Memories,
    at: At,
    reduce: str | None,
    as_arrays: bool,
) -> Any:
    """`LanguageModel.coefficients`."""
    with _held(model):
        asked, chosen = _AskedTexts(model, texts, at, reduce), _chosen(model, layers, memories)
        taken = {
            layer: None if memories is None else torch.tensor(numbers, device=model.devices[layer])
            for layer, numbers in chosen.items()
        }
        frame = None if as_arrays else _Rows(asked, chosen)
        arrays = {layer: asked.empty(len(numbers)) for layer, numbers in chosen.items()} if as_arrays else {}
        puts = {layer: asked.put_into(arrays[layer]) if frame is None else frame.put_into(layer) for layer in chosen}
        batch: list[Ints] = []

        def keep(layer: int, coefficients: Tensor) -> None:
            some = taken[layer]
            found = coefficients if some is None else coefficients.index_select(2, some.to(coefficients.device))
            asked.cut(batch[-1], found, puts[layer], f"layer {layer}")

        for numbers, ids in asked.batches():
            batch[:] = [numbers]
            with read_coefficients(model, keep, layers=chosen, own_thread=True):
                model.backbone(ids, stop_after=max(chosen))
    return asked.arrays("memory", arrays, chosen) if frame is None else frame.frame()


def capture_streams(
    model: LanguageModel,
    texts: Texts,
    streams: str | Iterable[str],
    layers: Iterable[int] | None,
    at: At,
    reduce: str | None,
) -> TextArrays:
    """`LanguageModel.capture`."""
    wanted = list(dict.fromkeys([streams] if isinstance(streams, str) else streams))
    if unknown := [name for name in wanted or [""] if name not in STREAMS]:
        raise OptionError(f"{unknown[0]!r} is not a stream; the streams are {', '.join(STREAMS)}")
    with _held(model):
        asked, chosen = _AskedTexts(model, texts, at, reduce), list(_chosen(model, layers, None))
        attention = [replace(one, weights=None) for one in find_attention(model)] if "attention" in wanted else []
        if lacking := [layer for layer in chosen if attention and not attention[layer].separable]:
            raise ModelUnsupported(
                f"what attention adds in layer {lacking[0]} of {model.spec} cannot be told from its block; leave"
                " attention out, or ask for other layers"
            )
        arrays = {(name, layer): asked.empty(model.sizes.hidden) for name in wanted for layer in chosen}
        entered: dict[tuple[int, str], Tensor] = {}
        batch: list[Ints] = []

        def note(layer: int, part: str, tensor: Tensor) -> None:
            if layer in chosen:
                entered[layer, part] = tensor.clone()

        def keep(layer: int, block: Block) -> None:
            for name in wanted:
                if name == "attention":
                    before = entered.pop((layer, "input"))
                    tensor = entered.pop((layer, "sum"), block.residual).to(before.device) - before
                else:
                    tensor = getattr(block, name)
                put = asked.put_into(arrays[name, layer])
                asked.cut(batch[-1], tensor, put, f"{name} of layer {layer}")

        for numbers, ids in asked.batches():
            batch[:] = [numbers]
            with (
                read_attention(model, attention, note, own_thread=True),
                read_blocks(model, keep, layers=chosen, own_thread=True),
                Taps(own_thread=True) as taps,
            ):
                taps.leaves(model.layer(max(chosen)).block, reach)  # blocks behind the last one are not run
                model.backbone(ids)
    return asked.arrays("hidden", arrays, {}, streams=wanted)


@contextmanager
def _held(model: LanguageModel) -> Iterator[None]:
    with hold_model(model), model.lock, torch.inference_mode():
        yield


class _Rows:
    """The rows of a frame: of each text in turn its layers, memories and positions."""

    def __init__(self, asked: _AskedTexts, chosen: Mapping[int, tuple[int, ...]]) -> None:
        self._asked, self._chosen = asked, chosen
        self._width = sum(map(len, chosen.values()))
        ends = np.cumsum(asked.counts) * self._width
        self._coefficients = np.empty(int(ends[-1]), np.float32)
        self._of_text = np.split(self._coefficients, ends[:-1])

    def put_into(self, layer: int) -> Put:
        layers = list(self._chosen)
        first = sum(len(self._chosen[one]) for one in layers[: layers.index(layer)])
        columns = slice(first, first + len(self._chosen[layer]))

        def put(numbers: Ints, found: Floats32) -> None:
            for number, own in zip(numbers.tolist(), found, strict=True):
                self._of_text[number].reshape(self._width, -1)[columns] = own.T

        return put

    def frame(self) -> Any:
        import polars as pl  # mining does without

        asked, counts = self._asked, self._asked.counts
        layer = np.concatenate([np.full(len(one), layer, np.int16) for layer, one in self._chosen.items()])
        memory = np.concatenate([np.array(one, np.int32) for one in self._chosen.values()])
        columns: dict[str, Any] = {}
        if not asked.single:
            number = np.repeat(np.arange(len(counts), dtype=np.uint32), counts * self._width)
            columns["text"] = pl.Series([str(one) for one in asked.prompts], dtype=pl.String).gather(number)
        for name, each in {"layer": layer, "memory": memory}.items():
            columns[name] = np.concatenate([np.repeat(each, count) for count in counts])
        if not asked.is_reduced:
            places = [asked.positions(number) for number in range(len(counts))]
            shifted = [one + first for one, first in zip(places, asked.firsts, strict=True)]
            columns["position"] = np.concatenate([np.tile(one, self._width) for one in shifted]).astype(np.int32)
            ids = [np.array(tokens)[one] for tokens, one in zip(asked.tokens, places, strict=True)]
            texts = pl.Series(asked.model.vocabulary()[0], dtype=pl.String)
            columns["token"] = texts.gather(np.concatenate([np.tile(one, self._width) for one in ids]))
        columns["coefficient"] = pl.Series(pa.array(self._coefficients))
        return pl.DataFrame(columns)
