"""Adapters of peft, put on a model by name: the model that peft makes in memory, or one plain line."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from mining.conftest import byte_tokenizer
from mnemoscope.cli import main
from mnemoscope.errors import ModelDamaged, ModelNotFound, ModelUnsupported, OptionError
from mnemoscope.models import load_model
from mnemoscope.models.opening import adapters
from models.conftest import refused
from models.test_probed import TARGETS, adapted, load, network_of

# It asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


def save_base(folder: Path, name: str) -> str:
    network_of(name).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def save_adapter(folder: Path, name: str, **options: Any) -> str:
    adapted(name, **options).save_pretrained(folder)
    return str(folder)


def trained(network: Any, config: Any) -> Any:
    """The network with an adapter whose trainable weights were moved at random."""
    made = peft.get_peft_model(network, config)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return made


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", list(TARGETS))
def test_an_adapter_by_name_is_the_one_that_peft_loads(name: str, tmp_path: Path) -> None:
    base, adapter = save_base(tmp_path / "base", name), save_adapter(tmp_path / "adapter", name)
    model, known = load_model(base, adapter=adapter), load(adapted(name))
    assert (model.probed, model.spec, model.source) == (True, "base+adapter", base)
    assert model.fingerprint == known.fingerprint != load_model(base).fingerprint
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(model.logits(ids), known.logits(ids))
    assert torch.equal(model.values(0), known.values(0))
    assert load_model(base, adapter=Path(adapter)).fingerprint == model.fingerprint  # a Path will do


KINDS: dict[str, Any] = {
    "IA3Config": {"feedforward_modules": ["down_proj"]},
    "LoKrConfig": {"r": 2},
    "OFTConfig": {"oft_block_size": 4, "r": 0},
    "LoraConfig": {"r": 2, "init_lora_weights": "pissa"},
}
"""Other adapters than LoRA, and one whose loading changes the weights beneath it."""


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", list(KINDS))
def test_other_kinds_are_as_peft_loads_them_and_merges_them(kind: str, tmp_path: Path) -> None:
    config = getattr(peft, kind)(target_modules=TARGETS["llama"], **KINDS[kind])
    trained(network_of("llama"), config).save_pretrained(tmp_path / "adapter")
    model = load_model(save_base(tmp_path / "base", "llama"), adapter=str(tmp_path / "adapter"))
    network = peft.PeftModel.from_pretrained(network_of("llama"), str(tmp_path / "adapter")).eval()
    assert model.fingerprint == load(network).fingerprint
    merged = load(network.merge_and_unload())
    for layer in range(model.sizes.layers):
        torch.testing.assert_close(model.values(layer), merged.values(layer), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(model.keys(layer), merged.keys(layer), atol=1e-5, rtol=1e-4)


def test_the_command_line_says_what_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, adapter = save_base(tmp_path / "base", "llama"), save_adapter(tmp_path / "adapter", "llama")
    assert main(["inspect", base, "--adapter", adapter]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("base+adapter: family llama")
    assert "values      probed" in printed
    assert main(["trace", base, "the cat", "--adapter", adapter, "--json"]) == 0
    python = json.loads(capsys.readouterr().out)["python"].splitlines()
    assert python[2] == f"model = ms.load_model({base!r}, adapter={adapter!r})"


def test_a_folder_that_is_no_adapter(tmp_path: Path) -> None:
    base, adapter = save_base(tmp_path / "base", "llama"), save_adapter(tmp_path / "adapter", "llama")
    assert "holds no adapter_config.json" in refused(ModelNotFound, base, adapter=base)
    assert "no folder './nothing'" in refused(ModelNotFound, base, adapter="./nothing")
    assert "no folder ''" in refused(ModelNotFound, base, adapter="")
    config = Path(adapter) / "adapter_config.json"
    stated = config.read_text()
    config.write_text("{")
    assert "cannot be read" in refused(ModelDamaged, base, adapter=adapter)
    config.write_text(json.dumps({"peft_type": "NOTHING"}))
    assert "cannot be read" in refused(ModelDamaged, base, adapter=adapter)
    config.write_text(stated)
    weights = Path(adapter) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:99])
    assert "cannot be read" in refused(ModelDamaged, base, adapter=adapter)
    weights.unlink()
    assert "holds no weights" in refused(ModelNotFound, base, adapter=adapter)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"base_model_name_or_path": "some/model"}, "'some/model'"),
        ({"base_model_name_or_path": ""}, "its base model"),
        ({"base_model_name_or_path": 3}, "its base model"),
        ({}, "its base model"),
        ([], "its base model"),
        ("{", "its base model"),
        (b"\xff", "its base model"),
        (None, "its base model"),
    ],
)
def test_what_an_adapter_was_made_for_is_told_where_it_says_so(said: Any, name: str, tmp_path: Path) -> None:
    if said is not None:
        text = said if isinstance(said, bytes) else (said if said == "{" else json.dumps(said)).encode()
        (tmp_path / adapters.ADAPTER_CONFIG).write_bytes(text)
    assert adapters.base_name(tmp_path) == name


def test_an_adapter_of_the_hub_is_its_files_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no hub: what is asked of it is noted, and answered from a folder."""
    base, adapter = save_base(tmp_path / "base", "llama"), save_adapter(tmp_path / "adapter", "llama")
    asked: list[tuple[str, list[str]]] = []

    def download(name: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        asked.append((name, allow_patterns))
        if name == "some/missing":
            raise FileNotFoundError("Repository Not Found")
        return adapter if name == "some/lora" else base

    monkeypatch.setattr(adapters, "snapshot_download", download)
    monkeypatch.setattr(adapters, "where", lambda *_: {"local_files_only": True})
    model = load_model(base, adapter="some/lora")
    assert (model.spec, model.fingerprint) == ("base+some/lora", load_model(base, adapter=adapter).fingerprint)
    tokenizer = ["tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.jinja"]
    assert asked == [("some/lora", ["adapter_config.json", "adapter_model.*", *tokenizer])]
    assert "'some/model' holds no adapter_config.json" in refused(ModelNotFound, base, adapter="some/model")
    assert "no adapter 'some/missing'" in refused(ModelNotFound, base, adapter="some/missing")


RESIZED: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "untrained": ("llama", False, {}),
    "tied": ("llama", True, {}),
    "whole": ("llama", False, {"modules_to_save": ["embed_tokens", "lm_head"]}),
    "whole-gpt2": ("gpt2", False, {"modules_to_save": ["wte"]}),
    "head": ("llama", False, {"modules_to_save": ["lm_head"]}),
    "targeted": ("llama", False, {"target_modules": ["embed_tokens", "lm_head", "down_proj"]}),
    "rows": ("llama", False, {"trainable_token_indices": [3, 280, 281]}),
    "rows-tied": ("llama", True, {"trainable_token_indices": [3, 280, 281]}),
}
"""Family, tied or not, and what is trained beside the layers, of an adapter trained after two tokens were added."""


