"""The parts of a causal language model that the rest of the room reads: resolved modules, not paths.

`find_layers` turns a transformers model into an `Anatomy` by its family's row (families.py); structure.py does so for
an unknown family. Nothing here runs the model or checks the result: the load-time proof (proof.py) does.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.anatomy.families import FAMILIES, Family
from mnemoscope.models.memories.feed_forward import DenseFeedForward, FeedForward
from mnemoscope.models.modules.linear_maps import LinearMap, rows_of
from mnemoscope.models.modules.projections import AdaptiveSoftmax, HeadTransform

_ACTIVATION_ENTRIES = (
    *("hidden_act", "activation_function", "hidden_activation", "activation"),
    *("ffn_activation", "afn", "mlp_hidden_act"),
)
_NOT_READ = {
    "mobilebert": "a block of it has four feed-forward layers, in a narrower stream of its own",
    **dict.fromkeys(("xlm", "flaubert"), "no module of it is a block: its layers are parts in lists"),
    "xmod": "a further map, of the text's language, works on what a feed-forward layer gives",
    "prophetnet": "it predicts several tokens at once, from streams of its own",
    "fsmt": "its scores are made without a module that is its head",
    **dict.fromkeys(("zamba", "zamba2"), "several places share one block, each with maps of its own"),
    "squeezebert": "its maps are convolutions",
    "reformer": "its layers are reversible, on two streams",
    "ibert": "its layers compute in whole numbers",
    **dict.fromkeys(("funnel", "longformer"), "it pools or pads positions inside"),
    "perceiver": "its layers read latents, not the positions of a text",
}
"""Types that no structure tells and that have no row, and why."""
_CHOSEN_ENTRIES = ("num_experts_per_tok", "moe_topk", "moe_k", "num_selected_experts", "top_k_experts")


@dataclass(frozen=True)
class Layer:
    """One block's parts; the names are those of `Family`."""

    block: nn.Module
    ffn: FeedForward
    ffn_norm: nn.Module | None
    post_norm: nn.Module | None
    output_norm: nn.Module | None
    attention: nn.Module | None
    output_gate: nn.Module | None
    onward: nn.Module | None
    """The module that reads r + u, where the block adds more after its feed-forward layer."""
    update_scale: float = 1.0
    output_scale: float = 1.0

    @property
    def kind(self) -> str:
        """`parallel`, `post-norm`, `sandwich` or `pre-norm`."""
        if self.attention is not None:
            return "parallel"
        if self.output_norm is not None:
            return "post-norm"
        return "sandwich" if self.post_norm is not None else "pre-norm"

    @staticmethod
    def through_gate(ffn_output: Tensor, opened: Tensor) -> Tensor:
        """The update, from the output of the output gate's map (definitions.md section 1, gates inside)."""
        return ffn_output * torch.sigmoid(opened)

    def update(self, ffn_output: Tensor) -> Tensor:
        """The block's update for a feed-forward output: u of definitions.md section 1."""
        return self.scale(ffn_output if self.post_norm is None else self.post_norm(ffn_output))

    def scale(self, update: Tensor) -> Tensor:
        return update if self.update_scale == 1.0 else update * self.update_scale

    def unscale(self, output: Tensor) -> Tensor:
        """The stream r + u, from the output of a block that adds nothing more."""
        return output if self.output_scale == 1.0 else output / self.output_scale


