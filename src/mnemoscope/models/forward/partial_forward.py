"""Runs a model from one of its blocks on, starting with a stream that was kept as that block began.

The blocks below are skipped, and the block receives the kept stream; embeddings, masks and rotary positions are
computed as usual. A model supports this if, for every block, the run from the middle equals a whole one; a model that
passes anything but the stream between blocks (or whose blocks are spread over devices) is run whole.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import local
from typing import Any, final

import torch
from torch import Tensor, nn

from mnemoscope.models.forward.attention import REFUSALS
from mnemoscope.models.forward.hooks import read_final
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.modules.observed import ids_for, same, stream_of
from mnemoscope.models.modules.offloading import is_spread
from mnemoscope.models.modules.taps import Taps


@final
class PartialForward:
    """Forwards of one model that begin at a layer, in any number of threads; whole ones if not `possible`."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._blocks = [layer.block for layer in model.anatomy.layers]
        self._running = local()
        self._beside: dict[int, tuple[Any, ...] | None] = {}
        self.possible = self._is_proved()

    @contextmanager
    def install(self) -> Iterator[None]:
        with self._model.in_use(), ExitStack() as undo:
            for number, block in enumerate(self._blocks if self.possible else ()):
                undo.enter_context(self._replace(number, block))
            yield

    def stream_into(self, layer: int, ids: Tensor) -> Tensor:
        """The stream `[batch, position, hidden]` that enters a layer's block, for ids `[batch, position]`."""
        kept: list[Tensor] = []
        with Taps(own_thread=True) as taps:
            taps.begins(self._blocks[layer], lambda stream: kept.append(stream.clone()))
            self._model.backbone(ids, stop_after=layer)
        return kept[0]

    def run(self, ids: Tensor, *, layer: int, stream: Tensor | None) -> None:
        """A forward from that layer's block on, which `stream` enters; a whole one without. Hooks read its end."""
        # Blocks may add to their stream in place.
        self._running.start = None if stream is None else (layer, stream.clone())
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

    def _forward_of(self, number: int, usual: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*inputs: Any, **named: Any) -> Any:
            first, kept = getattr(self._running, "start", None) or (-1, None)
            if number > first:
                output = usual(*inputs, **named)
                # The proof's whole forwards record what a block returns beside its stream.
                self._beside.setdefault(number, tuple(output[1:]) if isinstance(output, tuple) else None)
                return output
            stream = stream_of(inputs, named)
            if number < first:
                beside = self._beside[number]
                return stream if beside is None else (stream, *beside)
            given = tuple(kept if each is stream else each for each in inputs)
            return usual(*given, **{name: kept if each is stream else each for name, each in named.items()})

        return forward

    def _is_proved(self) -> bool:
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
        except (*REFUSALS, StopIteration):
            return False
        return True
