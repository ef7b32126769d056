"""The loss of a model on held-out text."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy, pad
from torch.nn.utils.rnn import pad_sequence

from mnemoscope.training.text import Text


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
        torch.from_numpy(text.tokens[begin : min(begin + context, end)].astype(np.int64))
        for first, end in list(zip(text.documents, ends, strict=True))[:most]
        for begin in range(int(first) + 1, int(end), context)
    ]
    windows.sort(key=len)  # so that little is padded
    nats, count = 0.0, sum(map(len, windows))
    device = next(model.parameters()).device
    for start in range(0, len(windows), batch):
        targets = pad_sequence(windows[start : start + batch], batch_first=True, padding_value=-100).to(device)
        ids = pad(targets.clamp(min=0), (1, 0))[:, :-1]  # after token 0, the beginning
        scores = model(ids, use_cache=False).logits.float()
        nats += float(cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum"))
    everything = len(text.tokens) - len(text.documents)
    return Loss(nats, count, round(text.text_bytes * count / max(1, everything)))
