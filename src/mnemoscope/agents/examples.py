"""What memories do on examples: whether they tell those that should fire them from others, and what switching them off
does, beside controls. docs/decisions.md, "Agents", defines every number.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mnemoscope.attribution.ablations import Ablations, Grid, draw_sets, spread
from mnemoscope.attribution.setting_back import coefficients_of
from mnemoscope.errors import PromptError
from mnemoscope.foundation.intervals import DRAWS, Floats
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.models import LanguageModel
from mnemoscope.models.object_state import whole_use
from mnemoscope.tracing.comparison import compare_streams
from mnemoscope.tracing.predictions import ids_of


@whole_use
def measure(
    model: LanguageModel, memories: Sequence[MemoryId], should_fire: Sequence[str], others: Sequence[str], *, sign: int
) -> dict[str, Any]:
    """The document of the tool `test_memories`. Raises PromptError."""
    texts, fires = [*should_fire, *others], len(should_fire)
    with model.lock:
        runs = [_run(model, memories, text, sign, number) for number, text in enumerate(texts)]
    scores = {one.layer: np.array([highest[one.layer] for highest, _ in runs]) for one in memories}
    own = np.stack([scores[one.layer][:, model.numbering(one.layer).number(one)] for one in memories], 1)
    deviations = own.std(0)
    joined = (own / np.where(deviations > 0, deviations, 1)).sum(1)
    columns, generator = np.column_stack([own, joined]), np.random.default_rng(len(texts))
    found = auc(columns, fires)
    drawn = np.array([auc(columns[generator.permutation(len(texts))], fires) for _ in range(DRAWS)])
    chance = (1 + (drawn >= found).sum(0)) / (1 + DRAWS)
    rows = []
    for at, one in enumerate(memories):
        as_good = int((auc(scores[one.layer], fires) >= found[at]).sum()) - 1
        means = {"mean_score": own[:fires, at].mean(), "mean_of_others": own[fires:, at].mean()}
        rows.append({"memory": str(one), "sign": sign, "auc": found[at], "p": chance[at], "as_good": as_good} | means)
    together = {"auc": found[-1], "p": chance[-1], "scores": [joined[:fires].tolist(), joined[fires:].tolist()]}
    switched_off = {}
    for side, few in (("should_fire", runs[:fires]), ("should_not_fire", runs[fires:])):
        kl, *controls = np.mean([each for _, each in few], axis=0)
        switched_off[side] = {"kl": kl, "controls_kl": spread(np.array(controls))}
    return {"memories": rows, "together": together, "set_to_0": switched_off}


def auc(values: Floats, first: int) -> Floats:
    """By column, the share of pairs of one of the `first` rows and another in which it is higher; ties count half."""
    above, below = values[:first, None], values[None, first:]
    shares: Floats = ((above > below) + 0.5 * (above == below)).mean((0, 1))
    return shares


def _run(
    model: LanguageModel, memories: Sequence[MemoryId], text: str, sign: int, seed: int
) -> tuple[dict[int, Floats], list[float]]:
    """Of an example the scores of all memories by layer, and the KL divergence without the memories, then without each
    draw of controls.
    """
    tokens = model.prompt_tokens(text)
    ids, grid = ids_of(model, tokens), Grid.of(model, len(tokens))
    columns = np.arange(grid.columns)[grid.first : grid.end]
    if not len(columns):
        raise PromptError(f"the example {text[:40]!r} has one token, whose position is left out; give longer ones")
    coefficients = coefficients_of(model, ids)
    numbers = [(one.layer, model.numbering(one.layer).number(one) or 0) for one in memories]
    places = np.concatenate([grid.firsts[layer] + columns * grid.memories[layer] + number for layer, number in numbers])
    sizes = grid.strengths(model, coefficients)
    firing = places[sizes[places] > 0]
    controls, _ = draw_sets(grid, sizes, firing, [len(firing)], barred=places, seed=(seed,))
    streams = Ablations(model, ids, None, grid).streams(
        [firing[:0], firing, *controls], columns=slice(grid.first, grid.end)
    )
    unchanged, *changed = torch.split(torch.cat(list(streams)), len(columns))
    kl = [float(np.mean([each for each, _ in compare_streams(model, unchanged, one, 1)])) for one in changed]
    return {one.layer: (sign * coefficients[one.layer][columns]).amax(0).numpy() for one in memories}, kl
