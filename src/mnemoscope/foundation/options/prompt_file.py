"""Files of prompts and of one chat. A prompt's line of JSON has `prompt` or `messages`, perhaps `source`, `for`,
`against`, and `other_prompt`.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mnemoscope.errors import OptionError, PromptError
from mnemoscope.foundation.options.chat_prompt import check_messages, other_turn

FIELDS = ("prompt", "source", "for", "against", "other_prompt")
PromptRow = dict[str, Any]
"""The values of FIELDS: texts, but prompts may be messages."""


def read_prompts(path: Path) -> list[PromptRow]:
    """The rows of a file of prompts."""
    rows = []
    for number, row in _lines(_text(path, "prompts")):
        chat = row.pop("messages", None) if isinstance(row, dict) else None
        fits = isinstance(row, dict) and isinstance(row.get("prompt"), str) == (chat is None)
        if not fits or not all(key in FIELDS and isinstance(value, str) for key, value in row.items()):
            wanted = f'{{"prompt": TEXT}} with {", ".join(FIELDS[1:])} perhaps, or with messages in place of the prompt'
            raise PromptError(f"{path}:{number} is not {wanted}")
        if chat is not None:
            row["prompt"] = _messages(chat, f"{path}:{number}")
            row |= {name: other_turn(row["prompt"], text) for name, text in row.items() if name == "other_prompt"}
        rows.append(row)
    if not rows:
        raise PromptError(f"{path} has no prompt; write one JSON object a line")
    return rows


def read_messages(path: Path) -> list[dict[str, str]]:
    """The messages of a file: a JSON list, or one JSON object a line."""
    text = _text(path, "messages")
    listed = [row for _, row in _lines(text)]
    try:
        listed = json.loads(text) if text.lstrip()[:1] == "[" else listed
    except (ValueError, RecursionError):
        listed = []
    return _messages(listed, str(path))


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


def _lines(text: str) -> Iterator[tuple[int, Any]]:
    """The number and the value of every line that is not empty; None where it is no JSON."""
    for number, line in enumerate(text.split("\n"), 1):  # a prompt may hold other ends of lines
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                yield number, None


def check_second(prompts: Sequence[PromptRow], other: object, other_adapter: object) -> bool:
    """Whether each prompt has its own second, in place of a second model."""
    if other is not None and other_adapter is not None:
        raise OptionError("give one of --other and --other-adapter")
    alone = other is None and other_adapter is None
    if any(("other_prompt" in row) != alone for row in prompts):
        raise OptionError("every prompt has an other_prompt, or --other or --other-adapter is given: one of the two")
    return alone


def check_restored(restored: int, top: int, *, two_prompts: bool, generate: int = 0) -> None:
    """Raises OptionError for memories that cannot be set back."""
    if two_prompts and (restored or generate):
        raise OptionError("--generate and --restored are for two models (--other, --other-adapter), not two prompts")
    if restored > top:
        raise OptionError(f"--restored {restored} is not possible; take at most the {top} memories that are listed")
