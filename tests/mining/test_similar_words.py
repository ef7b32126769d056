"""Which words a model takes for alike, against a loop over its embeddings; and how the table comes into an atlas."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.mining import mine
from mnemoscope.mining.passes.vectors import similar_words
from mnemoscope.mining.passes.vectors.similar_words import similar_rows, word_forms
from mnemoscope.models import LanguageModel, load_model


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return load_model("builtin:pydocs")


@pytest.fixture(scope="module")
def atlas(model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Atlas:
    place = tmp_path_factory.mktemp("similar")
    text = place / "text.txt"
    text.write_text((Path(__file__).parents[2] / "docs" / "patterns.md").read_text(encoding="utf-8"), encoding="utf-8")
    return open_atlas(mine(model, text, out=place / "atlas", split="line", prefixes=5, removals=0))


def slow_similar(embeddings: torch.Tensor, words: dict[str, list[int]]) -> dict[str, dict[str, float]]:
    """Of each word the cosines with all others, in float64, a word at a time."""
    tokens = [token for own in words.values() for token in own]
    rows = embeddings[tokens].double().numpy()
    rows = rows - rows.mean(axis=0)
    for direction in np.linalg.svd(rows, full_matrices=False)[2][: min(10, rows.shape[1] // 8)]:
        rows = rows - np.outer(rows @ direction, direction)
    by_token = {token: row / np.linalg.norm(row) for token, row in zip(tokens, rows, strict=True)}
    sums = {word: np.sum([by_token[token] for token in own], axis=0) for word, own in words.items()}
    vectors = {word: one / np.linalg.norm(one) for word, one in sums.items()}
    cosines = {word: {other: float(one @ own) for other, own in vectors.items()} for word, one in vectors.items()}
    return {word: {other: one for other, one in own.items() if other != word} for word, own in cosines.items()}


def test_words_and_those_like_them_are_those_of_a_loop(atlas: Atlas, model: LanguageModel) -> None:
    table = atlas.table("similar_words")
    texts = atlas.vocabulary.texts
    counts = dict(atlas.table("tokens").select("token", "count").iter_rows())
    words: dict[str, list[int]] = {}
    for token, text in enumerate(texts):
        whole = text.startswith(" ") or text[:1].isupper()
        if counts[token] >= 2 and whole and text.strip().isalpha() and len(text.strip()) > 1:
            words.setdefault(text.strip().lower(), []).append(token)
    assert len(words) > 50
    frequency = Counter({word: sum(counts[token] for token in own) for word, own in words.items()})
    assert table["word"].to_list() == sorted(words, key=lambda word: (-frequency[word], word))

    embeddings = model.anatomy.model.get_input_embeddings().weight.detach()
    slow = slow_similar(embeddings, words)
    kept = 0
    for word, rows in table.iter_rows():
        names = [table["word"][row] for row in rows]
        cosines = [slow[word][name] for name in names]
        assert len(set(names)) == len(names) <= 40
        assert all(cosine >= 0.15 - 1e-5 for cosine in cosines)
        assert all(first >= second - 1e-5 for first, second in pairwise(cosines))
        left = [cosine for name, cosine in slow[word].items() if name not in names]
        least = min(cosines) if len(names) == 40 else 0.15
        assert max(left) <= least + 1e-5
        kept += len(names)
    assert kept > 50


def test_a_model_without_known_embeddings_has_no_words(model: LanguageModel, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(similar_words, "input_embeddings", lambda model: None)
    text = tmp_path / "text.txt"
    text.write_text("The same words, the same words, and the words again.\n" * 3)
    atlas = open_atlas(mine(model, text, out=tmp_path / "atlas", split="line", prefixes=0, removals=0))
    assert atlas.table("similar_words").height == 0


def test_forms_are_joined_and_pieces_left_out() -> None:
    texts = [" King", " king", "King", "king", "ing", " k", "王", " 3", " the", " rare", " king's"]
    counts = np.array([5, 4, 3, 9, 9, 9, 2, 9, 30, 1, 9])
    assert word_forms(texts, counts) == {"the": [8], "king": [0, 1, 2]}
    # In a vocabulary without spaces every token may be a word.
    assert word_forms(["king", "the", "##ing", "王"], np.array([2, 3, 9, 4])) == {"王": [3], "the": [1], "king": [0]}


def test_a_single_word_is_like_none() -> None:
    assert similar_rows(torch.randn(4, 16), [[2]]) == [[]]
