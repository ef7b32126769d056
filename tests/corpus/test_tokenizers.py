"""Windows with real tokenizers: byte-level BPE and a metaspace model cut text that can be encoded again."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from support.corpus_reference import make

TEXT = "".join(f"The {i}. naïve café in 東京 sells 😀😀 pies, and {i * i} other cafés sell none. " for i in range(30))


class Trained:
    """A small tokenizer trained on the text itself."""

    def __init__(self, kind: str) -> None:
        self.inner = Tokenizer(models.BPE())
        trainer = trainers.BpeTrainer(vocab_size=330, show_progress=False)
        if kind == "byte-level":
            self.inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            self.inner.decoder = decoders.ByteLevel()
            alphabet = pre_tokenizers.ByteLevel.alphabet()
            trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False, initial_alphabet=alphabet)
        else:
            self.inner.pre_tokenizer = pre_tokenizers.Metaspace()
            self.inner.decoder = decoders.Metaspace()
        self.inner.train_from_iterator([TEXT], trainer)

    def encode(self, texts: list[str], /) -> list[list[int]]:
        return [each.ids for each in self.inner.encode_batch(texts, add_special_tokens=False)]

    def offsets(self, text: str, /) -> list[tuple[int, int]]:
        return list(self.inner.encode(text, add_special_tokens=False).offsets)


@pytest.mark.parametrize("longest", [4, 7, 16])
@pytest.mark.parametrize("kind", ["byte-level", "metaspace"])
def test_windows_are_slices_that_their_tokens_spell(tmp_path: Path, kind: str, longest: int) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    tokenizer = Trained(kind)
    options = {"encoder": tokenizer, "longest": longest, "vocabulary": tokenizer.inner.get_vocab_size()}
    copy = make(tmp_path / "a.txt", tmp_path / "copy", split="document", **options)
    assert copy.counts["windows"] >= copy.sentences > 5
    assert copy.lengths.max() <= longest
    for sentence in range(copy.sentences):
        text, tokens = copy.text(sentence), copy.tokens(sentence).tolist()
        assert text in TEXT
        # No character is cut through, so the tokens spell exactly the text.
        assert tokenizer.inner.decode(tokens).strip() == text.strip()
        if kind == "byte-level":
            assert tokenizer.inner.decode(tokenizer.encode([text])[0]) == text
