"""The tokens of a prompt, and of an answer behind it."""

from collections.abc import Sequence

from mnemoscope.errors import OptionError, PromptError
from mnemoscope.foundation.options.chat_prompt import ChatPrompt, MaskedPrompt, Prompt, choose_position
from mnemoscope.foundation.reading import Reading
from mnemoscope.models.tokens.chat_reader import ChatReader
from mnemoscope.models.tokens.model_tokens import Reader


def read_prompt(
    reader: Reader | ChatReader, prompt: str, reading: Reading, *, pieces: Sequence[bytes], longest: int
) -> list[int]:
    """The prompt's own token ids, at least one, of a vocabulary of these `pieces`; of a `MaskedPrompt` one is the mask.
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
        beside = " after its beginning token" if reading.before else ""
        of_chat = f" ({len(tokens) - prompt.own:,} beside yours)" if isinstance(prompt, ChatPrompt) else ""
        raise PromptError(
            f"the prompt has {len(tokens):,} tokens{of_chat}, but the model reads at most {longest:,}{beside};"
            " shorten it"
        )
    if isinstance(prompt, MaskedPrompt) and reading.mask is not None:
        tokens[choose_position(len(tokens), prompt.position)] = reading.mask
    return tokens


def mask_text(prompt: Prompt, position: int, reading: Reading, *, model: str) -> MaskedPrompt:
    """Raises OptionError for a model without a mask, and for a chat."""
    if reading.mask is None:
        raise OptionError(f"{model} has no mask token, so none of the prompt can be masked; leave --mask out")
    if not isinstance(prompt, str) or isinstance(prompt, ChatPrompt):
        raise OptionError("--mask names a token of plain text; write the mask token into a chat's message")
    return MaskedPrompt(str(prompt), position)


def read_answer(
    reader: Reader | ChatReader, prompt: str, tokens: list[int], text: str, position: int | None
) -> list[int]:
    """At least one token of a text behind a prompt of these tokens, or behind one of its positions. Both are encoded
    together, since a piece alone may read differently: SentencePiece puts a space before it.
    """
    refuse_halves(text, "answer")
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


def refuse_halves(text: str, noun: str) -> None:
    """Raises PromptError for a text that is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"the {noun} is not text: character {error.start} is half of one; write it as UTF-8"
        ) from None
