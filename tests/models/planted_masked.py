"""A BERT of one layer whose memories copy or complete by construction, all weights set by hand.

The stream has a slot of one entry a word for the word at a position, for the word on its left, which the one attention
head writes, and for the word that memories promote; then one entry a position. Every entry is written twice, the second
time negated, so that norms only scale; each key compares the entries of one slot with each other, so that the scale
cannot change the sign of a coefficient. A *copier* fires on its word and promotes it, and is silent where it is masked.
A *completer* fires where its word stands on the left, and promotes a word; it sees nothing of what stands there itself.
"""

import math
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, zeros
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<s>", "</s>", "<mask>", "<unk>")
WORDS = (*SPECIAL, "the", "cat", "dog", "saw", "left", "new", "york", "hong", "kong", "at", "night", "rome")
CONTEXT = 16
_SLOTS = ("word", "left", "out")
_HALF = len(_SLOTS) * len(WORDS) + CONTEXT


@dataclass(frozen=True)
class Planted:
    slot: str
    """`word`: it copies; `left`: it completes."""
    fires_on: str
    promotes: str

    @property
    def copies(self) -> bool:
        return self.slot == "word"


PLANTED = (
    Planted("word", "cat", "cat"),
    Planted("word", "york", "york"),
    Planted("left", "new", "york"),
    Planted("left", "hong", "kong"),
    Planted("left", "at", "rome"),
)
"""The last one completes what never follows: after `at` comes `night`."""

SENTENCES = (
    "the cat saw new york",
    "the dog left hong kong at night",
    "new york at night",
    "the cat left new york",
    "the dog saw hong kong",
    "saw the cat at night",
    "hong kong saw the dog",
)


def _entry(slot: str, word: int) -> int:
    return _SLOTS.index(slot) * len(WORDS) + word


def _place(position: int) -> int:
    return len(_SLOTS) * len(WORDS) + position


def _mirror(entry: int) -> Tensor:
    vector = zeros(2 * _HALF)
    vector[entry], vector[_HALF + entry] = 1.0, -1.0
    return vector


def build_planted_masked() -> tuple[Any, Any]:
    """The model and its tokenizer of words."""
    sizes: dict[str, Any] = {"vocab_size": len(WORDS), "hidden_size": 2 * _HALF, "intermediate_size": len(PLANTED)}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": CONTEXT}
    sizes |= {"hidden_act": "relu", "pad_token_id": 0, "tie_word_embeddings": False}
    model: Any = BertForMaskedLM(BertConfig(**sizes)).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.fill_(float(name.endswith("LayerNorm.weight")))
    embeddings, layer = model.bert.embeddings, model.bert.encoder.layer[0]
    head, decoder = model.cls.predictions.transform, model.cls.predictions.decoder
    for word in range(len(WORDS)):
        embeddings.word_embeddings.weight[word] = _mirror(_entry("word", word))
        decoder.weight[word, _entry("out", word)] = 1.0
    for position in range(CONTEXT):
        embeddings.position_embeddings.weight[position] = _mirror(_place(position))
    head.dense.weight.fill_diagonal_(1.0)
    _look_left(layer.attention)
    for number, planted in enumerate(PLANTED):
        key, first = layer.intermediate.dense.weight[number], _entry(planted.slot, 0)
        key[first : first + len(WORDS)] = -0.5
        key[_entry(planted.slot, WORDS.index(planted.fires_on))] += 1.0
        layer.output.dense.weight[:, number] = _mirror(_entry("out", WORDS.index(planted.promotes)))
    plain = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    names = ("pad_token", "cls_token", "sep_token", "mask_token", "unk_token")
    return model, PreTrainedTokenizerFast(tokenizer_object=plain, **dict(zip(names, SPECIAL, strict=True)))


def _look_left(attention: Any) -> None:
    """Makes the head write the word on the left; the first column sees itself."""
    scale = math.sqrt(4 / (2 * _HALF) + 1e-12)  # of the stream: word and position, twice each
    query, key, value = (getattr(attention.self, name).weight for name in ("query", "key", "value"))
    for position in range(CONTEXT):
        # A score of 100 for the wanted column and 0 for the others: the softmax is one-hot to float32's last digit.
        query[max(position - 1, 0), _place(position)] = 100.0 * math.sqrt(2 * _HALF) * scale
        key[position, _place(position)] = scale
    for word in range(len(WORDS)):
        value[word, _entry("word", word)] = 1.0
        attention.output.dense.weight[:, word] = _mirror(_entry("left", word))
