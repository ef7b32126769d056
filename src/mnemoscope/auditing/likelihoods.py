"""How likely a model finds texts, token by token, and which of their tokens it would have written itself.

The first token of a model without a beginning token has nothing before it: it is given, never asked for. A greedy
continuation equals the text exactly where the text's own next token is the best one at every position, so one forward
of the text itself answers what decoding token by token would.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from mnemoscope.errors import NotFinite
from mnemoscope.models import LanguageModel
from mnemoscope.models.proof.company import sides
from mnemoscope.tracing.ranking import rank_of
from mnemoscope.tracing.scores import SCORES

Tokens = Sequence[int]
Tick = Callable[[], None]
"""Called before a forward, which it may end by raising."""


def no_tick() -> None:
    """A `Tick` that does nothing."""


@dataclass(frozen=True)
class Likelihood:
    """Of one text, for each token that is asked for: its natural-log probability, and whether it is the best token.

    Both `[token]`, the text's last tokens.
    """

    log_probability: NDArray[np.float64]
    best: NDArray[np.bool_]

    @property
    def total(self) -> float:
        """The text's log probability in nats."""
        return float(self.log_probability.sum())

    def continues(self, count: int) -> bool:
        """Whether the last `count` tokens are the greedy continuation of those before them."""
        return count <= len(self.best) and bool(self.best[len(self.best) - count :].all())


def likelihoods(model: LanguageModel, texts: Sequence[Tokens], *, tick: Tick = no_tick) -> list[Likelihood]:
    """The likelihood of every text, given as its own tokens; raises NotFinite.

    Texts of like length share a forward; `tick` is called before each. Changes of memories in whose block this is
    called hold.
    """
    found: list[Likelihood | None] = [None] * len(texts)
    before = model.beginning.tokens
    for chosen in _groups(texts, model, rows=max(1, SCORES // model.sizes.vocabulary)):
        tick()
        width = len(before) + max(len(texts[k]) for k in chosen)
        ids = torch.zeros(len(chosen), width, dtype=torch.long)
        for row, k in enumerate(chosen):
            ids[row, : len(before) + len(texts[k])] = torch.tensor([*before, *texts[k]])
        ids = ids.to(model.device)
        with model.lock, torch.inference_mode():
            logits = model.logits(ids)[:, :-1]
        for row, k in enumerate(chosen):
            asked = len(before) + len(texts[k]) - 1
            scores, tokens = logits[row, :asked].float(), ids[row, 1 : asked + 1].to(logits.device)
            own = scores.gather(1, tokens[:, None])[:, 0].double() - scores.logsumexp(1).double()
            if not bool(own.isfinite().all()):
                raise NotFinite("the model gives NaN or infinite scores; try --dtype float32, or check its weights")
            found[k] = Likelihood(own.cpu().numpy(), (rank_of(scores, tokens) == 0).cpu().numpy())
    return [one for one in found if one is not None]


def _groups(texts: Sequence[Tokens], model: LanguageModel, *, rows: int) -> Iterator[list[int]]:
    """The texts' numbers in groups of like length, of at most `rows` positions or one text."""
    group: list[int] = []
    lengths = [len(text) + model.beginning.length for text in texts]
    side = sides(model, lengths)
    for k in sorted(range(len(texts)), key=lambda k: len(texts[k])):
        if group and ((len(group) + 1) * lengths[k] > rows or side[k] != side[group[-1]]):
            yield group
            group = []
        group.append(k)
    if group:
        yield group


def mean_loss(found: Sequence[Likelihood]) -> float:
    """Nats per token over all texts together."""
    tokens = sum(len(one.log_probability) for one in found)
    return -sum(one.total for one in found) / max(1, tokens)
