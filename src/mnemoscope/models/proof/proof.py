"""The load-time proof of definitions.md section 1: the tensors that the hooks read make up the model, or it is refused.

One short batch of four sentences of unequal length, padded on the right as in mining and in mining's dtype, runs
through the model; then every block runs once more on its own input with all coefficients set to zero. Checked in every
layer: (a) `residual` and `ffn_update` combine to the block's output; (b) zeroing the coefficients moves that output by
`coefficients @ values`; (c) the keys reproduce the coefficients from `ffn_input`; and once (d) the last layer's scores
equal the model's own logits; (e) a row's logits are those of the row alone (company.py).
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from mnemoscope.errors import ModelUnsupported, ProofFailed
from mnemoscope.foundation.progress import report_loading
from mnemoscope.foundation.reading import Reading
from mnemoscope.models.anatomy.anatomy import Layer
from mnemoscope.models.forward.hooks import Block, overwrite_coefficients, read_blocks, read_final
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.memories.feed_forward import coarsest
from mnemoscope.models.model_facts import Proof
from mnemoscope.models.modules.observed import distance, first, stream_of, with_source
from mnemoscope.models.modules.wrappers import run_uncompiled
from mnemoscope.models.proof.company import prove_company

LENGTHS = (11, 3, 7, 2)
LIMITS = {torch.float32: 1e-4, torch.float64: 1e-4}
HALF_LIMIT = 2e-2
# Two sums of the same terms may round differently, by a few units in the last place of the terms, however large these
# are. Streams of real models hold single entries a thousand times the rest (GPT-2's first position; SmolLM2), where one
# such unit exceeds the limit for the update; a fault is larger.
ROUNDINGS = 4.0

_CLAIMS = {
    "residual": "residual and feed-forward update do not add up to the block's output",
    "ablation": "zeroing the coefficients does not move the block's output by what the values add",
    "keys": "the keys do not reproduce the coefficients",
    "scores": "the scores of the last layer are not the model's own logits",
}


def proof_batch(vocabulary: int, *, longest: int, reading: Reading) -> tuple[list[list[int]], Tensor]:
    """Four sentences, spread over the vocabulary, and their ids [batch, position]: of unequal length and padded on the
    right, or of one length where sentences are read whole.
    """
    sentences = []
    for row, length in enumerate(LENGTHS if reading.causal else (max(LENGTHS),) * len(LENGTHS)):
        tokens = [(31 + 7919 * (row * LENGTHS[0] + position)) % vocabulary for position in range(min(length, longest))]
        sentences.append(reading.frame(tokens))
    return sentences, pad_sequence([torch.tensor(sentence) for sentence in sentences], batch_first=True)


def prove(model: LanguageModel) -> Proof:
    """The errors of all checks."""
    sentences, ids = proof_batch(model.sizes.vocabulary, longest=model.longest, reading=model.reading)
    ids = ids.to(model.device)
    rows = [torch.ones(len(sentence), dtype=torch.bool) for sentence in sentences]
    in_sentence = pad_sequence(rows, batch_first=True).to(model.device)
    scales = [ErrorScale(in_sentence, coarsest((model.dtype, parts.ffn.precision))) for parts in model.anatomy.layers]
    limit = max(scale.limit for scale in scales)
    report_loading("its proof")
    with torch.inference_mode(), run_uncompiled():
        blocks, calls, final, logits = _run(model, with_source(ids, model.anatomy.model))
        if model.reading.causal:
            # With experts, `logits` come from our tapped forward: the model's own must be causal.
            own = model.outputs(with_source(ids, model.anatomy.model)) if model.numberings else logits
            check_causal(model, ids, own, limit=limit)
        layers = []
        for layer, (parts, block, call) in enumerate(zip(model.anatomy.layers, blocks, calls, strict=True)):
            report_loading("layers", layer, len(blocks))
            scale = scales[layer]
            residual = residual_error(parts, block, call, scale)
            ablation = ablation_error(model, layer, block, call, scale)
            layers.append((residual, ablation, keys_error(parts, block, scale)))
            for name, error in zip(_CLAIMS, layers[-1], strict=False):
                _refuse_above(model, name, error, scale, layer)
        scale = ErrorScale(in_sentence, model.dtype)
        scores = scale.error(model.anatomy.readout(final.to(model.dtype)).float(), logits)
        _refuse_above(model, "scores", scores, scale, len(blocks) - 1)
        report_loading("layers", len(blocks), len(blocks))
        report_loading("its proof, sentences alone")
        prove_company(model, sentences, half=limit > min(LIMITS.values()))
    residual, ablation, keys = (max(column) for column in zip(*layers, strict=True))
    return Proof(residual, ablation, keys, scores, tuple(layers))


def check_causal(model: LanguageModel, ids: Tensor, logits: Tensor, *, limit: float) -> None:
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % logits.shape[-1]
    after = model.outputs(with_source(changed, model.anatomy.model))
    differs = distance(after[:, :-1], logits[:, :-1]) > limit
    if differs and model.numberings and model.dtype not in LIMITS:
        # In half precision an expert's products round differently with other rows, and a token between two experts may
        # switch: that changes single positions, an encoder all of them.
        far = [distance(after[:, place], logits[:, place]) > limit for place in range(ids.shape[1] - 1)]
        differs = 2 * sum(far) > len(far)
    if differs:
        undecided = getattr(getattr(model.anatomy.model, "config", None), "is_decoder", True) is False
        how = "if it is a decoder, say is_decoder: true in its configuration" if undecided else "it cannot be read"
        raise ModelUnsupported(
            f"the {model.anatomy.family!r} model lets later tokens change earlier ones but predicts the next one; {how}"
        )


def _refuse_above(model: LanguageModel, name: str, error: float, scale: "ErrorScale", layer: int) -> None:
    if error <= scale.limit:
        return
    seen = f"error {error:.2g}, limit {scale.limit:.0e}" if error == error else "the numbers are not finite"
    raise ProofFailed(
        f"layer {layer}, check {name!r}: {_CLAIMS[name]} ({seen} in {str(scale.dtype).removeprefix('torch.')}); "
        f"the {model.anatomy.family!r} model does not compute as its anatomy says, or its weights overflow this dtype"
    )


Call = partial[Any]


def _run(model: LanguageModel, ids: Tensor) -> tuple[list[Block], list[Call], Tensor, Tensor]:
    blocks: dict[int, Block] = {}
    final: list[Tensor] = []
    calls: dict[nn.Module, Call] = {}

    def note(block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls[block] = partial(block, *map(_copy, inputs), **{name: _copy(value) for name, value in named.items()})

    layers = model.anatomy.layers
    with ExitStack() as hooks:
        for parts in layers:
            hooks.enter_context(parts.block.register_forward_pre_hook(note, with_kwargs=True))
        hooks.enter_context(read_blocks(model, blocks.__setitem__))
        hooks.enter_context(read_final(model, final.append))
        logits = model.outputs(ids).to(model.device)
    if missing := [layer for layer in range(len(layers)) if layer not in blocks]:
        raise ProofFailed(f"layer {missing[0]}: the block never ran; the {model.anatomy.family!r} anatomy does not fit")
    ordered = [blocks[layer] for layer in range(len(layers))]
    return ordered, [calls[parts.block] for parts in layers], final[0], logits


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def residual_error(parts: Layer, block: Block, call: Call, scale: "ErrorScale") -> float:
    """(a): the error of r + u, or norm(r + u), against the block's own output."""
    if parts.output_norm is not None:
        return scale.error(parts.output_norm(block.residual + block.ffn_update), block.layer_output)
    before = stream_of(call.args, call.keywords).to(block.residual.device)
    terms = (block.residual, block.ffn_update, before)
    return scale.error(block.residual + block.ffn_update, block.layer_output, terms=terms)


