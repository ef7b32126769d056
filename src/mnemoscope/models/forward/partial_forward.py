"""Runs a model from one of its blocks on, from the stream that was kept as that block began.

Who changes a layer many times need not compute the layers below it again. The blocks below do nothing then, and the
block itself is given the stream that was kept; embeddings, masks and turned positions are made as ever. Whether a model
allows it is no row of a table: every block's run from the middle is compared with a whole one, and a model that passes
anything but the stream from block to block (or whose blocks somebody else spreads over devices) is run whole.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import get_ident, local
from typing import Any, final

import torch
from torch import Tensor, nn

from mnemoscope.models.forward.hooks import read_final
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.modules.observed import UNNAMED, ids_for, same, stream_of
from mnemoscope.models.modules.offloading import is_spread

_REFUSALS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, StopIteration)
"""What a block may raise that was given something else than it is used to."""


@dataclass(frozen=True)
class _Start:
    """The layer from which this thread's forward runs, and the stream that enters its block."""

    layer: int
    stream: Tensor


@final
class PartialForward:
    """Forwards of one model that begin at a layer; any number of threads may run them side by side.

    `possible` says whether they begin there in truth: where it is False every forward is a whole one. Nothing else may
    replace the blocks' forwards while it is installed (`install`).
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._blocks = [layer.block for layer in model.anatomy.layers]
        self._running = local()
        self._beside: dict[int, tuple[Any, ...] | None] = {}
        self.possible = self._is_proved()

    @contextmanager
    def install(self) -> Iterator[None]:
        """Sets the blocks' forwards, and gives them their own back; does nothing where it is not possible."""
        with self._model.in_use(), ExitStack() as undo:
            for number, block in enumerate(self._blocks if self.possible else ()):
                undo.enter_context(self._replace(number, block))
            yield

    def stream_into(self, layer: int, ids: Tensor) -> Tensor:
        """The stream `[batch, position, hidden]` that enters a layer's block, for ids `[batch, position]`."""
        kept: list[Tensor] = []
        thread = get_ident()

        def keep(_: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any] = UNNAMED) -> None:
            if get_ident() == thread:
                kept.append(stream_of(inputs, named).clone())

        with self._blocks[layer].register_forward_pre_hook(keep, with_kwargs=True):
            self._model.backbone(ids, stop_after=layer)
        return kept[0]

    def run(self, ids: Tensor, *, layer: int, stream: Tensor | None) -> None:
        """A forward of these ids from that layer's block on, which the stream enters; a whole one without a stream.

        The final stream is read by hooks (`read_final`).
        """
        # Blocks may add to their stream in place.
        self._running.start = None if stream is None else _Start(layer, stream.clone())
        try:
            self._model.backbone(ids)
        finally:
            self._running.start = None

    @contextmanager
    def _replace(self, number: int, block: nn.Module) -> Iterator[None]:
        block.forward = self._forward_of(number, block.forward)
        try:
            yield
        finally:
            del block.__dict__["forward"]

    def _forward_of(self, number: int, own: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*inputs: Any, **named: Any) -> Any:
            start: _Start | None = getattr(self._running, "start", None)
            if start is None or number > start.layer:
                output = own(*inputs, **named)
                # What a block gives beside its stream is noted in the whole forwards of the proof.
                self._beside.setdefault(number, tuple(output[1:]) if isinstance(output, tuple) else None)
                return output
            stream = stream_of(inputs, named)
            if number < start.layer:
                beside = self._beside[number]
                return stream if beside is None else (stream, *beside)
            given = tuple(start.stream if each is stream else each for each in inputs)
            return own(*given, **{name: start.stream if each is stream else each for name, each in named.items()})

        return forward

    def _is_proved(self) -> bool:
        """Whether runs from every block give the final stream of a whole run, on a small batch."""
        model, blocks = self._model, self._blocks
        replaced = any("forward" in block.__dict__ for block in blocks)
        if replaced or is_spread(model.anatomy.model) or len(set(map(id, blocks))) < len(blocks):
            return False
        ids, final = ids_for(model.anatomy.model, model.sizes.vocabulary), list[Tensor]()
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.inference_mode())
                stack.enter_context(read_final(model, final.append, own_thread=True))
                for number, block in enumerate(blocks):
                    stack.enter_context(self._replace(number, block))
                self.run(ids, layer=0, stream=None)
                if any(isinstance(each, Tensor) for beside in self._beside.values() for each in beside or ()):
                    return False
                whole = final.pop().clone()
                for layer in range(len(blocks)):
                    self.run(ids, layer=layer, stream=self.stream_into(layer, ids))
                    if not same(final.pop(), whole):
                        return False
        except _REFUSALS:
            return False
        return True
