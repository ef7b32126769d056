"""Documents to windows: tokenizer, held-out documents, and what every step reads."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from mnemoscope.corpus.sources.sentences import split_sentences
from mnemoscope.corpus.tokenized.first_pass import document_hash
from mnemoscope.errors import CorpusNotFound, TrainingError
from mnemoscope.training import Recipe
from mnemoscope.training import text as training_text
from mnemoscope.training.text import Text, TextSource, TrainingData, prepare_text, train_tokenizer, windows
from training.conftest import made_up_documents


def test_the_tokenizer_gives_every_text_back_and_begins_with_the_beginning() -> None:
    tokenizer = train_tokenizer(iter(["the cat sat on the mat"] * 20), 262)
    assert tokenizer.get_vocab_size() == 262
    assert tokenizer.token_to_id("<|endoftext|>") == 0
    for text in ("the cat", " two  spaces\n", "caf\u00e9 \u2603 \U0001f600", "\x00\t"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert len(tokenizer.encode(" the").ids) < 4


def counted_text(tokens: int = 2_000) -> Text:
    """A stream whose token at position p is p (0, the beginning token, at its start alone), a sentence every ten."""
    starts: NDArray[np.int64] = np.arange(1, tokens, 10)
    return Text(np.arange(tokens, dtype=np.uint16), starts, np.zeros(1, np.int64), tokens)


def quietly(text: str) -> None:
    pass


def test_half_of_the_windows_are_the_beginning_and_a_sentence(recipe: Recipe) -> None:
    text = counted_text()
    each = [windows(text, recipe, step) for step in range(100)]
    rows = np.concatenate(each)
    assert rows.shape == (800, 17)
    begins = rows[:, 0] == 0
    assert 0.45 < begins.mean() < 0.55
    assert set(rows[begins, 1] % 10) == {1}
    # The rest of a window is the text as it stands.
    assert (np.diff(rows[:, 1:], axis=1) == 1).all()
    assert (rows[~begins, 1] == rows[~begins, 0] + 1).all()
    # Of other epochs: only the last one's order is kept, so each of these is drawn anew.
    assert (windows(text, recipe, 5) == each[5]).all()
    assert (windows(text, recipe, 50) == each[50]).all()
    assert not (windows(text, replace(recipe, seed=1), 5) == each[5]).all()


def test_documentation_is_prepared_once(recipe: Recipe, documentation: list[str], tmp_path: Path) -> None:
    said: list[str] = []
    made = prepare_text(recipe, tmp_path, say=said.append)
    assert said[0] == "reading the documentation on this machine"
    assert made.tokenizer.get_vocab_size() == 300
    assert len(made.training.documents) + len(made.held_out.documents) == 300
    # Too few sentences for 4,000: the tenth of all classes is held out, less what shares a run of 50 tokens.
    candidates = sum(document_hash(text) < 1_000 for text in documentation)
    assert 0 < len(made.held_out_keys) == len(made.held_out.documents) <= candidates
    newline = made.tokenizer.encode("\n").ids[0]
    for text in (made.training, made.held_out):
        assert (text.tokens[text.documents] == 0).all()
        assert (text.tokens == 0).sum() == len(text.documents)
        first = np.isin(text.sentences - 1, text.documents)
        assert (text.tokens[text.sentences - 1] == np.where(first, 0, newline)).all()
    whole = "".join(made.tokenizer.decode(made.training.tokens[1:].tolist(), skip_special_tokens=True))
    assert len(whole.encode()) == made.training.text_bytes

    again = prepare_text(recipe, tmp_path, say=said.append)
    assert len(said) == 3
    assert (again.training.tokens == made.training.tokens).all()
    assert again.held_out_keys == made.held_out_keys
    with pytest.raises(TrainingError, match="prepared for another recipe"):
        prepare_text(replace(recipe, vocabulary=280), tmp_path, say=quietly)
    del documentation[2:]
    with pytest.raises(TrainingError, match="is too little to train on"):
        prepare_text(replace(recipe, context=512), tmp_path / "other", say=quietly)


def test_an_epoch_reads_every_place_once(recipe: Recipe) -> None:
    text, plain = counted_text(), Recipe(**{**vars(recipe), "sentence_windows": 0.0})
    each = (2_000 - 2 * 17) // 16
    rows = np.concatenate([windows(text, plain, step) for step in range(2 * each // 8 + 1)])
    first, second = rows[:each, 0], rows[each : 2 * each, 0]
    for starts in (first, second):
        assert (len(set(starts)), len(set(starts % 16))) == (each, 1)
    assert sorted(first) != first.tolist()
    assert first.tolist() != second.tolist()


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A text of forty paragraphs and one of JSON lines, with the same made-up words."""
    documents = made_up_documents(60)
    (tmp_path / "a.txt").write_text("\n\n".join(documents[:40]) + "\n")
    rows = [json.dumps({"body": text}) for text in [*documents[40:], "", "\n"]]
    (tmp_path / "b.jsonl").write_text("\n".join(rows))
    (tmp_path / "c.txt").write_text("The value of a key.\n\nAnd the layer.\n")
    return [str(tmp_path / name) for name in ("a.txt", "b.jsonl", "c.txt")]


def decoded(made: TrainingData, text: Text) -> list[str]:
    """The documents of a stream as text, without the line feed at the end."""
    return [made.tokenizer.decode(own[1:-1].tolist()) for own in np.split(text.tokens, text.documents[1:])]


