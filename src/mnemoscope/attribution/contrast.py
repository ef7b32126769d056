"""What is asked of a prompt: two tokens, whose logits' difference F = z_a - z_b is explained (definitions.md 9)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import final

import torch
from torch import Tensor

from mnemoscope.errors import OptionError, PromptError
from mnemoscope.foundation.options.chat_prompt import Prompt, choose_position, first_position, own_tokens
from mnemoscope.models import LanguageModel
from mnemoscope.models.readout.token_logits import LogitDirections, TokenLogits, known_rows
from mnemoscope.tracing.predictions import ids_of, last_streams
from mnemoscope.tracing.scoring.ranking import top

MEAN = "mean"
"""Against all tokens together: the mean over the head's rows that have a token."""


@dataclass(frozen=True)
class Contrast:
    """`tokens` are the prompt's up to the asked position, and what both answers begin with; of a masked model all, of
    which the one numbered `mask` is asked about. F is the logit of `target` less that of `against`, or less the mean
    where that is None. `shared` are the tokens that were added.
    """

    tokens: tuple[int, ...]
    target: int
    against: int | None
    shared: int = 0
    longer: tuple[str, ...] = ()
    """The answers of which only the first token that differs is asked about."""
    first: int = 0
    """The position of the first token."""
    own: int | None = None
    """How many tokens of a chat are not its template's."""
    mask: int | None = None

    @property
    def position(self) -> int:
        """That whose next token is asked about, or the mask's."""
        return (len(self.tokens) - 1 if self.mask is None else self.mask) + self.first


def choose_contrast(
    model: LanguageModel, prompt: Prompt, *, target: str | None, against: str | None, position: int | None = None
) -> Contrast:
    """The model's own best tokens stand in for answers that are not given."""
    prompt = model.prompt_text(prompt)
    tokens, first, own = model.prompt_tokens(prompt), first_position(prompt), own_tokens(prompt)
    mask = None if model.reading.causal else model.reading.asked_column(tokens)
    if mask is not None and position is not None:
        raise OptionError("a masked model is asked at the mask; leave --position out, and name the token with --mask")
    place = choose_position(len(tokens), position, first=first, own=own)
    tokens = tokens[: place + 1]
    given = {
        text: _answer_tokens(model, prompt, place, text)
        for text in (target, against)
        if text is not None and (text != MEAN or text == target)
    }
    shared: Sequence[int] = []
    if target is not None and against is not None and against != MEAN:
        pairs = zip(given[target], given[against], strict=False)
        shared = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
        left = [given[text][len(shared) :] for text in (target, against)]
        if not all(left):
            raise PromptError(
                f"the answers {target!r} and {against!r} are one, or one begins with the other; give two that part"
            )
        given = dict(zip((target, against), left, strict=True))
    tokens = [*tokens, *shared]
    if len(tokens) > model.longest:
        raise PromptError(
            f"prompt and answers have {len(tokens):,} tokens before they part, but the model reads at most"
            f" {model.longest:,}; shorten them"
        )
    with torch.inference_mode():
        best = top(model.scores(last_streams(model, ids_of(model, tokens)), projection="lens"), 2)[0][0].tolist()
    a = best[0] if target is None else given[target][0]
    b = None if against == MEAN else next(one for one in best if one != a) if against is None else given[against][0]
    if a == b:
        raise PromptError(f"{against!r} is the model's own answer, to be compared with itself; give another one, for")
    longer = tuple(text for text, ids in given.items() if len(ids) > 1)
    return Contrast(tuple(tokens), a, b, len(shared), longer, first, own, mask)


def _answer_tokens(model: LanguageModel, prompt: str, position: int, answer: str) -> list[int]:
    if not answer:
        raise PromptError("an answer is empty; write the next word, with its space")
    tokens = model.tokens_after(prompt, answer, position) if model.reading.causal else model.prompt_tokens(answer)
    if len(tokens) > 1 and not model.reading.causal:
        raise PromptError(
            f"the answer {answer!r} is {len(tokens)} tokens, and a mask stands for one; give a shorter one"
        )
    beyond = next((token for token in tokens if token >= model.sizes.vocabulary), None)
    if beyond is not None:
        raise PromptError(
            f"the answer {answer!r} has token {beyond}, for which the head has no row ({model.sizes.vocabulary:,});"
            " write another"
        )
    return tokens


@final
class LogitDifference:
    """F as a function of the final stream `[row, hidden]`; every result is `[row]`, float64."""

    def __init__(self, model: LanguageModel, target: int, against: int | None) -> None:
        self._model, self._logits, self._tokens = model, TokenLogits(model), (target, against)
        self._sides = [self._logits.side(token) for token in self._tokens]
        (vector, bias), (less, its_bias) = self._sides
        self._vector, self._bias = vector - less, bias - its_bias

    def of(self, streams: Tensor) -> Tensor:
        """F; keeps gradients."""
        return self._logits.read(streams, self._vector, self._bias)

    def directions(self, streams: Tensor, *, divided: bool = True) -> LogitDirections:
        return self._logits.of_difference(streams, *self._tokens, divided=divided)

    @torch.inference_mode()
    def sizes(self, streams: Tensor) -> Tensor:
        """|z_a| + |z_b|."""
        one, other = (self._logits.read(streams, *side).abs() for side in self._sides)
        return one + other

    def after_cap(self, streams: Tensor) -> Tensor:
        """F behind the model's soft-cap, if it has one."""
        scores = self._model.scores(streams, projection="lens").double()
        target, against = self._tokens
        rows = known_rows(self._model).to(scores.device)
        return scores[:, target] - (scores[:, rows].mean(1) if against is None else scores[:, against])

    def probabilities(self, streams: Tensor) -> tuple[float, float | None]:
        """The model's own, of target and against, after the first of the `streams`; None for the mean."""
        shares = self._model.scores(streams[:1], projection="lens")[0].double().softmax(0)
        target, against = self._tokens
        return float(shares[target]), None if against is None else float(shares[against])
