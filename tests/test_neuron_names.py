"""What other tools call a memory, against the modules of real networks."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mining.conftest import byte_tokenizer
from mnemoscope import hook, names, open_atlas
from mnemoscope.atlas import Atlas
from mnemoscope.atlas.form import Manifest
from mnemoscope.errors import InterventionError, MemoryIdError
from mnemoscope.models import load_model
from models.conftest import build


@pytest.mark.parametrize("family", ["gpt2-relu", "llama", "gpt_neox"])
def test_the_module_is_the_down_projection(family: str) -> None:
    """The input of the named module is what the tap reads, found by the path alone."""
    network = build(family)
    model = load_model(network, tokenizer=byte_tokenizer())
    found = names("L1.M2", model=model)
    seen: list[torch.Tensor] = []
    module = network.get_submodule(str(found["module"]))
    with module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])), torch.inference_mode():
        network(torch.tensor([[1, 2, 3]]))
    block = model.anatomy.layers[1]
    assert module is block.ffn.down.module
    assert seen[0].shape[-1] == model.sizes.memories[1]
    assert (found["transformer_lens"], found["neuronpedia"]) == ("blocks.1.mlp.hook_post[..., 2]", None)


def test_nnsight_reads_the_path_as_python() -> None:
    network = build("gpt2-relu")
    model = load_model(network, tokenizer=byte_tokenizer())
    written = str(names("L1.M2", model=model)["nnsight"])
    assert written == "model.transformer.h[1].mlp.c_proj.input[..., 2]"
    assert eval(written.partition(".input")[0], {"model": network}) is model.anatomy.layers[1].ffn.down.module


def test_an_atlas_needs_no_model(planted: Path) -> None:
    assert names("L2.M5", model=open_atlas(planted)) == names("L2.M5", model="handmade:planted")


@pytest.mark.parametrize("memory", ["L3.M0", "L0.M6", "L0.E1.M0"])
def test_a_memory_that_is_not_there(memory: str) -> None:
    with pytest.raises(MemoryIdError, match=f"{memory} is not in handmade:planted"):
        names(memory, model="handmade:planted")


def test_models_of_the_hub_have_a_page_at_neuronpedia(planted: Path) -> None:
    atlas = open_atlas(planted)
    for spec, page in (("openai-community/gpt2", "gpt2-small/1/3"), ("EleutherAI/pythia-70m", "pythia-70m/1/3")):
        stored = atlas.manifest.document["model"]
        manifest = Manifest.of({**atlas.manifest.document, "model": {**stored, "spec": "My own name", "hub": spec}})
        assert names("L1.M3", model=Atlas(planted, manifest, manifest_hash=""))["neuronpedia"] == page
        adapted = replace(manifest, plan={**manifest.plan, "adapter": "mine"})
        assert names("L1.M3", model=Atlas(planted, adapted, manifest_hash=""))["neuronpedia"] is None


def test_a_model_of_a_folder_has_none(planted: Path) -> None:
    assert names("L1.M3", model=open_atlas(planted))["neuronpedia"] is None


def test_hooks_set_what_is_named_and_nothing_else() -> None:
    """By the names that TransformerLens gives them; tests/attribution/test_transformer_lens.py runs them there."""
    pairs = hook(["L2.M1,L0.M0-1", "L1"], 7.0)
    assert [name for name, _ in pairs] == [f"blocks.{layer}.mlp.hook_post" for layer in range(3)]
    before = torch.zeros(1, 2, 3)
    changed = [function(before, hook=None)[0, 1].tolist() for _, function in pairs]
    assert changed == [[7.0, 7.0, 0.0], [7.0, 7.0, 7.0], [0.0, 7.0, 0.0]]
    assert not before.any()


@pytest.mark.parametrize("memories", ["L0.E1.M2", "L0.S0", "memory 3", "L0.M3-1", []])
def test_hooks_refuse_what_has_none(memories: object) -> None:
    with pytest.raises(MemoryIdError):
        hook(memories)  # type: ignore[arg-type]
    with pytest.raises(InterventionError, match="cannot be set to nan"):
        hook("L0", float("nan"))
