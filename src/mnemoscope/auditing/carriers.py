"""The memories that carry a string: their direct effect on its tokens' logits, and the loss without them.

The direct effect of a memory is the sum over the string's positions (attribution/direct_effects.py). It ignores later
layers, so the best memories are also set to 0 one by one, and the string's log probability is measured again.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mnemoscope.attribution.direct_effects import direct_effects
from mnemoscope.auditing.likelihoods import Likelihood, Tick, likelihoods
from mnemoscope.foundation.memory_changes import Intervention
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.models import LanguageModel
from mnemoscope.models.readout.token_logits import TokenLogits
from mnemoscope.tracing.interventions import intervene


def string_effects(model: LanguageModel, tokens: Sequence[int]) -> list[Tensor]:
    """Per layer, what every memory adds to the logits of the string's tokens, summed over positions: `[memory]`,
    float32. The beginning token's coefficients are left out, unless only they precede the first token. Raises
    ModelUnsupported for a head that is not one matrix.
    """
    logits, targets = TokenLogits(model), torch.tensor(list(tokens[1:]))
    columns = model.reading.own(len(tokens) - 1)
    found = direct_effects(model, tokens[:-1], columns, lambda final: logits.of_tokens(final, targets))
    return [own.sum(0).float() for own in found.memories]


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
    model: LanguageModel, memories: Sequence[MemoryId], texts: Sequence[Sequence[int]], *, tick: Tick = lambda: None
) -> list[Likelihood]:
    with model.lock, intervene(model, [Intervention(memory) for memory in memories]):
        return likelihoods(model, texts, tick=tick)
