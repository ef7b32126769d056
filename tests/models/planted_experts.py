"""A mixture of experts whose memories and routing are known by construction.

Two layers of four experts of four memories, computed like Mixtral's, with ReLU and no attention. Every word uses two
experts (`ROUTES`), in the first layer with weights 3/4 and 1/4. A memory fires exactly on its word, in the first layer
with its expert's weight, and its value promotes one word (`PLANTED_EXPERTS`); the word of `UNROUTED` never uses its
expert.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import MixtralConfig, MixtralForCausalLM

from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.opening.handmade import models as handmade
from mnemoscope.models.opening.handmade.models import WORDS

EXPERTS, MEMORIES, LAYERS = 4, 4, 2
SENTENCES = (
    "the cat sat on the mat and the dog ran home at night",
    "a red fox slept under the old house and the bird sang in the tree",
    "the old dog sat under a tree at night and a cat ran in the house",
    "the bird slept on the red house",
)
WEIGHTS = (0.75, 0.25)


def route(layer: int, token: int) -> tuple[int, int]:
    """The experts of a word, the one with the larger weight first."""
    return (token + layer) % EXPERTS, (token + 2 * layer + 1 + token // EXPERTS % 2) % EXPERTS


ROUTES = {(layer, token): route(layer, token) for layer in range(LAYERS) for token in range(len(WORDS))}


@dataclass(frozen=True)
class PlantedExpert:
    """Fires exactly on `word` and promotes `promoted`; its expert is the word's first (`choice` 0) or second."""

    memory: MemoryId
    word: str
    promoted: str
    choice: int


def _plant() -> tuple[tuple[PlantedExpert, ...], MemoryId, str]:
    planted, free = [], {(layer, expert): 0 for layer in range(LAYERS) for expert in range(EXPERTS)}
    for layer in range(LAYERS):
        for token in range(2, len(WORDS)):
            for choice, expert in enumerate(ROUTES[layer, token]):
                number = free[layer, expert]
                # The last memory of layer 0's first expert is the control.
                if number < MEMORIES - ((layer, expert) == (0, 0)):
                    promoted = WORDS[2 + (token * 5 + expert) % (len(WORDS) - 2)]
                    planted.append(PlantedExpert(MemoryId(layer, number, expert), WORDS[token], promoted, choice))
                    free[layer, expert] += 1
    astray = next(WORDS[t] for t in range(2, len(WORDS)) if 0 not in ROUTES[0, t])
    return tuple(planted), MemoryId(0, MEMORIES - 1, 0), astray


PLANTED_EXPERTS, UNROUTED, ASTRAY = _plant()
"""The planted memories; the control, and the word of its key, which uses other experts."""


def load() -> LanguageModel:
    return load_model(build(), tokenizer=_tokenizer())


def save(folder: Path) -> str:
    build().save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return str(folder)


def _tokenizer() -> Any:
    return handmade.build("planted")[1]


def build() -> Any:
    """The model, whose stream has one entry per input word and one per promoted word."""
    words = len(WORDS)
    sizes = {"vocab_size": words, "hidden_size": 2 * words, "intermediate_size": MEMORIES, "num_hidden_layers": LAYERS}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
    routed = {"num_local_experts": EXPERTS, "num_experts_per_tok": 2, "hidden_act": "relu", "sliding_window": None}
    ends = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": None}
    model = MixtralForCausalLM(MixtralConfig(**sizes, **routed, **ends, tie_word_embeddings=False))
    model.train(False).requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "norm.weight" not in name:
            parameter.zero_()
    for token in range(words):
        model.model.embed_tokens.weight[token, token] = 1.0
        model.lm_head.weight[token, words + token] = 1.0
    for layer, block in enumerate(model.model.layers):
        for token in range(words):
            first, second = ROUTES[layer, token]
            # The norm scales a word's entry by earlier writes, so later layers have other expert weights.
            block.mlp.gate.weight[:, token] = -100.0
            block.mlp.gate.weight[first, token] = 100.0 + math.log(WEIGHTS[0] / WEIGHTS[1]) / _scale(model)
            block.mlp.gate.weight[second, token] = 100.0
    for planted in PLANTED_EXPERTS:
        _set(model, planted.memory, planted.word, planted.promoted)
    _set(model, UNROUTED, ASTRAY, "home")
    return model


def _scale(model: Any) -> float:
    return 1 / math.sqrt(1 / (2 * len(WORDS)) + float(model.config.rms_norm_eps))


def _set(model: Any, memory: MemoryId, word: str, promoted: str) -> None:
    experts = model.model.layers[memory.layer].mlp.experts
    key, words = WORDS.index(word), len(WORDS)
    experts.gate_up_proj[memory.expert, memory.memory, key] = 1.0
    experts.gate_up_proj[memory.expert, MEMORIES + memory.memory, key] = _scale(model) ** -2
    experts.down_proj[memory.expert, words + WORDS.index(promoted), memory.memory] = 1.0
