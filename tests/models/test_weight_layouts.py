"""Checkpoints of strangers: shards, pickles, wrapped and old names, other files, configurations that say too little.

Each is made from a tiny model whose own logits are the reference: what is loaded gives these, bit for bit, or is
refused in one line.
"""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mnemoscope.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported
from mnemoscope.models import load_model
from mnemoscope.models.modules.weight_layouts import fitting_names
from models.conftest import build, refused
from models.expert_models import build_mixture

IDS = torch.tensor([[3, 1, 4, 1, 5]])
State = dict[str, Tensor]


def state_of(hf: Any) -> State:
    return {name: tensor.clone() for name, tensor in hf.state_dict().items()}


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Any) -> Callable[..., Path]:
    """Makes the folder of a model whose weights are this object, pickled under that name."""

    def make(hf: Any, stored: object = None, *, file: str = "pytorch_model.bin") -> Path:
        place = tmp_path / f"model-{len(list(tmp_path.iterdir()))}"
        hf.save_pretrained(place)
        tokenizer.save_pretrained(place)
        if stored is not None:
            (place / "model.safetensors").unlink()
            torch.save(stored, place / file)
        return place

    return make


def check_same(place: Path, hf: Any) -> None:
    """The model of the folder is this one: its logits, and what the fingerprint covers, its configuration included."""
    loaded = load_model(str(place))
    assert torch.equal(loaded.logits(IDS), hf(IDS).logits.float())
    own = load_model(hf, tokenizer=str(place))
    assert (loaded.fingerprint, loaded.ends) == (own.fingerprint, own.ends)


def wrapped(prefix: str) -> Callable[[State], State]:
    return lambda state: {prefix + name: tensor for name, tensor in state.items()}


def old_norms(state: State) -> State:
    """The names that LayerNorm's two had before PyTorch's."""
    ends = {"weight": "gamma", "bias": "beta"}
    found = {}
    for name, tensor in state.items():
        before, _, last = name.rpartition(".")
        found[f"{before}.{ends[last]}" if "norm" in before or ".ln_" in before else name] = tensor
    return found


def bare(state: State) -> State:
    """Without the prefix of the model proper."""
    return {re.sub(r"^(transformer|model|gpt_neox)\.", "", name): tensor for name, tensor in state.items()}


def old_buffers(state: State) -> State:
    """With those of GPT-2's attention, as it once was."""
    mask, low = torch.ones(64, 64).tril()[None, None], torch.tensor(-1e4)
    names = [f"transformer.h.{layer}.attn" for layer in (0, 1)]
    return state | {f"{name}.bias": mask for name in names} | {f"{name}.masked_bias": low for name in names}


LAYOUTS: dict[str, Callable[[State], object]] = {
    "DDP": wrapped("module."),
    "compiled": wrapped("_orig_mod."),
    "compiled in DDP": wrapped("module._orig_mod."),
    "a module's attribute": wrapped("net.language_model."),
    "compiled blocks": lambda state: {name.replace(".0.", ".0._orig_mod.", 1): own for name, own in state.items()},
    "with an optimizer": lambda state: {"rng": torch.zeros(3), "model": state, "optimizer": {"lr": 0.1}, "epoch": 3},
    "Lightning": lambda state: {"state_dict": wrapped("model.")(state), "epoch": 3, "global_step": 10},
    "Lightning, compiled": lambda state: {"state_dict": wrapped("model._orig_mod.")(state)},
    "twice nested": lambda state: {"model": {"state_dict": state}},
    "old norms": old_norms,
    "old buffers": old_buffers,
    "old buffers in DDP": lambda state: wrapped("module.")(old_buffers(state)),
    "bare": bare,
    "bare in DDP": lambda state: wrapped("module.")(bare(state)),
    "prefix twice": lambda state: wrapped(f"{next(iter(state)).partition('.')[0]}.")(state),
}


@pytest.mark.fast(5)
@pytest.mark.parametrize(
    ("family", "layout"),
    [
        *(("gpt2", layout) for layout in LAYOUTS),
        *((family, layout) for family in ("llama", "gpt_neox") for layout in ("bare", "bare in DDP", "prefix twice")),
        *(("llama", "Lightning"), ("llama", "old norms"), ("gpt_neox", "DDP")),
    ],
)
def test_wrapped_and_old_names_are_read_as_the_model_s_own(
    family: str, layout: str, folder: Callable[..., Path]
) -> None:
    hf = build(family)
    check_same(folder(hf, LAYOUTS[layout](state_of(hf))), hf)


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3"])
def test_weights_that_have_other_names_on_disk_than_in_memory(name: str, folder: Callable[..., Path]) -> None:
    """Transformers joins the matrices of experts when it loads them."""
    hf = build_mixture(name)
    place = folder(hf)
    stored = load_file(place / "model.safetensors")
    assert set(stored) != set(hf.state_dict())
    (place / "model.safetensors").unlink()
    torch.save({"state_dict": wrapped("model.")(stored)}, place / "pytorch_model.bin")
    check_same(place, hf)
    torch.save(wrapped("module.")(state_of(hf)), place / "pytorch_model.bin")
    check_same(place, hf)


