"""A prompt that is a chat, messages in the words of their model's template; or one of whose tokens one is masked.

A `ChatPrompt` is the rendered text and stands wherever a text does. Its positions count the tokens of the last
message's content, which is what somebody wrote: the template's tokens before them are below 0, those behind them go on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mnemoscope.errors import PromptError

Messages = Sequence[Mapping[str, str]]
Prompt = str | Messages
"""Plain text, or the messages of a chat: `[{"role": "user", "content": "Hi"}]`."""


class MarkedPrompt(str):
    """A text that is more than its characters, and equal to no other prompt."""

    marks: tuple[int, ...]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and (str(self), self.marks) == (str(other), getattr(other, "marks", ()))

    def __ne__(self, other: object) -> bool:  # that of str would answer
        return not self == other

    __hash__ = str.__hash__


class MaskedPrompt(MarkedPrompt):
    """A text of whose tokens a masked model does not see the one at `position` (below 0: from the end)."""

    position: int

    def __new__(cls, text: str, position: int) -> "MaskedPrompt":
        prompt = super().__new__(cls, text)
        prompt.position, prompt.marks = position, (position,)
        return prompt


class ChatPrompt(MarkedPrompt):
    """The text of `messages`, of whose tokens `own` from number `start` on are counted by positions. Special strings in
    it are special tokens, and no plain text's are.
    """

    messages: list[dict[str, str]]
    start: int
    own: int

    def __new__(cls, text: str, messages: list[dict[str, str]], start: int, own: int) -> "ChatPrompt":
        prompt = super().__new__(cls, text)
        prompt.messages, prompt.start, prompt.own, prompt.marks = messages, start, own, (start,)
        return prompt

    def __str__(self) -> str:
        return "".join(self)

    def __repr__(self) -> str:
        return repr(self.messages)


def first_position(prompt: str) -> int:
    """The position of a prompt's first token: below 0 where a template stands before what is counted."""
    return -prompt.start if isinstance(prompt, ChatPrompt) else 0


def own_tokens(prompt: str) -> int | None:
    """How many tokens of a chat are not its template's; None of plain text."""
    return prompt.own if isinstance(prompt, ChatPrompt) else None


def choose_position(count: int, position: int | None, *, first: int = 0, own: int | None = None) -> int:
    """The index of a position among `count` tokens, of which the first has position `first`. Negative ones count from
    the end of the `own` tokens (None: all), back into a template's; None is the last of all.
    """
    end = 0 if position is None or position >= 0 else count if own is None else own
    index = count - 1 if position is None else position + end - first
    if not 0 <= index < count:
        raise PromptError(
            f"position {position} is not in the prompt, which has positions {first} to {count - 1 + first}"
        )
    return index


def as_written(prompt: Prompt | None) -> Any:
    """The prompt as it was given, for `made_by`."""
    return prompt.messages if isinstance(prompt, ChatPrompt) else str(prompt) if isinstance(prompt, str) else prompt


def options_of(prompt: Prompt | None) -> dict[str, Any]:
    """The prompt as it was given, and which of its tokens is masked, if one is named, for `made_by`."""
    masked = {"mask": prompt.position} if isinstance(prompt, MaskedPrompt) else {}
    return {"prompt": as_written(prompt), **masked}


def check_messages(messages: object) -> list[dict[str, str]]:
    """The messages; raises PromptError for anything else."""
    if not isinstance(messages, list | tuple) or not messages:
        raise PromptError(f"{messages!r:.60} is neither a text nor a list of messages, at least one; give one of them")
    for number, one in enumerate(messages, 1):
        for name in ("role", "content"):
            value = one.get(name) if isinstance(one, Mapping) else None
            if not isinstance(value, str):
                lacks = f"has no {name}" if value is None else f"has a {name} that is no text ({value!r:.40})"
                raise PromptError(f'message {number} of the chat {lacks}; write {{"role": "user", "content": "words"}}')
    return [dict(one) for one in messages]


def other_turn(prompt: Prompt, text: str | None) -> Prompt | None:
    """A second prompt: to a chat it is another last message."""
    if isinstance(prompt, str) or text is None:
        return text
    return [*prompt[:-1], {**prompt[-1], "content": text}]
