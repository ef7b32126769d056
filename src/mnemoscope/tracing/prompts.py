"""A prompt as a model reads it: its tokens, their texts, and the ids that go in.

Read as mining reads a sentence: special strings are plain text, the beginning token stands before it and has no
position; positions count the prompt's own tokens from 0 (definitions.md section 3).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.errors import InterventionError, NotFinite, PromptError
from mnemoscope.models import LanguageModel


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its id, and its text as it appears in running text (empty for a row of the head without a token)."""

    id: int
    text: str

    def to_dict(self) -> dict[str, object]:
        """As plain JSON."""
        return {"id": self.id, "text": self.text}


@dataclass(frozen=True, slots=True)
class Guess:
    """A token with the probability that it is given."""

    token: Token
    probability: float

    def to_dict(self) -> dict[str, object]:
        """As plain JSON."""
        return {**self.token.to_dict(), "probability": self.probability}


def prompt_tokens(model: LanguageModel, prompt: str) -> list[int]:
    """The prompt's own token ids, at least one; raises PromptError for what cannot be run."""
    if not prompt:
        raise PromptError("the prompt is empty; write at least one word")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"the prompt is not text: character {error.start} is half of one; write it as UTF-8"
        ) from None
    tokens = model.encode([prompt])[0]
    if not tokens:
        raise PromptError(f"the prompt {_short(prompt)} has no token in this model's vocabulary; write some words")
    rows = model.sizes.vocabulary
    if max(tokens) >= rows:
        raise PromptError(f"the prompt has token {max(tokens)}, but the model has only {rows} rows; write it otherwise")
    known = model.vocabulary()[1]
    if not any(known[token] for token in tokens):
        raise PromptError(f"the prompt {_short(prompt)} has only tokens without text ({tokens[0]}); write some words")
    if len(tokens) > model.longest:
        beside = " after its beginning token" if model.beginning.length else ""
        raise PromptError(
            f"the prompt has {len(tokens):,} tokens, but the model reads at most {model.longest:,}{beside}; shorten it"
        )
    return tokens


def ids_of(model: LanguageModel, tokens: list[int]) -> Tensor:
    """What goes into the model: ids `[1, position]`, the beginning token first where there is one."""
    return torch.tensor([[*model.beginning.tokens, *tokens]], device=model.device)


def check_finite(totals: Tensor, *, changed: bool) -> None:
    """Raises where the sum of a softmax's terms is not a number: InterventionError if memories were changed."""
    if bool(totals.isfinite().all()):
        return
    if changed:
        raise InterventionError("the changes make the model's numbers NaN or infinite; choose smaller ones")
    raise NotFinite("the model gives NaN or infinite scores for this prompt; try --dtype float32, or check its weights")


def _short(prompt: str) -> str:
    return repr(prompt if len(prompt) <= 40 else prompt[:40] + "...")
