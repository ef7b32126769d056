"""A file of prompts: JSONL with `prompt` and perhaps `for`, `against` and `other_prompt`."""

import json
from pathlib import Path

from mnemoscope.errors import PromptError

FIELDS = ("prompt", "for", "against", "other_prompt")


def read_prompts(path: Path) -> list[dict[str, str]]:
    """The rows of a file of prompts. Raises PromptError for a file that cannot be read, and names a wrong line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"the prompts in {path} cannot be read ({error}); give a JSONL file") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        fits = isinstance(row, dict) and isinstance(row.get("prompt"), str)
        if not fits or not all(key in FIELDS and isinstance(value, str) for key, value in row.items()):
            raise PromptError(f'{path}:{number} is not {{"prompt": TEXT}} with {", ".join(FIELDS[1:])} perhaps')
        rows.append(row)
    if not rows:
        raise PromptError(f"{path} has no prompt; write one JSON object a line")
    return rows
