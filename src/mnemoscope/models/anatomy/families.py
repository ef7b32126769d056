"""Where each model family keeps the parts of its blocks: one row of data per family, no branches.

A row holds module paths (as transformers 5 names them) and the few facts that paths do not show: which half of a fused
matrix is the gate, whether attention and feed-forward run in parallel, which configuration entry scales the scores. A
family with variants has one row for each, distinguished by `when`. A row is a claim: the load-time proof (proof.py)
checks it on every load. This file touches no model; anatomy.py does.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Family:
    """One row: paths inside the language model (`blocks`, `final_norm`, `project`) and inside a block (the others).

    keys          the map before the activation; the gate of a gated layer, or the fused matrix that holds both
    up            the second key matrix of a gated layer, if it is a separate module
    fused         order of the two halves in `keys`, ("gate", "up") or ("up", "gate")
    activation    the module that computes f; or f itself, if no module does
    ffn_norm      the norm that reads the residual r; None if the keys read r itself
    post_norm     a norm between the feed-forward output and the stream (sandwich)
    output_norm   the norm of the block's own output (post-norm block)
    attention     parallel blocks only: the module whose output joins the stream together with the feed-forward's
    update_scale, logit_scale, logit_divisor, softcap   names of configuration entries that hold the number
    activation_name   the name of f, if the configuration does not state it
    output_gate   a map whose sigmoid multiplies every entry of the feed-forward output (RWKV)
    inner_norm    a norm between the activation and the down-projection
    onward        a module that reads r + u, where the block adds more after its feed-forward layer (Gemma 4)
    transposed    maps that store their matrix as [in, out], if their class does not show it (Conv1D's does)
    """

    name: str
    blocks: str
    keys: str
    down: str
    activation: str | Callable[[Any], Any]
    when: tuple[tuple[str, object], ...] = ()
    up: str | None = None
    fused: tuple[str, str] | None = None
    ffn_norm: str | None = None
    post_norm: str | None = None
    output_norm: str | None = None
    inner_norm: str | None = None
    output_gate: str | None = None
    onward: str | None = None
    attention: str | None = None
    final_norm: str | None = None
    project: str | None = None
    update_scale: str | None = None
    logit_scale: str | None = None
    logit_divisor: str | None = None
    softcap: str | None = None
    activation_name: str | None = None
    transposed: tuple[str, ...] = ()


_GPT2 = Family(
    "gpt2",
    blocks="transformer.h",
    keys="mlp.c_fc",
    down="mlp.c_proj",
    activation="mlp.act",
    ffn_norm="ln_2",
    final_norm="transformer.ln_f",
)
_GPTJ = replace(_GPT2, name="gptj", keys="mlp.fc_in", down="mlp.fc_out", ffn_norm=None, attention="attn")
_OPT = Family(
    "opt",
    when=(("do_layer_norm_before", True), ("_remove_final_layer_norm", False)),
    blocks="model.decoder.layers",
    keys="fc1",
    down="fc2",
    activation="activation_fn",
    ffn_norm="final_layer_norm",
    final_norm="model.decoder.final_layer_norm",
    project="model.decoder.project_out",
)
_FALCON = replace(
    _GPT2,
    name="falcon",
    when=(("new_decoder_architecture", True),),
    keys="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    ffn_norm=None,
    attention="self_attention",
)
_GPT_NEOX = replace(
    _FALCON,
    name="gpt_neox",
    when=(("use_parallel_residual", True),),
    blocks="gpt_neox.layers",
    attention="attention",
    final_norm="gpt_neox.final_layer_norm",
)
_BLOOM = replace(
    _FALCON,
    name="bloom",
    when=(("apply_residual_connection_post_layernorm", False),),
    activation="mlp.gelu_impl",
    activation_name="gelu_tanh",
    ffn_norm="post_attention_layernorm",
    attention=None,
)
_LLAMA = Family(
    "llama",
    blocks="model.layers",
    keys="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
    activation="mlp.act_fn",
    ffn_norm="post_attention_layernorm",
    final_norm="model.norm",
)
_GEMMA2 = replace(
    _LLAMA,
    name="gemma2",
    ffn_norm="pre_feedforward_layernorm",
    post_norm="post_feedforward_layernorm",
    softcap="final_logit_softcapping",
)
_PHI = Family(
    "phi",
    blocks="model.layers",
    keys="mlp.fc1",
    down="mlp.fc2",
    activation="mlp.activation_fn",
    attention="self_attn",
    final_norm="model.final_layernorm",
)

FAMILIES: tuple[Family, ...] = (
    _GPT2,
    *(replace(_GPT2, name=name) for name in ("gpt_neo", "gpt_bigcode")),
    _GPT_NEOX,
    replace(_GPT_NEOX, when=(("use_parallel_residual", False),), attention=None, ffn_norm="post_attention_layernorm"),
    _GPTJ,
    replace(_GPTJ, name="codegen"),
    _OPT,
    replace(_OPT, when=(("do_layer_norm_before", True), ("_remove_final_layer_norm", True)), final_norm=None),
    replace(
        _OPT, when=(("do_layer_norm_before", False),), ffn_norm=None, output_norm="final_layer_norm", final_norm=None
    ),
    _BLOOM,
    # Here the stream continues from the norm's output, so the keys read the residual itself.
    replace(_BLOOM, when=(("apply_residual_connection_post_layernorm", True),), ffn_norm=None),
    _FALCON,
    replace(_FALCON, when=(("new_decoder_architecture", False), ("parallel_attn", True))),
    replace(
        _FALCON,
        when=(("new_decoder_architecture", False), ("parallel_attn", False)),
        attention=None,
        ffn_norm="post_attention_layernorm",
    ),
    _LLAMA,
    *(replace(_LLAMA, name=name) for name in ("mistral", "qwen2", "qwen3", "gemma")),
    replace(_LLAMA, name="granite", update_scale="residual_multiplier", logit_divisor="logits_scaling"),
    *(
        replace(_LLAMA, name=name, ffn_norm=None, attention="self_attn", logit_scale="logit_scale")
        for name in ("cohere", "cohere2")
    ),
    replace(_LLAMA, name="olmo2", ffn_norm=None, post_norm="post_feedforward_layernorm"),
    _GEMMA2,
    replace(_GEMMA2, name="gemma3_text"),
    replace(_GEMMA2, name="gemma3", blocks="model.language_model.layers", final_norm="model.language_model.norm"),
    _PHI,
    replace(
        _LLAMA, name="phi3", keys="mlp.gate_up_proj", up=None, fused=("gate", "up"), activation="mlp.activation_fn"
    ),
)