@pytest.mark.parametrize("file", ["model.pt", "pytorch_model.pt", "model.pth", "checkpoint.pt", "model.bin"])
def test_one_file_of_another_name(file: str, folder: Callable[..., Path]) -> None:
    hf = build("gpt2")
    check_same(folder(hf, {"model": state_of(hf), "step": 7}, file=file), hf)


def test_wrapped_names_in_safetensors_and_in_the_container_of_old_torch(folder: Callable[..., Path]) -> None:
    hf = build("gpt2")
    place = folder(hf)
    save_file(wrapped("module.")(state_of(hf)), place / "model.safetensors")
    check_same(place, hf)
    (place / "model.safetensors").rename(place / "weights.safetensors")
    check_same(place, hf)
    place = folder(hf, {})
    old = {"_use_new_zipfile_serialization": False}
    torch.save(state_of(hf), place / "pytorch_model.bin", **old)
    check_same(place, hf)
    torch.save({"state_dict": state_of(hf)}, place / "pytorch_model.bin", **old)
    check_same(place, hf)


def test_weights_that_lie_there_twice_are_refused(folder: Callable[..., Path]) -> None:
    hf = build("gpt2")
    both = wrapped("student.")(state_of(hf)) | wrapped("teacher.")(state_of(hf))
    assert "more than once, behind different names" in refused(ModelUnsupported, folder(hf, both))


def test_what_no_name_fits_says_what_is_missing_and_what_is_there(folder: Callable[..., Path]) -> None:
    hf = build("llama")
    strange = {f"layers.{number}.w": torch.zeros(2) for number in range(3)}
    message = refused(ModelDamaged, folder(hf, strange))
    assert "lacks 21 of its weights, the first is 'lm_head.weight', and holds 3 of other names" in message
    headless = {name: tensor for name, tensor in state_of(hf).items() if name != "lm_head.weight"}
    message = refused(ModelDamaged, folder(hf, headless))
    assert "lacks 1 of its weights, the first is 'lm_head.weight'; if its head is its embedding, state" in message
    assert '"tie_word_embeddings": true in config.json' in message
    reward = headless | {"score.weight": torch.zeros(1, 32)}
    message = refused(ModelUnsupported, folder(hf, reward))
    assert "has a head for classes or rewards ('score.weight'), none for tokens" in message
    half = {f"module.{name}": tensor for name, tensor in state_of(hf).items() if ".1." not in name}
    assert "lacks 9 of its weights, the first is 'model.layers.1." in refused(ModelDamaged, folder(hf, half))
    no_weights = folder(hf, {"epoch": 3, "args": {"lr": 0.1}}, file="model.pt")
    assert "it has the entries 'epoch', 'args'" in refused(ModelDamaged, no_weights)
    transposed = {n: t.T.contiguous() if n.endswith("c_fc.weight") else t for n, t in state_of(build("gpt2")).items()}
    message = refused(ModelDamaged, folder(build("gpt2"), transposed))
    assert "c_fc.weight' is (24, 16), but its configuration says (16, 24); transpose its matrices" in message
    rows = hf.config.vocab_size
    longer = {n: torch.cat([t, t[:7]]) if len(t) == rows else t for n, t in state_of(hf).items()}
    message = refused(ModelDamaged, folder(hf, longer))
    assert f"but its configuration says ({rows}, " in message
    assert f'state "vocab_size": {rows + 7} there' in message


def test_a_checkpoint_with_objects_of_its_training_is_not_unpickled(folder: Callable[..., Path]) -> None:
    hf = build("gpt2")
    place = folder(hf, {"model": state_of(hf), "args": argparse.Namespace(lr=0.1)}, file="model.pt")
    assert "a pickle that would run code; save them as safetensors" in refused(ModelUnsupported, place)


def test_the_names_that_fit_are_found_without_a_model() -> None:
    wanted = ["lm.block.0.weight", "lm.block.0.module.weight", "head.weight"]

    def names(*stored: str) -> list[str]:
        return list(fitting_names(stored, wanted=wanted, base="lm").values())

    assert names(*wanted) == wanted
    # A part of a name that the model has itself is no wrapper.
    assert names("block.0.module.weight", "head.weight") == ["block.0.module.weight", "head.weight"]
    assert names("a.b.block.0.weight", "a.b.head.weight", "other") == ["block.0.weight", "head.weight", "other"]
    assert names("nothing", "like.it") == ["nothing", "like.it"]