@dataclass(frozen=True)
class Anatomy:
    """A causal language model's parts.

    `backbone` runs the blocks without the head; None: there is no such module, so the model's own forward stops where
    the head would start. `two_level` is the head if it is an adaptive softmax, which has no single matrix; `transform`
    stands between `project` and a matrix (BERT's family), and `head_bias [vocab]` is added where it is not the head's
    own. `layers` are the blocks with a feed-forward layer; `without`
    names the contents of the others, by block number. `last` is the block whose output is the final stream, unless it
    is the last layer's; `first` reads the embedding, unless it is the first layer's.
    """

    family: str
    model: nn.Module
    backbone: nn.Module | None
    layers: tuple[Layer, ...]
    final_norm: nn.Module | None
    project: nn.Module | None
    head: nn.Module
    activation: str
    logit_scale: float = 1.0
    softcap: float | None = None
    two_level: AdaptiveSoftmax | None = None
    transform: HeadTransform | None = None
    head_bias: Tensor | None = None
    without: Mapping[int, str] = field(default_factory=dict)
    last: nn.Module | None = None
    first: nn.Module | None = None

    @property
    def blocks(self) -> tuple[int, ...]:
        """The number of every layer's block; differs from the layer's where some blocks have no layer."""
        return tuple(number for number in range(len(self.layers) + len(self.without)) if number not in self.without)

    @property
    def first_block(self) -> nn.Module:
        return self.layers[0].block if self.first is None else self.first

    @property
    def last_block(self) -> nn.Module:
        return self.layers[-1].block if self.last is None else self.last

    @property
    def keys_only(self) -> bool:
        """An encoder alone, whose last stream stands in the place of scores."""
        return isinstance(self.head, nn.Identity)

    @property
    def rows(self) -> int:
        if self.keys_only:
            return rows_of(self.model.get_input_embeddings())  # type: ignore[operator]
        return rows_of(self.head) if self.two_level is None else self.two_level.rows

    @property
    def head_kind(self) -> str:
        """`linear`, `linearised` (values pass the linear part of a transform before the matrix), `adaptive softmax`,
        `none` (keys alone)."""
        if self.keys_only:
            return "none"
        if self.two_level is not None:
            return "adaptive softmax"
        return "linear" if self.transform is None else "linearised"

    @property
    def ffn_parameters(self) -> int:
        """The parameters of all feed-forward layers; those of calls of one block once."""
        different = {id(next(layer.ffn.exits[0].parameters(), layer)): layer.ffn.parameters for layer in self.layers}
        return sum(different.values())

    def memories_at_once(self, layer: int) -> int:
        """How many coefficients of a layer a token has: in a mixture those of its experts."""
        numbering = self.layers[layer].ffn.numbering
        if numbering.routed is None:
            return numbering.count
        experts = min(numbering.routed, experts_chosen(self.model.config))
        return experts * numbering.widths[0] + sum(numbering.widths[numbering.routed :])

    def project_stream(self, stream: Tensor) -> Tensor:
        """Stream vectors [..., hidden] behind the final norm and the projection, [..., hidden']."""
        for module in (self.final_norm, self.project):
            stream = stream if module is None else module(stream)
        return stream

    def head_input(self, stream: Tensor) -> Tensor:
        """What the head itself reads, [..., hidden'], for stream vectors [..., hidden]."""
        projected = self.project_stream(stream)
        return projected if self.transform is None else self.transform(projected)

    def score(self, taken: Tensor) -> Tensor:
        """What the head makes [..., vocab] of its input [..., hidden'], with every bias."""
        scores: Tensor = self.head(taken)
        return scores if self.head_bias is None else scores + self.head_bias

    def readout(self, stream: Tensor) -> Tensor:
        """The model's own scores [..., vocab] of stream vectors [..., hidden]."""
        scores = self.score(self.head_input(stream))
        scores = scores if self.logit_scale == 1.0 else scores * self.logit_scale
        return scores if self.softcap is None else torch.tanh(scores / self.softcap) * self.softcap


def text_config(model: Any) -> Any:
    return model.config.get_text_config(decoder=True)


def find_layers(model: Any) -> Anatomy | None:
    """The anatomy of a transformers causal language model by its family's row; None where no row fits."""
    family = family_of(model.config)
    try:
        return None if family is None else resolve(model, family)
    except AttributeError:  # the model lacks modules of the row
        return None


