"""The table `memorised` against decoding token by token; documents drawn, their sentences, stops, other texts."""

import hashlib
import random
import re
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import mnemoscope as ms
from mining.conftest import ENDS, assert_goes_on, byte_tokenizer, load_bytes
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.errors import CorpusNotFound, PlanDiffers
from mnemoscope.mining import mine
from mnemoscope.mining.passes import memorised
from mnemoscope.models import LanguageModel, load_model
from models.conftest import build
from models.expert_models import build_mixture

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dogs", "ran", "home", "in", "rain"]
MODELS = {"gpt2-relu": {"n_positions": 80}, "llama": {"max_position_embeddings": 80}, "gpt_neox": {}, "mixtral": {}}


def model_of(name: str) -> Any:
    changes = MODELS[name] or {"max_position_embeddings": 80}
    return build_mixture(name, **changes) if name == "mixtral" else build(name, **changes)


def texts(count: int, seed: int = 0) -> list[str]:
    """Documents of three to forty words, a full stop after every one of a few."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        words = [chance.choice(WORDS) + chance.choice(["", "", "", "."]) for _ in range(chance.randint(3, 40))]
        found.append(" ".join(words).capitalize().rstrip(".") + ".")
    return found


def write_text(path: Path, documents: list[str], *, split: str) -> Path:
    path.write_text(("\n" if split == "line" else "\n\n").join(documents) + "\n")
    return path


def mined(folder: Path, model: LanguageModel, *, split: str = "line", count: int = 60, **options: Any) -> Path:
    write_text(folder / "text.txt", texts(count), split=split)
    options |= {"split": split, "triggers": 5, "prefixes": 8, "removals": 0}
    return mine(model, folder / "text.txt", out=folder / "atlas", **options).path


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, Path]:
    """A model, and the atlas of 200 documents; copied before a change, with the text."""
    model = load_bytes(model_of("gpt2-relu"))
    return model, mined(tmp_path_factory.mktemp("usual"), model, count=200, batch_tokens=256)


@pytest.fixture
def made(usual: tuple[LanguageModel, Path], tmp_path: Path) -> tuple[LanguageModel, Path]:
    model, out = usual
    ms.extend(out, model, ["memorised"])
    return model, shutil.copytree(out, tmp_path / "atlas")


def rows_of(out: Path) -> dict[int, dict[str, Any]]:
    table = pl.read_parquet(out / "memorised.parquet")
    assert table["document"].is_sorted()
    return {row["document"]: row for row in table.to_dicts()}


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", list(MODELS))
def test_agreement_and_loss_are_those_of_decoding_token_by_token(name: str, tmp_path: Path) -> None:
    hf = model_of(name)
    out = mined(tmp_path, load_bytes(hf))
    assert ms.extend(out, load_bytes(hf), ["memorised"]).made == ("memorised",)
    encode = byte_tokenizer(**ENDS)
    found, threshold = rows_of(out), open_atlas(out).manifest.corpus.counts["held_out_threshold"]
    expected = set()
    for number, text in enumerate(texts(60)):
        tokens = encode(text, add_special_tokens=False)["input_ids"][:64]
        if len(tokens) < 64:
            continue
        expected.add(number)
        row, written = found[number], 0
        while written < 32:
            with torch.no_grad():
                scores = hf(input_ids=torch.tensor([[0, *tokens[: 32 + written]]])).logits[0, -1]
            if int(scores.argmax()) != tokens[32 + written]:
                break
            written += 1
        with torch.no_grad():
            every = hf(input_ids=torch.tensor([[0, *tokens]])).logits[0].double().log_softmax(-1)
        loss = -sum(float(every[32 + k, tokens[32 + k]]) for k in range(32)) / 32
        own_class = int(hashlib.blake2b(text.encode()).hexdigest(), 16) % 10_000
        assert (row["agreed"], row["held_out"]) == (written, own_class < threshold)
        assert row["loss"] == pytest.approx(loss, rel=1e-5)
        assert row["text"] == encode.decode(tokens)
    assert set(found) == expected
    assert verify(out) == []


@pytest.mark.fast(1)
@pytest.mark.parametrize("split", ["line", "sentence", "document"])
def test_sentences_are_those_that_begin_in_the_first_tokens(split: str, tmp_path: Path) -> None:
    """Byte for byte: the stored sentences are looked for in each document, and their tokens counted by hand."""
    model = load_bytes(build("llama", max_position_embeddings=200))  # no sentence is cut into windows
    out = mined(tmp_path, model, split=split)
    ms.extend(out, model, ["memorised"])
    stored = pl.read_parquet(out / "sentences/part-000.parquet").filter(~pl.col("held_out"))
    pieces, seen = model.vocabulary()[1], 0
    for number, row in rows_of(out).items():
        head = row["text"]
        given = dict(zip(row["sentences"], row["inside"], strict=True))
        own = stored.filter(document=number)
        for sentence, text, tokens in own.select("sentence", "text", "tokens").rows():
            begun = re.search(rf"(?:^|(?<=\. )){re.escape(text)}(?= |$)", texts(60)[number])
            assert begun is not None
            begin = begun.start()
            inside = at = 0
            for token in tokens:
                at += len(pieces[token])
                inside += begin + at <= len(head)
            assert given.get(sentence, 0) == inside, (number, text, head)
            seen += inside > 0
        for sentence in given.keys() - set(own["sentence"]):  # of another document, first
            (text,) = stored.filter(sentence=sentence)["text"]
            assert text in head or any(head.endswith(text[:end]) for end in range(1, len(text)))
    assert seen > 20


def test_a_text_that_has_changed_or_gone_is_refused(tmp_path: Path) -> None:
    model = load_bytes(model_of("gpt2-relu"))
    out = mined(tmp_path, model)
    whole = (tmp_path / "text.txt").read_text()
    (tmp_path / "text.txt").write_text("one line before\n" + whole)
    with pytest.raises(PlanDiffers, match=r"text.txt .* document \d+ lacks"):
        ms.extend(out, model, ["memorised"])
    (tmp_path / "text.txt").unlink()
    with pytest.raises(CorpusNotFound, match="no such text"):
        ms.extend(out, model, ["memorised"])
    assert not (out / "memorised.parquet").exists()
    (tmp_path / "text.txt").write_text(whole)
    ms.extend(out, model, ["memorised"])
    assert verify(out) == []


def test_a_context_that_is_too_short_is_asked_nothing(tmp_path: Path) -> None:
    model = load_bytes(build("gpt2-relu", n_positions=64))  # 63 and the beginning token
    out = mined(tmp_path, model)
    ms.extend(out, model, ["memorised"])
    assert rows_of(out) == {}
    found = ms.answer(out, "memorised")
    assert found.filter(pl.col("name") == "extractable")["value"].to_list() == [None]


def test_rows_of_token_ids_are_read_as_they_were_mined(tmp_path: Path) -> None:
    hf = model_of("gpt2-relu")
    chance = random.Random(3)
    rows = [[chance.randrange(1, 90) for _ in range(chance.choice([10, 70, 75]))] for _ in range(30)]
    pl.DataFrame({"ids": rows}).write_parquet(tmp_path / "rows.parquet")
    model = load_model(hf, tokenizer="ids")
    options: dict[str, Any] = {"ids_field": "ids", "triggers": 5, "prefixes": 4, "removals": 0}
    out = mine(model, tmp_path / "rows.parquet", out=tmp_path / "atlas", **options)
    ms.extend(out, model, ["memorised"])
    found = rows_of(out)
    assert sorted(found) == [number for number, row in enumerate(rows) if len(row) >= 64]
    assert all(row["text"].split() == [str(one) for one in rows[number][:64]] for number, row in found.items())
    assert any(row["inside"] == [64] for row in found.values())


def test_stopped_and_gone_on_with_gives_the_same_bytes(made: tuple[LanguageModel, Path], monkeypatch: Any) -> None:
    model, out = made
    assert_goes_on(monkeypatch, out, model, "memorised", memorised.MemorisedPass)
