"""The working copy against a plain reference: ids, repeats, windows, held-out documents, caps, validation text."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnemoscope.corpus import Source, TokenizedCorpus, document_hash, open_prepared, open_source
from mnemoscope.corpus.sources import pydocs
from mnemoscope.corpus.sources.sentences import split_sentences
from mnemoscope.corpus.tokenized import finalize, preparation
from mnemoscope.errors import CorpusEmpty, CorpusUnreadable, PromptError, StoreFailed
from support.corpus_reference import LONGEST, Expected, Words, expected_copy, make
from support.corpus_texts import varied_text
from support.durable import Disk


def same(copy: TokenizedCorpus, expected: Expected) -> None:
    ids = range(copy.sentences)
    assert [copy.text(i) for i in ids] == expected.texts
    assert [copy.tokens(i).tolist() for i in ids] == expected.tokens
    assert copy.lengths.tolist() == [len(own) for own in expected.tokens]
    assert copy.documents(np.arange(copy.sentences)).tolist() == expected.documents
    assert copy.multiplicity.tolist() == expected.multiplicity
    assert copy.held_out.tolist() == expected.held_out
    assert copy.held.tolist() == [i for i in ids if expected.held_out[i]]
    assert copy.mined.tolist() == expected.mined
    assert copy.mined_lengths.tolist() == [len(expected.tokens[i]) for i in expected.mined]
    assert copy.counts["sentences"] == copy.sentences == len(expected.texts)
    assert copy.counts["duplicates"] == sum(expected.multiplicity) - len(expected.texts)
    assert copy.counts["mined_sentences"] == len(expected.mined)
    assert copy.counts["mined_tokens"] == sum(len(expected.tokens[i]) for i in expected.mined)
    assert copy.counts["held_out_sentences"] == sum(expected.held_out)
    assert copy.counts["held_out_threshold"] == expected.threshold
    assert (copy.counts["windows"], copy.counts["without_tokens"]) == (expected.windows, expected.without_tokens)
    occurrences = list(zip(expected.texts, expected.tokens, expected.multiplicity, strict=True))
    assert copy.counts["tokens"] == sum(len(own) * times for _, own, times in occurrences)
    assert copy.counts["text_bytes"] >= sum(len(text.encode()) for text in expected.texts)


@pytest.mark.fast(3)
@pytest.mark.parametrize("split", ["sentence", "line", "document"])
@pytest.mark.parametrize(
    "caps", [{}, {"max_sentences": 1}, {"max_sentences": 321}, {"max_tokens": 1}, {"max_tokens": 2_000}], ids=str
)
def test_a_copy_is_what_plain_python_says(text: Path, tmp_path: Path, split: str, caps: dict[str, int]) -> None:
    copy = make(text, tmp_path / "copy", split=split, **caps)
    documents = list(open_source(str(text), split=split).documents())
    expected = expected_copy(documents, lambda each: split_sentences(each, split), longest=LONGEST, **caps)
    same(copy, expected)
    assert copy.counts["documents"] == len(documents)
    assert copy.counts["windows"] > 0
    assert copy.counts["without_tokens"] > 0
    assert copy.counts["read_whole"]
    assert 0 < copy.counts["held_out_sentences"] < copy.sentences / 5


def test_chunks_do_not_matter(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make(text, tmp_path / "whole", max_tokens=2_000)
    monkeypatch.setattr(finalize, "CHUNK", 7)
    monkeypatch.setattr(finalize, "TEXT_CHUNK", 11)
    chunked = make(text, tmp_path / "chunked", max_tokens=2_000)
    assert files(tmp_path / "whole") == files(tmp_path / "chunked")
    assert whole.fingerprint == chunked.fingerprint


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}


def test_a_finished_copy_holds_its_files_and_no_more(text: Path, tmp_path: Path) -> None:
    make(text, tmp_path / "copy")
    names = {"text", "tokens", "classes", *preparation.COLUMNS}
    assert set(files(tmp_path / "copy")) == {"copy.json", *(f"{name}.bin" for name in names)}


@pytest.mark.full
def test_the_threshold_grows_until_there_are_enough_sentences(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(" ".join(f"Word {i} {j}." for j in range(20)) for i in range(5_000)))
    copy = make(path, tmp_path / "copy")
    same(copy, expected_copy(path.read_text().split("\n\n"), lambda t: split_sentences(t, "sentence"), longest=LONGEST))
    assert 200 < copy.counts["held_out_threshold"] < 1_000
    assert 4_000 <= copy.counts["held_out_sentences"] < 4_020


def test_a_document_in_pieces_is_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text.txt"
    path.write_text(varied_text(60).replace("\n\n", "\n") + "\n\nEnd.")
    monkeypatch.setattr("mnemoscope.corpus.sources.readers.PIECE", 50)
    copy = make(path, tmp_path / "copy")
    assert copy.counts["documents"] == 2
    assert set(copy.documents(np.arange(copy.sentences - 1)).tolist()) == {0}
    hashes = [document_hash(each) for each in open_source(str(path)).documents()]
    assert np.fromfile(tmp_path / "copy" / "classes.bin", "<u2").tolist() == hashes


def test_a_text_that_a_list_holds_out_whole_is_mined(tmp_path: Path) -> None:
    texts = ["One. Two.", "Three."]
    listed = frozenset(map(pydocs.document_key, texts))
    source = Source("listed", {}, lambda *_: ((text, True) for text in texts), held_out=listed)
    copy = make(source, tmp_path)
    assert (copy.mined.tolist(), copy.held.tolist(), copy.counts["held_out_documents"]) == ([0, 1, 2], [], 0)


def test_a_text_that_would_be_held_out_whole_is_mined(tmp_path: Path) -> None:
    number = next(i for i in range(10_000) if document_hash(f"Only {i}.") < 200)
    (tmp_path / "a.txt").write_text(f"Only {number}.")
    copy = make(tmp_path / "a.txt", tmp_path / "copy")
    assert copy.mined.tolist() == [0]
    assert (copy.held.tolist(), copy.counts["held_out_threshold"]) == ([], 0)


def test_reading_stops_soon_after_a_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(f"Sentence number {i}." for i in range(5_000)))
    monkeypatch.setattr(preparation, "FIRST_LOOK", 64)
    copy = make(tmp_path / "a.txt", tmp_path / "copy", max_sentences=100)
    # Looked at 128 found sentences, where enough are not held out.
    assert (copy.counts["documents"], len(copy.mined)) == (128, 100)
    assert not copy.counts["read_whole"]
    read = [f"Sentence number {i}." for i in range(128)]
    same(copy, expected_copy(read, lambda each: [each], longest=LONGEST, max_sentences=100))
    by_tokens = make(tmp_path / "a.txt", tmp_path / "copy", max_tokens=1_000)
    assert (by_tokens.counts["mined_tokens"], by_tokens.counts["documents"]) == (999, 512)


def test_a_validation_text_of_its_own(text: Path, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("Fresh one.\n\nFresh two.\n\n" + "\n\n".join(text.read_text().split("\n\n")[:5]))
    validation = open_source(str(tmp_path / "v.txt"))
    copy = make(text, tmp_path / "copy", validation=validation)
    documents = list(open_source(str(text)).documents())
    same(copy, expected_copy(documents, lambda t: split_sentences(t, "sentence"), longest=LONGEST, hold_out=False))
    second = copy.validation
    assert isinstance(second, TokenizedCorpus)
    assert [second.text(0), second.text(1)] == ["Fresh one.", "Fresh two."]
    mined = {copy.text(i).strip() for i in range(copy.sentences)}
    shared = sum(second.text(i).strip() in mined for i in range(second.sentences))
    assert copy.counts["validation"]["overlap_sentences"] == shared == second.sentences - 2
    assert copy.counts["validation"]["sentences"] == second.sentences
    again = make(text, tmp_path / "copy", validation=validation)
    assert (again.counts, again.fingerprint) == (copy.counts, copy.fingerprint)
    assert isinstance(make(text, tmp_path / "copy").validation, np.ndarray)


def test_a_finished_copy_is_opened_and_another_remade(text: Path, tmp_path: Path) -> None:
    first = make(text, tmp_path / "copy")
    before = files(tmp_path / "copy")
    made = (tmp_path / "copy" / "text.bin").stat().st_mtime_ns
    assert make(text, tmp_path / "copy").counts == first.counts
    assert (tmp_path / "copy" / "text.bin").stat().st_mtime_ns == made
    # Other arguments, and back again.
    assert make(text, tmp_path / "copy", max_sentences=3).counts["mined_sentences"] == 3
    assert make(text, tmp_path / "copy").fingerprint == first.fingerprint
    assert files(tmp_path / "copy") == before
    # A file that has changed since.
    text.write_text(text.read_text() + "\n\nOne more.")
    assert make(text, tmp_path / "copy").sentences == first.sentences + 1


def notes_of(text: Path, directory: Path, **options: Any) -> list[str]:
    """What is said when a text is prepared, beside how far it is."""
    told: list[tuple[str, str]] = []
    make(text, directory, progress=lambda stage, *_, note=told: note.append((stage, _[-1])), **options)
    return [note for stage, note in told if stage == "note"]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [Path.unlink, flip, lambda path: path.write_bytes(path.read_bytes()[:-9])])
@pytest.mark.parametrize("name", ["text", "tokens", "classes", *preparation.COLUMNS])
def test_a_damaged_file_is_said_once_and_the_text_prepared_again(
    text: Path, tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    make(text, tmp_path / "copy")
    before = files(tmp_path / "copy")
    victim = tmp_path / "copy" / f"{name}.bin"
    damage(victim)
    assert notes_of(text, tmp_path / "copy") == [
        f"{victim} was damaged since the run was stopped; the text is prepared again"
    ]
    assert files(tmp_path / "copy") == before
    assert notes_of(text, tmp_path / "copy") == []


@pytest.mark.parametrize("spoil", [Path.unlink, flip, lambda path: path.write_text(path.read_text().replace("1", "2"))])
def test_a_damaged_description_counts_as_none(text: Path, tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    made = make(text, tmp_path / "copy")
    before = files(tmp_path / "copy")
    spoil(tmp_path / "copy" / "copy.json")
    with pytest.raises(CorpusUnreadable, match="does not hold a completely prepared text"):
        open_prepared(tmp_path / "copy", validation=False)
    (said,) = notes_of(text, tmp_path / "copy")
    assert "was not prepared to its end, or damaged; the text is prepared again" in said
    assert files(tmp_path / "copy") == before
    assert open_prepared(tmp_path / "copy", validation=False).counts == made.counts


def test_a_damaged_validation_text_alone_is_prepared_again(text: Path, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("Fresh one.\n\nFresh two.")
    validation = open_source(str(tmp_path / "v.txt"))
    made = make(text, tmp_path / "copy", validation=validation)
    before = files(tmp_path / "copy/validation"), (tmp_path / "copy/text.bin").stat().st_ino
    flip(tmp_path / "copy/validation/lengths.bin")
    (said,) = notes_of(text, tmp_path / "copy", validation=validation)
    assert "validation/lengths.bin was damaged since the run was stopped" in said
    assert (files(tmp_path / "copy/validation"), (tmp_path / "copy/text.bin").stat().st_ino) == before
    assert make(text, tmp_path / "copy", validation=validation).counts == made.counts


def test_the_fingerprint_is_that_of_lengths_texts_documents_and_flags(text: Path, tmp_path: Path) -> None:
    copy = make(text, tmp_path / "copy")
    texts = [copy.text(sentence).encode() for sentence in range(copy.sentences)]
    parts = [
        np.array([len(each) for each in texts], "<i8").tobytes(),
        b"".join(texts),
        copy.documents(np.arange(copy.sentences)).astype("<i8").tobytes(),
        copy.held_out.tobytes(),
    ]
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    assert copy.fingerprint == hashlib.sha256(digests).hexdigest()


def test_progress_is_told(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "PROGRESS_EVERY", 0)
    told: list[tuple[str, float, float | None, str]] = []
    make(text, tmp_path / "copy", progress=lambda *each: told.append(each))
    size = text.stat().st_size
    assert told == sorted(told)
    assert told[-1] == ("reading text", size, size, "bytes")


def test_reading_many_sentences_gives_pages_back(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = make(text, tmp_path / "copy")
    before = [copy.text(i) for i in range(copy.sentences)]
    monkeypatch.setattr("mnemoscope.corpus.tokenized.tokenized_corpus.TOUCHES", 3)
    assert [copy.text(i) for i in range(copy.sentences)] == before


@pytest.mark.parametrize("sentence", [-1, 10**6])
def test_a_sentence_that_is_not_there(text: Path, tmp_path: Path, sentence: int) -> None:
    with pytest.raises(IndexError, match=r"sentence -?\d+ of"):
        make(text, tmp_path / "copy").tokens(sentence)


# What can go wrong.


@pytest.mark.parametrize("content", ["", " \n\n\t\n", "\ufeff", "xxx xx.\n\nxxxx"], ids=["empty", "blank", "mark", "x"])
def test_a_text_without_a_usable_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(CorpusEmpty, match=r"a.txt: no usable sentence in \d documents"):
        make(tmp_path / "a.txt", tmp_path / "copy")


class Refusing(Words):
    """A tokenizer for some texts only, as that of token ids is."""

    def encode(self, texts: list[str], /) -> list[list[int]]:
        if any("Bad" in text for text in texts):
            raise PromptError("'fox' is no token")
        return super().encode(texts)


def test_a_text_that_cannot_be_tokenised_is_named_by_its_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Fine.\n\nBad one.")
    with pytest.raises(CorpusUnreadable, match=r"^documents from 0 .* 'fox'"):
        make(tmp_path / "a.txt", tmp_path / "copy", encoder=Refusing())


def test_a_finished_copy_is_opened_by_others_with_its_batches(text: Path, tmp_path: Path) -> None:
    made = make(text, tmp_path / "copy", validation=open_source(str(text)))
    opened = open_prepared(tmp_path / "copy", validation=True)
    assert (opened.fingerprint, opened.sentences, opened.text(3)) == (made.fingerprint, made.sentences, made.text(3))
    assert isinstance(opened.validation, TokenizedCorpus)
    assert opened.validation.fingerprint == made.validation.fingerprint  # type: ignore[union-attr]
    assert isinstance(open_prepared(tmp_path / "copy", validation=False).validation, np.ndarray)
    with pytest.raises(StoreFailed, match="copy has no batches"):
        opened.planned_batches()
    batches = made.batches(256)
    plans = (batches, opened.planned_batches())
    one, other = ([plan.ids(k).tolist() for k in range(plan.count)] for plan in plans)
    assert one == other != []


@pytest.mark.parametrize("damage", ["nothing there", "unfinished", "short"])
def test_a_copy_that_is_not_whole_is_not_opened(text: Path, tmp_path: Path, damage: str) -> None:
    directory = tmp_path / "copy"
    if damage != "nothing there":
        make(text, directory)
        state = directory / "copy.json"
        if damage == "unfinished":
            state.unlink()
        else:
            (directory / "tokens.bin").write_bytes((directory / "tokens.bin").read_bytes()[:-4])
    with pytest.raises(CorpusUnreadable, match=r"copy does not hold a completely prepared text"):
        open_prepared(directory, validation=False)


def test_another_tokenizer_makes_the_copy_anew(text: Path, tmp_path: Path) -> None:
    made = make(text, tmp_path / "copy", made_with={"tokenizer": "a"})
    before = (tmp_path / "copy/tokens.bin").stat().st_ino
    assert make(text, tmp_path / "copy", made_with={"tokenizer": "a"}).fingerprint == made.fingerprint
    assert (tmp_path / "copy/tokens.bin").stat().st_ino == before
    make(text, tmp_path / "copy", made_with={"tokenizer": "b"})
    assert (tmp_path / "copy/tokens.bin").stat().st_ino != before


def test_a_file_that_changes_while_it_is_read(text: Path) -> None:
    source = open_source(str(text))
    reading = source.documents()
    next(reading)
    text.write_text("Another text altogether, shorter.\n")
    with pytest.raises(CorpusUnreadable, match=r"text\.txt changed while it was read"):
        list(reading)


def test_the_built_in_texts_identity_is_that_of_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = open_source("builtin:pydocs:stdlib").identity
    assert open_source("builtin:pydocs:stdlib").identity == here
    (tmp_path / "module.py").write_text('"""Another standard library."""\n')
    monkeypatch.setattr(pydocs.sysconfig, "get_path", lambda name: str(tmp_path))
    other = open_source("builtin:pydocs:stdlib").identity
    assert other != here
    (tmp_path / "module.py").write_text('"""Yet another standard library."""\n')
    assert open_source("builtin:pydocs:stdlib").identity != other


def test_a_finished_copy_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its columns are flushed before copy.json describes them."""
    (tmp_path / "text.txt").write_text(varied_text(50))
    (tmp_path / "copy").mkdir()
    disk = Disk(tmp_path / "copy", monkeypatch)
    make(tmp_path / "text.txt", disk.root)
    assert disk.at_risk() == []
    finished = disk.named[disk.root / "copy.json"]
    columns = [path.stat() for path in disk.root.glob("*.bin")]
    assert len(columns) > 5
    flushed = [disk.flushed[column.st_ino, column.st_size] for column in columns]
    assert max(flushed) < disk.before[disk.root / "copy.json"] < finished
