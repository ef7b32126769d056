"""The second model of `diff` and of the pages is opened as the first, but for its adapter and revision."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from transformers.utils import logging

from mining.conftest import byte_tokenizer
from mnemoscope.attribution import diff
from mnemoscope.cli import main
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.model_options import ModelOptions
from mnemoscope.models import load_model
from mnemoscope.models.opening.huggingface import builtin_folder
from models.conftest import build
from models.test_adapters import save_adapter
from models.test_probed import network_of
from support.mined import mined_text
from web.served import client

# peft asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

CODE = """from transformers import LlamaConfig, LlamaForCausalLM


class OwnConfig(LlamaConfig):
    model_type = "own"


class Own(LlamaForCausalLM):
    config_class = OwnConfig
"""
ASKED = ["the cat sat", "--for", "x", "--against", "y", "--top", "2", "--json"]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of weights without a tokenizer, which lies beside them."""
    room = tmp_path_factory.mktemp("pair")
    for name in ("first", "second"):
        network = network_of("llama")
        with torch.no_grad():
            network.get_output_embeddings().weight.mul_(1 if name == "first" else 1.1)
        network.save_pretrained(room / name)
    byte_tokenizer(bos_token="<|endoftext|>").save_pretrained(room / "words")
    return room


def differ(first: Path, second: Path | str, *options: str, capsys: pytest.CaptureFixture[str]) -> Any:
    ended = main(["diff", str(first), *ASKED, "--other", str(second), *options])
    printed = capsys.readouterr()
    assert ended == 0, printed.err
    return json.loads(printed.out)


@pytest.mark.parametrize("beginning", [[], ["--beginning", "none"]])
def test_a_tokenizer_and_a_beginning_are_those_of_both(
    room: Path, beginning: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--tokenizer", str(room / "words"), *beginning]
    found = differ(room / "first", room / "second", *options, capsys=capsys)
    assert found["models"] == {"first": "first", "second": "second"}
    assert found["difference"]["second"] == pytest.approx(1.1 * found["difference"]["first"], rel=1e-5)


def test_the_firsts_adapter_and_revision_are_not_the_seconds(room: Path, tmp_path: Path) -> None:
    words, adapter = str(room / "words"), save_adapter(tmp_path / "lora", "llama")
    first = load_model(str(room / "first"), tokenizer=words, adapter=adapter, revision="main")
    found = diff(first, "the cat", other=str(room / "first"), target="x", against="y")
    assert found.to_dict()["models"] == {"first": "first+lora", "second": "first"}


@pytest.mark.full
def test_code_is_trusted_in_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    first = tmp_path / "own"
    build("llama").save_pretrained(first)
    byte_tokenizer().save_pretrained(first)
    (first / "own.py").write_text(CODE)
    config = json.loads((first / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"}}
    (first / "config.json").write_text(json.dumps(config))
    second = shutil.copytree(first, tmp_path / "copied")
    assert main(["diff", str(first), *ASKED, "--other", str(second)]) == 2
    assert "brings its own code" in capsys.readouterr().err
    assert differ(first, second, "--trust-remote-code", capsys=capsys)["models"]["second"] == "copied"


@pytest.mark.full
def test_quantised_weights_are_widened_in_both_and_a_plain_second_is_read_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    logging.disable_progress_bar()
    packed = BitsAndBytesConfig(load_in_8bit=True)  # refused, if it is not widened
    folder = builtin_folder("pydocs")
    AutoModelForCausalLM.from_pretrained(folder, quantization_config=packed, device_map="cpu").save_pretrained(tmp_path)
    logging.enable_progress_bar()
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    first = load_model(str(tmp_path), dequantize=True)
    asked: dict[str, Any] = {"target": " list", "against": " name", "top": 2}
    same = diff(first, "Return a", other=str(tmp_path), **asked)
    assert same.first == same.second
    whole = diff(first, "Return a", other="builtin:pydocs", **asked)
    assert whole.second == pytest.approx(whole.first, abs=0.5)
    assert whole.second != whole.first
    with pytest.raises(OptionError, match="no model can be loaded from a int"):
        diff(first, "Return a", other=3, **asked)  # type: ignore[arg-type]


def test_pages_open_the_second_so_too(room: Path, tmp_path: Path) -> None:
    words = str(room / "words")
    mined_text(
        str(room / "first"), tmp_path, "the cat sat on the mat\na dog ran to the house\n", removals=0, tokenizer=words
    )
    opening = ModelOptions(tokenizer=words)
    given = {"model": str(room / "first"), "other": str(room / "second"), "opening": opening}
    with client(tmp_path / "atlas", **given) as web:
        answer = web.get("/diff.json", params={"prompt": "the cat", "for": "x", "against": "y"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["difference"]["models"] == {"first": "first", "second": "second"}
