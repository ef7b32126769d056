"""Weights put back: keys, values and their biases, in plain matrices and in a LoRA, and what is saved."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

import mnemoscope as ms
from attribution.test_diff import tiny, with_other_values
from attribution.test_setting_back import slightly_other
from mining.conftest import byte_tokenizer
from mnemoscope.cli import main
from mnemoscope.errors import MemoryIdError, MnemoscopeError, ModelDiffers, ModelUnsupported, OptionError
from mnemoscope.models import LanguageModel, load_model
from models import gguf_files
from models.conftest import LAYERS, build
from models.expert_models import build_mixture

# Peft asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
IDS = torch.tensor([[1, 2, 3, 4]])
MAPS = ["gate_proj", "up_proj", "down_proj"]


def opened(network: Any) -> LanguageModel:
    return load_model(network, tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))


def lora(targets: list[str], **options: Any) -> Any:
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False, **options)
    return peft.get_peft_model(build("llama"), config).eval()


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "phi3"])
def test_rows_of_these_memories_are_the_firsts_and_all_others_stay(name: str) -> None:
    first, second = tiny(name), with_other_values(name, LAYERS - 1, keys=True)
    with torch.no_grad():
        for one in second.layer(LAYERS - 1).ffn.maps:  # type: ignore[attr-defined]
            if (bias := one.bias()) is not None:
                bias += 0.5
    second = opened(second.anatomy.model)
    layer, before = LAYERS - 1, second.logits(IDS)
    made = ms.restore(second, first, f"L{layer}.M1,L{layer}.M3-4")
    for part in ("keys", "values", "up_keys"):
        new, old, its = (getattr(model, part)(layer) for model in (made, first, second))
        for number in range(0 if new is None else len(new)):
            assert torch.equal(new[number], (old if number in (1, 3, 4) else its)[number])
    for at, one in enumerate(made.layer(layer).ffn.maps):  # type: ignore[attr-defined]
        if (bias := one.bias()) is not None:
            source = [model.layer(layer).ffn.maps[at].bias() for model in (first, second)]  # type: ignore[attr-defined]
            restored = [1, 3, 4] if one is not made.layer(layer).ffn.down else []  # type: ignore[attr-defined]
            assert bias.tolist() == [source[0 if n in restored else 1][n].item() for n in range(len(bias))]
    assert torch.equal(second.logits(IDS), before)  # itself unchanged
    assert not torch.equal(made.logits(IDS), before)
    assert made.fingerprint not in (first.fingerprint, second.fingerprint)


def test_everything_put_back_is_the_first_also_from_its_folder(tmp_path: Path) -> None:
    first, second = tiny("llama"), slightly_other(0.3)
    ms.restore(second, first, [f"L{layer}" for layer in range(LAYERS)], save=tmp_path / "new" / "model")
    read = load_model(str(tmp_path / "new" / "model"))
    assert torch.equal(read.logits(IDS), first.logits(IDS))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model"]


def test_a_lora_is_saved_alone_without_its_part_of_these_memories(tmp_path: Path) -> None:
    first, second = tiny("llama"), opened(lora([*MAPS, "q_proj"]))
    made = ms.restore(second, first, ["L0.M2-5", "L1.M7"], save=tmp_path / "lora")
    again = opened(peft.PeftModel.from_pretrained(build("llama"), str(tmp_path / "lora")))
    assert torch.equal(again.logits(IDS), made.logits(IDS))
    for part in ("keys", "up_keys", "values"):
        kept = [(getattr(again, part)(0)[n] == getattr(first, part)(0)[n]).all().item() for n in range(8)]
        assert kept == [False, False, True, True, True, True, False, False]
        assert torch.equal(getattr(again, part)(0)[6], getattr(second, part)(0)[6])
    attention = again.anatomy.model.model.layers[0].self_attn.q_proj.lora_B["default"].weight
    assert attention.abs().sum() > 0
    assert not (tmp_path / "lora" / "model.safetensors").exists()


def other_bases_lora() -> LanguageModel:
    adapted = lora(MAPS)
    with torch.no_grad():
        adapted.get_base_model().model.layers[0].mlp.up_proj.base_layer.weight += 0.1
    return opened(adapted)


@pytest.mark.parametrize("make", [lambda: opened(lora(["gate_proj"], use_dora=True)), other_bases_lora])
def test_what_is_no_plain_lora_of_the_first_is_refused(make: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match=r"cannot be restored: its \w+ is packed, or an adapter"):
        ms.restore(make(), tiny("llama"), "L0.M1", save=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_restored_is_one_sentence(tmp_path: Path) -> None:
    first, second = tiny("llama"), slightly_other(0.3)
    refusals: dict[tuple[Any, type[MnemoscopeError]], str] = {
        ("L9.M0", MemoryIdError): "layer 9 does not exist",
        (("L0.M0", "L0.M99"), MemoryIdError): "L0.M99 is not in",
        ("nothing", MemoryIdError): "does not name a memory",
    }
    for (memories, kind), sentence in refusals.items():
        with pytest.raises(kind, match=sentence):
            ms.restore(second, first, memories)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for folder in (tmp_path / "full", tmp_path / "full" / "file"):
        with pytest.raises(OptionError, match="holds something"):
            ms.restore(second, first, "L0.M0", save=folder)
    with pytest.raises(ModelDiffers, match="differs from"):
        ms.restore(tiny("gpt2"), first, "L0.M0")
    mixture = opened(build_mixture("mixtral"))
    with pytest.raises(ModelUnsupported, match="has experts"):
        ms.restore(mixture, opened(build_mixture("mixtral")), "L0.E0.M0")


def test_the_command_saves_what_python_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tiny("llama"), slightly_other(0.5)
    for name, model in (("first", first), ("second", second)):
        model.anatomy.model.save_pretrained(tmp_path / name)
        byte_tokenizer(bos_token="<|endoftext|>").save_pretrained(tmp_path / name)
    asked = ["diff", str(tmp_path / "first"), "the cat", "--other", str(tmp_path / "second"), "--json"]
    options = ["--restored", "3", "--save", str(tmp_path / "made"), "--save-list", str(tmp_path / "list")]
    assert main([*asked, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    names = [row["memory"] for row in found["memories"][:3]]
    assert found["written"] == []
    made = load_model(str(tmp_path / "made"))
    assert torch.equal(made.logits(IDS), ms.restore(second, first, names).logits(IDS))
    listed = ms.restore(second, first, f"@{tmp_path / 'list'}")
    assert torch.equal(
        listed.logits(IDS), ms.restore(second, first, [r["memory"] for r in found["memories"]]).logits(IDS)
    )
    with pytest.raises(ModelDiffers, match="lists memories of second"):
        ms.restore(slightly_other(0.1), first, f"@{tmp_path / 'list'}")
    (tmp_path / "rows").write_text('{"prompt": "the cat"}\n{"prompt": "a dog"}\n')
    many = ["diff", str(tmp_path / "first"), "--prompts", str(tmp_path / "rows"), *asked[3:-1]]
    assert main([*many, "--restored", "2", "--save", str(tmp_path / "of many")]) == 0
    assert load_model(str(tmp_path / "of many")).sizes == first.sizes
    assert main([*many, "--restored", "2", "--generate", "2"]) == 2
    assert "--generate is for one prompt" in capsys.readouterr().err.splitlines()[-1]
    same = [*asked[:4], str(tmp_path / "first"), "--restored", "2", "--save", str(tmp_path / "none")]
    assert main(same) == 2
    assert "no memory pushed towards the second's answer" in capsys.readouterr().err.splitlines()[-1]


def with_other_weights(kind: str) -> tuple[Any, Any]:
    """Two networks of one shape; the second's last feed-forward layer differs."""
    first, second = gguf_files.network(kind), gguf_files.network(kind)
    with torch.no_grad():
        for name, weight in second.model.layers[-1].mlp.named_parameters():
            weight += (0.5 if "down" in name else 0.1) * torch.randn_like(weight)
    return first, second


