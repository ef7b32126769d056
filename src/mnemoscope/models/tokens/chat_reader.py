"""Chats through the model's template.

In a chat's rendered text special strings are special tokens, also those inside a message, as in the model's own
library. A beginning token that the template writes is left out of the tokens, since it comes before every sentence
anyway.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, final

from mnemoscope.errors import ModelUnsupported, PromptError
from mnemoscope.foundation.options.chat_prompt import ChatPrompt
from mnemoscope.models.tokens.model_tokens import Reader, Tokens
from mnemoscope.models.tokens.python_tokens import PythonTokens

_DAY = {"%d": "26", "%-d": "26", "%b": "Jul", "%B": "July", "%m": "07", "%Y": "2024", "%y": "24", "%A": "Friday"}
"""A fixed date for templates that write today's, so that the same chat is the same text tomorrow."""

_MARK = "\ue0ca\ue0cb"
"""Stands for the last message's content, to find where the template puts it."""


def chat_template(reader: Reader) -> Any:
    """The template of a tokenizer; None without one."""
    return getattr(reader.tokenizer, "chat_template", None) if isinstance(reader, Tokens | PythonTokens) else None


@final
class ChatReader:
    """Reads chats through the template of a model's tokenizer; raises ModelUnsupported without one. `first` is the
    beginning token, and `tokenizer` the fingerprint of the tokenizer.
    """

    def __init__(self, reader: Reader, *, model: str, first: int | None, tokenizer: str) -> None:
        template = chat_template(reader)
        if not template or not isinstance(reader, Tokens | PythonTokens):
            raise ModelUnsupported(
                f"{model!r} has no chat template for messages; name a tokenizer that has one (tokenizer), or give"
                " plain text"
            )
        self._tokenizer, self._reader, self._first = reader.tokenizer, reader.with_special(), first
        self._template: str | None = None
        if "strftime_now" in str(template):
            dated = "".join(f" | replace('{form}', '{value}')" for form, value in _DAY.items())
            macro = f"{{%- macro strftime_now(form) -%}}{{{{ form{dated} }}}}{{%- endmacro %}}"
            self._template = macro + self._tokenizer.get_chat_template()
        made_of = f"{template} {self._first} {tokenizer}"
        self.fingerprint = hashlib.sha256(made_of.encode()).hexdigest()

    def prompt(self, messages: list[dict[str, str]], *, whole: bool = False) -> ChatPrompt:
        """The messages with the template's beginning of an answer. Positions count the tokens that have a character of
        the last message's content, or those of the `whole` text.
        """
        text = self.render(messages, answered=True)
        marked = self.render([*messages[:-1], {**messages[-1], "content": _MARK}], answered=True)
        spans, begin = self.offsets(text), _alike(text, marked)
        end = len(text) - _alike(text[::-1], marked[::-1])
        own = [number for number, (first, last) in enumerate(spans) if first < end and last > begin]
        if not own:
            raise PromptError("the last message is empty, or the chat template leaves it out; write at least one word")
        return ChatPrompt(text, messages, *((0, len(spans)) if whole else (own[0], own[-1] + 1 - own[0])))

    def render(self, messages: list[Any], *, answered: bool = False) -> str:
        """The text of the messages; if they are to be `answered`, with the beginning of an answer."""
        try:
            text = self._tokenizer.apply_chat_template(
                messages, chat_template=self._template, tokenize=False, add_generation_prompt=answered
            )
        except Exception as error:  # a template may raise anything
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            raise PromptError(f"the chat template refuses these messages ({reason})") from None
        return str(text)

    def encode(self, texts: list[str]) -> Sequence[list[int]]:
        return [ids[1:] if ids[:1] == [self._first] else ids for ids in self._reader.encode(texts)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        spans = self._reader.offsets(text)
        return spans[len(spans) - len(self.encode([text])[0]) :]


def _alike(one: str, other: str) -> int:
    """With how many characters two texts begin alike."""
    differing = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))
