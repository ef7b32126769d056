"""The sources that an encoder-decoder reads its texts with: their tokens, with what the tokenizer puts around them."""

from dataclasses import dataclass
from typing import final

from mnemoscope.errors import PromptError
from mnemoscope.models.tokens.model_tokens import Reader


@final
@dataclass(frozen=True)
class Sources:
    """`around` are the ids before and behind a source; with them it has at most `longest`, each below `rows`."""

    reader: Reader
    around: tuple[tuple[int, ...], tuple[int, ...]]
    longest: int
    rows: int

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The token ids of each source; raises PromptError for one that is too long."""
        before, after = self.around
        every = [[*before, *tokens, *after] for tokens in self.reader.encode(texts)]
        for text, tokens in zip(texts, every, strict=True):
            if len(tokens) > self.longest:
                raise PromptError(
                    f"the source {text[:40]!r} has {len(tokens):,} tokens, but the model reads at most"
                    f" {self.longest:,}; shorten it, or leave it out"
                )
        return every

    def of_prompt(self, text: str) -> tuple[int, ...]:
        """The token ids of one source; raises PromptError also for one without a token, or with an unknown one."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise PromptError("the source is not text: a character is half of one; write it as UTF-8") from None
        [tokens] = self.encode([text])
        if len(tokens) == sum(map(len, self.around)) or max(tokens) >= self.rows:
            raise PromptError(f"the source {text[:40]!r} has no token in this model's vocabulary; write some words")
        return tuple(tokens)
