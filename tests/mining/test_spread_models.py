"""An atlas of a model that is spread over CPU and disk is that of one that is not, byte for byte."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mining.conftest import byte_tokenizer, odd_text, stop_at, tables_of
from mnemoscope.atlas import open_atlas
from mnemoscope.cli import main
from mnemoscope.errors import Interrupted
from mnemoscope.foundation.options.model_options import ModelOptions
from mnemoscope.mining import merge, mine
from mnemoscope.mining.text.thread_team import ThreadTeam
from mnemoscope.models import load_model
from mnemoscope.web import Settings
from mnemoscope.web.app import create_app
from models.conftest import CASES, build
from models.expert_models import build_mixture

OPTIONS: dict[str, Any] = {"split": "line", "triggers": 5, "batch_tokens": 200, "removals": 4, "prefixes": 20}


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is shared out between two threads of one core each, as on a machine with two cores."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)


def save(name: str, folder: Path) -> str:
    (build if name in CASES else build_mixture)(name).save_pretrained(folder)
    byte_tokenizer(bos_token="<|endoftext|>", eos_token="<|endoftext|>").save_pretrained(folder)
    return str(folder)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(odd_text(12))
    return path


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["llama", "gemma4", "mixtral"])
@pytest.mark.usefixtures("two_threads")
def test_an_atlas_does_not_tell_where_the_model_lay(name: str, text: Path, tmp_path: Path) -> None:
    folder = save(name, tmp_path / "model")
    spread = load_model(folder, max_memory="0B")
    assert ThreadTeam.of(spread).size == 2
    one, other = mine(folder, text, out=tmp_path / "a", **OPTIONS), mine(spread, text, out=tmp_path / "b", **OPTIONS)
    assert tables_of(one) == tables_of(other)
    plans = [open_atlas(atlas).manifest.plan for atlas in (one, other)]
    assert plans[0] == plans[1]


@pytest.mark.full
def test_a_run_goes_on_wherever_the_model_lies(text: Path, tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "model")
    whole = mine(folder, text, out=tmp_path / "whole", **OPTIONS)

    with pytest.raises(Interrupted):
        mine(folder, text, out=tmp_path / "atlas", progress=stop_at("values"), **OPTIONS)
    resumed = mine(folder, text, out=tmp_path / "atlas", max_memory="0B", **OPTIONS)
    parts = [
        mine(folder, text, out=tmp_path / f"part-{i}", part=(i, 2), max_memory=memory, **OPTIONS)
        for i, memory in ((1, None), (2, {"cpu": 0}))
    ]
    merged = merge(tmp_path / "merged", parts, max_memory="0B")
    assert tables_of(whole) == tables_of(resumed) == tables_of(merged)
    served = create_app(Settings(whole, folder, opening=ModelOptions(max_memory="0B"))).state.site
    assert (served.model.differs, served.model.model.lies_on) == ("", ("disk",))


def test_a_model_that_somebody_else_has_spread_is_run_by_one_thread(text: Path, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    network = accelerate.cpu_offload(build("llama"), execution_device=torch.device("cpu"))
    tokenizer = byte_tokenizer(bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    spread = load_model(network, tokenizer=tokenizer)
    assert ThreadTeam.of(spread).size == 1
    one = mine(spread, text, out=tmp_path / "a", **OPTIONS)
    other = mine(load_model(build("llama"), tokenizer=tokenizer), text, out=tmp_path / "b", **OPTIONS)
    assert tables_of(one) == tables_of(other)


def test_the_command_line_says_where_the_model_lies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save("llama", tmp_path / "model")
    assert main(["inspect", folder, "--max-memory", "40KB"]) == 0
    assert "  numbers     float32 on cpu and disk\n" in capsys.readouterr().out
    assert main(["inspect", folder, "--max-memory", "0B", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["device"], facts["lies_on"]) == ("cpu", ["disk"])
    assert main(["trace", folder, "the cat", "--max-memory", "0B", "--set", "L1.M3=0"]) == 0
    assert "L1.M3" in capsys.readouterr().out
    assert main(["inspect", folder, "--max-memory", "a lot"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("mnemoscope: --max-memory 'a lot' does not say how much")
