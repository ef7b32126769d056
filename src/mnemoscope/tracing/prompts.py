"""A prompt as a model reads it: its tokens, their texts, and the ids that go in.

Read as mining reads a sentence: special strings are plain text, the beginning token stands before it and has no
position; positions count the prompt's own tokens from 0 (definitions.md section 3). Also what every run of a prompt
needs: one at a time per model, since the hooks that read a model see every forward of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, RLock
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from mnemoscope.errors import InterventionError, NotFinite, PromptError
from mnemoscope.models import LanguageModel

_texts: WeakKeyDictionary[LanguageModel, tuple[list[str], list[bytes]]] = WeakKeyDictionary()
_locks: WeakKeyDictionary[LanguageModel, RLock] = WeakKeyDictionary()
_entry = Lock()


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


@contextmanager
def alone(model: LanguageModel) -> Iterator[None]:
    """Lets one thread at a time run the model through this room; the same thread may enter again."""
    with _entry:
        lock = _locks.setdefault(model, RLock())
    with lock:
        yield


def token_of(model: LanguageModel, id: int) -> Token:
    """The token with its text."""
    return Token(id, vocabulary_of(model)[0][id])


def vocabulary_of(model: LanguageModel) -> tuple[list[str], list[bytes]]:
    """Text and bytes of every row of the head, worked out once for each model."""
    found = _texts.get(model)
    if found is None:
        found = _texts.setdefault(model, model.vocabulary())
    return found


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
    known = vocabulary_of(model)[1]
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
