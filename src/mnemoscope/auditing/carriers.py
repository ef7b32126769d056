"""The memories that carry a string: their direct effect on its tokens' logits, and the loss without them.

The direct effect of memory i is the sum over the string's positions of m_i <g * centre(v_i), W_token> / s, with the
norms' scales s frozen; gains of a block's own output norm are folded in, multipliers are kept. It ignores later layers,
so the best memories are also set to 0 one by one, and the string's log probability is measured again.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mnemoscope.auditing.likelihoods import Likelihood, Tick, likelihoods, no_tick
from mnemoscope.errors import ModelUnsupported
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.models import Block, LanguageModel, read_blocks, read_final
from mnemoscope.tracing.interventions import Intervention, intervene
from mnemoscope.tracing.predictions import ids_of
from mnemoscope.tracing.scoring.scores import own_norm_scales


def direct_effects(model: LanguageModel, tokens: Sequence[int]) -> list[Tensor]:
    """Per layer, what every memory adds to the logits of the string's tokens, summed over positions: `[memory]`,
    float32. The beginning token's coefficients are left out, unless only they precede the first token. Raises
    ModelUnsupported for a head that is not one matrix.
    """
    if not model.linear_head:
        raise ModelUnsupported(
            f"the head of {model.spec} is an adaptive softmax, so a memory has no effect of its own on a logit;"
            " choose another model to find the memories that carry a string"
        )
    positions = model.reading.own(len(tokens) - 1)
    targets = torch.tensor(list(tokens[1:]), device=model.device)
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    final: list[Tensor] = []

    def keep(layer: int, block: Block) -> None:
        read = (stream[0, positions] for stream in (block.residual, block.ffn_output, *block.branches))
        residual, ffn_output, *branches = read
        own_scale = own_norm_scales(model, layer, residual, ffn_output, branches)
        kept[layer] = block.coefficients[0, positions].float().clone(), own_scale

    with model.lock, torch.inference_mode():
        with read_blocks(model, keep), read_final(model, lambda stream: final.append(stream[0, positions].clone())):
            model.backbone(ids_of(model, list(tokens)))
        scale = model.norm_scale(final[0], layer=None)
        directions = model.head()[targets]
        return [_effects_of_layer(model, layer, *kept[layer], scale, directions) for layer in range(len(kept))]


def _effects_of_layer(
    model: LanguageModel, layer: int, coefficients: Tensor, own_scale: Tensor, scale: Tensor, directions: Tensor
) -> Tensor:
    """`[memory]`. Folds only memories that are active at some position."""
    total = torch.zeros(coefficients.shape[1])
    active = (coefficients != 0).any(0).nonzero()[:, 0]
    scales = scale[:, None] * own_scale.to(scale.device)[:, model.branch_of(layer, active).to(scale.device)]
    divided = coefficients[:, active].to(scale.device) / scales
    folded = model.folded_values(layer, active)
    effects = (divided * (directions @ folded.T)).sum(0) * model.multiplier(layer)
    total[active.cpu()] = effects.float().cpu()
    return total


def strongest(model: LanguageModel, effects: Sequence[Tensor], count: int) -> list[tuple[MemoryId, float]]:
    """The `count` memories with the largest positive direct effect, largest first; ties by layer."""
    ranked = []
    for layer, own in enumerate(effects):
        best = own.topk(min(count, len(own)))
        numbering = model.numbering(layer)
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ranked += [(-effect, layer, memory, numbering.name(layer, memory)) for effect, memory in pairs if effect > 0]
    return [(name, -effect) for effect, _, _, name in sorted(ranked, key=lambda one: one[:3])[:count]]


def without(
    model: LanguageModel, memories: Sequence[MemoryId], texts: Sequence[Sequence[int]], *, tick: Tick = no_tick
) -> list[Likelihood]:
    with model.lock, intervene(model, [Intervention(memory) for memory in memories]):
        return likelihoods(model, texts, tick=tick)
