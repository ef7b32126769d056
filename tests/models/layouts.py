"""One small trained model, written down in the layouts of several families that can express it.

Two functions are learned, each in the family that can express least: an ungated one with learned positions in
GPT-BigCode's (its heads share key and value; no biases there, since GPT-Neo has none), a gated one with rotary
positions in Llama's. The weights are then laid out by hand, from transformers' source, for the other families. Shares
no code with the package.
"""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

Weights = dict[str, Tensor]

HIDDEN, HEADS, MEMORIES, LAYERS, CONTEXT = 32, 2, 48, 2, 32
WIDTH = HIDDEN // HEADS
"""A head's width is 16, so that GPT-Neo's missing factor of 1 / 4 is a power of two and moves into its queries."""
STEPS, BATCH = 100, 16

_ANIMALS = ("cat", "dog", "bird", "fox", "hen")
_PLACES = {"cat": "mat", "dog": "yard", "bird": "tree", "fox": "wood", "hen": "barn"}
_ENDS = ("and sleeps", "and sings", "at night", "all day long", "with its young")


def text_to_learn(sentences: int, *, seed: int = 0) -> list[str]:
    """Different sentences with something to learn: an animal's place, how two hang together, what may follow."""
    chance = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < sentences:
        animal, other = chance.sample(_ANIMALS, 2)
        number = chance.choice(("one", "two", "three", "four"))
        start = f"the {chance.choice(('old', 'red', 'wild', 'small'))} {animal} is in the {_PLACES[animal]}"
        middle = chance.choice((f" {chance.choice(_ENDS)}", f" with {number} of the {other}s", ""))
        end = chance.choice((".", f", not in the {_PLACES[other]}.", f" {chance.choice(_ENDS)}."))
        found[start + middle + end] = None
    return list(found)


