"""Language models whose memories are known by construction: for the tutorial, and to test mining against the truth.

`worked-example` is the 2x2 layer of definitions.md section 1: K = I, V = [[2, 3], [4, 1]], so that x = [0.5, 0.5] gives
[3, 2]. `planted` is a three-layer reader of n-grams with every key and value listed in `PLANTED`. Both are ordinary OPT
models of transformers (pre-norm, ReLU, no norm before the head) with weights set by hand; nothing here is trained or
random.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

from mnemoscope.errors import ModelNotFound
from mnemoscope.foundation.memory_names import MemoryId

HANDMADE = ("worked-example", "planted")

WORDS = (
    *("<s>", "<unk>", "the", "cat", "sat", "on", "mat", "dog", "ran", "home", "a", "bird"),
    *("sang", "in", "tree", "red", "fox", "slept", "under", "old", "house", "at", "night", "and"),
)

EXAMPLE_VALUES = ((2.0, 3.0), (4.0, 1.0))
# A word's stream before the only feed-forward layer, whose keys then read x = [0.5, 0.5], [1, 0], [0, 1].
EXAMPLE_STREAMS = {"both": (0.0, 0.0), "first": (16.0, -16.0), "second": (-16.0, 16.0)}


@dataclass(frozen=True)
class PlantedMemory:
    """One planted memory: it fires exactly on prefixes that end in `ngram`, and its value's top token is `promoted`."""

    memory: MemoryId
    ngram: tuple[str, ...]
    promoted: str


_NGRAMS = (
    (("cat", "sat"), ("dog", "ran"), ("red", "fox"), ("sat on", "the"), ("ran", "home")),
    (
        *(("the old", "house"), ("bird sang", "in"), ("at night", "and"), ("red fox", "slept")),
        *(("sat on the", "mat"), ("in the tree", "at")),
    ),
    (
        *(("fox slept under", "the"), ("dog ran home", "at"), ("sang in the", "tree"), ("the old house", "and")),
        *(("slept under", "a"), ("night", "bird")),
    ),
)

PLANTED = tuple(
    PlantedMemory(MemoryId(layer, memory), tuple(ngram.split()), promoted)
    for layer, planted in enumerate(_NGRAMS)
    for memory, (ngram, promoted) in enumerate(planted)
)
# The control: its key is negative on every word, so it never fires.
DEAD = MemoryId(0, 5)

# Every planted n-gram occurs here, followed by the token that its value promotes, and without it too.
PLANTED_SENTENCES = (
    "the cat sat on the mat and the dog ran home at night and the bird sang in the tree at night",
    "a red fox slept under the old house and the old dog ran home",
    "at night bird and cat slept under a tree",
    "the bird sang in the house and the cat sat on a mat",
    "a dog ran and a red fox slept in the tree at home",
)

_CONTEXT = 32
_SLOTS = ("cur", "prev", "prev2", "out")  # each one entry per word; then one entry per position
_HALF = len(_SLOTS) * len(WORDS) + _CONTEXT  # entries before they are mirrored: the width of each of the two heads
_MEMORIES = 6


def build(name: str) -> tuple[Any, Any]:
    if name == "worked-example":
        return _build_worked_example()
    if name == "planted":
        return _build_planted()
    raise ModelNotFound(f"no handmade model {name!r}; there are {', '.join(f'handmade:{model}' for model in HANDMADE)}")


def _build_worked_example() -> tuple[Any, Any]:
    """One layer of two memories over a stream of two numbers; the head reads them as the words `x` and `y`."""
    words = ("<s>", "<unk>", *EXAMPLE_STREAMS, "x", "y")
    model = _empty(words=len(words), hidden=2, memories=2, layers=1, heads=1, context=8)
    decoder = model.model.decoder
    for word, stream in EXAMPLE_STREAMS.items():
        decoder.embed_tokens.weight[words.index(word)] = torch.tensor(stream)
    layer = decoder.layers[0]
    # The norm maps (16, -16) to (1, -1) and equal entries to 0; gain and bias make that [1, 0] and [0.5, 0.5].
    layer.final_layer_norm.weight.fill_(0.5)
    layer.final_layer_norm.bias.fill_(0.5)
    layer.fc1.weight.copy_(torch.eye(2))
    layer.fc2.weight.copy_(torch.tensor(EXAMPLE_VALUES).T)
    model.lm_head.weight[words.index("x")] = torch.tensor((1.0, 0.0))
    model.lm_head.weight[words.index("y")] = torch.tensor((0.0, 1.0))
    return model, _tokenizer(words)


