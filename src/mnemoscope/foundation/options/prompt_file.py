"""A file of prompts, in place of one: JSONL with `prompt` and perhaps `for`, `against` and `other_prompt`."""

import json
from collections.abc import Sequence
from pathlib import Path

from mnemoscope.errors import OptionError, PromptError

FIELDS = ("prompt", "for", "against", "other_prompt")
PromptRow = dict[str, str]


def read_prompts(path: Path) -> list[PromptRow]:
    """The rows of a file of prompts."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a prompt may hold other ends of lines
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"the prompts in {path} cannot be read ({error}); give a JSONL file") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        fits = isinstance(row, dict) and isinstance(row.get("prompt"), str)
        if not fits or not all(key in FIELDS and isinstance(value, str) for key, value in row.items()):
            raise PromptError(f'{path}:{number} is not {{"prompt": TEXT}} with {", ".join(FIELDS[1:])} perhaps')
        rows.append(row)
    if not rows:
        raise PromptError(f"{path} has no prompt; write one JSON object a line")
    return rows


def check_second(prompts: Sequence[PromptRow], other: object, other_adapter: object) -> bool:
    """Whether each prompt has its own second, in place of a second model."""
    if other is not None and other_adapter is not None:
        raise OptionError("give one of --other and --other-adapter")
    alone = other is None and other_adapter is None
    if any(("other_prompt" in row) != alone for row in prompts):
        raise OptionError("every prompt has an other_prompt, or --other or --other-adapter is given: one of the two")
    return alone
