"""What an atlas must say, computed in the slowest and plainest way; shares no code with mining, models or corpus.

One forward per sentence with the transformers model itself and a plain pre-hook on the down-projection; sentences,
windows, duplicates and held-out documents by dictionaries and lists; triggers, sums and ranks by looking at everything.
Only the sentence splitter's cuts are taken as given. How mined tables are compared with this is in `agreement.py`.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mining.slow_model import DOWN, SlowTransformer


@dataclass
class Sentence:
    """One distinct sentence."""

    text: str
    tokens: list[int]
    document: int
    multiplicity: int
    held_out: bool


def documents_of(text: str, split: str) -> list[str]:
    """The documents of a plain text: its lines, or its maximal runs of non-blank lines."""
    if split == "line":
        return [line for line in text.split("\n") if line.strip()]
    runs: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line.strip():
            runs[-1].append(line)
        elif runs[-1]:
            runs.append([])
    return ["\n".join(run) for run in runs if run]


def sentences_of(documents: Any, cut: Any, tokenizer: Any, *, longest: int) -> list[Sentence]:
    """The distinct sentences in order of first occurrence; those over `longest` tokens in windows (ASCII only)."""
    found: dict[str, Sentence] = {}
    for number, document in enumerate(documents):
        for sentence in cut(document):
            encoded = tokenizer(
                sentence, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
            )
            ids, spans = encoded["input_ids"], encoded["offset_mapping"]
            begin = 0
            for start in range(0, len(ids), longest):
                stop = min(start + longest, len(ids))
                end = len(sentence) if stop == len(ids) else spans[stop - 1][1]
                text, own = sentence[begin:end], ids[start:stop]
                begin = end
                if not text.strip():
                    continue
                if text.strip() in found:
                    found[text.strip()].multiplicity += 1
                else:
                    found[text.strip()] = Sentence(text, own, number, 1, False)
    sentences = list(found.values())
    # Far fewer than 4,000 sentences: the rule ends at its most, a tenth of the classes.
    classes = [int(hashlib.blake2b(text.encode()).hexdigest(), 16) % 10_000 for text in documents]
    for sentence in sentences:
        sentence.held_out = classes[sentence.document] < 1_000
    if all(sentence.held_out for sentence in sentences):
        for sentence in sentences:
            sentence.held_out = False
    return sentences


class Reference:
    """A transformers model over a list of sentences, everything kept.

    `coefficients[layer][sentence]` is `[position, memory]` for mined sentences; `first` the first position that may
    be a trigger: 0, or 1 where no token stands before the sentence.
    """

    spoken_of = "next_token"
    """The column of triggers with the token that a position's state speaks of."""

    def __init__(self, hf: Any, sentences: list[Sentence], *, beginning: int | None) -> None:
        self.hf, self.sentences, self.slow = hf, sentences, SlowTransformer(hf, beginning=beginning)
        self.first = 1 if beginning is None else 0
        self.mined = [number for number, sentence in enumerate(sentences) if not sentence.held_out]
        downs = [module for name, module in hf.named_modules() if DOWN.search(name)]
        self.layers = len(downs)
        self.coefficients: list[dict[int, np.ndarray]] = [{} for _ in downs]
        extra = [] if beginning is None else [beginning]
        seen: dict[int, torch.Tensor] = {}
        hooks = [
            down.register_forward_pre_hook(lambda _, inputs, layer=layer: seen.__setitem__(layer, inputs[0]))
            for layer, down in enumerate(downs)
        ]
        with torch.no_grad():
            for number in self.mined:
                hf(input_ids=torch.tensor([extra + sentences[number].tokens]))
                for layer, tensor in seen.items():
                    own = tensor.reshape(-1, tensor.shape[-1])[len(extra) :]
                    self.coefficients[layer][number] = own.float().numpy().copy()
        for hook in hooks:
            hook.remove()

    def context(self, tokens: list[int], position: int) -> tuple[int, ...]:
        """What makes two triggers of one group."""
        return tuple(tokens[: position + 1])

    def negative(self) -> bool:
        """Whether any coefficient lies below zero."""
        return any(bool((c < 0).any()) for layer in self.coefficients for c in layer.values())

    def everything(self, layer: int, chosen: list[int] | None = None) -> np.ndarray:
        """The coefficients `[prefix, memory]` of all prefixes that count, float64; only of some sentences if chosen."""
        own = self.coefficients[layer]
        return np.concatenate([own[n][self.first :] for n in (self.mined if chosen is None else chosen)]).astype(float)

    def places(self, layer: int) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Every prefix as (sentence, position), and its coefficients `[prefix, memory]`, in the same order."""
        own = self.coefficients[layer]
        return [(n, j) for n in self.mined for j in range(self.first, len(own[n]))], self.everything(layer)

    def values(self, layer: int) -> np.ndarray:
        """The values `[memory, hidden]`, float64."""
        return self.slow.values(layer).detach().numpy()

    def scores(self, layer: int) -> np.ndarray:
        """The `gain` scores `[memory, vocab]` of the values: the norms' centring and gain, then the head."""
        slow = self.slow
        rows = [slow.value_scores(layer, value, slow.branch(m)) for m, value in enumerate(slow.values(layer))]
        return torch.stack(rows).numpy()

    def opposite(self, layer: int) -> np.ndarray:
        """The scores of the negated values: under one matrix those of the values, negated."""
        return -self.scores(layer)
