"""Tiny random mixtures of experts, and what their coefficients are by hand.

Each entry says, from transformers' source, where a layer's experts are and how one of them makes its coefficients: a
reference that shares nothing with the package. `coefficients_of` reads what the router decided off the model's own
forward and does the rest with a loop over tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, relu, silu
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

HIDDEN, WIDTH, EXPERTS = 16, 24, 4
_SIZES = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
_SIZES |= {"head_dim": 8, "intermediate_size": WIDTH, "max_position_embeddings": 64, "pad_token_id": 0}
_SIZES |= {"moe_intermediate_size": WIDTH, "num_experts_per_tok": 2, "n_shared_experts": 1, "num_shared_experts": 1}
_SIZES |= dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), EXPERTS)
_LATENT = {"q_lora_rank": None, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
_GROUPS = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
_DEEPSEEK = _LATENT | _GROUPS | {"routed_scaling_factor": 2.5}


def _halves(experts: Any, e: int, x: Tensor) -> Tensor:
    gate, up = experts.gate_up_proj[e][:WIDTH], experts.gate_up_proj[e][WIDTH:]
    return silu(gate @ x) * (up @ x)


def _oss(experts: Any, e: int, x: Tensor) -> Tensor:
    made = x @ experts.gate_up_proj[e] + experts.gate_up_proj_bias[e]
    gate = made[0::2].clamp(max=7.0)
    return (made[1::2].clamp(-7.0, 7.0) + 1) * gate * torch.sigmoid(1.702 * gate)


def _llama4(experts: Any, e: int, x: Tensor) -> Tensor:
    made = x @ experts.gate_up_proj[e]
    return made[WIDTH:] * silu(made[:WIDTH])


def _gelu_halves(experts: Any, e: int, x: Tensor) -> Tensor:
    gate, up = experts.gate_up_proj[e][:WIDTH], experts.gate_up_proj[e][WIDTH:]
    return gelu(gate @ x, approximate="tanh") * (up @ x)


def _apart(experts: Any, e: int, x: Tensor) -> Tensor:
    rows = slice(e * WIDTH, (e + 1) * WIDTH)
    return silu(experts.mlp.w1[rows] @ x) * (experts.mlp.v1[rows] @ x)


def _columns(experts: Any, e: int) -> Tensor:
    return experts.down_proj[e].T


def _rows(experts: Any, e: int) -> Tensor:
    return experts.down_proj[e]


def gelu_mlp(mlp: Any, x: Tensor) -> Tensor:
    """What enters the down-projection of a layer gated by GELU."""
    return gelu(linear(x, mlp.gate_proj.weight), approximate="tanh") * linear(x, mlp.up_proj.weight)


def _mlp(mlp: Any, x: Tensor) -> Tensor:
    return silu(linear(x, mlp.gate_proj.weight)) * linear(x, mlp.up_proj.weight)


def _squared(experts: Any, e: int, x: Tensor) -> Tensor:
    return relu(experts.up_proj[e] @ x).square()


def _squared_mlp(mlp: Any, x: Tensor) -> Tensor:
    return relu(linear(x, mlp.up_proj.weight, mlp.up_proj.bias)).square()


def _fused(mlp: Any, x: Tensor) -> Tensor:
    gate, up = linear(x, mlp.input_linear.weight).chunk(2, dim=-1)
    return silu(gate) * up


@dataclass(frozen=True)
class Experts:
    """A tiny mixture: its settings, the module of its experts and those of shared ones (paths in a block)."""

    kind: str
    settings: dict[str, Any]
    experts: str = "mlp.experts"
    shared: str | None = None
    switch: str | None = None
    down: str = "down_proj"
    """The shared expert's last map."""
    make: Callable[[Any, int, Tensor], Tensor] = _halves
    make_shared: Callable[[Any, Tensor], Tensor] = _mlp
    values: Callable[[Any, int], Tensor] = _columns
    """The values [memory, hidden] of one expert."""
    block: str = "pre-norm"
    dense: tuple[int, ...] = ()
    """Layers without experts."""
    weighs_input: bool = False
    gated: bool = True
    final_norm: str = "norm"
    scale: float = 1.0
    """What the layer multiplies the sum of all experts by."""
    whole: str = "mlp"
    """The feed-forward layer of a block without experts."""
    narrow: tuple[str, str] | None = None
    """The maps into the narrower stream of the experts, and out of it."""
    behind: tuple[str, str] | None = None
    """The norms behind the routed experts and behind the shared one."""


