"""The hyperparameters of a training run, and the untrained model.

The model is a decoder as in the paper (pre-norm blocks, ungated feed-forward layers with ReLU, tied head), but with
rotary positions: a GPT-NeoX configuration with sequential residuals. With experts it is a Mixtral.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.declared import DeclaredOptions, option

if TYPE_CHECKING:
    import torch

BEGINNING = "<|endoftext|>"
SPARSITY_RAMP = 300
"""Steps over which the weight of sparsity grows linearly from 0."""
_OUTPUT_PROJECTIONS = ("attention.dense.weight", "mlp.dense_4h_to_h.weight", "o_proj.weight", "down_proj")


class Recipe(DeclaredOptions):
    """The defaults make the model that ships with the package."""

    layers: int = option(6, "Layers.", least=1)
    hidden: int = option(128, "Width of the stream.", least=1)
    memories: int = option(None, "Per layer, or per expert.", least=1, instead="4 times --hidden")
    experts: int = option(0, "Experts per layer, with --memories each.", least=0, instead="none")
    top_experts: int = option(2, "Experts that a token is routed to.")
    heads: int = option(4, "Attention heads.", least=1)
    # The token files have two bytes a token.
    vocabulary: int = option(1024, "Tokens of the BPE tokenizer.", least=1, most=65_536)
    context: int = option(256, "Tokens in a window.", least=1)
    steps: int = option(6_700, "Optimiser steps.", least=1)
    batch: int = option(16, "Windows per step.", least=1)
    warmup: int = option(100, "Steps in which the learning rates rise.", least=1)
    learning_rate: float = option(2e-3, "Of the matrices inside the blocks.", metavar="X")
    # Of the log of the effective number of memories in the last layer (loop.py), in nats per token; it grows linearly
    # with depth from 0 in the first.
    sparsity: float = option(
        None,
        "Weight of the loss term for few memories at a time.",
        metavar="X",
        least=0,
        instead="0.05; 0 with experts",
    )
    free_memories: float = option(1.5, "Effective number of memories that costs nothing.", metavar="N", least=1)
    revival: float = option(
        None, "Weight of the loss term against silent memories.", metavar="X", least=0, instead="0.1; 0 with experts"
    )
    seed: int = option(0, "Of weights and windows.")
    balance: float = 0.02
    """Weight of the load-balancing term; only with experts."""
    decay: float = 0.35
    """The last share of the steps, in which the learning rate falls linearly to zero."""
    embedding_rate: float = 4e-3
    """For the embedding, norms and biases."""
    weight_decay: float = 0.1
    sentence_windows: float = 0.5
    """The share of windows of the beginning token and text from the start of a sentence."""

    def __post_init__(self) -> None:
        super().__post_init__()
        usual = {"memories": 4 * self.hidden, "sparsity": 0.0 if self.experts else 0.05}
        for name, value in (usual | {"revival": 0.0 if self.experts else 0.1}).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.experts and not 1 <= self.top_experts <= self.experts:
            raise OptionError(
                f"a token cannot go to {self.top_experts} of {self.experts} experts; choose 1 to {self.experts}"
            )
        if self.experts and (self.sparsity or self.revival):
            raise OptionError("sparsity and revival are for dense models; leave them out with experts")
        if self.hidden % (2 * self.heads):
            raise OptionError(f"hidden size {self.hidden} does not divide into {self.heads} heads of even width")

    @property
    def tokens(self) -> int:
        return self.steps * self.batch * self.context

    def rate(self, step: int) -> float:
        """The factor on both learning rates."""
        falling = self.decay * self.steps
        return min((step + 1) / self.warmup, 1.0, max(0.0, self.steps - step) / falling if falling else 1.0)

    def sparsity_at(self, step: int) -> float:
        return self.sparsity * min(1.0, step / SPARSITY_RAMP)

    def same_run(self, other: "Recipe") -> bool:
        """Whether a checkpoint of `other` can be continued: only the number of steps may differ."""
        return {**asdict(self), "steps": 0} == {**asdict(other), "steps": 0}

    def model(self) -> "torch.nn.Module":
        import torch
        from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, MixtralConfig, MixtralForCausalLM

        torch.manual_seed(self.seed)
        sizes: dict[str, Any] = {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.memories,
            "tie_word_embeddings": True,
            "max_position_embeddings": self.context,
            "initializer_range": 0.02,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
        model: torch.nn.Module
        if self.experts:
            sizes |= {"num_local_experts": self.experts, "num_experts_per_tok": self.top_experts}
            model = MixtralForCausalLM(MixtralConfig(**sizes, num_key_value_heads=self.heads, sliding_window=None))
        else:
            rotary = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
            sizes |= {"hidden_act": "relu", "use_parallel_residual": False, "rope_parameters": rotary}
            model = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith(_OUTPUT_PROJECTIONS):
                    weight.mul_((2 * self.layers) ** -0.5)
        return model
