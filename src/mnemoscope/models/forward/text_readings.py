"""Reads coefficients and streams of texts, in batches as mining reads them: sorted by length, padded on the right.

Of a batch's numbers only what is asked for is kept, as each layer computes it: beside a batch nothing exists that is
larger than the result. Positions of different texts do not meet, so every number is that of its text alone, but for
the order of sums.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import index
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.errors import MemoryIdError, ModelUnsupported, NotFinite, OptionError, PromptError
from mnemoscope.foundation.memory_changes import At
from mnemoscope.foundation.memory_names import MemoryId, NamedMemories
from mnemoscope.foundation.options.chat_prompt import as_written, choose_position, first_position, own_tokens
from mnemoscope.foundation.origin import made_by
from mnemoscope.models.forward.attention import Part, find_attention, read_attention, streams_around
from mnemoscope.models.forward.batches import default_batch_tokens, pack, pad, sides
from mnemoscope.models.forward.hooks import Block, read_blocks, read_coefficients
from mnemoscope.models.language_model import LanguageModel, Memories, Texts
from mnemoscope.models.modules.taps import Taps, reach
from mnemoscope.models.object_state import hold_model
from mnemoscope.models.text_arrays import Floats32, TextArrays

Ints = NDArray[np.int64]
Numbers = dict[int, tuple[int, ...]]
"""Of memories, by layer."""
REDUCED = ("mean", "max", "last")
STREAMS = ("residual", "attention", "ffn_input", "ffn_output", "ffn_update", "layer_output")


class _AskedTexts:
    """The tokens of the texts, the batches that they make, and which of their positions are asked about."""

    def __init__(self, model: LanguageModel, texts: Texts, at: At, reduce: str | None) -> None:
        if isinstance(at, bool) or not (isinstance(at, int) or at in ("all", "last")):
            raise OptionError(f"at={at!r} is not known; choose all, last, or the number of a position")
        if reduce not in (None, *REDUCED):
            raise OptionError(f"reduce={reduce!r} is not known; choose {', '.join(REDUCED)}, or None")
        self.model, self.single, self.reduce = model, _is_prompt(texts), reduce
        self.prompts: list[str] = []
        self.tokens: list[list[int]] = []
        places: list[int] = []
        several = isinstance(texts, Iterable) and not isinstance(texts, Mapping)
        given: list[Any] = [texts] if self.single else list(texts) if several else []
        if not given or not all(map(_is_prompt, given)):
            raise OptionError(f"texts={texts!r:.60} is neither a text nor a list of texts; give one of them")
        for number, text in enumerate(given):
            try:
                prompt = model.prompt_text(text)
                tokens, first, own = model.prompt_tokens(prompt), first_position(prompt), own_tokens(prompt)
                if isinstance(at, int):
                    places.append(choose_position(len(tokens), at, first=first, own=own))
                elif "last" in (at, reduce):
                    places.append(model.reading.asked_column(tokens))
            except PromptError as error:
                raise error if self.single else PromptError(f"texts[{number}] cannot be read: {error}") from None
            self.prompts.append(prompt)
            self.tokens.append(tokens)
        self.lengths = np.array(list(map(len, self.tokens)), np.int64)
        self._places = np.array(places, np.int64) if places else None
        self.whole = self._places is None and reduce is None
        """Whether all positions are asked for, each by itself."""
        self.counts = self.lengths if self.whole else np.ones_like(self.lengths)
        self.firsts = tuple(map(first_position, self.prompts))
        self._options = {"texts": list(map(as_written, self.prompts)), "at": at, "reduce": reduce}

    def positions(self, number: int) -> NDArray[np.int32]:
        """The positions of a text that stand in the result, counted from its first token."""
        places = np.arange(self.lengths[number]) if self._places is None else self._places[number : number + 1]
        return places.astype(np.int32)

    def batches(self) -> Iterator[tuple[Ints, Tensor]]:
        """The numbers of the texts of each batch, which ascend in length, and its ids `[batch, position]`."""
        order = np.argsort(self.lengths, kind="stable")
        columns, area = self.model.reading.columns(self.lengths[order]), default_batch_tokens(self.model)
        for part in pack(columns, area=area, rows=area, apart=sides(self.model, columns)):
            yield order[part], pad([np.array(self.tokens[one]) for one in order[part].tolist()], self.model)

    def keep(self, numbers: Ints, tensor: Tensor, results: Sequence[Floats32], what: str) -> None:
        """Puts what is asked of a batch's `tensor [batch, position, entry]` into the texts' results."""
        reading, lengths, edges = self.model.reading, self.lengths[numbers], [0, len(numbers)]
        if self._places is not None:
            columns = torch.from_numpy(reading.column(self._places[numbers])).to(tensor.device)
            tensor = tensor[torch.arange(len(numbers), device=tensor.device), columns][:, None]
        else:
            edges[1:1] = (np.flatnonzero(np.diff(lengths)) + 1).tolist()
        for a, b in pairwise(edges):  # rows of one length
            piece = tensor[a:b] if self._places is not None else tensor[a:b, reading.own(int(lengths[a]))]
            if self.reduce == "max":
                piece = piece.amax(1, keepdim=True)
            elif self.reduce == "mean":
                piece = piece.mean(1, keepdim=True, dtype=torch.float32)
            found = piece.float().cpu().numpy()
            if not np.isfinite(found).all():
                raise NotFinite(f"{what} has NaN or infinite numbers for these texts; try --dtype float32")
            for number, own in zip(numbers[a:b].tolist(), found, strict=True):
                results[number][...] = own

    def empty(self, width: int) -> tuple[Floats32, list[Floats32]]:
        """An array for all texts, and the parts of it that the texts fill."""
        array = np.full((len(self.tokens), int(self.counts.max()), width), np.nan, np.float32)
        parts = [own[:count] for own, count in zip(array, self.counts, strict=True)]
        return array if self.whole else array[:, 0], parts

    def arrays(self, entry: str, arrays: Mapping[Any, Floats32], memories: Numbers, **options: Any) -> TextArrays:
        texts = self.model.vocabulary()[0]
        return TextArrays(
            arrays,
            axes=("text", "position", entry) if self.whole else ("text", entry),
            tokens=tuple(tuple(texts[token] for token in one) for one in self.tokens),
            firsts=self.firsts,
            memories=memories,
            made_by=made_by(model=self.model.fingerprint, atlas=None, options=self._options | options, seed=None),
        )


def _is_prompt(texts: Any) -> bool:
    return isinstance(texts, str) or (isinstance(texts, list | tuple) and isinstance(next(iter(texts), 0), Mapping))


def _numbers_of(model: LanguageModel, layers: Iterable[int] | None, memories: Memories) -> Numbers:
    asked = range(model.sizes.layers) if layers is None else [layers] if isinstance(layers, int) else layers
    try:
        every = {layer: model.numbering(layer) for layer in map(index, asked)}
    except TypeError:
        raise OptionError(f"layers={layers!r:.60} is not possible; give a list of numbers") from None
    if memories is None:
        chosen = {layer: dict.fromkeys(range(numbering.count)) for layer, numbering in every.items()}
    else:
        chosen = {}
        for one in memories if isinstance(memories, Iterable) and not isinstance(memories, str) else [memories]:
            name: Any = getattr(one, "id", one)  # of an atlas's memory
            if isinstance(name, int | np.integer):
                found = [(layer, int(name)) for layer in every]
            elif isinstance(name, str | MemoryId):
                named = NamedMemories.parse(str(name)).of(model)
                found = [(each.layer, model.numbering(each.layer).number(each) or 0) for each in named]
            else:
                raise MemoryIdError(f"{one!r:.60} does not name a memory; write one as L10.M222, or give its number")
            for layer, number in found:
                if layers is not None and layer not in every:
                    raise OptionError(f"{name} is in none of the layers {list(every)}; name its layer, or no layers")
                if not 0 <= number < model.numbering(layer).count:
                    has = model.numbering(layer).range_text()
                    raise MemoryIdError(f"memory {one} is not in layer {layer} of {model.spec}, which has {has}")
                chosen.setdefault(layer, {})[number] = None
    if not chosen:
        raise OptionError("layers or memories names none; name one or more, or leave it out for all")
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
    with hold_model(model), model.lock, torch.inference_mode():
        asked, chosen = _AskedTexts(model, texts, at, reduce), _numbers_of(model, layers, memories)
        frame = _Rows(asked, chosen)
        empty = {
            layer: asked.empty(len(numbers)) if as_arrays else frame.empty(layer) for layer, numbers in chosen.items()
        }
        batch: list[Ints] = []

        def keep(layer: int, tensor: Tensor) -> None:
            if memories is not None:
                tensor = tensor.index_select(2, torch.tensor(chosen[layer], device=tensor.device))
            asked.keep(batch[0], tensor, empty[layer][1], f"layer {layer}")

        with read_coefficients(model, keep, layers=chosen, own_thread=True):
            for numbers, ids in asked.batches():
                batch[:] = [numbers]
                model.backbone(ids, stop_after=max(chosen))
    if as_arrays:
        return asked.arrays("memory", {layer: array for layer, (array, _) in empty.items()}, chosen)
    return frame.frame()


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
    with hold_model(model), model.lock, torch.inference_mode():
        asked, chosen = _AskedTexts(model, texts, at, reduce), list(_numbers_of(model, layers, None))
        attention = [replace(one, weights=None) for one in find_attention(model)] if "attention" in wanted else []
        if lacking := [layer for layer in chosen if attention and not attention[layer].separable]:
            raise ModelUnsupported(
                f"what attention adds in layer {lacking[0]} of {model.spec} cannot be told from its block; leave"
                " attention out, or ask for other layers"
            )
        empty = {(name, layer): asked.empty(model.sizes.hidden) for name in wanted for layer in chosen}
        entered: dict[int, dict[Part, Tensor]] = {layer: {} for layer in chosen}
        batch: list[Ints] = []

        def note(layer: int, part: Part, tensor: Tensor) -> None:
            if layer in chosen:
                entered[layer][part] = tensor.clone()

        def keep(layer: int, block: Block) -> None:
            for name in wanted:
                if name == "attention":
                    around = streams_around(entered[layer], block.residual)
                    before, mixed, between, behind = (stream.to(block.residual.device) for stream in around)
                    tensor = (mixed - before) + (behind - between)
                    entered[layer].clear()
                else:
                    tensor = getattr(block, name)
                asked.keep(batch[0], tensor, empty[name, layer][1], f"{name} of layer {layer}")

        with (
            read_attention(model, attention, note, own_thread=True),
            read_blocks(model, keep, layers=chosen, own_thread=True),
            Taps(own_thread=True) as taps,
        ):
            taps.leaves(model.layer(max(chosen)).block, reach)  # blocks behind the last one are not run
            for numbers, ids in asked.batches():
                batch[:] = [numbers]
                model.backbone(ids)
    return asked.arrays("hidden", {key: array for key, (array, _) in empty.items()}, {}, streams=wanted)


class _Rows:
    """The rows of a frame: of each text in turn its layers, memories and positions."""

    def __init__(self, asked: _AskedTexts, chosen: Numbers) -> None:
        self._asked, self._chosen = asked, chosen
        self._firsts = np.cumsum([0, *map(len, chosen.values())])
        self._coefficients = np.empty(0, np.float32)

    def empty(self, layer: int) -> tuple[Floats32, list[Floats32]]:
        width, place = self._firsts[-1], list(self._chosen).index(layer)
        ends = np.cumsum(self._asked.counts) * width
        if not len(self._coefficients):
            self._coefficients = np.empty(ends[-1], np.float32)
        rows = slice(self._firsts[place], self._firsts[place + 1])
        texts = np.split(self._coefficients, ends[:-1])
        return self._coefficients, [own.reshape(width, -1)[rows].T for own in texts]

    def frame(self) -> Any:
        import polars as pl  # mining does without
        import pyarrow as pa

        asked, counts, width = self._asked, self._asked.counts, int(self._firsts[-1])

        def each(of_text: Iterable[NDArray[Any]]) -> NDArray[Any]:
            """Numbers of each text's positions, for each memory."""
            return np.concatenate([np.tile(one, width) for one in of_text])

        columns: dict[str, Any] = {}
        if not asked.single:
            number = np.repeat(np.arange(len(counts), dtype=np.uint32), counts * width)
            columns["text"] = pl.Series(list(map(str, asked.prompts)), dtype=pl.String).gather(number)
        layer = np.repeat(np.array(list(self._chosen), np.int16), list(map(len, self._chosen.values())))
        memory = np.concatenate([np.array(one, np.int32) for one in self._chosen.values()])
        for name, of_memory in {"layer": layer, "memory": memory}.items():
            columns[name] = np.concatenate([np.repeat(of_memory, count) for count in counts])
        if asked.reduce is None:
            places = list(map(asked.positions, range(len(counts))))
            columns["position"] = each(one + np.int32(first) for one, first in zip(places, asked.firsts, strict=True))
            ids = each(np.array(tokens)[one] for tokens, one in zip(asked.tokens, places, strict=True))
            columns["token"] = pl.Series(asked.model.vocabulary()[0], dtype=pl.String).gather(ids)
        columns["coefficient"] = pl.Series(pa.array(self._coefficients))
        return pl.DataFrame(columns)