def check_supported(config: Any) -> None:
    kind = getattr(config, "model_type", "unknown")
    if kind in _NOT_READ:
        raise ModelUnsupported(f"models of type {kind!r} are not read: {_NOT_READ[kind]}")
    # Their classes are listed as causal, but attend to the whole text.
    if kind == "cpmant" or (kind == "xlnet" and getattr(config, "attn_type", "bi") != "uni"):
        raise ModelUnsupported(
            f"model type {kind!r} lets later tokens change earlier ones but predicts the next one; it cannot be read"
        )


def is_masked(config: Any) -> bool:
    """Whether models of this configuration predict masked tokens: those of BERT's kind that are no decoders."""
    decodes = getattr(config, "is_decoder", False) or getattr(config, "causal", False)
    listed = getattr(config, "model_type", "") in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return listed and not decodes and not getattr(config, "is_encoder_decoder", False)


def experts_chosen(config: Any) -> int:
    """How many routed experts a token uses, by the configuration; 2 where it states none."""
    return next(iter(numbers_in(config.get_text_config(decoder=True), _CHOSEN_ENTRIES)), 2)


def numbers_in(config: Any, names: Iterable[str]) -> list[int]:
    values = (getattr(config, name, None) for name in names)
    return [value for value in values if isinstance(value, int) and value > 0]


def family_of(config: Any) -> Family | None:
    of_type = (family for family in FAMILIES if family.name == config.model_type)
    return next((one for one in of_type if all(getattr(config, name, None) == it for name, it in one.when)), None)


def resolve(model: Any, family: Family) -> Anatomy:
    config = text_config(model)

    def number(name: str | None, default: float) -> float:
        value = default if name is None else getattr(config, name, default)
        return default if value is None else float(value)

    scale = number(family.update_scale, 1.0)
    project = None
    if family.project is not None:
        with suppress(AttributeError):  # only some models of the family have one
            project = model.get_submodule(family.project)
    return Anatomy(
        family=family.name,
        model=model,
        backbone=model.get_submodule(family.blocks.rpartition(".")[0]),
        layers=tuple(resolve_layer(block, family, scale) for block in model.get_submodule(family.blocks).children()),
        final_norm=_part(model, family.final_norm),
        project=project,
        head=head_of(model),
        activation=family.activation_name or activation_name(config, str(family.activation)),
        logit_scale=number(family.logit_scale, 1.0) / number(family.logit_divisor, 1.0),
        softcap=number(family.softcap, 0.0) or None,
    )


def resolve_layer(
    block: nn.Module, row: Family, scale: float = 1.0, output_scale: float = 1.0, *, ffn: FeedForward | None = None
) -> Layer:
    names = ("ffn_norm", "post_norm", "output_norm", "attention", "output_gate", "onward")
    parts = {name: _part(block, getattr(row, name)) for name in names}
    ffn = resolve_dense(block, row) if ffn is None else ffn
    return Layer(block, ffn, **parts, update_scale=scale, output_scale=output_scale)


def resolve_dense(block: nn.Module, row: Family) -> DenseFeedForward:
    def linear_map(path: str) -> LinearMap:
        return LinearMap.whole(block.get_submodule(path), transposed=path in row.transposed)

    gate, up = linear_map(row.keys), None if row.up is None else linear_map(row.up)
    if row.fused is not None:
        gate, up = gate.halves(row.fused)
    activation = block.get_submodule(row.activation) if isinstance(row.activation, str) else row.activation
    return DenseFeedForward(gate, up, linear_map(row.down), activation, _part(block, row.inner_norm))


def _part(module: nn.Module, path: str | None) -> nn.Module | None:
    return None if path is None else module.get_submodule(path)


def head_of(model: Any) -> nn.Module:
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Module):
        raise ModelUnsupported(f"{type(model).__name__} has no language-model head; load a causal language model")
    return head


def activation_name(config: Any, default: str) -> str:
    stated = (getattr(config, name, None) for name in _ACTIVATION_ENTRIES)
    return next((value for value in stated if isinstance(value, str)), default)