def ablation_error(model: LanguageModel, layer: int, block: Block, call: Call, scale: "ErrorScale") -> float:
    """(b): the error of the movement predicted by coefficients and values, against the block's own movement."""
    parts = model.anatomy.layers[layer]
    with overwrite_coefficients(model, {layer: torch.zeros_like}):
        without = _output_of(parts, call).view_as(block.layer_output)
    dense, bias = block.weights is None, parts.ffn.bias(block.weights)
    votes = block.coefficients.float() @ model.values(layer).float() if dense else parts.ffn.write(block.coefficients)
    rest = torch.zeros_like(votes) if bias is None else bias.expand_as(votes)

    def moved_by(norm: Callable[[Tensor], Tensor], wholly: Tensor, barely: Tensor) -> Tensor:
        return norm(wholly.to(model.dtype)).float() - norm(barely.to(model.dtype)).float()

    if parts.output_norm is not None:
        stream = block.residual.float()
        predicted = moved_by(parts.output_norm, stream + votes + rest, stream + rest)
    elif parts.post_norm is not None:
        predicted = moved_by(parts.update, votes + rest, rest)
    elif block.opened is not None:
        predicted = parts.through_gate(votes, block.opened.float())
    else:
        predicted = votes * parts.update_scale
    whole = block.layer_output
    if dense:
        written = 0.0
    else:  # experts were read in our forward: the block's own must agree
        whole = _output_of(parts, call).view_as(whole)
        written = scale.error(votes + rest, block.ffn_output, terms=(votes,))
    return max(written, scale.error(predicted, whole.float() - without.float(), terms=(whole, without, votes)))


def _output_of(parts: Layer, call: Call) -> Tensor:
    if parts.onward is None:
        return parts.unscale(first(call()))
    taken: list[Tensor] = []
    with parts.onward.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0].clone())):
        call()
    return taken[0]


def keys_error(parts: Layer, block: Block, scale: "ErrorScale") -> float:
    """(c): the error of f(x K) (gated: f(x G) * (x U)) against the coefficients that the model computed."""
    size = parts.ffn.rounding(block.ffn_input, block.weights)
    terms = () if size is None else (size,)
    return scale.error(parts.ffn.recall(block.ffn_input, block.weights), block.coefficients, terms=terms)


@dataclass(frozen=True)
class ErrorScale:
    """Measures errors at the sentences' own positions, against the limit of the products' dtype."""

    in_sentence: Tensor
    dtype: torch.dtype

    @property
    def limit(self) -> float:
        return LIMITS.get(self.dtype, HALF_LIMIT)

    def error(self, a: Tensor, b: Tensor, *, terms: tuple[Tensor, ...] = ()) -> float:
        """max|a - b| / max(rms(b), 1e-6), without the part of each difference that the rounding of the `terms`, whose
        sums `a` and `b` are, explains.
        """
        if a.shape != b.shape:
            return float("inf")
        in_sentence = self.in_sentence.to(a.device)
        difference = (a.float() - b.float()).abs()[in_sentence]
        reference = b.float()[in_sentence].square().mean().sqrt().clamp_min(1e-6)
        size = torch.stack([term.float().abs() for term in (a, b, *terms)]).amax(dim=0)[in_sentence]
        rounding = ROUNDINGS * torch.finfo(self.dtype).eps / 2 * size
        return float(((difference - rounding).clamp_min(0.0) / reference).max())