def train(model: Any, windows: Tensor) -> None:
    """Teaches the model `windows [window, position]`, seeded, in place; biases of attention stay zero."""
    model.train()
    matrices = [weight for name, weight in model.named_parameters() if not name.endswith("c_attn.bias")]
    optimiser = torch.optim.AdamW(matrices, lr=1e-2, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=1e-2, total_steps=STEPS)
    chance = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        ids = windows[torch.randint(len(windows), (BATCH,), generator=chance)]
        loss = cross_entropy(model(input_ids=ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    model.eval().requires_grad_(False)


def blank_model(kind: str, settings: dict[str, Any], *, rows: int) -> Any:
    """A model of a family with random weights and `rows` rows in its head."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, vocab_size=rows, bos_token_id=0, eos_token_id=0, **settings)
        return AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    finally:
        logging.set_verbosity(before)


_GPT = {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_inner": MEMORIES, "n_positions": CONTEXT}
_GPT |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
_NEO = {"hidden_size": HIDDEN, "num_layers": LAYERS, "num_heads": HEADS, "intermediate_size": MEMORIES}
_NEO |= {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": CONTEXT, "window_size": CONTEXT}
_COMMON = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
_COMMON |= {"max_position_embeddings": CONTEXT}
_OPT = _COMMON | {"ffn_dim": MEMORIES, "word_embed_proj_dim": HIDDEN, "do_layer_norm_before": True}
_LLAMA = _COMMON | {"num_key_value_heads": 1, "intermediate_size": MEMORIES, "rms_norm_eps": 1e-5}
_LLAMA |= {"hidden_act": "silu", "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}


def _gpt2(own: Weights) -> Weights:
    """Conv1D keeps its matrices transposed; query, key and value side by side, a key and value for each head."""
    found = dict(own)
    for name, weight in own.items():
        if name.endswith("c_attn.weight") or name.endswith("c_attn.bias"):
            query, key, value = weight.split((HIDDEN, WIDTH, WIDTH))
            found[name] = torch.cat([query, *[key] * HEADS, *[value] * HEADS])
        if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            found[name] = found[name].T
    return found


def _gpt_neo(own: Weights) -> Weights:
    """No scaling of the scores, no biases of query, key and value, which are matrices of their own."""
    found: Weights = {}
    for name, weight in own.items():
        block, _, part = name.partition(".attn.")
        if part == "c_attn.weight":
            query, key, value = weight.split((HIDDEN, WIDTH, WIDTH))
            found[f"{block}.attn.attention.q_proj.weight"] = query * WIDTH**-0.5
            found[f"{block}.attn.attention.k_proj.weight"] = key.repeat(HEADS, 1)
            found[f"{block}.attn.attention.v_proj.weight"] = value.repeat(HEADS, 1)
        elif part == "c_attn.bias":
            assert not weight.any(), "GPT-Neo has no place for it"
        else:
            found[name.replace(".attn.c_proj.", ".attn.attention.out_proj.")] = weight
    return found


_OPT_NAMES = {
    "transformer.wte.": "model.decoder.embed_tokens.",
    "transformer.ln_f.": "model.decoder.final_layer_norm.",
    "transformer.h.": "model.decoder.layers.",
    ".attn.c_proj.": ".self_attn.out_proj.",
    ".ln_1.": ".self_attn_layer_norm.",
    ".ln_2.": ".final_layer_norm.",
    ".mlp.c_fc.": ".fc1.",
    ".mlp.c_proj.": ".fc2.",
}


def _opt(own: Weights) -> Weights:
    """Positions start two rows further down; query, key and value are matrices of their own."""
    found: Weights = {}
    for name, weight in own.items():
        block, _, part = name.partition(".attn.c_attn.")
        for theirs, mine in _OPT_NAMES.items():
            name, block = name.replace(theirs, mine), block.replace(theirs, mine)
        if part:
            query, key, value = weight.split((HIDDEN, WIDTH, WIDTH))
            found[f"{block}.self_attn.q_proj.{part}"] = query
            found[f"{block}.self_attn.k_proj.{part}"] = torch.cat([key] * HEADS)
            found[f"{block}.self_attn.v_proj.{part}"] = torch.cat([value] * HEADS)
        elif name == "transformer.wpe.weight":
            found["model.decoder.embed_positions.weight"] = torch.cat([torch.full((2, HIDDEN), 9.0), weight])
        else:
            found[name] = weight
    return found


def _qwen2(own: Weights) -> Weights:
    """Query, key and value have biases, here of zero."""
    biases = {
        name.replace(".weight", ".bias"): torch.zeros(len(weight))
        for name, weight in own.items()
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
    }
    return own | biases


def _phi3(own: Weights) -> Weights:
    """Query, key and value in one matrix, gate and up in another."""
    found = dict(own)
    for layer in range(LAYERS):
        inside = f"model.layers.{layer}"
        for whole, parts in (
            (f"{inside}.self_attn.qkv_proj.weight", [f"{inside}.self_attn.{part}_proj.weight" for part in "qkv"]),
            (f"{inside}.mlp.gate_up_proj.weight", [f"{inside}.mlp.{part}_proj.weight" for part in ("gate", "up")]),
        ):
            found[whole] = torch.cat([found.pop(part) for part in parts])
    return found


def _as_is(own: Weights) -> Weights:
    return own


Layout = tuple[str, dict[str, Any], Callable[[Weights], Weights]]

UNGATED: tuple[Layout, ...] = (
    ("gpt_bigcode", _GPT | {"activation_function": "relu", "multi_query": True}, _as_is),
    ("gpt2", _GPT | {"activation_function": "relu"}, _gpt2),
    ("gpt_neo", _NEO | {"activation_function": "relu"}, _gpt_neo),
    ("opt", _OPT | {"activation_function": "relu"}, _opt),
)
GATED: tuple[Layout, ...] = (
    ("llama", _LLAMA, _as_is),
    ("mistral", _LLAMA | {"sliding_window": None}, _as_is),
    ("qwen2", _LLAMA, _qwen2),
    ("phi3", _LLAMA | {"pad_token_id": 0, "sliding_window": None}, _phi3),
)


def models_of(layouts: tuple[Layout, ...], windows: Tensor, *, rows: int) -> dict[str, Any]:
    """The models of all families, by name: the first learns `windows`, the others are given its weights."""
    kind, settings, _ = layouts[0]
    first = blank_model(kind, settings, rows=rows)
    for name, weight in first.named_parameters():
        weight.requires_grad_()
        if name.endswith("c_attn.bias"):
            weight.data.zero_()
    train(first, windows)
    own = {name: weight.detach().clone() for name, weight in first.named_parameters()}
    found = {kind: first}
    for kind, settings, lay_out in layouts[1:]:
        model = blank_model(kind, settings, rows=rows)
        names = {name for name, _ in model.named_parameters()}
        weights = lay_out(own)
        assert set(weights) == names, f"{kind}: {sorted(set(weights) ^ names)}"
        model.load_state_dict(weights, strict=False)
        found[kind] = model
    return found