@pytest.mark.fast(3)
@pytest.mark.filterwarnings("ignore:.*tie_word_embeddings:UserWarning", "ignore:Model has:UserWarning")
@pytest.mark.parametrize("case", list(RESIZED))
def test_an_adapter_of_a_resized_vocabulary_brings_its_rows_and_its_tokenizer(case: str, tmp_path: Path) -> None:
    family, tied, options = RESIZED[case]
    network, tokenizer = network_of(family), byte_tokenizer()
    network.config.tie_word_embeddings = tied or family == "gpt2"
    network.tie_weights()
    network.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    rows = network.get_input_embeddings().num_embeddings
    tokenizer.add_tokens(["<first>", "<second>"])
    network.resize_token_embeddings(rows + 2)
    usual = {"r": 2, "target_modules": TARGETS[family], "init_lora_weights": False, "fan_in_fan_out": family == "gpt2"}
    config = peft.LoraConfig(**(usual | options))
    made = trained(network, config).eval()
    made.save_pretrained(tmp_path / "adapter", save_embedding_layers=True)
    tokenizer.save_pretrained(tmp_path / "adapter")

    model = load_model(tmp_path / "base", adapter=tmp_path / "adapter")
    assert model.sizes.vocabulary == rows + 2
    text = "a<first>b<second>"
    assert list(model.encode([text])) == [tokenizer(text, add_special_tokens=False).input_ids]
    assert model.fingerprint == load_model(made, tokenizer=tokenizer).fingerprint
    ids = torch.tensor([[3, rows, 7, rows + 1]])
    with torch.no_grad():
        assert torch.equal(model.logits(ids), made(ids).logits)


