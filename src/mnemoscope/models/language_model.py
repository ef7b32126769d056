"""A language model whose feed-forward layers can be read: sizes, tokens, keys, values, scores and the forward pass.

Owns a network and its tokenizer, and changes neither. loading.py loads every model and has it proved (proof.py) before
use. hooks.py reads coefficients while it runs; other rooms use the numbers (mining, tracing).
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from math import prod
from threading import RLock, local
from typing import Any, Literal, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mnemoscope.errors import MemoryIdError, ModelUnsupported, OptionError
from mnemoscope.foundation.cache import Cache
from mnemoscope.foundation.memory_changes import At
from mnemoscope.foundation.memory_names import MemoryId, Numbering
from mnemoscope.foundation.options.chat_prompt import ChatPrompt, Prompt, check_messages
from mnemoscope.foundation.options.model_options import display_name, full_name
from mnemoscope.foundation.words import KEYS_ONLY
from mnemoscope.models.anatomy.anatomy import Anatomy, Layer
from mnemoscope.models.loaded_parts import LoadedParts
from mnemoscope.models.memories.groups import Group, join
from mnemoscope.models.model_facts import Proof, Sizes, count_parameters
from mnemoscope.models.modules.fingerprint import fingerprint, reading_fingerprint
from mnemoscope.models.modules.linear_maps import computes_in, matrix_of, rows_of
from mnemoscope.models.modules.observed import encode_behind, run
from mnemoscope.models.modules.offloading import device_of_module, places_of
from mnemoscope.models.modules.projections import Fold, Head, LinearHead, Projection, fold_of, scale_of
from mnemoscope.models.modules.taps import Reached, Taps, reach
from mnemoscope.models.object_state import NetworkGuard, held, hold_model
from mnemoscope.models.text_arrays import TextArrays
from mnemoscope.models.tokens.chat_reader import ChatReader, chat_template
from mnemoscope.models.tokens.id_tokens import IdTokens
from mnemoscope.models.tokens.model_tokens import Reader
from mnemoscope.models.tokens.prompt_reader import mask_text, read_answer, read_prompt
from mnemoscope.models.tokens.sources import given_source

Texts = Prompt | Iterable[Prompt]
Memories = str | MemoryId | int | Iterable[str | MemoryId | int] | None
"""By name, or by number in each of the layers; None are all."""


@dataclass(frozen=True)
class Readings:
    """What reads texts in batches (text_readings.py), which needs rooms above this one."""

    coefficients: Callable[..., Any]
    capture: Callable[..., TextArrays]


PROBED_BYTES = 1 << 30
"""Bytes of probed values that a model keeps on its device: those of GPT-2 large in float32."""
_LOCKS: "WeakKeyDictionary[nn.Module, Any]" = WeakKeyDictionary()
"""One for each network: hooks act in the forwards of every model that holds it."""


class _Reloaded(type):
    """`isinstance` by name, so that a model stays one when its module is imported anew (`importlib.reload`)."""

    def __instancecheck__(cls, thing: object) -> bool:
        kind = type(thing)
        return (kind.__module__, kind.__qualname__) == (cls.__module__, cls.__qualname__)


@final
class LanguageModel(metaclass=_Reloaded):
    """One language model, proved readable.

    `block` is the kind of the blocks (pre-norm, post-norm, sandwich, parallel). `has_negative`: coefficients can be
    below zero; `signs` are their signs, (1, -1) or (1,). `longest` is the most tokens of a sentence, without the
    beginning token. `ends` are the tokens that end a generated text: the end-of-text tokens, and the beginning token.
    `linear_head`: the head is one matrix, behind a transform or not (an adaptive softmax is not). `keys_only`: an
    encoder alone, without a head. `probed`: keys or values are the outputs of modules for unit vectors. `device` is the
    head's and the input's, `devices` are the layers', `lies_on` are those of the weights. `boundaries` are row lengths,
    with the beginning token, beyond which the function differs (company.py). `eager`: plain attention is the same
    function. `unread` are the stored weights that the model did not take. `fingerprint` covers model and beginning,
    `content` the model only; `source` and `opening` open it, `name` and `spec` are shown. `cache` keeps what readers
    compute of the model. `given_source` is the text that prompts of an encoder-decoder are read with, if one was given.

    Hold `lock` while running the model with hooks, which see every forward: one thread at a time, reentrant.
    """

    def __init__(self, parts: LoadedParts, anatomy: Anatomy, *, revision: str | None, content: str) -> None:
        beginning, layers = parts.begins(anatomy.rows), anatomy.layers
        self.anatomy = anatomy
        self.source, self.opening, self.hub = parts.spec, parts.opening, parts.hub
        self.name = parts.name or display_name(full_name(parts.spec))
        self.spec = parts.opening.spec_of(self.name)
        self.revision, self.content = revision, content
        self.reading = parts.reads(anatomy.rows)
        self.fingerprint = fingerprint(content, beginning, self.reading)
        self.family, self.activation = anatomy.family, anatomy.activation
        self.block = layers[0].kind
        self.gated = any(layer.ffn.has_gate for layer in layers)
        # A probed map has the dtype of its module's products; the streams have the head's.
        self.final_norm, self.keys_only = anatomy.final_norm is not None, anatomy.keys_only
        self.linear_head = anatomy.two_level is None and not self.keys_only
        last = anatomy.head if self.linear_head else layers[0].ffn.exits[0]
        self.dtype, self.device = computes_in(last)
        self.devices = tuple(device_of_module(layer.ffn.exits[-1]) for layer in layers)
        self.lies_on = places_of(anatomy.model)
        self.has_negative = any(one.ffn.goes_negative(dtype=self.dtype, device=self.device) for one in layers)
        self.signs = (1, -1) if self.has_negative else (1,)
        self.probed = any(layer.ffn.is_probed for layer in layers)
        self._values = Cache(PROBED_BYTES, weigh=lambda values: values.untyped_storage().nbytes())
        self.usage: NetworkGuard | None = None
        _ = self.probed and self.values(0)  # fails before the first forward
        self._running, self.lock = local(), _LOCKS.setdefault(anatomy.model, RLock())
        self.cache = Cache()
        ids = isinstance(parts.tokens, IdTokens)
        self.reader: Reader = IdTokens(beginning=beginning.token) if ids else parts.tokens
        self.beginning, self.padding = beginning, parts.padding(anatomy.rows)
        self.ends = parts.ends(anatomy.rows).union(parts.beginning(anatomy.rows).tokens)
        self.sizes = Sizes(
            layers=len(layers),
            hidden=layers[0].ffn.hidden,
            memories=tuple(layer.ffn.numbering.count for layer in layers),
            vocabulary=anatomy.rows,
            context=parts.context,
            parameters=count_parameters(anatomy.model),
            ffn_parameters=anatomy.ffn_parameters,
        )
        self.longest = self.sizes.context - self.reading.framing
        self.sources, self.given_source = parts.sources_of(self.reading), ""
        self.boundaries, self.eager, self.unread = parts.boundaries, True, parts.unread
        if not self.reading.causal or self.sources is not None:  # rows of one length only: nothing is padded
            self.boundaries = tuple(range(1, self.sizes.context))
        self.head_width = self.sizes.hidden if anatomy.project is None else rows_of(anatomy.project)
        self._final_fold = self.fold_of(anatomy.final_norm)
        behind = None if anatomy.transform is None else anatomy.transform.norm
        self._transform_fold = self.fold_of(behind, width=self.head_width)
        self.proof: Proof
        self.readings: Readings

    def __repr__(self) -> str:
        return f"<LanguageModel {self.spec}: {self.sizes!r}, {str(self.dtype).removeprefix('torch.')} on {self.device}>"

    def in_use(self) -> AbstractContextManager[None]:
        """Holds the network in evaluation mode; raises ModelChanged unless it is as it was proved (object_state.py)."""
        return hold_model(self, steadily=False, of_verb=False)

    def numbering(self, layer: int) -> Numbering:
        """The numbers and names of a layer's memories."""
        return self.layer(layer).ffn.numbering

    @cached_property
    def numberings(self) -> dict[int, Numbering]:
        """Those of all layers; empty if no layer has experts."""
        every = {layer: self.numbering(layer) for layer in range(self.sizes.layers)}
        return every if any(numbering.routed is not None for numbering in every.values()) else {}

    @property
    def shape(self) -> tuple[int, int]:
        """[batch, position] of the ids of this thread's running forward, or its last one."""
        shape: tuple[int, int] = getattr(self._running, "shape", (0, 0))
        return shape

    @property
    def begun(self) -> int:
        """Columns that were read before the first of this thread's running forward, or its last one."""
        begun: int = getattr(self._running, "begun", 0)
        return begun

    @property
    def asked_columns(self) -> list[int]:
        """The column that is asked about in each row of this thread's running forward, or its last one."""
        return [self.reading.asked_column(row) for row in self._running.ids.tolist()]

    def split_batch(self, tensor: Tensor) -> Tensor:
        """A tensor of this thread's running forward as [batch, position, ...]: some blocks flatten the two."""
        return tensor.view(*self.shape, tensor.shape[-1]) if tensor.dim() == 2 else tensor

    @property
    def attention(self) -> str:
        """The attention kernel of transformers, such as `sdpa`; `own` for other networks."""
        config = getattr(self.anatomy.model, "config", None)
        return str(getattr(config, "_attn_implementation", None) or "own")

    @property
    def tokenizer_fingerprint(self) -> str:
        """The sha256, in hex, of the tokenizer's description."""
        return reading_fingerprint(self.reader.description)

    def encode(self, texts: list[str]) -> Sequence[list[int]]:
        """The token ids of each text: no special tokens; special strings are plain text."""
        return self.reader.encode(texts)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of every token of `encode([text])[0]`, or of a chat's prompt."""
        return self._reader_of(text).offsets(text)

    def prompt_text(self, prompt: Prompt, *, whole: bool = False, mask: int | None = None) -> str:
        """The text of a prompt, which may be a chat's messages: then a `ChatPrompt`, made by the model's template and
        ended by its beginning of an answer. Positions count the last message's tokens, or those of the `whole` chat.
        `mask` is the token of a text that a masked model does not see: then a `MaskedPrompt`. Raises PromptError,
        OptionError for a model without a mask, and ModelUnsupported for one without a template.
        """
        if mask is not None:
            return mask_text(prompt, mask, self.reading, model=self.spec)
        if isinstance(prompt, str):
            return prompt
        return self.chat_reader().prompt(check_messages(prompt), whole=whole)

    def chat_reader(self) -> ChatReader:
        """Reads chats by the tokenizer's template; raises ModelUnsupported without one."""
        first, tokenizer = self.beginning.token, self.tokenizer_fingerprint
        make = lambda: ChatReader(self.reader, model=self.spec, first=first, tokenizer=tokenizer)  # noqa: E731
        return self.cache.get(("chat", str(chat_template(self.reader))), make)

    def _reader_of(self, prompt: str) -> Reader | ChatReader:
        """In a chat the special strings are special tokens, and so they are where a prompt may hold a mask."""
        if isinstance(prompt, ChatPrompt):
            return self.chat_reader()
        return self.reader if self.reading.causal else self._special_reader

    @cached_property
    def _special_reader(self) -> Reader:
        with_special: Callable[[], Reader] | None = getattr(self.reader, "with_special", None)
        return self.reader if with_special is None else with_special()

    def prompt_tokens(self, prompt: Prompt) -> list[int]:
        """The prompt's own token ids, at least one; raises PromptError."""
        self.with_source(None)
        prompt = self.prompt_text(prompt)
        reader, pieces = self._reader_of(prompt), self.vocabulary()[1]
        return read_prompt(reader, prompt, self.reading, pieces=pieces, longest=self.longest)

    def tokens_after(self, prompt: str, text: str, position: int | None = None) -> list[int]:
        """The token ids of a text, at least one, that stands behind a prompt, or behind one of its positions
        (`position` None: the last). Raises PromptError where the text changes the prompt's own tokens.
        """
        tokens = self.prompt_tokens(prompt)
        return read_answer(self._reader_of(prompt), prompt, tokens, text, position)

    def vocabulary(self) -> tuple[list[str], list[bytes]]:
        """Text and bytes of every row of the head, empty for rows without a token. Cached: do not change it."""
        return self.cache.get("vocabulary", lambda: self.reader.vocabulary(self.sizes.vocabulary))

    @held
    def keys(self, layer: int) -> Tensor:
        """The keys [memory, hidden]; of a gated layer the gates."""
        return self.layer(layer).ffn.keys()

    @held
    def up_keys(self, layer: int) -> Tensor | None:
        """The second keys [memory, hidden] of a gated layer, else None."""
        return self.layer(layer).ffn.up_keys()

    @held
    def values(self, layer: int) -> Tensor:
        """A layer's values [memory, hidden]: row i is v_i. Do not change them: they are the model's own, or cached."""
        ffn = self.layer(layer).ffn
        return self._values.get(layer, ffn.values) if self.probed and ffn.is_probed else ffn.values()

    @held
    def head(self) -> Tensor:
        """The matrix E [vocab, hidden'], float32, whose products with folded vectors are their `gain` scores.

        A view if the model is float32. Raises ModelUnsupported for a head that is not one matrix.
        """
        self.require_head()
        if self.anatomy.two_level is not None:
            raise ModelUnsupported("the head is an adaptive softmax, not one matrix; ask for scores instead")
        return matrix_of(self.anatomy.head).detach().float()

    @held
    def scorer(self) -> Head:
        """Turns folded vectors into `gain` scores, float32; copies a head of another dtype: call it once per pass."""
        two_level = self.anatomy.two_level
        if two_level is None:
            return LinearHead(self.head())
        return two_level if self.dtype == torch.float32 else copy.deepcopy(two_level).float()

    def require_head(self) -> None:
        """Raises ModelUnsupported for an encoder alone."""
        if self.keys_only:
            raise ModelUnsupported(KEYS_ONLY)

    def fold(self, vectors: Tensor) -> Tensor:
        """Vectors of the stream, [n, hidden] -> [n, hidden'], float32: centring and gain of the final norm folded in,
        and the linear part of a transform. Values pass other norms before: `folded_values`.
        """
        return self._transform_fold(self._project(self._final_fold(vectors).to(self.device)))

    def fold_as_value(self, layer: int, vectors: Tensor, *, branch: int = 0) -> Tensor:
        """Any vectors `[n, hidden]`, folded as the values of one branch of the layer are: `[n, hidden']`, float32."""
        branches = self.layer(layer).ffn.branches
        vectors = self.fold_of(branches[branch].behind)(vectors) if branches else vectors
        return self.fold(self.fold_of(self.output_norm(layer))(vectors))

    def folded_values(self, layer: int, memories: Tensor | None = None) -> Tensor:
        """The values of a layer's `memories [n]` (None: all), `[n, hidden']`, float32, with all norms folded in."""
        return self.fold(self.values_in_stream(layer, memories))

    def bare(self, vectors: Tensor) -> Tensor:
        """Vectors `[..., hidden]` -> `[..., hidden']`, float32, whose scores are the `raw` projection; raises
        ModelUnsupported where a transform stands before the head.
        """
        if self.anatomy.transform is not None:
            raise ModelUnsupported(
                "a transform stands before the head, so its products with the stream mean nothing; ask for gain or lens"
            )
        return self._project(vectors.float().to(self.device))

    def values_in_stream(self, layer: int, memories: Tensor | None = None) -> Tensor:
        """The directions `[n, hidden]`, float32, in which values of `memories` change the stream: the layer's own norms
        folded in."""
        values, branches = self.values(layer), self.layer(layer).ffn.branches
        values = values if memories is None else values[memories.to(values.device)]
        if branches:
            of, values = self.branch_of(layer, memories), values.float().clone()
            for number, branch in enumerate(branches):
                rows = (of == number).nonzero()[:, 0].to(values.device)
                values[rows] = self.fold_of(branch.behind)(values[rows]).to(values.device)
        return self.fold_of(self.output_norm(layer))(values)

    def branch_of(self, layer: int, memories: Tensor | None = None) -> Tensor:
        """The branch `[n]` of each of a layer's `memories`, on the CPU: 0, the routed experts, if there are none."""
        numbering = self.numbering(layer)
        memories = torch.arange(numbering.count) if memories is None else memories.cpu()
        if not self.layer(layer).ffn.branches:
            return torch.zeros_like(memories)
        return torch.bucketize(memories, torch.tensor(numbering.firsts[numbering.routed :]), right=True)

    def norm_scale(self, vectors: Tensor, *, layer: int | None) -> Tensor:
        """The divisors `[n]`, float32, of a norm that values are folded with, for vectors `[n, hidden]` that it reads:
        the output norm of block `layer`; None: the final norm, times that of the head's transform. 1 without one.
        """
        norm = self.anatomy.final_norm if layer is None else self.output_norm(layer)
        fold = self._final_fold if layer is None else self.fold_of(norm)
        with torch.inference_mode():
            vectors = vectors.to(self.dtype)
            scale = scale_of(norm, fold, vectors).to(self.device)
            if layer is not None or (transform := self.anatomy.transform) is None:
                return scale
            activated = transform.activate(self.anatomy.project_stream(vectors))
            return scale * scale_of(transform.norm, self._transform_fold, activated).to(self.device)

    def multiplier(self, layer: int) -> float:
        """The model's factor on a value of this layer, besides its coefficient, on the way to the scores."""
        later = prod(each.output_scale for each in self.anatomy.layers[layer:])
        return self.layer(layer).update_scale * later * self.anatomy.logit_scale

    def output_norm(self, layer: int) -> nn.Module | None:
        """The norm that a block's values pass: after the feed-forward layer, or after the block; or None."""
        block = self.layer(layer)
        return block.post_norm if block.output_norm is None else block.output_norm

    @held
    def scores(self, vectors: Tensor, *, projection: Projection, layer: int | None = None) -> Tensor:
        """Scores [..., vocab], float32, of `vectors` [..., hidden] (definitions.md section 2) by the projection raw,
        gain or lens. With `gain`, `layer` names the block whose output norm (sandwich, post-norm) comes first; None if
        the vectors are in the stream.

        Raises OptionError for an unknown projection, ModelUnsupported without a head.
        """
        self.require_head()
        with torch.inference_mode():
            if projection == "lens":
                return self.anatomy.readout(vectors.to(self.dtype)).float()
            if projection == "raw":
                return self.scorer().scores(self.bare(vectors))
            if projection == "gain":
                norm = None if layer is None else self.output_norm(layer)
                return self.scorer().scores(self.fold(self.fold_of(norm)(vectors)))
        raise OptionError(f"projection {projection!r} does not exist; choose raw, gain or lens")

    def fold_of(self, norm: nn.Module | None, *, width: int | None = None) -> Fold:
        """The linear part of a norm of the stream's or another `width`; raises ModelUnsupported for an unknown kind."""
        return fold_of(norm, width or self.sizes.hidden, dtype=self.dtype, device=self.device)

    def _project(self, vectors: Tensor) -> Tensor:
        if self.anatomy.project is None:
            return vectors
        return nn.functional.linear(vectors, matrix_of(self.anatomy.project).detach().to(self.device).float())

    @held
    def backbone(
        self, ids: Tensor, *, stop_after: int | None = None, gradients: bool = False, past: Any = None
    ) -> Tensor | None:
        """The blocks' output [batch, position, hidden'] for ids [batch, position], without the head.

        Uses no attention mask: padding on the right is harmless in a causal model. With `stop_after` it ends at that
        layer's coefficients and returns None. With `gradients` what hooks put in may require its gradient. `past` is
        the library's cache of what was read before.
        """
        anatomy = self.anatomy
        with Taps(own_thread=True) as taps:
            if stop_after is not None:
                self.layer(stop_after).ffn.end(reach, taps)
            if anatomy.backbone is None:
                taps.enters(anatomy.head, reach)
            try:
                whole = anatomy.model if anatomy.backbone is None else anatomy.backbone
                return self._forward(whole, ids, gradients=gradients, past=past)
            except Reached as reached:
                return reached.tensor if stop_after is None else None

    @held
    def logits(self, ids: Tensor) -> Tensor:
        """The model's own logits [batch, position, vocab], float32, for ids [batch, position]; raises ModelUnsupported
        without a head.
        """
        self.require_head()
        return self.outputs(ids)

    @held
    def outputs(self, ids: Tensor) -> Tensor:
        """The logits for ids, or of an encoder alone its last stream [batch, position, hidden], float32."""
        return self._forward(self.anatomy.model, ids).float()

    def _forward(self, module: nn.Module, ids: Tensor, *, gradients: bool = False, past: Any = None) -> Tensor:
        encoded = None
        if self.sources is not None:
            ids, encoded = encode_behind(self.anatomy.model, ids, self._running)
        self._running.shape = (ids.shape[0], ids.shape[1])
        self._running.ids = ids
        self._running.begun = 0 if past is None else past.get_seq_length()
        return run(module, ids, gradients=gradients, past=past, encoded=encoded)

    def with_source(self, source: str | Sequence[int] | None) -> "LanguageModel":
        """The decoder of an encoder-decoder on prompts with this source; raises PromptError (`given_source`)."""
        reading = given_source(self.reading, self.sources, source)
        if reading is self.reading:
            return self
        other = copy.copy(self)
        other.reading, other.given_source = reading, source if isinstance(source, str) else ""
        return other

    def coefficients(
        self,
        texts: Texts,
        layers: Iterable[int] | None = None,
        *,
        memories: Memories = None,
        at: At = "all",
        reduce: Literal["mean", "max", "last"] | None = None,
        as_arrays: bool = False,
    ) -> Any:
        """The coefficients of all `memories` ("L3.M17", "L5.M0-19,L6", "@FILE", or their numbers in each of the
        `layers`) of one text (or chat) or many, which are read in batches, at all positions (`at`), the last, or one by
        its number (below 0 from the end); `reduce` takes mean, max or last of each text's positions.

        A frame of `text` (only of a list of texts), `layer`, `memory` (its number in the layer; experts' memories are
        counted through, with 0 where a token is not routed), `position` (of the prompt's own tokens), `token` (its
        text) and `coefficient`, float32; with `reduce` one row for each text and memory, without position and token.
        `as_arrays`: a `TextArrays` by layer, `[text, position, memory]`. Raises PromptError, which names a text by its
        number, MemoryIdError for a layer or memory that is none, OptionError, NotFinite.
        """
        return self.readings.coefficients(self, texts, layers, memories, at, reduce, as_arrays)

    def capture(
        self,
        texts: Texts,
        streams: str | Iterable[str],
        layers: Iterable[int] | None = None,
        *,
        at: At = "all",
        reduce: Literal["mean", "max", "last"] | None = None,
    ) -> TextArrays:
        """Streams of texts, which are read in batches: `[text, position, hidden]` for each stream and layer. `layers`,
        `at`, `reduce` and what is raised are as for `coefficients`; also ModelUnsupported where what attention adds
        cannot be told.

        `streams` are some of residual, ffn_input, ffn_output, ffn_update, layer_output (definitions.md section 1) and
        attention, what attention adds to the stream.
        """
        return self.readings.capture(self, texts, streams, layers, at, reduce)

    def watch(self, layer: int, callback: Callable[[Tensor, Tensor | None], None], taps: Taps) -> None:
        """Calls `callback` in every forward that `taps` hold, with `[batch, position, memory]`, and `[batch, position,
        expert]` of the layer, None if dense.
        """
        numbering, groups = self.numbering(layer), list[Group]()

        def take(group: Group) -> None:
            if numbering.routed is None:
                callback(self.split_batch(group.coefficients), None)
                return
            groups.append(group)
            if sum(each.count for each in groups) == len(numbering.widths):
                coefficients, weights = join(groups, numbering)
                groups.clear()
                callback(self.split_batch(coefficients), self.split_batch(weights))

        self.layer(layer).ffn.watch(take, taps)

    def layer(self, layer: int) -> Layer:
        """The parts of one layer's block; raises MemoryIdError for a layer that does not exist."""
        layers = self.anatomy.layers
        if not 0 <= layer < len(layers):
            raise MemoryIdError(f"layer {layer} does not exist; the model has layers 0 to {len(layers) - 1}")
        return layers[layer]
