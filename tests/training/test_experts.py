"""A mixture of experts trained by the recipe: it learns, loads and is proved; its balance is the formula's."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mnemoscope.errors import OptionError
from mnemoscope.models import load_model
from mnemoscope.training import Recipe, train
from mnemoscope.training.loop import BalanceTerm


@pytest.fixture
def mixture(recipe: Recipe) -> Recipe:
    return replace(recipe, experts=4, top_experts=2, memories=16, sparsity=0.0, revival=0.0)


@pytest.mark.usefixtures("documentation")
def test_a_mixture_learns_and_is_a_model_of_experts(mixture: Recipe, tmp_path: Path) -> None:
    losses: list[float] = []
    folder = train(
        tmp_path / "run", replace(mixture, steps=60), progress=lambda *said: losses.append(float(said[3].split()[2]))
    )
    model = load_model(str(folder))
    expected = {"routed": 4, "memories": 16, "shared": []}
    assert [model.numbering(layer).document() for layer in range(2)] == [expected] * 2
    assert losses[-1] < losses[0] - 0.5
    assert "4 experts of 16 memories" in (folder / "MODEL_CARD.md").read_text()


def test_balance_is_experts_times_shares_times_probabilities(mixture: Recipe) -> None:
    model = mixture.model()
    term = BalanceTerm(model, 0.5)
    ids = torch.randint(1, 300, (2, 9), generator=torch.Generator().manual_seed(0))
    given = []
    for block in model.base_model.layers:
        block.mlp.gate.register_forward_hook(lambda _, inputs, output: given.append(output))
    model.base_model(ids, use_cache=False)
    expected = 0.0
    for scores, _, chosen in given:
        for e in range(4):
            share = float((chosen == e).sum()) / chosen.numel()
            expected += 4 * share * float(scores.detach().softmax(-1)[:, e].mean())
    found = term.penalty(torch.ones(2, 9, dtype=torch.bool), sparsity=0.0, free=1.0, revival=0.0)
    assert float(found.detach()) == pytest.approx(0.5 * expected / 2, rel=1e-5)
    assert float(term.penalty(torch.ones(2, 9, dtype=torch.bool), sparsity=0.0, free=1.0, revival=0.0)) == 0.0


@pytest.mark.parametrize("changes", [{"sparsity": 0.1}, {"revival": 0.1}, {"top_experts": 5}])
def test_what_experts_cannot_have_is_refused(mixture: Recipe, changes: dict[str, float]) -> None:
    with pytest.raises(OptionError):
        replace(mixture, **changes)