def _build_planted() -> tuple[Any, Any]:
    """The n-gram reader.

    The stream holds one-hot slots: the word, the two words before it, the promoted word, and the position. Every slot
    is written twice, the second time negated, so that the norm's mean is zero and the norm only scales; each key
    compares slots of one vector with each other, so the scale cannot change the sign of a coefficient.
    """
    model = _empty(
        words=len(WORDS), hidden=2 * _HALF, memories=_MEMORIES, layers=len(_NGRAMS), heads=2, context=_CONTEXT
    )
    decoder = model.model.decoder
    for token in range(len(WORDS)):
        decoder.embed_tokens.weight[token] = _mirror(_slot("cur", token))
        model.lm_head.weight[token] = _mirror(_slot("out", token))
    for position in range(_CONTEXT):
        # OPT keeps its first two rows for padding.
        decoder.embed_positions.weight[position + 2] = _mirror(_place(position))
    for head in (0, 1):
        _look_back(decoder.layers[0].self_attn, head)
    for planted in PLANTED:
        layer = decoder.layers[planted.memory.layer]
        # The key is positive exactly if all words of the n-gram are in their slots: each word there adds 1, and the
        # current word, always one of the vocabulary, subtracts their number less one half: 1/2 for a match, at most
        # -1/2 otherwise.
        key = layer.fc1.weight[planted.memory.memory]
        key[: len(WORDS)] = 0.5 - len(planted.ngram)
        for slot, word in zip(_SLOTS, reversed(planted.ngram), strict=False):
            key[_slot(slot, WORDS.index(word))] += 1.0
        layer.fc2.weight[:, planted.memory.memory] = _mirror(_slot("out", WORDS.index(planted.promoted)))
    dead = decoder.layers[DEAD.layer]
    dead.fc1.weight[DEAD.memory, : len(WORDS)] = -1.0
    dead.fc2.weight[:, DEAD.memory] = _mirror(_slot("out", WORDS.index("mat")))
    return model, _tokenizer(WORDS)


def _look_back(attention: Any, head: int) -> None:
    """Sets one head to copy the word `head + 1` positions back (at the start: the first token) into its slot."""
    rows = slice(head * _HALF, (head + 1) * _HALF)
    # Word and position are set, twice each: the variance of the stream at the first norm.
    scale = math.sqrt(4 / (2 * _HALF) + 1e-5)
    query, key = attention.q_proj.weight[rows], attention.k_proj.weight[rows]
    for position in range(_CONTEXT):
        # A score of 100 for the wanted position and 0 for the others: the softmax is one-hot to float32's last digit.
        query[max(position - 1 - head, 0), _place(position)] = 100.0 * math.sqrt(_HALF) * scale
        key[position, _place(position)] = scale
    for token in range(len(WORDS)):
        attention.v_proj.weight[head * _HALF + token, _slot("cur", token)] = scale
        attention.out_proj.weight[:, head * _HALF + token] = _mirror(_slot(("prev", "prev2")[head], token))


def _slot(name: str, token: int) -> int:
    return _SLOTS.index(name) * len(WORDS) + token


def _place(position: int) -> int:
    return len(_SLOTS) * len(WORDS) + position


def _mirror(entry: int) -> Tensor:
    vector = torch.zeros(2 * _HALF)
    vector[entry], vector[_HALF + entry] = 1.0, -1.0
    return vector


def _empty(*, words: int, hidden: int, memories: int, layers: int, heads: int, context: int) -> Any:
    config = OPTConfig(
        vocab_size=words,
        hidden_size=hidden,
        word_embed_proj_dim=hidden,
        ffn_dim=memories,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=context,
        activation_function="relu",
        do_layer_norm_before=True,
        _remove_final_layer_norm=True,
        tie_word_embeddings=False,
        dropout=0.0,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = OPTForCausalLM(config)
    model.train(False).requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "layer_norm.weight" not in name:
            parameter.zero_()
    return model


def _tokenizer(words: tuple[str, ...]) -> Any:
    plain = Tokenizer(models.WordLevel({word: token for token, word in enumerate(words)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=plain, bos_token="<s>", unk_token="<unk>")
