"""A language model of three layers of four memories, all of whose numbers can be worked out on paper.

An OPT model of transformers (pre-norm, ReLU, no norm before the head) with weights set by hand. The stream holds one
entry per word for the current word, for the word before it (written by the first layer's attention), and for the scores
of the next word; one per position; and two of plus and minus `BALLAST`. The ballast makes every stream the same length
but for one part in ten million, so that a norm with the right gain changes nothing, and what a key reads is the stream.
Every key's entries sum to zero (the last one balances them), so that the norm's mean does not matter either.

So: scores of a stream = its score entries; coefficient of a memory = what its table below says of the current word and
the word before; score entries after a layer = those before + sum of coefficient * value.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

NAMED = ("<s>", "<unk>", "the", "of", "cat", "dog", "bird", "sat", "ran", "mat", "far")
WORDS = (*NAMED, *(f"k{number}" for number in range(len(NAMED), 24)))
CONTEXT = 32
BALLAST = 16384.0
_OFF = -4.0
"""What a memory reads at words that it does not look for: far below zero, whatever stands before them."""
_CUR, _BEFORE, _OUT, _PLACE = 0, len(WORDS), 2 * len(WORDS), 3 * len(WORDS)


@dataclass(frozen=True)
class Known:
    """One memory: its coefficient at each word (`rest` at all others) before f, what a word before adds, its value."""

    at: dict[str, float]
    value: dict[str, float]
    after: dict[str, float] = field(default_factory=dict)
    rest: float = _OFF


GUESSES = {"cat": {"sat": 2.0}, "dog": {"ran": 3.0}, "bird": {"mat": 1.0}, "of": {"the": 1.0}}
"""The scores that a word brings with it, before any layer."""

MEMORIES: tuple[tuple[Known, ...], ...] = (
    (
        Known({"cat": 2.0}, {"sat": 1.0}),
        Known({"cat": 1.0, "dog": 1.0}, {"ran": 1.5}, {"the": 1.0}),
        Known({"dog": 2.5, "bird": 2.0}, {"mat": 1.5, "far": 1.0}),
        Known({"bird": 1.0}, {"cat": 3.0, "far": 2.5}),
    ),
    (
        Known({"bird": 1.0, "mat": 0.5}, {"sat": 3.0, "ran": 2.5, "k23": -2.0}),
        Known({"bird": 1.0}, {"of": 3.25, "ran": 2.5, "k21": -2.0}),
        Known({"cat": 1.0}, {"mat": 5.0, "sat": -1.0}),
        Known({"cat": 2.0, "bird": 0.25}, {"ran": 2.0}, {"of": -1.0}),
    ),
    (
        Known({"cat": 1.0}, {"the": 1.25}, {"the": 1.0}),
        Known({"dog": 1.0}, {"mat": 3.0}, {"the": 3.0, "bird": 1.0}),
        Known({"bird": 1.0}, {"k23": 9.0, "k22": 8.0}, {"mat": 1.0}),
        Known({}, {"the": 0.5}),
    ),
)


def build(
    memories: tuple[tuple[Known, ...], ...] = MEMORIES, *, activation: str = "relu", context: int = CONTEXT
) -> tuple[Any, Any]:
    """The transformers model of these memories, and its tokenizer of words."""
    empty = _PLACE + context + 2
    hidden = empty + 1
    sizes = {
        "vocab_size": len(WORDS),
        "hidden_size": hidden,
        "word_embed_proj_dim": hidden,
        "ffn_dim": len(memories[0]),
    }
    sizes |= {"num_hidden_layers": len(memories), "num_attention_heads": 1, "max_position_embeddings": context}
    kind = {"activation_function": activation, "do_layer_norm_before": True, "_remove_final_layer_norm": True}
    kind |= {
        "tie_word_embeddings": False,
        "dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    model = OPTForCausalLM(OPTConfig(**sizes, **kind)).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.zero_()
    decoder = model.model.decoder
    for token, word in enumerate(WORDS):
        decoder.embed_tokens.weight[token, _CUR + token] = 1.0
        for guess, score in GUESSES.get(word, {}).items():
            decoder.embed_tokens.weight[token, _OUT + WORDS.index(guess)] = score
        model.lm_head.weight[token, _OUT + token] = 1.0
    for place in range(context):
        row = decoder.embed_positions.weight[place + 2]  # OPT keeps its first two rows for padding
        row[_PLACE + place], row[empty - 2], row[empty - 1] = 1.0, BALLAST, -BALLAST
    for layer, known in zip(decoder.layers, memories, strict=True):
        for norm in (layer.self_attn_layer_norm, layer.final_layer_norm):
            norm.weight.fill_(math.sqrt(2 / hidden) * BALLAST)
        for number, memory in enumerate(known):
            key = layer.fc1.weight[number]
            layer.fc1.bias[number] = memory.rest
            for word, coefficient in memory.at.items():
                key[_CUR + WORDS.index(word)] = coefficient - memory.rest
            for word, more in memory.after.items():
                key[_BEFORE + WORDS.index(word)] = more
            key[empty] = -key.sum()
            for word, score in memory.value.items():
                layer.fc2.weight[_OUT + WORDS.index(word), number] = score
    _look_back(decoder.layers[0].self_attn, context=context)
    plain = Tokenizer(models.WordLevel({word: token for token, word in enumerate(WORDS)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return model, PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", unk_token="<unk>")


def _look_back(attention: Any, *, context: int) -> None:
    """Makes attention write the word before into its entries; the first token sees itself."""
    empty = _PLACE + context + 2
    hidden = empty + 1
    for place in range(context):
        # A mark of 100 for the place before and 0 for all others: the softmax is one-hot to float32's last digit.
        attention.q_proj.weight[max(place - 1, 0), _PLACE + place] = 100.0 * math.sqrt(hidden)
        attention.k_proj.weight[place, _PLACE + place] = 1.0
    for token in range(len(WORDS)):
        attention.v_proj.weight[token, _CUR + token] = 1.0
        attention.out_proj.weight[_BEFORE + token, token] = 1.0
    for part in (attention.q_proj, attention.k_proj, attention.v_proj):
        part.weight[:, empty] = -part.weight.sum(1)
