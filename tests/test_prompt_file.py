"""Files of prompts: what a line may hold, and the line that is named where it does not fit."""

from pathlib import Path

import pytest

from mnemoscope.errors import PromptError
from mnemoscope.foundation.options.prompt_file import read_prompts


def test_a_line_ends_where_json_lines_end(tmp_path: Path) -> None:
    """A prompt may hold what Unicode takes for an end of line; a mark of the byte order and CRLF are of Windows."""
    path = tmp_path / "prompts.jsonl"
    path.write_bytes('\ufeff{"prompt": "one\u2028two\x85three"}\r\n\r\n{"prompt": "four"}'.encode())
    assert read_prompts(path) == [{"prompt": "one\u2028two\x85three"}, {"prompt": "four"}]


@pytest.mark.parametrize(
    "line", ["{broken", "[]", "5", '{"prompt": 5}', '{"prompt": "a", "colour": "b"}', "[" * 100_000]
)
def test_a_line_that_does_not_fit_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n\n' + line)
    with pytest.raises(PromptError, match=r"prompts.jsonl:3 is not \{\"prompt\": TEXT\} with source, for, against"):
        read_prompts(path)
