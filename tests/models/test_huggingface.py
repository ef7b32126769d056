"""Loading by name, folder or object; every bad input ends in one plain line."""

import json
import shutil
import socket

import pytest
import torch
from huggingface_hub import constants
from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration
from transformers.utils import logging

from mnemoscope.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported, OptionError, TokenizerNotFound
from mnemoscope.models import load_for_ids, load_model
from mnemoscope.models.opening import hub, huggingface
from models.conftest import refused

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


@pytest.fixture
def saved(tmp_path, tiny, tokenizer):
    """The folder of a saved tiny GPT-2 with its tokenizer."""
    return save(tmp_path / "gpt2", tiny("gpt2"), tokenizer)


def test_the_folder_that_training_wrote_is_its_model(saved, tmp_path):
    (tmp_path / "trained").mkdir()
    saved.rename(tmp_path / "trained" / "model")
    (tmp_path / "trained" / "checkpoint.pt").touch()
    model = load_model(str(tmp_path / "trained"))
    assert model.content == load_model(str(tmp_path / "trained" / "model")).content


def save(folder, hf, tokenizer):
    hf.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_folder_and_its_object_are_the_same_model(saved, tiny, tokenizer):
    stored = load_model(str(saved))
    memory = load_model(tiny("gpt2"), tokenizer=tokenizer)
    assert stored.fingerprint == memory.fingerprint
    assert (stored.source, stored.spec, memory.spec) == (str(saved), saved.name, "memory:GPT2LMHeadModel")
    assert stored.dtype == memory.dtype == torch.float32
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(stored.logits(ids), memory.logits(ids))
    assert load_model(saved).fingerprint == stored.fingerprint  # a Path will do


def test_the_asked_dtype_is_the_one_that_runs(saved, tiny, tokenizer):
    assert load_model(str(saved), dtype="bfloat16").keys(0).dtype == torch.bfloat16
    assert load_model(str(saved), dtype=torch.float16).dtype == torch.float16
    half = tiny("gpt2").bfloat16()
    assert load_model(half, tokenizer=tokenizer).dtype == torch.bfloat16
    assert load_model(half, tokenizer=tokenizer, dtype="float32").dtype == torch.float32
    assert half.dtype == torch.bfloat16


def test_the_tokenizer_may_lie_elsewhere(saved, tmp_path, tiny, tokenizer):
    bare = tmp_path / "bare"
    tiny("gpt2").save_pretrained(bare)
    message = refused(TokenizerNotFound, str(bare))
    assert message.startswith(f"folder {str(bare)!r} holds no tokenizer; name a folder or hub id with one as token")
    named = load_model(str(bare), tokenizer=str(saved))
    assert (named.fingerprint, named.source) == (load_model(str(saved)).fingerprint, str(bare))
    assert named.opening.tokenizer == str(saved)
    assert "no tokenizer './nothing'" in refused(ModelNotFound, str(saved), tokenizer="./nothing")
    assert "tokenizer" in refused(ModelNotFound, str(saved), tokenizer=str(saved / "tokenizer.json"))
    assert "holds no tokenizer" in refused(TokenizerNotFound, str(saved), tokenizer=str(bare))
    assert load_model(tiny("gpt2"), tokenizer=str(saved)).fingerprint == load_model(str(saved)).fingerprint


def test_builtin_and_handmade_names(monkeypatch, tmp_path):
    assert load_model("handmade:planted").spec == "handmade:planted"
    assert "no handmade model 'x'; there are handmade:worked-example" in refused(ModelNotFound, "handmade:x")
    assert "no built-in model 'x'; there is builtin:pydocs" in refused(ModelNotFound, "builtin:x")
    monkeypatch.setattr(huggingface, "__file__", str(tmp_path / "opening" / "huggingface.py"))
    said = refused(ModelNotFound, "builtin:pydocs")
    assert "the weights of 'builtin:pydocs' are not in this installation" in said


@pytest.mark.parametrize("name", ["nobody/no-such-model", "no-such-model"])
def test_an_unknown_hub_name_without_network_is_told_at_once(name, monkeypatch, capfd):
    def unreachable(*arguments, **options):
        raise socket.gaierror("no network in this test")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    monkeypatch.setattr(hub, "getproxies", dict)
    message = refused(ModelNotFound, name)
    assert name in message
    assert "check the name and the network" in message
    assert capfd.readouterr().err == ""


def test_names_and_options_that_are_none(saved, tmp_path, tiny):
    assert "name is empty" in refused(ModelNotFound, " ")
    for name in ("./nothing", "/nothing/here", "~/nothing-here", "a/b/c", "zip:thing"):
        assert f"no folder {name!r}" in refused(ModelNotFound, name)
    assert "is a file" in refused(ModelNotFound, str(saved / "config.json"))
    assert "from a int" in refused(OptionError, 3)
    assert "dtype 'int8' is not supported" in refused(OptionError, saved, dtype="int8")
    assert "device 'nowhere'" in refused(OptionError, saved, device="nowhere")
    assert "needs its tokenizer" in refused(OptionError, tiny("gpt2"))
    (tmp_path / "empty").mkdir()
    assert "holds no config.json" in refused(ModelNotFound, str(tmp_path / "empty"))
    (saved / "model.safetensors").unlink()
    assert "holds no weights" in refused(ModelNotFound, str(saved))


