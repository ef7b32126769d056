"""Which words of the text the model itself takes for alike, by its input embeddings. Makes `similar_words`, in which
patterns of meaning are found.

All tokens' embeddings share their mean and a few directions, which say how frequent a token is; without these the
nearest words are those of like meaning.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.nn.functional import normalize

from mnemoscope.atlas.vocabulary import is_spelled
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.text.batches import Ints
from mnemoscope.models.readout.read_directions import input_embeddings

LEAST_COUNT = 2
"""So often a token must stand in the text."""
MOST_WORDS = 20_000
SIMILAR, LEAST_COSINE = 40, 0.15
"""At most so many words are kept of each, and none with a smaller cosine."""
_SHARED_DIRECTIONS = 10
_TOGETHER = 1024


def write_similar_words(run: MiningRun) -> None:
    """Writes `similar_words`, without rows where the embeddings are unknown."""
    counts = pq.read_table(run.path("tokens"))["count"].to_numpy()
    forms = word_forms(pq.read_table(run.path("vocabulary"))["text"].to_pylist(), counts)
    embeddings = input_embeddings(run.model) if forms else None
    if embeddings is None:
        forms, similar = {}, []
    else:
        similar = similar_rows(embeddings, list(forms.values()))
    run.write("similar_words", {"word": list(forms), "similar": similar})


def word_forms(texts: Sequence[str], counts: Ints) -> dict[str, list[int]]:
    """The tokens of each word that is a token of its own, in lower case; the most frequent words first. A token inside
    a word is none: it begins with neither a space nor a capital letter, in a vocabulary where others do.
    """
    seen = [token for token in np.flatnonzero(counts >= LEAST_COUNT).tolist() if is_spelled(texts[token].strip())]
    spaced = any(texts[token][0].isspace() for token in seen)
    forms: dict[str, list[int]] = {}
    for token in seen:
        if not spaced or texts[token][0].isspace() or texts[token][0].isupper():
            forms.setdefault(texts[token].strip().lower(), []).append(token)
    forms = {word: tokens for word, tokens in forms.items() if len(word) > 1 or not word.isascii()}
    ordered = sorted(forms, key=lambda word: (-int(counts[forms[word]].sum()), word))
    return {word: forms[word] for word in ordered[:MOST_WORDS]}


@torch.inference_mode()
def similar_rows(embeddings: Tensor, forms: Sequence[Sequence[int]]) -> list[list[int]]:
    """Of each word, whose tokens are `forms`, the numbers of the words like it, the most similar first."""
    flat = torch.tensor([token for of_word in forms for token in of_word])
    rows = embeddings[flat.to(embeddings.device)].double().cpu()
    rows -= rows.mean(0)
    directions = torch.linalg.eigh(rows.T @ rows).eigenvectors  # the greatest last
    shared = directions[:, -max(1, min(_SHARED_DIRECTIONS, rows.shape[1] // 8)) :]
    rows = normalize(rows - (rows @ shared) @ shared.T, dim=1)
    each = torch.split(rows, [len(of_word) for of_word in forms])
    words = normalize(torch.stack([of_word.sum(0) for of_word in each]), dim=1).float()
    similar: list[list[int]] = []
    for begin in range(0, len(words), _TOGETHER):
        cosines = words[begin : begin + _TOGETHER] @ words.T
        places = torch.arange(len(cosines))
        cosines[places, begin + places] = -1.0
        best = cosines.topk(min(SIMILAR, len(words)), dim=1)
        similar += [
            numbers[values >= LEAST_COSINE].tolist() for numbers, values in zip(best.indices, best.values, strict=True)
        ]
    return similar
