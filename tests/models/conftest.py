"""Tiny random models of every family, and a byte-level tokenizer for them.

Each entry says by hand, from transformers' source, what its blocks are and how a block's coefficients come from what
the feed-forward layer reads: a reference that shares nothing with the package's own table.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu, linear, relu, silu
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from mnemoscope.models import load_model
from models.small_tokenizers import byte_level

ROWS = 280  # the tokenizer has fewer tokens: the head is padded
HIDDEN, LAYERS, MEMORIES, CONTEXT = 16, 2, 24, 64


def _tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    return gelu(x, approximate="tanh")


def _ungated(path: str, f: Callable[[torch.Tensor], torch.Tensor], *, conv: bool = False) -> Any:
    def coefficients(block: Any, x: torch.Tensor) -> torch.Tensor:
        keys = block.get_submodule(path)
        raw = x @ keys.weight if conv else x @ keys.weight.T
        return f(raw if keys.bias is None else raw + keys.bias)

    return coefficients


def _gated(f: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return lambda block, x: f(linear(x, block.mlp.gate_proj.weight)) * linear(x, block.mlp.up_proj.weight)


def _phi3(block: Any, x: torch.Tensor) -> torch.Tensor:
    gate, up = block.mlp.gate_up_proj.weight[:MEMORIES], block.mlp.gate_up_proj.weight[MEMORIES:]
    return silu(x @ gate.T) * (x @ up.T)


@dataclass(frozen=True)
class Case:
    """A tiny model's configuration and what is known of it."""

    kind: str
    block: str
    gated: bool
    coefficients: Any
    settings: dict[str, Any]
    memories: int = MEMORIES
    context: int = CONTEXT


