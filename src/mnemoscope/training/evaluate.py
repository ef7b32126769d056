"""How good the built-in model is: its held-out loss, and the share of its memories that never fire."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mnemoscope.training.text import Text


@dataclass(frozen=True)
class Loss:
    """Mean negative log-likelihood over `tokens` targets."""

    nats: float
    tokens: int
    text_bytes: int

    @property
    def per_token(self) -> float:
        """Nats per token."""
        return self.nats / max(1, self.tokens)

    @property
    def per_byte(self) -> float:
        """Nats per byte of UTF-8 text."""
        return self.nats / max(1, self.text_bytes)


@torch.inference_mode()
def held_out_loss(model: Any, text: Text, context: int, *, most: int | None = None, batch: int = 32) -> Loss:
    """The loss over the documents of `text`, each in windows of `context` tokens without overlap.

    A window begins with the beginning token; what stands before it is not seen. `most` looks at the first documents
    only, whose bytes are then taken in proportion to their tokens.
    """
    pieces = _windows(text, context, most)
    pieces.sort(key=len)
    nats, count = 0.0, 0
    device = next(model.parameters()).device
    for start in range(0, len(pieces), batch):
        group = pieces[start : start + batch]
        width = max(len(p) for p in group)
        inputs = torch.zeros(len(group), width, dtype=torch.long)
        targets = torch.full((len(group), width), -100)
        for row, piece in enumerate(group):
            ids = torch.from_numpy(piece.astype(np.int64))
            inputs[row, 1 : len(piece)] = ids[:-1]
            targets[row, : len(piece)] = ids
        scores = model(inputs.to(device), use_cache=False).logits.float()
        nats += float(
            torch.nn.functional.cross_entropy(scores.flatten(0, 1), targets.to(device).flatten(), reduction="sum")
        )
        count += int((targets >= 0).sum())
    everything = len(text.tokens) - len(text.documents)
    return Loss(nats, count, round(text.text_bytes * count / max(1, everything)))


@torch.inference_mode()
def dead_shares(model: Any, sentences: list[list[int]], *, batch: int = 64) -> list[float]:
    """Per layer, the share of memories that are above zero at no token of `sentences`, each read alone."""
    blocks = model.gpt_neox.layers
    alive = [torch.zeros(block.mlp.dense_4h_to_h.in_features, dtype=torch.bool) for block in blocks]
    lengths: NDArray[np.int64] = np.array([len(s) for s in sentences])
    current: dict[str, torch.Tensor] = {}

    def reader(layer: int) -> Any:
        def read(module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            alive[layer] |= ((inputs[0] > 0) & current["own"]).flatten(0, 1).any(0)

        return read

    hooks = [block.mlp.dense_4h_to_h.register_forward_pre_hook(reader(i)) for i, block in enumerate(blocks)]
    try:
        order = np.argsort(lengths, kind="stable")
        for start in range(0, len(order), batch):
            group = [sentences[i] for i in order[start : start + batch]]
            width = 1 + max(len(s) for s in group)
            inputs = torch.zeros(len(group), width, dtype=torch.long)
            own = torch.zeros(len(group), width, 1, dtype=torch.bool)
            for row, sentence in enumerate(group):
                inputs[row, 1 : 1 + len(sentence)] = torch.tensor(sentence)
                own[row, 1 : 1 + len(sentence)] = True
            current["own"] = own
            model.gpt_neox(inputs, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return [1 - float(a.float().mean()) for a in alive]


def _windows(text: Text, context: int, most: int | None) -> list[NDArray[np.uint16]]:
    ends = np.append(text.documents[1:], len(text.tokens))
    documents = list(zip(text.documents, ends, strict=True))[:most]
    return [
        text.tokens[begin : min(begin + context, end)]
        for first, end in documents
        for begin in range(int(first) + 1, int(end), context)
    ]
