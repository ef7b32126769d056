"""The sources that an encoder-decoder reads its texts with: their tokens, with what the tokenizer puts around them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from mnemoscope.errors import PromptError
from mnemoscope.foundation.reading import Reading
from mnemoscope.models.tokens.model_tokens import Reader
from mnemoscope.models.tokens.prompt_reader import refuse_halves


@final
@dataclass(frozen=True)
class Sources:
    """`around` are the ids before and behind a source; with them it has at most `longest`, each of the first `rows`."""

    reader: Reader
    around: tuple[tuple[int, ...], tuple[int, ...]]
    longest: int
    rows: int

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The token ids of each source; raises PromptError for one that is too long, or has an unknown token."""
        before, after = self.around
        every = [[*before, *tokens, *after] for tokens in self.reader.encode(texts)]
        for text, tokens in zip(texts, every, strict=True):
            if len(tokens) > self.longest:
                raise PromptError(
                    f"the source {text[:40]!r} has {len(tokens):,} tokens, but the model reads at most"
                    f" {self.longest:,}; shorten it, or leave it out"
                )
            if max(tokens, default=0) >= self.rows:
                raise PromptError(
                    f"the source {text[:40]!r} has token {max(tokens)}, but the encoder has {self.rows:,} rows; use the"
                    " tokenizer that belongs to the model"
                )
        return every

    def of_prompt(self, text: str) -> tuple[int, ...]:
        """The token ids of one source; raises PromptError also for one without a token."""
        refuse_halves(text, "source")
        [tokens] = self.encode([text])
        if len(tokens) == sum(map(len, self.around)):
            raise PromptError(f"the source {text[:40]!r} has no token in this model's vocabulary; write some words")
        return tuple(tokens)


def given_source(reading: Reading, sources: Sources | None, source: str | Sequence[int] | None) -> Reading:
    """The reading of prompts with this source, a text or its ids; the same one where the model reads none, or it is
    given already.
    """
    if sources is None:
        if isinstance(source, str):
            raise PromptError("this model reads no source; leave it out (--source)")
        return reading
    if source is not None:
        return replace(reading, given=sources.of_prompt(source) if isinstance(source, str) else tuple(source))
    if reading.given is None:
        raise PromptError(
            'this model reads a source and writes a text; give the source, too (--source TEXT, or "source" in a file of'
            " prompts)"
        )
    return reading