def test_texts_of_one_s_own_are_read_one_after_the_other(recipe: Recipe, files: list[str], tmp_path: Path) -> None:
    said: list[str] = []
    wanted = TextSource((files[0], files[1]), validation=files[2], text_field="body")
    made = prepare_text(recipe, tmp_path / "text", say=said.append, wanted=wanted)
    assert said[:2] == [f"reading {files[0]}, {files[1]}", "60 documents; training the tokenizer"]
    # A sentence to a line; documents without one are no documents.
    lines = ["\n".join(split_sentences(text, "sentence")) for text in made_up_documents(60)]
    held = [document_hash(text) < 1_000 for text in made_up_documents(60)]
    assert decoded(made, made.training) == [text for text, out in zip(lines, held, strict=True) if not out]
    assert decoded(made, made.held_out) == [text for text, out in zip(lines, held, strict=True) if out]
    assert made.validation is not None
    assert decoded(made, made.validation) == ["The value of a key.", "And the layer."]
    again = prepare_text(recipe, tmp_path / "text", say=said.append, wanted=wanted)
    assert len(said) == 3
    assert again.validation is not None
    assert (again.validation.tokens == made.validation.tokens).all()
    # Lines may be the documents.
    lines = [f"{text}  Line {number}. Twice." for number, text in enumerate(made_up_documents(40))]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    made = prepare_text(
        recipe, tmp_path / "lines", say=quietly, wanted=TextSource((str(tmp_path / "lines.txt"),), split="line")
    )
    assert decoded(made, made.training) == [text for text in lines if document_hash(text) >= 1_000]
    assert decoded(made, made.held_out) == [text for text in lines if document_hash(text) < 1_000]


def test_reading_stops_before_the_document_that_is_too_much(recipe: Recipe, files: list[str], tmp_path: Path) -> None:
    sizes = np.cumsum([len(text.encode()) for text in made_up_documents(60)])
    for most, count in ((int(sizes[49]), 50), (int(sizes[49]) - 1, 49), (1, 1)):
        wanted = TextSource((files[0], files[1]), max_bytes=most, text_field="body")
        said: list[str] = []
        with nullcontext() if count > 1 else pytest.raises(TrainingError, match="none of the 1 documents"):
            prepare_text(replace(recipe, context=4), tmp_path / str(most), say=said.append, wanted=wanted)
        assert said[1] == f"{count} documents; training the tokenizer"


def test_another_text_in_the_same_folder_is_refused(recipe: Recipe, files: list[str], tmp_path: Path) -> None:
    wanted, folder = TextSource((files[0],)), tmp_path / "text"
    prepare_text(recipe, folder, say=quietly, wanted=wanted)
    changes: list[dict[str, Any]] = [{"max_bytes": 1_000}, {"validation": "x"}, {"split": "line"}]
    others = [replace(wanted, **change) for change in changes]
    for other in (TextSource(), TextSource((files[2],)), *others):
        with pytest.raises(TrainingError, match="holds text prepared for another recipe"):
            prepare_text(recipe, folder, say=quietly, wanted=other)


def test_a_text_that_is_not_there_or_says_nothing_is_refused(recipe: Recipe, files: list[str], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "novel.txt").write_text("\n".join(made_up_documents(60)))
    for number, (names, options, line) in enumerate(
        (
            ((files[0], "nowhere.txt"), {}, r"no such text: 'nowhere\.txt'"),
            ((files[0],), {"validation": "nowhere.txt"}, r"no such text: 'nowhere\.txt'"),
            ((str(tmp_path / "empty.txt"),), {}, r"empty\.txt has no sentence to train on"),
            ((files[2],), {}, r"c\.txt is too little to train on: \d+ tokens"),
            ((str(tmp_path / "novel.txt"),), {}, r"none of the 1 documents of .*novel\.txt is held out"),
        )
    ):
        own = replace(recipe, context=99) if names == (files[2],) else recipe
        with pytest.raises((CorpusNotFound, TrainingError), match=line):
            prepare_text(own, tmp_path / str(number), say=quietly, wanted=TextSource(names, **options))


def test_the_tokenizer_of_a_large_text_learns_from_a_sample(
    recipe: Recipe, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[list[str]] = []

    def noting(sentences: Iterator[str], vocabulary: int) -> Tokenizer:
        learned.append(list(sentences))
        return train_tokenizer(iter(learned[-1]), vocabulary)

    monkeypatch.setattr(training_text, "train_tokenizer", noting)
    for number, most in enumerate((100_000, 2_000)):
        monkeypatch.setattr(training_text, "SAMPLE_BYTES", most)
        wanted = TextSource((files[0], files[1]), text_field="body")
        prepare_text(recipe, tmp_path / str(number), say=quietly, wanted=wanted)
    whole, sample = learned
    assert set(sample) < set(whole)
    total = sum(len(text.encode()) for text in made_up_documents(60))
    assert 0.3 < len(sample) / len(whole) / (2_000 / total) < 1.7


@pytest.mark.parametrize(
    "content", [b"{}", b"[]", b"{", b'{"wanted": {"x": 1}}', b'{"documents": 1, "wanted": []}', b"\xff"]
)
def test_somebody_s_text_json_is_refused(recipe: Recipe, documentation: Any, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "text.json").write_bytes(content)
    with pytest.raises(TrainingError, match="choose another folder"):
        prepare_text(recipe, tmp_path, say=quietly)
    assert (tmp_path / "text.json").read_bytes() == content
