"""Token ids in place of a text: the same numbers as from the text that they were made of, with or without a tokenizer.

The reference is the atlas of the text. Only what is shown of a sentence may differ.
"""

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from transformers import ByT5Tokenizer

import mnemoscope as ms
from mining.conftest import byte_tokenizer, odd_text
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.atlas.tables import rebuild_command
from mnemoscope.cli import main
from mnemoscope.errors import CorpusEmpty, CorpusUnreadable, PlanDiffers, PromptError
from mnemoscope.mining import mine, run
from mnemoscope.models import load_model
from models.conftest import build
from web.served import client

OPTIONS: dict[str, Any] = {"removals": 4, "prefixes": 30, "neighbours": 3, "batch_tokens": 128}
Rows = list[list[int]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of one tiny model, with its tokenizer and without."""
    place = tmp_path_factory.mktemp("models")
    hf = build("gpt2-relu", bos_token_id=0, eos_token_id=0)
    for name in ("whole", "bare"):
        hf.save_pretrained(place / name)
    tokenizer = byte_tokenizer(bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    tokenizer.save_pretrained(place / "whole")
    return place / "whole", place / "bare"


@pytest.fixture(scope="module")
def texts(models: tuple[Path, Path]) -> tuple[list[str], Rows]:
    """Lines that fit the context, with repeats, and their ids as the tokenizer itself says them."""
    tokenizer = byte_tokenizer()
    lines = [line.strip() for line in odd_text().split("\n") if line.strip()]
    ids = [tokenizer(line, add_special_tokens=False, split_special_tokens=True)["input_ids"] for line in lines]
    kept = [number for number, row in enumerate(ids) if len(row) <= 63]
    return [lines[number] for number in kept], [ids[number] for number in kept]


def write(path: Path, rows: list[Any], field: str = "ids") -> Path:
    if path.suffix == ".parquet":
        pl.DataFrame({field: rows}).write_parquet(path)
    else:
        path.write_text("".join(json.dumps({field: row}) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def atlases(models: tuple[Path, Path], texts: tuple[list[str], Rows], tmp_path_factory: Any) -> dict[str, Path]:
    """One corpus mined as text, as ids with the tokenizer, and as ids by the model without one."""
    place = tmp_path_factory.mktemp("atlases")
    (place / "a.txt").write_text("\n".join(texts[0]) + "\n")
    jsonl, parquet = write(place / "a.jsonl", texts[1]), write(place / "a.parquet", texts[1])
    whole, bare = map(str, models)

    def make(name: str, model: str, corpus: Path, **options: Any) -> Path:
        return mine(model, corpus, out=place / name, validation=corpus, **OPTIONS, **options).path

    return {
        "text": make("text", whole, place / "a.txt", split="line"),
        "ids": make("ids", whole, jsonl, ids_field="ids"),
        "bare": make("bare", bare, parquet, ids_field="ids"),
    }


def differing(one: Path, other: Path) -> set[tuple[str, str]]:
    """The tables and columns in which two atlases differ."""
    names = {path.relative_to(one) for path in Path(one).rglob("*.parquet")}
    assert names == {path.relative_to(other) for path in Path(other).rglob("*.parquet")}
    found = set()
    for name in names:
        a, b = pl.read_parquet(one / name), pl.read_parquet(other / name)
        assert a.shape == b.shape or name.stem in ("patterns", "similar_words"), name
        found |= {(name.parts[0], column) for column in a.columns if not a[column].equals(b[column])}
    return found


OF_TEXT = ("patterns", "labels", "similar_words")
"""Tables made of what tokens say: without a tokenizer they are of numbers."""


@pytest.mark.full
def test_ids_give_the_numbers_of_their_text(atlases: dict[str, Path]) -> None:
    assert differing(atlases["text"], atlases["ids"]) == {("sentences", "text")}
    without = differing(atlases["text"], atlases["bare"])
    assert {each for each in without if each[0].removesuffix(".parquet") not in OF_TEXT} == {
        *(("sentences", "text"), ("vocabulary.parquet", "text"), ("vocabulary.parquet", "bytes"))
    }
    assert open_atlas(atlases["text"]).sentences([0]).height == 1  # there is something to compare
    assert sum(table.height for table in map(pl.read_parquet, atlases["text"].glob("triggers/*"))) > 500


def test_a_text_is_its_ids_joined_by_spaces(atlases: dict[str, Path], texts: tuple[list[str], Rows]) -> None:
    distinct = list(dict.fromkeys(" ".join(map(str, row)) for row in texts[1]))
    for name in ("ids", "bare"):
        stored = pl.read_parquet(atlases[name] / "sentences" / "*.parquet").sort("sentence")
        # The validation text is the same one, and numbered behind it.
        expected = [distinct[sentence % len(distinct)] for sentence in stored["sentence"]]
        assert stored["text"].to_list() == expected
        assert [" ".join(map(str, row)) for row in stored["tokens"]] == expected
    manifests = {name: open_atlas(path).manifest for name, path in atlases.items()}
    assert manifests["ids"].corpus.fingerprint == manifests["bare"].corpus.fingerprint
    assert manifests["ids"].model.fingerprint == manifests["text"].model.fingerprint
    plans = {name: manifest.plan for name, manifest in manifests.items()}
    assert [(plans[name]["ids_field"], plans[name]["split"]) for name in ("ids", "bare")] == [("ids", "document")] * 2
    assert (plans["ids"]["tokenizer"], plans["bare"]["tokenizer"]) == (None, "ids")


def test_tokens_are_shown_as_words_with_a_tokenizer_and_as_ids_without(atlases: dict[str, Path]) -> None:
    words = open_atlas(atlases["ids"])["L1.M0"].triggers()
    ids = open_atlas(atlases["bare"])["L1.M0"].triggers()
    assert words["prefix"].to_list() == open_atlas(atlases["text"])["L1.M0"].triggers()["prefix"].to_list()
    for prefix, text, position in ids.select("prefix", "text", "position").iter_rows():
        assert prefix.split() == text.split()[: position + 1]


def test_everything_reads_an_atlas_of_ids(atlases: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    atlas = str(atlases["bare"])
    assert verify(atlases["bare"]) == []
    for words in (["show", atlas, "L1.M0"], ["analyze", atlas, "key_patterns"], ["search", atlas, '"259 221"']):
        assert main(words) == 0, words
        assert "259" in capsys.readouterr().out or words[0] == "analyze"
    command = rebuild_command(atlases["bare"], "values", open_atlas(atlas).manifest)
    assert " bare --tokenizer ids " in command
    assert " --ids-field ids " in command


def test_pages_of_an_atlas_of_ids(atlases: dict[str, Path], models: tuple[Path, Path]) -> None:
    reader = client(atlases["bare"], model=str(models[1]))
    assert "\u00b7259" in reader.get("/L1.M0").text
    traced = reader.get("/trace.json?prompt=259+221+262").json()
    assert traced["prompt"] == "259 221 262"
    # What is said to come next can be added to the prompt, and be read again.
    assert all(text.startswith(" ") and text[1:].isdecimal() for text in traced["following"])
    assert "tokenizer='ids'" in traced["python"]
    wrong = reader.get("/trace.json?prompt=the+cat")
    assert wrong.status_code == 400
    assert wrong.json()["message"].startswith("'the' is not a token id; without a tokenizer")


@pytest.mark.full
def test_a_tokenizer_without_a_rust_half_gives_the_numbers_of_its_ids(texts: Any, tmp_path: Path) -> None:
    """ByT5's tokens are the bytes and 3, so the reference needs no tokenizer."""
    lines = [line for line in texts[0] if len(line.encode()) < 60][:40]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    ids = write(tmp_path / "a.jsonl", [[byte + 3 for byte in line.encode()] for line in lines])
    model = load_model(build("gpt2-relu"), tokenizer=ByT5Tokenizer())
    text = tmp_path / "a.txt"
    one = mine(model, text, out=tmp_path / "one", validation=text, split="line", **OPTIONS)
    other = mine(model, ids, out=tmp_path / "other", validation=ids, ids_field="ids", **OPTIONS)
    assert differing(one, other) == {("sentences", "text")}


def test_a_prompt_of_ids_is_traced(atlases: dict[str, Path], models: tuple[Path, Path]) -> None:
    whole, bare = (load_model(str(models[0])), load_model(str(models[1]), tokenizer="ids"))
    ids = whole.encode(["the cat sat on"])[0]
    prompt = " ".join(map(str, ids))
    assert bare.beginning == whole.beginning
    assert bare.fingerprint == open_atlas(atlases["bare"]).manifest.model.fingerprint
    expected, found = ms.trace(whole, "the cat sat on").to_dict(), ms.trace(bare, prompt).to_dict()
    assert strip_texts(found) == strip_texts(expected)
    # The beginning token stands before a text anyway.
    assert bare.encode([f"0 {prompt}", "0", "", "007"]) == [ids, [], [], [7]]
    with pytest.raises(PromptError, match=r"'the' is not a token id"):
        ms.trace(bare, "the cat")
    for wrong in ("-3", "3.5", "1_000", "\u0663", "9" * 19):
        with pytest.raises(PromptError, match="is not a token id"):
            bare.encode([wrong])
    with pytest.raises(PromptError, match=r"the prompt has token 280 \('280'\)"):
        ms.trace(bare, "280")


def strip_texts(value: Any) -> Any:
    """A trace without what tokens are called and what the model is."""
    if isinstance(value, dict):
        dropped = ("text", "shown", "prompt", "model", "fingerprint", "raw")
        return {name: strip_texts(one) for name, one in value.items() if name not in dropped}
    return [strip_texts(one) for one in value] if isinstance(value, list) else value


def test_a_row_that_begins_with_the_beginning_token_does_not_have_it_twice(
    atlases: dict[str, Path], models: Any, texts: Any, tmp_path: Path
) -> None:
    corpus = write(tmp_path / "a.jsonl", [[0, *row] for row in texts[1]])
    with_one = mine(str(models[0]), corpus, out=tmp_path / "atlas", validation=corpus, ids_field="ids", **OPTIONS)
    assert differing(atlases["ids"], with_one) == {("sentences", "text")}
    stored = pl.read_parquet(with_one / "sentences" / "*.parquet")
    assert all(text == " ".join(map(str, [0, *row])) for text, row in stored.select("text", "tokens").iter_rows())


def test_a_row_longer_than_the_context_is_cut_into_windows(models: Any, tmp_path: Path) -> None:
    row = [0, *(1 + 7 * number % 263 for number in range(150))]
    corpus = write(tmp_path / "a.jsonl", [row])
    options: dict[str, Any] = {"removals": 0, "prefixes": 0, "layers": [0], "neighbours": 0}
    atlas = mine(str(models[0]), corpus, out=tmp_path / "atlas", ids_field="ids", **options)
    counts = open_atlas(atlas).manifest.corpus.counts
    assert (counts["documents"], counts["windows"], counts["tokens"]) == (1, 3, 150)
    stored = pl.read_parquet(atlas / "sentences" / "*.parquet").sort("sentence")
    assert [token for tokens in stored["tokens"] for token in tokens] == row[1:]
    assert stored["tokens"].list.len().to_list() == [63, 63, 24]
    assert "".join(stored["text"]) == " ".join(map(str, row))


def test_empty_rows_are_documents_without_sentences(models: Any, tmp_path: Path) -> None:
    corpus = write(tmp_path / "a.jsonl", [[], [5, 6], None, [0], [7]])
    options = {"ids_field": "ids", "removals": 0, "prefixes": 0, "neighbours": 0}
    counts = open_atlas(mine(str(models[1]), corpus, out=tmp_path / "atlas", **options)).manifest.corpus.counts
    assert (counts["documents"], counts["sentences"], counts["tokens"], counts["without_tokens"]) == (5, 2, 3, 1)
    with pytest.raises(CorpusEmpty, match="no usable sentence in 2 documents"):
        mine(str(models[1]), write(tmp_path / "b.jsonl", [[], [0]]), out=tmp_path / "none", **options)


def test_columns_of_parquet_that_hold_no_ids(models: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"ids": [[1, 2], [3, 999]], "text": ["a", "b"], "shares": [[0.5], [0.5]]}).write_parquet(path)
    for options, said in (
        ({"ids_field": "ids"}, "row 2: field 'ids' holds token id 999 at place 1"),
        ({"ids_field": "words"}, "'words' (it has 'ids', 'text', 'shares'); use ids_field"),
        ({"ids_field": "text"}, "'text' holds large_string"),
        ({"ids_field": "shares"}, "holds large_list<element: double>"),
        ({"text_field": "ids"}, "token ids are read with ids_field"),
    ):
        with pytest.raises(CorpusUnreadable, match=re.escape(said)):
            mine(str(models[0]), path, out=tmp_path / "atlas", **options)