_SHARED = "mlp.shared_experts"
_SWITCHED: dict[str, Any] = {"shared": "mlp.shared_expert", "switch": "mlp.shared_expert_gate"}
_LINEAR = {f"linear_num_{part}_heads": 2 for part in ("key", "value")}
_LINEAR |= {f"linear_{part}_head_dim": 8 for part in ("key", "value")}
_JAMBA = {"expert_layer_period": 2, "expert_layer_offset": 1, "attn_layer_period": 2, "attn_layer_offset": 1}
_MAMBA = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 4, "n_groups": 2}
_NEMOTRON = _MAMBA | {"moe_shared_expert_intermediate_size": 20, "routed_scaling_factor": 2.5}
_NEMOTRON |= {"n_group": 1, "topk_group": 1}
_MIXER: dict[str, Any] = {"experts": "mixer.experts", "shared": "mixer.shared_experts", "whole": "mixer"}
_MIXER |= {"make": _squared, "make_shared": _squared_mlp, "gated": False, "final_norm": "norm_f"}
_DBRX = {"ffn_hidden_size": WIDTH, "moe_num_experts": EXPERTS, "moe_top_k": 2, "hidden_size": HIDDEN}
_SPARSE = "block_sparse_moe.experts"
MIXTURES = {
    "mixtral": Experts("mixtral", {}),
    "qwen2_moe": Experts("qwen2_moe", {"shared_expert_intermediate_size": 20}, **_SWITCHED),
    "qwen3_moe": Experts("qwen3_moe", {}),
    "qwen3_next": Experts(
        "qwen3_next",
        _LINEAR | {"shared_expert_intermediate_size": 20, "layer_types": ["linear_attention", "full_attention"]},
        **_SWITCHED,
    ),
    "olmoe": Experts("olmoe", {}),
    "phimoe": Experts("phimoe", {}),
    "deepseek_v2": Experts("deepseek_v2", _DEEPSEEK, shared=_SHARED, dense=(0,)),
    "deepseek_v3": Experts("deepseek_v3", _DEEPSEEK | {"head_dim": 4}, shared=_SHARED, dense=(0,)),
    "gpt_oss": Experts("gpt_oss", {}, make=_oss, values=_rows),
    "granitemoe": Experts("granitemoe", {"residual_multiplier": 0.4, "logits_scaling": 3.0}, experts=_SPARSE),
    "granitemoeshared": Experts(
        "granitemoeshared",
        {"shared_intermediate_size": 20, "residual_multiplier": 0.4},
        experts=_SPARSE,
        shared="shared_mlp",
        make_shared=_fused,
        down="output_linear",
    ),
    "glm4_moe": Experts("glm4_moe", _GROUPS | {"routed_scaling_factor": 1.5}, shared=_SHARED, dense=(0,)),
    "llama4": Experts(
        "llama4_text",
        {"intermediate_size_mlp": 20, "interleave_moe_layer_step": 1},
        experts="feed_forward.experts",
        shared="feed_forward.shared_expert",
        make=_llama4,
        values=_rows,
        weighs_input=True,
    ),
    "jamba": Experts(
        "jamba",
        _JAMBA | {"mamba_d_state": 4, "mamba_d_conv": 2, "use_mamba_kernels": False},
        experts="feed_forward.experts",
        dense=(0,),
        whole="feed_forward",
        final_norm="final_layernorm",
    ),
    "nemotron_h": Experts(
        "nemotron_h",
        _NEMOTRON | {"layers_block_type": ["attention", "moe", "mlp", "mamba"], "num_hidden_layers": 4},
        **_MIXER,
        dense=(1,),
    ),
    "nemotron_h latent": Experts(
        "nemotron_h",
        _NEMOTRON | {"layers_block_type": ["attention", "moe"], "moe_latent_size": 8, "mlp_bias": True},
        **_MIXER,
        narrow=("mixer.fc1_latent_proj", "mixer.fc2_latent_proj"),
    ),
    "gemma4": Experts(
        "gemma4_text",
        {"hidden_size_per_layer_input": 0, "enable_moe_block": True, "global_head_dim": 8, "top_k_experts": 2},
        experts="experts",
        shared="mlp",
        make=_gelu_halves,
        make_shared=gelu_mlp,
        block="sandwich",
        behind=("post_feedforward_layernorm_2", "post_feedforward_layernorm_1"),
    ),
    "cohere2_moe": Experts(
        "cohere2_moe",
        {"shared_expert_combination_strategy": "average", "num_shared_experts": 1},
        shared=_SHARED,
        block="parallel",
        scale=0.5,
    ),
    "dbrx": Experts(
        "dbrx",
        {
            **{"d_model": HIDDEN, "n_heads": 2, "n_layers": 2, "max_seq_len": 64, "ffn_config": _DBRX},
            "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        },
        experts="ffn.experts",
        make=_apart,
        values=lambda experts, e: experts.mlp.w2[e * WIDTH : (e + 1) * WIDTH],
        final_norm="norm_f",
    ),
    "flex_olmo": Experts("flex_olmo", {}, block="sandwich"),
    "dots1": Experts("dots1", _GROUPS, shared=_SHARED, dense=(0,)),
    "afmoe": Experts("afmoe", {"num_dense_layers": 1}, shared=_SHARED, dense=(0,), block="sandwich"),
}


def build_mixture(name: str, *, rows: int = 280, **changes: Any) -> Any:
    """The tiny random model of an entry; biases, gains and routers are random too."""
    settings = {"vocab_size": rows, "bos_token_id": None, "eos_token_id": None, **_SIZES, **MIXTURES[name].settings}
    return fill_randomly(
        lambda: AutoModelForCausalLM.from_config(AutoConfig.for_model(MIXTURES[name].kind, **settings | changes))
    )


def fill_randomly(make: Callable[[], Any]) -> Any:
    """The model that is made, at rest, with random numbers everywhere; gains around one."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        torch.manual_seed(0)
        model = make()
    finally:
        logging.set_verbosity(before)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            gain = parameter.dim() == 1 and not path.endswith("bias")
            parameter.copy_(torch.randn_like(parameter) * 0.3 + float(gain))
        for path, buffer in model.named_buffers():
            if path.endswith("layer_scalar"):
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    return model.eval().requires_grad_(False)


def inner_of(hf: Any) -> Any:
    """The module that holds a tiny mixture's blocks and its final norm."""
    return hf.transformer if hf.config.model_type == "dbrx" else hf.model


def blocks_of(hf: Any) -> Any:
    """The blocks of a tiny mixture that have a feed-forward layer."""
    hybrid = hf.config.model_type == "nemotron_h"
    inner = inner_of(hf)
    blocks = inner.blocks if hf.config.model_type == "dbrx" else inner.layers
    return [block for block in blocks if not hybrid or block.block_type in ("moe", "mlp")]


class HandRead:
    """Coefficients of one tiny mixture, by a loop over the tokens of one sentence and the experts that each chose."""

    def __init__(self, hf: Any, name: str) -> None:
        self.hf, self.case = hf, MIXTURES[name]
        self.moe = [layer for layer in range(len(blocks_of(hf))) if layer not in self.case.dense]

    def widths(self, layer: int) -> list[int]:
        """The memories of every expert of a layer; one number for a dense layer."""
        block = blocks_of(self.hf)[layer]
        if layer in self.case.dense:
            return [self._dense(block).down_proj.weight.shape[1]]
        shared = [] if self.case.shared is None else [self._shared_down(block).weight.shape[1]]
        return [WIDTH] * EXPERTS + shared

    def _dense(self, block: Any) -> Any:
        return block.get_submodule(self.case.whole)

    def _shared_down(self, block: Any) -> Any:
        return block.get_submodule(f"{self.case.shared}.{self.case.down}")

    def values(self, layer: int) -> Tensor:
        """The values [memory, hidden], expert by expert."""
        block = blocks_of(self.hf)[layer]
        if layer in self.case.dense:
            return self._dense(block).down_proj.weight.T
        experts = block.get_submodule(self.case.experts)
        rows = [self.case.values(experts, e) for e in range(EXPERTS)]
        if self.case.narrow is not None:
            rows = [linear(row, block.get_submodule(self.case.narrow[1]).weight) for row in rows]
        return torch.cat([*rows, *([] if self.case.shared is None else [self._shared_down(block).weight.T])])

    @torch.no_grad()
    def read(self, ids: list[int]) -> tuple[list[Tensor], list[Tensor]]:
        """For every layer coefficients [token, memory] and weights [token, expert]; a dense layer's weights are 1."""
        seen: dict[str, Any] = {}
        hooks = []
        for layer, block in enumerate(blocks_of(self.hf)):
            watched = [self.case.experts, "feed_forward.router", self.case.shared] if layer in self.moe else []
            for path in watched:
                if path is None or (path.endswith("router") and not self.case.weighs_input):
                    continue
                module = block.get_submodule(path)
                hooks.append(
                    module.register_forward_pre_hook(
                        lambda _, args, named, key=f"{layer}.{path}": seen.__setitem__(key, (*args, *named.values())),
                        with_kwargs=True,
                    )
                )
                hooks.append(
                    module.register_forward_hook(
                        lambda _, args, out, key=f"{layer}.{path}.out": seen.__setitem__(key, out)
                    )
                )
            entry = block.get_submodule(self.case.experts.rpartition(".")[0] if layer in self.moe else self.case.whole)
            hooks.append(
                entry.register_forward_pre_hook(
                    lambda _, args, layer=layer: seen.__setitem__(f"{layer}.x", args[0].reshape(-1, HIDDEN))
                )
            )
        self.hf(input_ids=torch.tensor([ids]))
        for hook in hooks:
            hook.remove()
        pairs = [self._layer(layer, seen) for layer in range(len(blocks_of(self.hf)))]
        return [one for one, _ in pairs], [other for _, other in pairs]

    def _layer(self, layer: int, seen: dict[str, Any]) -> tuple[Tensor, Tensor]:
        block, x = blocks_of(self.hf)[layer], seen[f"{layer}.x"]
        if layer in self.case.dense:
            return self.case.make_shared(self._dense(block), x), torch.ones(len(x), 1, dtype=x.dtype)
        experts = block.get_submodule(self.case.experts)
        widths = self.widths(layer)
        weights = torch.zeros(len(x), len(widths), dtype=x.dtype)
        if self.case.weighs_input:
            weights[:, :EXPERTS] = seen[f"{layer}.feed_forward.router.out"][0]
        else:
            _, index, given = seen[f"{layer}.{self.case.experts}"][:3]
            for token, (chosen, weight) in enumerate(zip(index.tolist(), given.tolist(), strict=True)):
                for e, w in zip(chosen, weight, strict=True):
                    weights[token, e] += w * self.case.scale
        found = torch.zeros(len(x), sum(widths), dtype=x.dtype)
        taken_by = x if self.case.weighs_input else seen[f"{layer}.{self.case.experts}"][0].flatten(end_dim=-2)
        for token in range(len(x)):
            for e in range(EXPERTS):
                w, own = weights[token, e], slice(e * WIDTH, (e + 1) * WIDTH)
                if w != 0:
                    taken = taken_by[token] * w if self.case.weighs_input else taken_by[token]
                    made = self.case.make(experts, e, taken)
                    found[token, own] = made if self.case.weighs_input else made * w
        if self.case.shared is not None:
            weights[:, EXPERTS] = self.case.scale
            if self.case.switch is not None:
                weights[:, EXPERTS] = torch.sigmoid(linear(x, block.get_submodule(self.case.switch).weight))[:, 0]
            taken = seen[f"{layer}.{self.case.shared}"][0].reshape(-1, HIDDEN)
            made = self.case.make_shared(block.get_submodule(self.case.shared), taken)
            found[:, EXPERTS * WIDTH :] = made * weights[:, EXPERTS, None]
        return found, weights
