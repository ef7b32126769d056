"""The fingerprint: the same wherever the model lies, another one for the least change."""

import pytest
import torch
from torch import nn

from mnemoscope.errors import ModelDamaged
from mnemoscope.models import load_model
from mnemoscope.models.fingerprint import check_finite, named_weights


def print_of(hf, tokenizer, **options):
    return load_model(hf, tokenizer=tokenizer, **options).fingerprint


def test_every_family_keeps_its_fingerprint_on_disk(family, tiny, tokenizer, tmp_path, capfd):
    hf = tiny(family)
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    memory = print_of(hf, tokenizer)
    assert len(memory) == 64
    assert load_model(str(tmp_path)).fingerprint == memory
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


def test_one_bit_of_one_weight_changes_it(tiny, tokenizer):
    hf = tiny("gpt2")
    first = print_of(hf, tokenizer)
    bias = hf.transformer.h[1].mlp.c_fc.bias
    bias.view(torch.int32)[3] ^= 1
    assert print_of(hf, tokenizer) != first
    bias.view(torch.int32)[3] ^= 1
    assert print_of(hf, tokenizer) == first


def test_configuration_tokenizer_and_dtype_change_it(tiny, tokenizer):
    first = print_of(tiny("gpt2"), tokenizer)
    assert print_of(tiny("gpt2", activation_function="relu"), tokenizer) != first
    assert print_of(tiny("gpt2").bfloat16(), tokenizer) != first
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