def test_lines_of_ids_are_a_text_for_a_model_that_reads_ids(models: Any, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("5 6 7\n8 9\n")
    options = {"removals": 0, "prefixes": 0, "neighbours": 0, "tokenizer": "ids", "split": "line"}
    made = mine(str(models[1]), tmp_path / "ids.txt", out=tmp_path / "atlas", **options)
    assert pl.read_parquet(made / "sentences" / "*.parquet")["tokens"].to_list() == [[5, 6, 7], [8, 9]]


def test_another_field_is_another_plan(models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"ids": [1, 2], "more": [3]}\n{"ids": [1, 5], "more": [3]}\n')

    def stop(*_: Any, **__: Any) -> None:
        raise RuntimeError("stopped")

    with monkeypatch.context() as patched:
        patched.setattr(run.Driver, "drive", stop)
        with pytest.raises(RuntimeError, match="stopped"):
            mine(str(models[1]), path, out=tmp_path / "atlas", ids_field="ids")
    with pytest.raises(PlanDiffers, match="ids field was 'ids', now 'more'"):
        mine(str(models[1]), path, out=tmp_path / "atlas", ids_field="more")
    atlas = open_atlas(mine(str(models[1]), path, out=tmp_path / "atlas", ids_field="ids"))
    assert atlas.manifest.corpus.counts["tokens"] == 4