@pytest.fixture
def sharded(tmp_path: Path, tokenizer: Any) -> Callable[[str], Path]:
    """Makes the folder of a tiny GPT-2 in shards of safetensors or of pickles, each with its index."""

    def make(kind: str) -> Path:
        hf, place = build("gpt2"), tmp_path / f"{kind}-{len(list(tmp_path.iterdir()))}"
        hf.save_pretrained(place, max_shard_size="10KB" if kind == "safetensors" else "1GB")
        tokenizer.save_pretrained(place)
        if kind == "bin":
            (place / "model.safetensors").unlink()
            names = list(state := state_of(hf))
            where = {name: f"pytorch_model-0000{1 + 3 * n // len(names)}-of-00003.bin" for n, name in enumerate(names)}
            for file in set(where.values()):
                torch.save({name: state[name] for name in names if where[name] == file}, place / file)
            index = {"metadata": {"total_size": 1}, "weight_map": where}
            (place / "pytorch_model.bin.index.json").write_text(json.dumps(index))
        return place

    return make


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_and_what_can_be_wrong_with_them(kind: str, sharded: Callable[[str], Path]) -> None:
    hf = build("gpt2")
    whole = sharded(kind)
    shards = sorted(whole.glob(f"*-of-*.{kind}"))
    assert len(shards) > 2
    check_same(whole, hf)

    missing = sharded(kind)
    (missing / shards[1].name).unlink()
    message = refused(ModelDamaged, missing)
    assert shards[1].name in message
    assert message.endswith("; take a complete copy")

    cut = sharded(kind)
    content = shards[1].read_bytes()
    for size in (0, 100, len(content) // 2):
        (cut / shards[1].name).write_bytes(content[:size])
        assert refused(ModelDamaged, cut).endswith(f"{shards[1].name} is cut off or damaged; take a complete copy")

    [index] = whole.glob("*.index.json")
    stated = json.loads(index.read_text())
    first = next(iter(stated["weight_map"]))
    stated["weight_map"][first] = f"nowhere.{kind}"
    lost = sharded(kind)
    (lost / index.name).write_text(json.dumps(stated))
    assert f"nowhere.{kind}" in refused(ModelDamaged, lost)
    for text in ("{", "{}", "[]"):
        (lost / index.name).write_text(text)
        assert refused(ModelDamaged, lost).endswith("; take a complete copy")

    # Without their index the shards are read all the same: whether all are there is seen by the weights.
    index.unlink()
    check_same(whole, hf)
    shards[1].unlink()
    assert "of its weights, the first is" in refused(ModelDamaged, whole)


def test_a_folder_of_other_files_holds_no_weights(folder: Callable[..., Path]) -> None:
    hf = build("gpt2")
    place = folder(hf, {}, file="training_args.bin")
    torch.save({}, place / "optimizer.pt")
    save_file(state_of(hf), place / "adapter_model.safetensors")
    assert "holds no weights" in refused(ModelNotFound, place)


NO_LAYERS = '{"model_type": "gpt2", "n_layer": 0, "n_embd": 16, "n_head": 2, "vocab_size": 280, "n_positions": 64}'
CONFIGS = [
    ('{"model_type": "zork"}', ModelUnsupported, "model type `zork`"),
    ('{"n_layer": 2}', ModelUnsupported, "model_type"),
    ("{}", ModelUnsupported, "model_type"),
    ('{"model_type": "vit"}', ModelUnsupported, "no class that makes a language model of type 'vit'; only models th"),
    ('{"model_type": "clip"}', ModelUnsupported, "language model of type 'clip'"),
    ('{"model_type": 3}', ModelUnsupported, "model type"),
    ("[]", ModelDamaged, "its config.json is not an object; take a complete copy"),
    ("null", ModelDamaged, "its config.json is not an object"),
    ("", ModelDamaged, r"its config.json is not JSON \(Expecting value: line 1 column 1 \(char 0\)\); take a complete"),
    ("\0garbage", ModelDamaged, "its config.json is not JSON"),
    ("[" * 100_000, ModelDamaged, "its config.json is not JSON"),
    ('{"model_type": "gpt2", "n_layer": "two"}', ModelDamaged, "Field 'n_layer' expected int, got str"),
    (NO_LAYERS, ModelUnsupported, "has no layers"),
]


@pytest.mark.parametrize(("text", "kind", "line"), CONFIGS)
def test_a_configuration_that_says_too_little(
    text: str, kind: type[ModelError], line: str, folder: Callable[..., Path]
) -> None:
    place = folder(build("gpt2"))
    (place / "config.json").write_text(text)
    with pytest.raises(kind, match=line) as caught:
        load_model(str(place))
    assert "\n" not in str(caught.value)