@pytest.mark.parametrize(("kind", "form"), [("llama", "q4_1"), ("qwen2", "f16")])
def test_a_model_of_a_gguf_is_saved_as_a_folder_with_the_same_logits_and_words(
    kind: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [
        gguf_files.write(tmp_path / f"{name}.gguf", kind, network, form=form)
        for name, network in zip(("first", "second"), with_other_weights(kind), strict=True)
    ]
    asked = ["diff", files[0], "the cat", "--other", files[1], "--json", "--restored", "3"]
    assert main([*asked, "--save", str(tmp_path / "made")]) == 0
    told = capsys.readouterr()
    assert f"restoring: 3 memories, to be saved as {tmp_path / 'made'}" in told.err
    names = [row["memory"] for row in json.loads(told.out)["memories"][:3]]
    first, second, made = (load_model(one) for one in (*files, str(tmp_path / "made")))
    wanted = copy.deepcopy(second.anatomy.model)
    for layer, number in (re.fullmatch(r"L([0-9]+)\.M([0-9]+)", name).groups() for name in names):  # type: ignore[union-attr]
        old, new = (model.model.layers[int(layer)].mlp for model in (first.anatomy.model, wanted))
        with torch.no_grad():
            new.gate_proj.weight[int(number)] = old.gate_proj.weight[int(number)]
            new.up_proj.weight[int(number)] = old.up_proj.weight[int(number)]
            new.down_proj.weight[:, int(number)] = old.down_proj.weight[:, int(number)]
    with torch.no_grad():
        assert torch.equal(made.logits(IDS), wanted(IDS).logits)
    assert not torch.equal(made.logits(IDS), second.logits(IDS))
    text = ["the cat, cafe\u0301 12"]
    assert made.encode(text) == second.encode(text)
    assert made.tokenizer_fingerprint == second.tokenizer_fingerprint  # else `diff` refuses the two
    assert main(["diff", str(tmp_path / "made"), "the cat", "--other", files[1], "--json"]) == 0


def test_a_model_that_cannot_be_saved_is_refused_before_its_answers_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, network = tiny("llama"), lora(MAPS)
    network.add_adapter("more", peft.LoraConfig(r=2, target_modules=["q_proj"]))
    network.base_model.set_adapter(["default", "more"])
    with pytest.raises(ModelUnsupported, match="cannot be saved with weights restored: 2 adapters are active"):
        ms.restore(opened(network), first, "nothing", save=tmp_path / "new")
    mixture = build_mixture("mixtral")
    mixture.save_pretrained(tmp_path / "experts")
    byte_tokenizer(bos_token="<|endoftext|>").save_pretrained(tmp_path / "experts")
    monkeypatch.setattr("mnemoscope.attribution.diff", lambda *_, **__: pytest.fail("compared"))
    asked = ["diff", str(tmp_path / "experts"), "the cat", "--other", str(tmp_path / "experts"), "--restored", "1"]
    assert main([*asked, "--save", str(tmp_path / "new")]) == 2
    assert "its weights are those of experts" in capsys.readouterr().err.splitlines()[-1]
