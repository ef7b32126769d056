"""Log probabilities of texts, token by token, and whether greedy decoding would reproduce them.

Without a beginning token, the first token has no context and is not scored. A greedy continuation equals the text
exactly if the text's next token is the best one at every position, so one forward of the text replaces decoding.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from mnemoscope.errors import NotFinite
from mnemoscope.foundation.budget import BUDGET, rows_within
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.batches import sides
from mnemoscope.tracing.scoring.ranking import rank_of

Tokens = Sequence[int]
Tick = Callable[[], None]
"""Called before each forward; may raise to end the run."""


@dataclass(frozen=True)
class Likelihood:
    """For each scored token of a text, `[token]`: its natural-log probability, and whether it is the best token."""

    log_probability: NDArray[np.float64]
    best: NDArray[np.bool_]

    @property
    def total(self) -> float:
        """In nats."""
        return float(self.log_probability.sum())

    def continues(self, count: int) -> bool:
        """Whether the last `count` tokens are the greedy continuation of those before them."""
        return count <= len(self.best) and bool(self.best[len(self.best) - count :].all())


def likelihoods(model: LanguageModel, texts: Sequence[Tokens], *, tick: Tick = lambda: None) -> list[Likelihood]:
    """The likelihood of every text, as its own tokens; `tick` is called before each forward."""
    results: list[Likelihood | None] = [None] * len(texts)
    for group in _groups(texts, model, rows=rows_within(BUDGET.prompt_scores, model.sizes.vocabulary)):
        tick()
        rows = [torch.tensor(model.reading.frame(texts[k])) for k in group]
        ids = pad_sequence(rows, batch_first=True).to(model.device)
        behind = torch.tensor(model.reading.row([]), dtype=ids.dtype, device=model.device)[model.reading.framing :]
        with model.lock, torch.inference_mode():
            logits = model.logits(torch.cat([ids, behind.expand(len(ids), -1)], dim=1))[:, :-1]
        for row, k in enumerate(group):
            count = len(rows[row]) - 1
            scores, tokens = logits[row, :count].float(), ids[row, 1 : count + 1].to(logits.device)
            log_probability = scores.gather(1, tokens[:, None])[:, 0].double() - scores.logsumexp(1).double()
            if not bool(log_probability.isfinite().all()):
                raise NotFinite("the model gives NaN or infinite scores; try --dtype float32, or check its weights")
            results[k] = Likelihood(log_probability.cpu().numpy(), (rank_of(scores, tokens) == 0).cpu().numpy())
    return [one for one in results if one is not None]


def _groups(texts: Sequence[Tokens], model: LanguageModel, *, rows: int) -> Iterator[list[int]]:
    """Indices of texts in groups of similar length, of at most `rows` positions or one text."""
    group: list[int] = []
    lengths = [model.reading.columns(len(text)) for text in texts]
    side = sides(model, lengths)
    for k in sorted(range(len(texts)), key=lambda k: len(texts[k])):
        if group and ((len(group) + 1) * lengths[k] > rows or side[k] != side[group[-1]]):
            yield group
            group = []
        group.append(k)
    if group:
        yield group


def mean_loss(texts: Sequence[Likelihood]) -> float:
    tokens = sum(len(one.log_probability) for one in texts)
    return -sum(one.total for one in texts) / max(1, tokens)
