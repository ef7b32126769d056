"""The recipe: its learning rate, what it refuses, and the model that it describes."""

from typing import Any

import pytest
import torch

from mnemoscope.errors import OptionError
from mnemoscope.training import Recipe


def test_rate_and_sparsity_come_in_over_the_first_steps() -> None:
    recipe = Recipe(steps=100, warmup=4, decay=0.2)
    assert [recipe.rate(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert {recipe.rate(step) for step in range(4, 81)} == {1.0}
    assert [recipe.rate(step) for step in (85, 90, 95, 100)] == [0.75, 0.5, 0.25, 0.0]
    assert Recipe(steps=100, warmup=4, decay=0.0).rate(99) == 1.0
    recipe = Recipe(sparsity=0.3)
    assert [recipe.sparsity_at(step) for step in (0, 100, 300, 900)] == pytest.approx([0, 0.1, 0.3, 0.3])


@pytest.mark.parametrize(
    ("numbers", "line"),
    [
        ({"steps": 0}, "steps=0 is impossible; it must be 1 or more"),
        ({"batch": -1}, "batch=-1 is impossible; it must be 1 or more"),
        ({"hidden": 20, "heads": 4}, "hidden size 20 does not divide into 4 heads of even width"),
        ({"warmup": 0}, "warmup=0 is impossible"),
        ({"sparsity": -0.1}, "sparsity=-0.1 is impossible; it must be 0 or more"),
        ({"free_memories": 0.5}, "free_memories=0.5 is impossible; it must be 1 or more"),
        ({"revival": float("nan")}, "revival=nan is impossible"),
        ({"vocabulary": 70_000}, "vocabulary=70000 is impossible; it must be 1 to 65536"),
    ],
)
def test_impossible_numbers_are_refused(numbers: dict[str, Any], line: str) -> None:
    with pytest.raises(OptionError, match=line):
        Recipe(**numbers)


def test_only_the_number_of_steps_may_change_on_the_way() -> None:
    assert Recipe(steps=5).same_run(Recipe(steps=9))
    assert not Recipe(steps=5).same_run(Recipe(steps=5, seed=1))
    assert not Recipe(learning_rate=1e-3).same_run(Recipe())
    assert Recipe(steps=5, batch=3, context=7).tokens == 105


def test_the_model_has_the_recipe_s_sizes_and_its_seed_s_weights(recipe: Recipe) -> None:
    model = recipe.model()
    state = model.state_dict()
    assert state["gpt_neox.layers.1.mlp.dense_h_to_4h.weight"].shape == (24, 16)
    assert state["gpt_neox.embed_in.weight"].shape == (300, 16)
    assert "gpt_neox.layers.2.mlp.dense_h_to_4h.weight" not in state
    # What writes to the stream begins smaller, by the square root of the number of writers.
    into, out = (state[f"gpt_neox.layers.0.mlp.{name}.weight"].std() for name in ("dense_h_to_4h", "dense_4h_to_h"))
    assert out / into == pytest.approx(0.5, rel=0.2)
    again = recipe.model().state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in state.items())
