"""One model, one list of tokens, one position at a time: what its blocks hold there, and what vectors say.

The transformers model itself, in float64, with plain hooks; the rest from definitions.md sections 1 and 2, by the kind
of the block. Shares no code with the package. Knows no text, no batch and no table; those are in `reference_passes.py`.
"""

import copy
import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

DOWN = re.compile(
    r"\.(mlp\.c_proj|fc2|mlp\.dense_4h_to_h|mlp\.down_proj|mlp\.fc_out|mlp_block\.down_proj|feed_forward\.value"
    r"|mlp\.Wo|\d+\.output\.dense)$"
)
_DENSE = re.compile(r"^(cls\.predictions(\.transform)?|lm_head|generator_predictions|head)\.dense$")
_NORM_BEHIND = ("LayerNorm", "layer_norm", "norm")
_FINAL_NORMS = {
    "megatron-bert": "bert.encoder.ln",
    "modernbert": "model.final_norm",
    "modernbert-decoder": "model.final_norm",
    "roberta-prelayernorm": "roberta_prelayernorm.LayerNorm",
    "xlm-roberta-xl": "roberta.encoder.LayerNorm",
}
"""Of models with other norms of such names."""
_FINAL_NORM = re.compile(r"(^|\.)(ln_f|final_layer_norm|final_layernorm|final_norm|ln_out|norm)$")


@dataclass(frozen=True)
class Place:
    """What one block holds at the last position, named as in definitions.md section 1."""

    residual: Tensor
    coefficients: Tensor
    update: Tensor
    output: Tensor
    ffn_output: Tensor


class Slow(Protocol):
    """What the references ask of a model."""

    layers: int
    beginning: int | None

    def read(self, tokens: list[int]) -> tuple[list[Place], Tensor]:
        """Every layer at the last of a sentence's own tokens, and the model's own scores there."""
        ...

    def values(self, layer: int) -> Tensor:
        """The values `[memory, hidden]`."""
        ...

    def scale(self, layer: int, tokens: list[int], branch: int = 0) -> float:
        """What the norms between the layer's values and the head divide by, at the last of a sentence's own tokens."""
        ...

    def lens(self, stream: Tensor) -> Tensor:
        """The model's own readout `[vocab]` of a stream."""
        ...

    def bare(self, vector: Tensor) -> Tensor | None:
        """The products `[vocab]` of a vector with the head's matrix, nothing else on the way; None where the head has a
        transform.
        """
        ...

    def branch(self, memory: int) -> int:
        """Which branch of its layer a memory is of."""
        ...

    def value_scores(self, layer: int, vector: Tensor, branch: int = 0) -> Tensor:
        """The scores `[vocab]` of a value, as values are projected."""
        ...

    def update_scores(self, layer: int, update: Tensor) -> Tensor:
        """The scores `[vocab]` of a feed-forward update, as values are projected."""
        ...


