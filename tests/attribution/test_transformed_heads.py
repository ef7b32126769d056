"""Attribution behind a head with a transform: what its function changes is a part of its own, computed here by hand."""

import copy

import pytest
import torch

from mining.conftest import load_bytes
from mnemoscope.attribution import attribute, diff
from mnemoscope.models import LanguageModel
from models.transformed_heads import build_transformed

PROMPT = "the cat sat on"
DENSE = {
    "bert": "cls.predictions.transform.dense",
    "modernbert-decoder": "lm_head.dense",
    "electra": "generator_predictions.dense",
}


def changed_by_function(model: LanguageModel, kind: str, pair: tuple[int, int]) -> float:
    """z_a - z_b less what the head would say with the identity in place of its function, at the scale of its norm."""
    network = copy.deepcopy(model.anatomy.model).double()
    dense, kept = network.get_submodule(DENSE[kind]), []
    beside = network.get_submodule(DENSE[kind].rpartition(".")[0])
    norm = next(module for name, module in beside.named_children() if "norm" in name.lower())
    dense.register_forward_hook(lambda _, inputs, output: kept.append(output[0, -1]))
    with torch.no_grad():
        network(torch.tensor([[*model.beginning.tokens, *model.prompt_tokens(PROMPT)]]))
        projected = kept[0]
        activated = torch.nn.functional.gelu(projected)
        scale = (activated.var(correction=0) + norm.eps).sqrt()
        added = activated - projected
        rows = network.get_output_embeddings().weight
        behind = (added - added.mean()) / scale * norm.weight
        return float((rows[pair[0]] - rows[pair[1]]) @ behind)


@pytest.mark.parametrize("kind", list(DENSE))
def test_the_parts_add_up_with_what_the_function_changes(kind: str) -> None:
    model = load_bytes(build_transformed(kind))
    found = attribute(model, PROMPT, singles=4, top=4)
    assert abs(found.residual_error) <= found.limit < 1e-3
    assert found.parts()["direct"].sum() == pytest.approx(found.difference, abs=found.limit)
    assert found.against is not None
    by_hand = changed_by_function(model, kind, (found.target.id, found.against.id))
    assert abs(by_hand) > 0.01
    assert found.head == found.to_dict()["direct"]["head"] == pytest.approx(by_hand, abs=1e-4)
    assert f"head {found.head:+.2f} (they add up" in str(found)


def test_the_attribution_is_that_of_the_whole_head() -> None:
    """The gradient passes the function: ablations agree with it, which its linear part alone would not."""
    found = attribute(load_bytes(build_transformed("modernbert-decoder")), PROMPT, singles=64, top=4)
    assert found.spearman_list is not None
    assert found.spearman_list > 0.8


@pytest.mark.parametrize("kind", ["bert", "modernbert-decoder"])
def test_a_difference_has_the_change_of_the_head(kind: str) -> None:
    other = build_transformed(kind)
    for name, weight in other.named_parameters():
        if name.endswith(("output.dense.weight", "mlp.Wo.weight")):
            weight *= 1.3
    models = load_bytes(build_transformed(kind)), load_bytes(other)
    found = diff(models[0], PROMPT, other=models[1], target="z", against="y")
    assert abs(found.residual_error) <= found.limit < 1e-2
    (head,) = found.parts.filter(found.parts["part"] == "head")["change"]
    pair = models[0].prompt_tokens("zy")
    by_hand = [changed_by_function(model, kind, (pair[0], pair[1])) for model in models]
    assert head == pytest.approx(by_hand[1] - by_hand[0], abs=1e-4)