def test_an_adapter_of_another_model(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", "llama")
    for name in ("gpt2", "gpt_neox"):  # names that are not there
        assert "does not fit" in refused(ModelUnsupported, base, adapter=save_adapter(tmp_path / name, name))
    fitting = Path(save_adapter(tmp_path / "fitting", "llama"))
    weights = load_file(fitting / "adapter_model.safetensors")
    first = next(iter(weights))
    changes = {
        "wider": ({first: torch.zeros(3, 99)}, "'model.layers.0.mlp.down_proj' is 99 wide, the model's 24; it is"),
        "deeper": ({first.replace("layers.0", "layers.9"): weights[first].clone()}, "the model has no place for its"),
        "shallower": ({first: None}, "it has nothing for the model's"),
    }
    for name, (changed, reason) in changes.items():
        shutil.copytree(fitting, tmp_path / name)
        kept = {key: value for key, value in (weights | changed).items() if value is not None}
        save_file(kept, tmp_path / name / "adapter_model.safetensors")
        said = refused(ModelUnsupported, base, adapter=str(tmp_path / name))
        assert said.startswith(f"adapter '{tmp_path / name}' does not fit {base!r}: ")
        assert reason in said
    # Rows that an adapter does not store are not made up.
    network = network_of("llama")
    network.resize_token_embeddings(282)
    made = peft.get_peft_model(network, peft.LoraConfig(r=2, target_modules=TARGETS["llama"], init_lora_weights=False))
    made.save_pretrained(tmp_path / "rows", save_embedding_layers=True)
    file = tmp_path / "rows" / "adapter_model.safetensors"
    save_file({name: weight for name, weight in load_file(file).items() if "embed_tokens" not in name}, file)
    said = refused(ModelUnsupported, base, adapter=str(tmp_path / "rows"))
    assert said.endswith("it has nothing for the model's 'model.embed_tokens.weight'")


def test_an_adapter_that_does_not_fit_is_told_before_the_weights_are_read(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", "llama")
    (Path(base) / "model.safetensors").write_bytes(b"cannot be read")
    adapter = Path(save_adapter(tmp_path / "adapter", "gpt2"))
    stated = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(stated | {"base_model_name_or_path": "gpt2"}))
    said = refused(ModelUnsupported, base, adapter=str(adapter))
    assert said.startswith(f"adapter {str(adapter)!r} does not fit {base!r}: the model has no place for its ")
    assert said.endswith("; it is made for 'gpt2'")


def test_what_peft_does_not_know_is_named(tmp_path: Path) -> None:
    base, adapter = save_base(tmp_path / "base", "llama"), Path(save_adapter(tmp_path / "adapter", "llama"))
    plain = load_model(base, adapter=str(adapter)).fingerprint
    stated = json.loads((adapter / "adapter_config.json").read_text())
    for more, named in (({"later_off": None, "peft_version": "9"}, None), ({"use_later_norm": True}, "use_later_norm")):
        (adapter / "adapter_config.json").write_text(json.dumps(stated | more))
        if named is None:
            assert load_model(base, adapter=str(adapter)).fingerprint == plain
        else:
            assert f"states {named} = 'True', which peft" in refused(ModelUnsupported, base, adapter=str(adapter))


def test_an_adapter_saved_as_a_pickle_one_in_half_precision_and_one_of_attention_alone(tmp_path: Path) -> None:
    base, adapter = save_base(tmp_path / "base", "llama"), tmp_path / "adapter"
    adapted("llama").save_pretrained(adapter, safe_serialization=False)
    whole = load_model(base, adapter=str(adapter))
    half = load_model(base, adapter=str(adapter), dtype="bfloat16")
    assert (half.dtype, half.content) == (torch.bfloat16, whole.content)
    torch.testing.assert_close(half.values(0).float(), whole.values(0), atol=0.02, rtol=0.02)
    torch.save({"x": subprocess.Popen}, adapter / "adapter_model.bin")
    assert "a pickle that would run code" in refused(ModelUnsupported, base, adapter=str(adapter))
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(network_of("llama"), config).save_pretrained(tmp_path / "attention")
    model = load_model(base, adapter=str(tmp_path / "attention"))
    assert not model.probed  # its values can be read
    assert model.fingerprint not in (whole.fingerprint, load_model(base).fingerprint)


def test_where_an_adapter_does_not_go(tmp_path: Path) -> None:
    assert "does not go with a fairseq checkpoint" in refused(OptionError, "fairseq:x.pt", adapter="x")
    assert "dequantize=True does not go with" in refused(OptionError, "fairseq:x.pt", dequantize=True)
    with pytest.raises(OptionError, match="put it on a model in memory with peft"):
        load_model(network_of("llama"), tokenizer=byte_tokenizer(), adapter="x")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    peft.get_peft_model(network_of("llama"), config).save_pretrained(tmp_path / "prompt")
    base = save_base(tmp_path / "base", "llama")
    assert "a learned prompt is not part" in refused(ModelUnsupported, base, adapter=str(tmp_path / "prompt"))
    # An adapter alone is no model, and names its option and what it was made for.
    adapter = save_adapter(tmp_path / "adapter", "llama")
    assert refused(ModelNotFound, adapter).endswith(f"(its base model) and adapter='{adapter}'")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": "some/base"}))
    assert f"('some/base') and adapter='{adapter}'" in refused(ModelNotFound, adapter)
    assert load_model(base, adapter=adapter).probed  # another name decides nothing


def test_what_is_adapted_must_be_a_model_of_transformers() -> None:
    adapted = peft.get_peft_model(torch.nn.Sequential(torch.nn.Linear(4, 4)), peft.LoraConfig(target_modules=["0"]))
    with pytest.raises(ModelUnsupported, match="the Sequential that is adapted is not a transformers model"):
        load_model(adapted)