class SlowTransformer:
    """A model of transformers: GPT-2, OPT, GPT-NeoX, GPT-J, Llama, OLMo-2, Gemma-2 and their like."""

    part = DOWN
    """What of a block is read: `downs`, a module a layer."""

    def __init__(self, hf: Any, *, beginning: int | None) -> None:
        self.hf = copy.deepcopy(hf).double()
        self.beginning = beginning
        self._names = dict(self.hf.named_modules())
        downs = [name for name in self._names if self.part.search(name)]
        self.downs = [self._names[name] for name in downs]
        found = [re.match(r".*?\.\d+(?=\.)", name) for name in downs]
        self._blocks = [match.group() for match in found if match]
        self.layers = len(downs)
        dense = next((name for name in self._names if _DENSE.search(name)), "")
        beside = dense.rpartition(".")[0]
        norms = [
            self._names[f"{beside}.{name}"] for name in _NORM_BEHIND if dense and f"{beside}.{name}" in self._names
        ]
        self._transform = (self._names[dense], norms[0]) if dense else None
        inside = (*self._blocks, *([beside] if dense else []))
        final = [n for n in self._names if _FINAL_NORM.search(n) and not n.startswith(inside)]
        named = _FINAL_NORMS.get(self.hf.config.model_type)
        kept = [self._names[name] for name in ([named] if named else final) if self._names[name] is not None]
        self._final = kept[0] if kept and list(kept[0].parameters()) else None
        project = [module for name, module in self._names.items() if name.endswith("decoder.project_out")]
        self._project = project[0] if project else None

    @property
    def times(self) -> float:
        """What the model multiplies its scores by."""
        return getattr(self.hf.config, "logit_scale", 1.0) / getattr(self.hf.config, "logits_scaling", 1.0)

    def _block(self, layer: int) -> Any:
        return self._names[self._blocks[layer]]

    def multiplier(self, layer: int) -> float:
        """What a value of this block is multiplied by on the way to the scores, besides its coefficient."""
        later = math.prod(float(getattr(self._block(at), "layer_scalar", 1.0)) for at in range(layer, self.layers))
        return later * self.times * getattr(self.hf.config, "residual_multiplier", 1.0)

    def sandwich_norm(self, layer: int) -> Any:
        names = (f"{self._blocks[layer]}.{name}" for name in ("post_feedforward_layernorm", "post_mlp_layernorm"))
        return next((self._names[name] for name in names if name in self._names), None)

    def branch(self, memory: int) -> int:
        """Which branch of its layer a memory is of."""
        return 0

    def _behind(self, layer: int, branch: int) -> tuple[Any, ...]:
        """The norm of its own that a branch of the layer has behind it."""
        return ()

    def _post_norm(self, layer: int) -> Any:
        """The norm that follows the sum of stream and feed-forward output, in a post-norm block."""
        if f"{self._blocks[layer]}.output.LayerNorm" in self._names:  # BERT
            return self._names[f"{self._blocks[layer]}.output.LayerNorm"]
        post = self.hf.config.model_type == "opt" and not self.hf.config.do_layer_norm_before
        return self._names[f"{self._blocks[layer]}.final_layer_norm"] if post else None

    def values(self, layer: int) -> Tensor:
        down = self.downs[layer]
        return down.weight if type(down).__name__ == "Conv1D" else down.weight.T

    @torch.no_grad()
    def read(self, tokens: list[int]) -> tuple[list[Place], Tensor]:
        """The residual is what remains of the sum in the stream when the update is taken away again."""
        extra = [] if self.beginning is None else [self.beginning]
        width = self.values(0).shape[1]
        seen: dict[tuple[str, int], Tensor] = {}

        def note(name: str, layer: int, found: Any) -> None:
            tensor = found[0] if isinstance(found, tuple) else found
            seen[name, layer] = tensor.reshape(-1, tensor.shape[-1])[-1].clone()

        hooks = []
        for layer in range(self.layers):
            hooks += [
                self.downs[layer].register_forward_pre_hook(lambda _, i, layer=layer: note("coefficients", layer, i)),
                self._names[self._blocks[layer]].register_forward_hook(
                    lambda _, i, out, layer=layer: note("output", layer, out)
                ),
            ]
            if self._post_norm(layer) is not None:
                norm = self._post_norm(layer)
                hooks.append(norm.register_forward_pre_hook(lambda _, i, layer=layer: note("sum", layer, i)))
            if (onward := self._names.get(f"{self._blocks[layer]}.per_layer_input_gate")) is not None:
                hooks.append(onward.register_forward_pre_hook(lambda _, i, layer=layer: note("behind", layer, i)))
        logits = self.hf(input_ids=torch.tensor([extra + tokens])).logits[0, -1]
        for hook in hooks:
            hook.remove()
        places = []
        for layer in range(self.layers):
            coefficients, output = seen["coefficients", layer], seen["output", layer]
            output = seen.get(("behind", layer), output / getattr(self._block(layer), "layer_scalar", 1.0))
            assert output.shape == (width,)
            bias = self.downs[layer].bias
            update = ffn_output = coefficients @ self.values(layer) + (0 if bias is None else bias)
            if self.sandwich_norm(layer) is not None:
                update = self.sandwich_norm(layer)(update[None])[0]
            total = seen.get(("sum", layer), output)
            places.append(Place(total - update, coefficients, update, output, ffn_output))
        return places, logits

    @torch.no_grad()
    def scale(self, layer: int, tokens: list[int], branch: int = 0) -> float:
        """By the textbook's formulas, of what each norm reads: the root of the variance or of the mean square."""
        extra = [] if self.beginning is None else [self.beginning]
        found: list[float] = []

        def note(norm: Any, inputs: Any) -> None:
            x = inputs[0].reshape(-1, inputs[0].shape[-1])[-1].tolist()
            mean = 0.0 if "RMS" in type(norm).__name__ else sum(x) / len(x)
            eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
            found.append((sum((one - mean) ** 2 for one in x) / len(x) + eps) ** 0.5)

        behind = (*self._behind(layer, branch), self.sandwich_norm(layer), self._post_norm(layer), self._final)
        norms = [norm for norm in (*behind, self._transform and self._transform[1]) if norm is not None]
        hooks = [norm.register_forward_pre_hook(note) for norm in norms]
        self.hf(input_ids=torch.tensor([extra + tokens]))
        for hook in hooks:
            hook.remove()
        assert len(found) == len(norms)
        return math.prod(found)

    @torch.no_grad()
    def uncapped(self, stream: Tensor) -> Tensor:
        """The model's own readout of a stream, before a soft-cap."""
        for module in (self._final, self._project):
            stream = stream if module is None else module(stream[None])[0]
        if self._transform is not None:
            dense, norm = self._transform
            stream = dense.weight @ stream + (0 if dense.bias is None else dense.bias)
            stream = norm(self.activate(stream))
        return self.hf.get_output_embeddings()(stream) * self.times

    def lens(self, stream: Tensor) -> Tensor:
        scores, cap = self.uncapped(stream), getattr(self.hf.config, "final_logit_softcapping", None)
        return scores if cap is None else cap * torch.tanh(scores / cap)

    def activate(self, x: Tensor) -> Tensor:
        """The function inside the head's transform."""
        if self.hf.config.model_type == "big_bird":
            return x / 2 * (1 + torch.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)))
        return x / 2 * (1 + torch.erf(x / 2**0.5))

    def bare(self, vector: Tensor) -> Tensor | None:
        return None if self._transform is not None else self._multiply(vector)

    @torch.no_grad()
    def _multiply(self, vector: Tensor) -> Tensor:
        vector = vector if self._project is None else self._project.weight @ vector
        return self.hf.get_output_embeddings().weight @ vector

    def value_scores(self, layer: int, vector: Tensor, branch: int = 0) -> Tensor:
        """`gain`: centring and gain of the block's own output norm, then of the final norm, then the head's matrix."""
        behind = self._behind(layer, branch)
        return self._gain(vector, [*behind, self.sandwich_norm(layer), self._post_norm(layer), self._final])

    def update_scores(self, layer: int, update: Tensor) -> Tensor:
        """As a value, but a sandwich block's update has passed its norm already."""
        return self._gain(update, [self._post_norm(layer), self._final])

    def stream_scores(self, stream: Tensor) -> Tensor:
        """The scores of a stream as values are projected: no biases, and the linear part of a transform."""
        return self._gain(stream, [self._final])

    @torch.no_grad()
    def _gain(self, vector: Tensor, norms: list[Any]) -> Tensor:
        for norm in norms:
            if norm is not None:
                kind = type(norm).__name__
                vector = vector if "RMS" in kind else vector - vector.mean()
                vector = vector * (1 + norm.weight if re.search("Gemma(?!4)|Qwen3Next", kind) else norm.weight)
        if self._transform is not None:
            dense, norm = self._transform
            vector = dense.weight @ vector
            vector = (vector - vector.mean()) * norm.weight
        return self._multiply(vector)
