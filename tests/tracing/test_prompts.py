"""What a prompt must be to be run, asked of a tokenizer made by hand: an id for each word, some beyond the head."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mnemoscope.errors import OptionError, PromptError
from mnemoscope.foundation.reading import Reading
from mnemoscope.models import LanguageModel
from mnemoscope.tracing import trace
from mnemoscope.tracing.scoring.scores import check_wide_numbers

WORDS = {"one": 0, "two": 1, "silent": 2, "mute": 3, "far": 4, "further": 9}
"""`silent` and `mute` have no text, `far` and `further` no row; other words are no tokens."""


class Reader:
    """What `prompt_tokens` asks of a model."""

    def __init__(self, *, beginning: int = 1, offsets: bool = True) -> None:
        self.sizes = SimpleNamespace(vocabulary=4)
        self.reading = Reading((0,) * beginning)
        self.longest = 3
        self._known = offsets

    def prompt_text(self, prompt: str) -> str:
        return prompt

    def with_source(self, _: None) -> "Reader":
        return self

    def _reader_of(self, _: str) -> "Reader":
        return self

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [[WORDS[word] for word in text.split() if word in WORDS] for text in texts]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        words = [word for word in text.split() if word in WORDS]
        return [(text.index(word), text.index(word) + len(word)) for word in words if self._known]

    def vocabulary(self) -> tuple[list[str], list[bytes]]:
        return ["one", " two", "", ""], [b"one", b" two", b"", b""]


def read(prompt: str, **options: Any) -> list[int]:
    reader: Any = Reader(**options)
    return LanguageModel.prompt_tokens(reader, prompt)


def test_a_prompt_is_its_tokens() -> None:
    assert (read("one two one"), read("silent one")) == ([0, 1, 0], [2, 0])


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "the prompt is empty"),
        ("one \udc80", "the prompt is not text: character 4 is half of one"),
        ("nothing", "the prompt 'nothing' has no token"),
        ("x" * 40, f"the prompt '{'x' * 40}' has no token"),
        ("x" * 41, f"the prompt '{'x' * 40}...' has no token"),
        ("one far further far", "the prompt has token 9 ('further'), but the model has only 4 rows"),
        ("far", "the prompt has token 4 ('far'), but the model has only 4 rows"),
        ("mute silent", "the prompt 'mute silent' has only tokens without text (3)"),
        ("one two one two", "the prompt has 4 tokens, but the model reads at most 3 after its beginning token"),
    ],
)
def test_what_cannot_be_run_is_told_in_one_line(prompt: str, said: str) -> None:
    with pytest.raises(PromptError) as refused:
        read(prompt)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_what_is_not_known_is_not_told() -> None:
    with pytest.raises(PromptError, match=r"^the prompt has token 4"):
        read("one far", offsets=False)
    with pytest.raises(PromptError, match=r"the model reads at most 3"):
        read("one one one one", beginning=0)


def test_a_device_without_numbers_of_64_bits_is_refused_before_anything_is_run() -> None:
    metal: Any = SimpleNamespace(device=torch.device("mps"))
    for ask in (lambda: check_wide_numbers(metal), lambda: trace(metal, "one")):
        with pytest.raises(OptionError, match=r"^mps has no numbers of 64 bits"):
            ask()
    check_wide_numbers(SimpleNamespace(device=torch.device("cpu")))  # type: ignore[arg-type]
