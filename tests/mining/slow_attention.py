"""What attention and feed-forward layers add to logits, one prefix at a time: the slow reference of `attention`.

The transformers model itself, in float64, with plain hooks; eager attention from its own configuration. The parts of a
logit come from derivatives: the way from what a block adds to the logit, with every norm after it replaced by what it
does at its frozen scale, walked by hand. Shares no code with the package.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mining.slow_model import SlowTransformer


@dataclass
class Around:
    """One block at the last position."""

    before: Tensor
    attention: Tensor
    update: Tensor
    attended: float
    rows: Tensor
    norms: list[tuple[Any, Tensor]] = field(default_factory=list)
    """Of a post-norm block: the norm after attention and the one after the feed-forward layer, with what they read."""


class SlowAttention(SlowTransformer):
    """A model of transformers whose blocks are pre-norm, sandwich, parallel, or post-norm as OPT-350m's."""

    part = re.compile(r"\.\d+\.(attn|self_attn|attention|self_attention)$")

    def __init__(self, hf: Any, *, beginning: int | None) -> None:
        super().__init__(hf, beginning=beginning)
        self.hf.config._attn_implementation = "eager"
        self.hf.config._experts_implementation = "eager"  # another knows no float64
        self.blocks = [self._block(layer) for layer in range(self.layers)]
        self.kind = hf.config.model_type

    @torch.no_grad()
    def read(self, tokens: list[int]) -> tuple[list[Around], Tensor, Tensor]:
        """Every block, the final stream, and the model's own logits, at the last token."""
        ids = torch.tensor([([] if self.beginning is None else [self.beginning]) + tokens])
        found: list[dict[str, Any]] = [{} for _ in self.blocks]
        hooks = []

        def last(value: Any) -> Tensor:
            tensor = value[0] if isinstance(value, tuple) else value
            return tensor.reshape(-1, tensor.shape[-1])[-1].clone()

        for block, attention, seen in zip(self.blocks, self.downs, found, strict=True):
            hooks.append(
                block.register_forward_pre_hook(
                    lambda _, i, k, seen=seen: seen.update(before=last(i or (k["hidden_states"],))), with_kwargs=True
                )
            )
            hooks.append(block.register_forward_hook(lambda _, i, o, seen=seen: seen.update(after=last(o))))

            def attended(_: Any, i: Any, o: Any, seen: dict[str, Any] = seen) -> None:
                seen["attention"], seen["rows"] = last(o), o[1][0, :, -1]

            hooks.append(attention.register_forward_hook(attended))
            for name in ("post_attention_layernorm", "self_attn_layer_norm", "final_layer_norm"):
                norm = dict(block.named_children()).get(name)
                if norm is not None:
                    hooks.append(
                        norm.register_forward_hook(
                            lambda norm, i, o, seen=seen, name=name: seen.update({name: (norm, last(i), last(o))})
                        )
                    )
        logits = self.hf(input_ids=ids).logits[0, -1]
        for hook in hooks:
            hook.remove()
        return [self._around(seen) for seen in found], found[-1]["after"], logits

    def _around(self, seen: dict[str, Any]) -> Around:
        attended = []
        for row in seen["rows"].tolist():
            attended.append(math.exp(-sum(p * math.log(p) for p in row if p > 0)))
        mean = sum(attended) / len(attended)
        before, attention, after = seen["before"], seen["attention"], seen["after"]
        attention = attention * getattr(self.hf.config, "residual_multiplier", 1.0)
        if self.kind in ("gemma2", "gemma3_text", "olmo2"):
            attention = seen["post_attention_layernorm"][2]
        if self.kind == "bloom":
            attention = attention - before  # it gives the sum
        if self._post_norm(0) is not None:
            one, two = seen["self_attn_layer_norm"], seen["final_layer_norm"]
            return Around(before, one[1] - before, two[1] - one[2], mean, seen["rows"], [one[:2], two[:2]])
        return Around(before, attention, after - before - attention, mean, seen["rows"])

    def own_logits(self, logits: Tensor) -> Tensor:
        """The model's own logits before a soft-cap."""
        cap = getattr(self.hf.config, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.atanh(logits / cap)

    @torch.no_grad()
    def parts(self, blocks: list[Around], final: Tensor, weight: Tensor, bias: float) -> dict[str, Any]:
        """What each vector adds to `weight . x + bias`, where x is what the head reads."""
        function = weight * self.times
        biases = bias * self.times
        if self._project is not None:
            function = self._project.weight.T @ function
        function, more = self._before(self._final, final, function)
        biases += more
        found: dict[str, Any] = {"attention": [], "ffn": []}
        for block in reversed(blocks):
            if block.norms:
                function, more = self._before(*block.norms[1], function)
                biases += more
            found["ffn"].insert(0, sum(a * b for a, b in zip(function.tolist(), block.update.tolist(), strict=True)))
            if block.norms:
                function, more = self._before(*block.norms[0], function)
                biases += more
            found["attention"].insert(0, float(function @ block.attention))
        return found | {"embedding": float(function @ blocks[0].before), "bias": float(biases)}

    def _before(self, norm: Any, read: Tensor, function: Tensor) -> tuple[Tensor, float]:
        """A linear function of what a norm gives as one of what it reads, by the textbook, and what its bias adds."""
        if norm is None:
            return function, 0.0
        kind = type(norm).__name__
        centred = "RMS" not in kind
        x = read - read.mean() if centred else read
        eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
        scale = float((x @ x) / len(x) + eps) ** 0.5
        weight = 1 + norm.weight if "Gemma" in kind else norm.weight
        own = getattr(norm, "bias", None)
        added = 0.0 if own is None else float(function @ own)
        inner = function * weight / scale
        return inner - inner.mean() if centred else inner, added
