"""What `config.json`, an adapter's file and the weights say: taken, harmless, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models import load_model
from mnemoscope.models.opening.file_words import check_config
from models.conftest import refused
from models.test_stored_weights import write

NOWHERE = {"revision": None, "local_files_only": True}


def folder_of(path: Path, **entries: Any) -> str:
    folder = write(path)
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stated | entries))
    return str(folder)


@pytest.mark.parametrize(
    "entries",
    [
        {"rope_condense_ratio": 8},
        {"rope_interleaved": True},
        {"qk_norm": True},
        {"final_logit_softcapping": 30.0},
        {"residual_multiplier": 0.2},
        {"sliding_window": 8},
        {"attention_window": 8},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attn_factor": 0.5}},
        {"rope_scaling": {"rope_type": "of-tomorrow", "factor": 4.0}},
    ],
    ids=str,
)
def test_an_entry_that_would_change_numbers_is_named(entries: dict[str, Any], tmp_path: Path) -> None:
    said = refused(ModelUnsupported, folder_of(tmp_path / "model", **entries))
    named = [*entries, "rope_scaling.attn_factor", "rope_scaling.of-tomorrow"]
    assert any(f"states {name} = " in said for name in named)
    assert f"in its config.json, which transformers {transformers.__version__} does not read" in said


LEFTOVERS: dict[str, Any] = {"pretraining_tp": 1, "rope_ratio": 1, "n_ctx": 64, "is_llama_config": True, "rotary": True}
LEFTOVERS |= {"task_specific_params": {"text-generation": {"top_k": 5}}, "summary_type": "first"}
LEFTOVERS |= {"summary_activation": None, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}}
LEFTOVERS |= {"torch_dtype": "float32", "auto_map": {"AutoConfig": "own.Config"}, "_name_or_path": "elsewhere"}
LEFTOVERS |= {"unsloth_fixed": True, "use_sliding_window": False, "sliding_window": 8, "max_window_layers": 28}
LEFTOVERS |= {"neftune_noise_alpha": 5, "use_mrope": False, "norm_type": "rms_norm", "attention_softmax_in_fp32": True}
LEFTOVERS |= {"bias_dropout_fusion": True, "activation_dropout": 0.1, "scale_attn_weights": True}
LEFTOVERS |= {"cache_implementation": "hybrid", "logits_scaling": 1.0, "layer_norm_eps": 1e-06}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
DEEPSEEK = {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}


def test_leftovers_of_the_hub_s_configurations_are_no_obstacle(tmp_path: Path) -> None:
    plain, ids = load_model(folder_of(tmp_path / "plain")), torch.tensor([[1, 2, 3, 40, 41]])
    assert torch.equal(load_model(folder_of(tmp_path / "model", **LEFTOVERS)).logits(ids), plain.logits(ids))


@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        ("gemma", {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}),
        ("gemma2", {"hidden_activation": "gelu_pytorch_tanh", "sliding_window_size": 4096}),
        ("phi3", {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "sliding_window": 262144}),
        ("gpt_neox", {"rotary_pct": 0.25, "rotary_emb_base": 10000, "rope_scaling": None}),
        ("bloom", {"offset_alibi": 100, "skip_bias_add": True, "attention_softmax_in_fp32": True}),
        ("gptj", {"rotary": True, "scale_attn_weights": True}),
        ("starcoder2", {"norm_type": "layer_norm", "layer_norm_epsilon": 1e-05}),
        ("starcoder2", {"activation_function": "gelu_pytorch_tanh", "scale_attention_softmax_in_fp32": True}),
        ("nemotron", {"rope_percent": 0.5, "partial_rotary_factor": 0.5}),
        ("llama", {"rope_scaling": YARN | {"finetuned": True}}),
        ("deepseek_v3", {"scoring_func": "sigmoid", "rope_scaling": YARN | DEEPSEEK}),
    ],
)
def test_known_configurations_pass(kind: str, entries: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(entries))
    config = CONFIG_MAPPING[kind].from_dict(dict(entries))
    check_config(config, str(tmp_path), kind, NOWHERE)


@pytest.mark.full
def test_what_every_class_writes_itself_passes(tmp_path: Path) -> None:
    transformers.logging.set_verbosity_error()
    refusals = []
    for kind in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        try:
            config = kind()
            (tmp_path / "config.json").write_text(config.to_json_string(use_diff=False))
        except Exception:  # a class without usable defaults
            continue
        try:
            check_config(config, str(tmp_path), kind.__name__, NOWHERE)
        except ModelUnsupported as error:
            refusals.append(str(error))
    assert refusals == []


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.1.mlp.inner_norm.weight", "lm_head.bias"]
)
def test_a_weight_of_a_part_that_the_network_has_is_not_passed_over(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    file = folder / "model.safetensors"
    save_file(load_file(file) | {name: torch.ones(4)}, file, metadata={"format": "pt"})
    assert f"holds {name!r}, for which transformers" in refused(ModelUnsupported, str(folder))