def test_auto_is_a_card_where_there_is_one(saved, tiny, monkeypatch):
    """There is no card: torch is only told that there is, so whoever goes there fails."""
    assert load_model(saved).device.type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(OptionError, match="device 'cuda' cannot be used here"):
        load_model(saved)
    with_tokenizer = {"tokenizer": str(saved)}
    assert load_model(tiny("gpt2"), **with_tokenizer).device.type == "cpu"  # an object stays where it is
    assert load_model(saved, device="cpu").device.type == "cpu"


def change(folder, **settings):
    config = json.loads((folder / "config.json").read_text()) | settings
    (folder / "config.json").write_text(json.dumps(config))


def test_damaged_folders(saved, tmp_path):
    def copy(name):
        return shutil.copytree(saved, tmp_path / name)

    lacking = copy("lacking")
    change(lacking, n_layer=3)
    assert "lacks 12 of its weights, the first is 'transformer.h.2" in refused(ModelDamaged, str(lacking))

    endless = copy("endless")
    change(endless, n_layer=2**63)
    assert "its configuration says 9,223,372,036,854,775,808 layers" in refused(ModelDamaged, str(endless))

    (copy("tokenizer") / "tokenizer.json").write_text("{")
    assert "cannot be read" in refused(ModelDamaged, str(tmp_path / "tokenizer"))


def test_a_repository_with_code_of_its_own_runs_it_only_when_asked(saved):
    change(saved, model_type="zork", auto_map={"AutoConfig": "zork.Z", "AutoModelForCausalLM": "zork.M"})
    (saved / "zork.py").write_text("raise SystemExit('code ran')")
    assert "pass trust_remote_code=True if you trust it" in refused(ModelUnsupported, str(saved))


def test_pickled_weights_are_read_without_running_them(saved, tmp_path, tiny):
    (saved / "model.safetensors").unlink()
    torch.save(tiny("gpt2").state_dict(), saved / "pytorch_model.bin")
    assert load_model(str(saved)).sizes.layers == 2
    torch.save({"weight": Trap(tmp_path / "sprung")}, saved / "pytorch_model.bin")
    assert "save them as safetensors" in refused(ModelUnsupported, str(saved))
    assert not (tmp_path / "sprung").exists()


class Trap:
    """A pickle that makes a folder when it is unpickled without care."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return type(self.place).mkdir, (self.place,)


def test_an_encoder_decoder_without_a_start_is_refused(tokenizer):
    sizes = {"vocab_size": 280, "d_model": 16, "d_kv": 8, "num_layers": 2, "num_heads": 2, "d_ff": 24}
    t5 = T5ForConditionalGeneration(T5Config(**sizes)).eval()
    assert "state decoder_start_token_id in its configuration" in refused(ModelUnsupported, t5, tokenizer=tokenizer)
    t5 = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval()
    assert load_model(t5, tokenizer=tokenizer).reading.before == (0,)
    assert load_model(t5, tokenizer="ids").reading.before == (0,)


def test_a_masked_model_without_a_mask_is_refused(tokenizer):
    bert = BertForMaskedLM(BertConfig(vocab_size=280, **SMALL))
    assert "its tokenizer has no mask" in refused(ModelUnsupported, bert, tokenizer=tokenizer)


def test_loading_is_silent(saved, capfd):
    logging.enable_progress_bar()
    before = logging.get_verbosity()
    load_model(str(saved)).logits(torch.tensor([[0, 0]]))
    assert (capfd.readouterr(), logging.get_verbosity()) == (("", ""), before)
    assert logging.is_progress_bar_enabled()


@pytest.fixture
def hub_of(tmp_path, monkeypatch):
    """Puts folders into a cache of the hub, without a network; makes the model's id of a name and a folder."""

    def put(name, folder):
        place, commit = tmp_path / "cache" / f"models--me--{name}", "a" * 40
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text(commit)
        shutil.copytree(folder, place / "snapshots" / commit)
        return f"me/{name}"

    def unreachable(*arguments, **options):
        raise socket.gaierror("no network in this test")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(socket, "create_connection", unreachable)
    monkeypatch.setattr(hub, "getproxies", dict)
    return put


def test_models_of_the_hub_without_a_tokenizer_or_with_other_names(hub_of, saved, tmp_path, tiny):
    whole = load_model(hub_of("whole", saved))
    assert whole.fingerprint == load_model(str(saved)).fingerprint
    for family in ("gpt2", "llama"):
        tiny(family).save_pretrained(tmp_path / f"bare-{family}")
        name = hub_of(f"bare-{family}", tmp_path / f"bare-{family}")
        message = refused(TokenizerNotFound, name)
        assert message.startswith(f"{name!r} holds no tokenizer")
        assert message.endswith("or mine token ids (ids_field, or tokenizer='ids')")
        ids = load_for_ids(name)
        assert (ids.opening.tokenizer, ids.encode(["3 1 4"])) == ("ids", [[3, 1, 4]])
    with pytest.raises(ModelNotFound, match="no tokenizer 'me/none'"):
        load_for_ids(name, tokenizer="me/none")
    (saved / "model.safetensors").unlink()
    state = {f"module.{name}": tensor for name, tensor in tiny("gpt2").state_dict().items()}
    torch.save(state, saved / "pytorch_model.bin")
    assert "'module.lm_head.weight'; download the repository" in refused(ModelDamaged, hub_of("wrapped", saved))
    assert load_model(str(saved)).fingerprint == whole.fingerprint


def test_quantised_weights_in_an_unusual_file_are_not_searched(saved):
    (saved / "model.safetensors").rename(saved / "weights.safetensors")
    assert load_model(str(saved)).sizes.layers == 2
    change(saved, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    with pytest.raises(ModelError) as caught:
        load_model(str(saved))
    assert "\n" not in str(caught.value)
