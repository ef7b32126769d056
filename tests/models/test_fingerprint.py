"""The fingerprint: the same wherever the model lies, another one for the least change."""

import importlib.util
import sys

import pytest
import torch
from torch import nn
from transformers import GPT2LMHeadModel

from mnemoscope.errors import ModelDamaged
from mnemoscope.models import load_model
from mnemoscope.models.modules.fingerprint import check_finite, named_weights
from models.conftest import build


def print_of(hf, tokenizer, **options):
    return load_model(hf, tokenizer=tokenizer, **options).fingerprint


@pytest.mark.fast(4)
def test_every_family_keeps_its_fingerprint_on_disk(family, tiny, tokenizer, tmp_path, capfd):
    hf = tiny(family)
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    memory = print_of(hf, tokenizer)
    assert (len(memory), load_model(str(tmp_path)).fingerprint) == (64, memory)
    assert load_model(str(tmp_path), dtype="bfloat16").fingerprint == memory


def test_it_does_not_depend_on_how_the_model_is_run(tiny, tokenizer):
    hf = tiny("gpt2")
    first = print_of(hf, tokenizer)
    assert print_of(hf, tokenizer, dtype="float16") == first
    hf.config._attn_implementation = "eager"
    hf.config.use_cache = False
    hf.config._name_or_path = "elsewhere"
    hf.config.marks = None  # as good as not there, in a setting of settings, too
    hf.config.more = {"_attn_kernel": "eager"}
    without = print_of(hf, tokenizer)
    hf.config.more = {}
    assert print_of(hf, tokenizer) == without
    del hf.config.more
    assert print_of(hf, tokenizer) == first


def test_configuration_tokenizer_dtype_and_one_bit_change_it(tiny, tokenizer):
    first = print_of(tiny("gpt2"), tokenizer)
    assert print_of(tiny("gpt2", activation_function="relu"), tokenizer) != first
    assert print_of(tiny("gpt2").bfloat16(), tokenizer) != first
    hf = tiny("gpt2")
    bias = hf.transformer.h[1].mlp.c_fc.bias.view(torch.int32)
    bias[3] ^= 1  # one bit of one weight
    assert print_of(hf, tokenizer) != first
    bias[3] ^= 1
    assert print_of(hf, tokenizer) == first
    more = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, bos_token="<|endoftext|>")
    more.add_tokens(["zebra"])
    assert print_of(tiny("gpt2"), more) != first


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_tied_weights_count_once(name, tiny):
    hf = tiny(name)
    weights = named_weights(hf)
    assert sum(weight.numel() for weight in weights.values()) == sum(p.numel() for p in hf.parameters())
    assert not any(key.startswith("lm_head") for key in weights)


def test_a_weight_that_is_not_finite_is_named_wherever_it_stands():
    model = nn.Module()
    model.register_parameter("whole", nn.Parameter(torch.arange(3), requires_grad=False))
    model.register_parameter("large", nn.Parameter(torch.full((4,), 3e38), requires_grad=False))
    check_finite(model)  # a sum that overflows is no such weight
    model.register_parameter("last", nn.Parameter(torch.tensor([1.0, torch.inf, torch.nan]), requires_grad=False))
    with pytest.raises(ModelDamaged, match=r"^weight 'last' holds 2 NaN or infinite numbers of 3; take an undamaged"):
        check_finite(model)


MODELLING = """
import transformers
from {beside} import {name}


class Own(transformers.GPT2LMHeadModel):
    def forward(self, *inputs, **named):
        from {late} import factor

        return super().forward(*inputs, **named)
"""


def own_print(folder, monkeypatch, *, of, half, late):
    """The fingerprint of a model whose class stands in a folder of its own, with two helpers, one imported late."""
    folder.mkdir(parents=True)
    plain = of == "alone"
    name, dot = ("own_" + folder.name, "") if plain else (f"{of}.{folder.name}.modelling", ".")
    (folder / "modelling.py").write_text(
        MODELLING.format(beside=f"{dot}halves" if not plain else "halves", name="HALF", late=f"{dot}later")
    )
    (folder / "halves.py").write_text(f"import json\nimport torch\nHALF = {half}\n")
    (folder / "later.py").write_text(f"factor = {late}\n")
    (folder / "unrelated.py").write_text(f"number = {folder.name!r}\n")
    monkeypatch.syspath_prepend(str(folder))
    for stale in ("halves", "later"):
        monkeypatch.delitem(sys.modules, stale, raising=False)
    spec = importlib.util.spec_from_file_location(name, folder / "modelling.py")
    module = importlib.util.module_from_spec(spec)
    if not plain:
        for above in (of, f"{of}.{folder.name}"):
            package = type(sys)(above)
            package.__path__ = [str(folder)]
            monkeypatch.setitem(sys.modules, above, package)
        monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    network = build("gpt2-relu")
    network.__class__ = module.Own
    return print_of(network, "ids")


@pytest.mark.parametrize("of", ["alone", "package", "transformers_modules"])
def test_the_code_that_a_models_own_code_imports_is_in_its_fingerprint(of, tmp_path, monkeypatch):
    marks = [
        own_print(tmp_path / place, monkeypatch, of=of, half=half, late=late)
        for place, half, late in (("a", 1, 1), ("b", 1, 1), ("c", 2, 1), ("d", 1, 2))
    ]
    assert marks[0] == marks[1]  # wherever it lies
    assert len({*marks, print_of(build("gpt2-relu"), "ids")}) == 4


def test_a_model_of_transformers_keeps_the_fingerprint_that_it_always_had():
    torch.manual_seed(0)
    config = GPT2LMHeadModel.config_class(n_embd=8, n_layer=1, n_head=2, vocab_size=270, n_positions=16)
    network = GPT2LMHeadModel(config)
    with torch.no_grad():
        for number, weight in enumerate(network.parameters()):
            weight.copy_((torch.arange(weight.numel()) % 64 / 64 - number / 8).view_as(weight))
    found = load_model(network, tokenizer="ids").fingerprint
    assert found == "76732516ff09c2216d6581601a34f06482d6e9e0586c3ce12bca217998ebc5e1"
