"""The tokens of a prompt, and of an answer to it: a text that stands behind it, or in place of its mask."""

from collections.abc import Sequence
from typing import Protocol

from mnemoscope.errors import PromptError
from mnemoscope.foundation.options.chat_prompt import ChatPrompt, MaskedPrompt, choose_position


class Encoder(Protocol):
    def encode(self, texts: list[str]) -> Sequence[list[int]]:
        """The token ids of each text."""

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of every token of one text."""


def read_prompt(
    reader: Encoder, prompt: str, *, pieces: Sequence[bytes], longest: int, framed: bool, mask: int | None
) -> list[int]:
    """The prompt's own token ids, at least one, of a vocabulary of these `pieces`; of a `MaskedPrompt` one is `mask`.
    Raises PromptError, also for more than `longest`.
    """
    short = repr(prompt if len(prompt) <= 40 else prompt[:40] + "...")
    if not prompt:
        raise PromptError("the prompt is empty; write at least one word")
    refuse_halves(prompt, "prompt")
    tokens = reader.encode([prompt])[0]
    if not tokens:
        raise PromptError(f"the prompt {short} has no token in this model's vocabulary; write some words")
    if max(tokens) >= len(pieces):
        beyond, spans = tokens.index(max(tokens)), reader.offsets(prompt)
        named = f" ({prompt[slice(*spans[beyond])]!r})" if len(spans) == len(tokens) else ""
        raise PromptError(
            f"the prompt has token {tokens[beyond]}{named}, but the model has only {len(pieces)} rows;"
            " write it differently"
        )
    if not any(pieces[token] for token in tokens):
        raise PromptError(f"the prompt {short} has only tokens without text ({tokens[0]}); write some words")
    if len(tokens) > longest:
        beside = " after its beginning token" if framed else ""
        of_chat = f" ({len(tokens) - prompt.own:,} beside yours)" if isinstance(prompt, ChatPrompt) else ""
        raise PromptError(
            f"the prompt has {len(tokens):,} tokens{of_chat}, but the model reads at most {longest:,}{beside};"
            " shorten it"
        )
    if isinstance(prompt, MaskedPrompt) and mask is not None:
        tokens[choose_position(len(tokens), prompt.position)] = mask
    return tokens


def tokens_behind(reader: Encoder, prompt: str, tokens: list[int], text: str, position: int | None) -> list[int]:
    """At least one token of a text behind a prompt of these tokens, or behind one of its positions. Both are encoded
    together, since a piece alone may read differently: SentencePiece puts a space before it.
    """
    if position is not None and position not in (-1, len(tokens) - 1):
        tokens, prompt = tokens[: position + 1], prompt[: reader.offsets(prompt)[position][1]]
    alone, both = reader.encode([prompt, prompt + text])
    if not alone == tokens == both[: len(tokens)] or len(both) == len(tokens):
        raise PromptError(
            f"{text[:40]!r} behind {prompt[-20:]!r} is not read as the prompt's own tokens and more; begin it with"
            " the space between them (and leave that out of the prompt), end the prompt before the word, or ask"
            " about another position"
        )
    return both[len(tokens) :]


def token_inside(reader: Encoder, prompt: str, tokens: list[int], place: int, text: str) -> list[int]:
    """The one token of a text in place of a prompt's token number `place`, whichever space is written before it."""
    begin, end = reader.offsets(prompt)[place]
    bare = text.lstrip() or text
    inside = reader.encode([prompt[:begin] + one + prompt[end:] for one in (text, bare, f" {bare}")])
    alone = reader.encode([text])[0]
    for read in inside:
        if len(read) == len(tokens) and read[:place] == tokens[:place] and read[place + 1 :] == tokens[place + 1 :]:
            return [read[place]]
    if len(alone) == 1:
        return alone
    raise PromptError(
        f"the answer {text[:40]!r} is not one token ({len(alone)}), and a mask stands for one; give a word that is"
    )


def refuse_halves(text: str, noun: str) -> None:
    """Raises PromptError for a text that is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"the {noun} is not text: character {error.start} is half of one; write it as UTF-8"
        ) from None