_COMMON = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 2}
_COMMON |= {"max_position_embeddings": CONTEXT}
_SMALL = _COMMON | {"intermediate_size": MEMORIES}
_GPT = {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": 2, "n_inner": MEMORIES, "n_positions": CONTEXT}
_OPT = _COMMON | {"ffn_dim": MEMORIES, "word_embed_proj_dim": HIDDEN}
_NARROW = _OPT | {"word_embed_proj_dim": 8}
_NEO = {"hidden_size": HIDDEN, "num_layers": LAYERS, "num_heads": 2, "intermediate_size": MEMORIES, "window_size": 4}
_NEO |= {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": CONTEXT}
_BLOOM = {"hidden_size": HIDDEN, "n_layer": LAYERS, "n_head": 2, "seq_length": CONTEXT}
_FALCON = _COMMON | {"ffn_hidden_size": MEMORIES, "bias": True}
_NEW_FALCON = _FALCON | {"new_decoder_architecture": True}
_GRANITE = _SMALL | {"logits_scaling": 3.0, "residual_multiplier": 0.4}
_GEMMA = _SMALL | {"num_key_value_heads": 1, "head_dim": 8}

_gpt2 = _ungated("mlp.c_fc", _tanh_gelu, conv=True)
_gpt2_relu = _ungated("mlp.c_fc", relu, conv=True)
_gptj = _ungated("mlp.fc_in", _tanh_gelu)
_neox = _ungated("mlp.dense_h_to_4h", gelu)
_bloom = _ungated("mlp.dense_h_to_4h", _tanh_gelu)
_opt = _ungated("fc1", relu)

CASES = {
    "gpt2": Case("gpt2", "pre-norm", False, _gpt2, _GPT),
    "gpt2-relu": Case("gpt2", "pre-norm", False, _gpt2_relu, _GPT | {"activation_function": "relu"}),
    "gpt_bigcode": Case("gpt_bigcode", "pre-norm", False, _ungated("mlp.c_fc", _tanh_gelu), _GPT),
    "gpt_neo": Case("gpt_neo", "pre-norm", False, _ungated("mlp.c_fc", _tanh_gelu), _NEO),
    "gpt_neox": Case("gpt_neox", "parallel", False, _neox, _SMALL),
    "gpt_neox-sequential": Case("gpt_neox", "pre-norm", False, _neox, _SMALL | {"use_parallel_residual": False}),
    "gptj": Case("gptj", "parallel", False, _gptj, _GPT | {"rotary_dim": 4}),
    "codegen": Case("codegen", "parallel", False, _gptj, _GPT | {"n_head": 4, "rotary_dim": 4}),
    "opt": Case("opt", "pre-norm", False, _opt, _OPT),
    "opt-no-final-norm": Case("opt", "pre-norm", False, _opt, _NARROW | {"_remove_final_layer_norm": True}),
    "opt-350m": Case("opt", "post-norm", False, _opt, _NARROW | {"do_layer_norm_before": False}),
    "bloom": Case("bloom", "pre-norm", False, _bloom, _BLOOM, memories=64),
    "bloom-normed-stream": Case(
        "bloom", "pre-norm", False, _bloom, _BLOOM | {"apply_residual_connection_post_layernorm": True}, memories=64
    ),
    "llama": Case("llama", "pre-norm", True, _gated(silu), _SMALL),
    "mistral": Case("mistral", "pre-norm", True, _gated(silu), _GEMMA),
    "qwen2": Case("qwen2", "pre-norm", True, _gated(silu), _SMALL | {"num_key_value_heads": 1}),
    "qwen3": Case("qwen3", "pre-norm", True, _gated(silu), _GEMMA),
    "gemma": Case("gemma", "pre-norm", True, _gated(_tanh_gelu), _GEMMA),
    "gemma2": Case("gemma2", "sandwich", True, _gated(_tanh_gelu), _GEMMA | {"final_logit_softcapping": 3.0}),
    "gemma3": Case("gemma3_text", "sandwich", True, _gated(_tanh_gelu), _GEMMA),
    "olmo2": Case("olmo2", "sandwich", True, _gated(silu), _SMALL),
    "phi": Case("phi", "parallel", False, _ungated("mlp.fc1", _tanh_gelu), _SMALL),
    "phi3": Case("phi3", "pre-norm", True, _phi3, _SMALL | {"pad_token_id": 0}),
    "falcon": Case("falcon", "parallel", False, _neox, _NEW_FALCON),
    "falcon-one-norm": Case("falcon", "parallel", False, _neox, _NEW_FALCON | {"num_ln_in_parallel_attn": 1}),
    "falcon-7b": Case("falcon", "parallel", False, _neox, _FALCON),
    "falcon-rw": Case("falcon", "pre-norm", False, _neox, _FALCON | {"parallel_attn": False, "alibi": True}),
    "granite": Case("granite", "pre-norm", True, _gated(silu), _GRANITE),
    "cohere": Case("cohere", "parallel", True, _gated(silu), _SMALL | {"logit_scale": 0.2}),
    "cohere2": Case("cohere2", "parallel", True, _gated(silu), _SMALL | {"logit_scale": 0.2}),
}


def build(name: str, **changes: Any) -> Any:
    """The tiny random model of a case; biases and gains are random too, so that none can be forgotten unseen."""
    case = CASES[name]
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        settings = {"vocab_size": ROWS, "bos_token_id": None, "eos_token_id": None, **case.settings, **changes}
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(case.kind, **settings))
    finally:
        logging.set_verbosity(before)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval().requires_grad_(False)


def refused(kind: type[Exception] | tuple[type[Exception], ...], source: Any, **options: Any) -> str:
    """The line with which `load_model` refuses a source."""
    with pytest.raises(kind) as caught:
        load_model(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert "\x1b" not in message
    assert len(message) < 800
    return message


@pytest.fixture(autouse=True)
def _no_bars() -> Iterator[None]:
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture(params=list(CASES))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def case() -> Callable[[str], Case]:
    return CASES.__getitem__


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Any]:
    return build


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A byte-level tokenizer of 263 or so tokens whose beginning and end are `<|endoftext|>`, as GPT-2's."""
    return PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="<|endoftext|>", eos_token="<|endoftext|>")
