"""Batches of sentences packed as they are stored, against plain loops; made by several threads, written in order."""

import os
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.corpus.tokenized import first_pass
from mnemoscope.corpus.tokenized.duplicates import text_hashes
from mnemoscope.corpus.tokenized.encoded_batches import EncodedBatch, encode_batch
from mnemoscope.corpus.tokenized.first_pass import one_thread_a_call
from mnemoscope.errors import ModelDamaged
from support.corpus_reference import Letters, Words, make
from support.corpus_texts import varied_text

VARIABLE = "TOKENIZERS_PARALLELISM"


def rows(batch: EncodedBatch) -> list[tuple[str, list[int], int]]:
    """Text, tokens and document of every sentence of a batch."""
    found, text, tokens = [], batch.text, batch.tokens.tolist()
    for record in batch.records:
        own, size = int(record["tokens"]), int(record["text"])
        found.append((text[:size].decode(), tokens[:own], int(record["document"])))
        text, tokens = text[size:], tokens[own:]
    assert (text, tokens) == (b"", [])
    return found


def slow_rows(sentences: list[tuple[str, int]], longest: int) -> tuple[list[tuple[str, list[int], int]], int]:
    """The same of sentences whose characters are their tokens, and how many windows there are."""
    found, windows = [], 0
    for text, document in sentences:
        cut = [text[at : at + longest] for at in range(0, len(text), longest)]
        kept = cut if len(cut) == 1 else [part for part in cut if not part.isspace()]
        windows += len(kept) * (len(cut) > 1)
        found += [(part, [ord(character) % 128 for character in part], document) for part in kept]
    return found, windows


@given(st.lists(st.tuples(st.text("ab é\u65e5 ", max_size=9), st.integers(0, 1 << 40)), min_size=1, max_size=12))
def test_a_batch_is_what_plain_loops_say(sentences: list[tuple[str, int]]) -> None:
    texts, documents = [text for text, _ in sentences], [document for _, document in sentences]
    batch = encode_batch(Letters(), texts, documents, longest=3, vocabulary=128)
    expected, windows = slow_rows(sentences, 3)
    assert rows(batch) == expected
    assert batch.records["hash"].tolist() == text_hashes([text for text, _, _ in expected]).tolist()
    assert (batch.windows, batch.without_tokens) == (windows, texts.count(""))


def test_a_token_beyond_the_head_in_a_window_is_named_with_its_document() -> None:
    with pytest.raises(ModelDamaged, match=r"^token id 122 is beyond the 122 rows .* \(document 7, sentence 'xyz'\)"):
        encode_batch(Misread(), ["ab", "", "abcxyz", "zz"], [3, 4, 7, 9], longest=3, vocabulary=122)
    with pytest.raises(ModelDamaged, match=r"^token id 122 \('z'\) is beyond .* \(document 7, sentence 'xyz'\)"):
        encode_batch(Letters(), ["ab", "", "abcxyz", "zz"], [3, 4, 7, 9], longest=3, vocabulary=122)


class Misread(Letters):
    """Reads short texts as other tokens than the same text within a longer one."""

    def offsets(self, text: str, /) -> list[tuple[int, int]]:
        return super().offsets(text)[len(text) < 4 :]


class Late(Words):
    """Tokenises the first batch only when a later one is done."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.later, self.waited = Event(), False

    def encode(self, texts: list[str], /) -> list[list[int]]:
        self.calls += 1
        if self.calls == 2:  # the first call asks what the tokenizer makes of a few texts
            self.waited = self.later.wait(30)
        elif self.calls > 2:
            self.later.set()
        return super().encode(texts)


def test_batches_that_are_ready_out_of_turn_are_written_in_turn(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "a.txt").write_text(varied_text(300))
    contents = []
    late = Late()
    for threads, encoder in ((1, Words()), (3, late)):
        monkeypatch.setattr(first_pass, "usable_cores", lambda threads=threads: range(threads))
        monkeypatch.setattr(first_pass, "SENTENCES_AT_ONCE", 30)
        monkeypatch.setattr(first_pass, "BATCH_SENTENCES", 10)
        folder = tmp_path / str(threads)
        make(tmp_path / "a.txt", folder, encoder=encoder)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir() if path.name != "copy.json"})
    assert late.waited
    assert contents[0] == contents[1]


def test_tokenizers_use_the_callers_thread_as_long_as_anybody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    first, second = one_thread_a_call(), one_thread_a_call()
    with first:
        assert os.environ[VARIABLE] == "false"
        second.__enter__()
    assert os.environ[VARIABLE] == "false"
    second.__exit__(None, None, None)
    assert VARIABLE not in os.environ
    monkeypatch.setenv(VARIABLE, "true")
    with one_thread_a_call():
        assert os.environ[VARIABLE] == "true"
    assert os.environ[VARIABLE] == "true"


def test_a_reading_that_breaks_off_leaves_no_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "a.txt").write_text("One. Two.")
    seen: list[str | None] = []

    class Broken(Words):
        def encode(self, texts: list[str], /) -> list[list[int]]:
            seen.append(os.environ.get(VARIABLE))
            return [[9_999] for _ in texts]

    with pytest.raises(ModelDamaged):
        make(tmp_path / "a.txt", tmp_path / "copy", encoder=Broken())
    assert seen == ["false"]
    assert VARIABLE not in os.environ
