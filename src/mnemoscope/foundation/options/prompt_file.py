"""Files of prompts and of one chat. A prompt's line of JSON has `prompt` or `messages`, and perhaps `for`, `against`,
and `other_prompt` or `other_messages`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mnemoscope.errors import OptionError, PromptError
from mnemoscope.foundation.options.chat_prompt import check_messages

FIELDS = ("prompt", "for", "against", "other_prompt")
_CHATS = {"messages": "prompt", "other_messages": "other_prompt"}
PromptRow = dict[str, Any]
"""The values of FIELDS: texts, of prompts also messages."""


def read_prompts(path: Path) -> list[PromptRow]:
    """The rows of a file of prompts."""
    rows = []
    for number, row in _lines(path, "prompts"):
        chats = {_CHATS[name]: row[name] for name in _CHATS if name in row} if isinstance(row, dict) else {}
        texts = {name: text for name, text in row.items() if name not in _CHATS} if isinstance(row, dict) else {}
        fits = "prompt" in texts.keys() | chats.keys() and not texts.keys() & chats.keys()
        if not fits or not all(key in FIELDS and isinstance(value, str) for key, value in texts.items()):
            raise PromptError(
                f'{path}:{number} is not {{"prompt": TEXT}} with {", ".join(FIELDS[1:])} perhaps, or with messages in'
                " place of a prompt"
            )
        rows.append(texts | {name: _messages(chat, f"{path}:{number}") for name, chat in chats.items()})
    if not rows:
        raise PromptError(f"{path} has no prompt; write one JSON object a line")
    return rows


def read_messages(path: Path) -> list[dict[str, str]]:
    """The messages of a file: a JSON list, or one JSON object a line."""
    lines = _lines(path, "messages")
    try:
        listed = json.loads(_text(path, "messages"))
    except (ValueError, RecursionError):
        listed = [row for _, row in lines]
    return _messages([listed] if isinstance(listed, dict) else listed, str(path))


def _messages(listed: object, where: str) -> list[dict[str, str]]:
    try:
        return check_messages(listed)
    except PromptError as error:
        raise PromptError(f"{where}: {error}") from None


def _text(path: Path, noun: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"the {noun} in {path} cannot be read ({error}); give a JSONL file") from None


def _lines(path: Path, noun: str) -> list[tuple[int, Any]]:
    """The number and the value of every line that is not empty; None where it is no JSON."""
    rows: list[tuple[int, Any]] = []
    for number, line in enumerate(_text(path, noun).split("\n"), 1):  # a prompt may hold other ends of lines
        if line.strip():
            try:
                rows.append((number, json.loads(line)))
            except (ValueError, RecursionError):
                rows.append((number, None))
    return rows


def check_second(prompts: Sequence[PromptRow], other: object, other_adapter: object) -> bool:
    """Whether each prompt has its own second, in place of a second model."""
    if other is not None and other_adapter is not None:
        raise OptionError("give one of --other and --other-adapter")
    alone = other is None and other_adapter is None
    if any(("other_prompt" in row) != alone for row in prompts):
        raise OptionError("every prompt has an other_prompt, or --other or --other-adapter is given: one of the two")
    return alone
