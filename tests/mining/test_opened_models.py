"""How a model is opened is part of the plan: a resume with another adapter is told, and merge takes the plan's."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mining.conftest import byte_tokenizer, stop_at, tables_of, tiny_model
from mnemoscope.atlas import open_atlas
from mnemoscope.errors import Interrupted, ModelDiffers, OptionError, PlanDiffers
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelOptions
from mnemoscope.mining import merge, mine
from mnemoscope.models import load_model
from mnemoscope.web import Settings
from mnemoscope.web.app import create_app
from models.test_probed import adapted, network_of

# It asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

OPTIONS: dict[str, Any] = {"split": "line", "triggers": 5, "batch_tokens": 60, "removals": 4, "prefixes": 20}


@pytest.fixture
def opened(tmp_path: Path) -> dict[str, str]:
    """The folders of a model without a tokenizer, of an adapter for it, of another, and of a tokenizer."""
    network_of("llama").save_pretrained(tmp_path / "base")
    adapted("llama").save_pretrained(tmp_path / "first")
    other = adapted("llama")
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if "lora_A" in name:
                parameter.mul_(2)
    other.save_pretrained(tmp_path / "second")
    byte_tokenizer().save_pretrained(tmp_path / "words")
    return {name: str(tmp_path / name) for name in ("base", "first", "second", "words")}


@pytest.mark.full
def test_a_resume_with_another_adapter_is_another_plan(opened: dict[str, str], text: Path, tmp_path: Path) -> None:
    named = {"tokenizer": opened["words"], "out": tmp_path / "atlas", **OPTIONS}
    with pytest.raises(Interrupted):
        mine(opened["base"], text, adapter=opened["first"], progress=stop_at("values"), **named)
    with pytest.raises(PlanDiffers, match=r"adapter was '.*first', now '.*second'"):
        mine(opened["base"], text, adapter=opened["second"], **named)
    with pytest.raises(PlanDiffers, match=r"adapter was '.*first', now None"):
        mine(opened["base"], text, **named)
    atlas = open_atlas(mine(opened["base"], text, adapter=opened["first"], **named))
    assert atlas.manifest.model.spec == "base+first"
    plan = {name: atlas.manifest.plan[name] for name in ("model", "adapter", "tokenizer", "dequantize", "revision")}
    assert plan == {"model": "base", "adapter": "first", "tokenizer": "words", "dequantize": False, "revision": None}


@pytest.mark.full
def test_merge_and_serve_open_the_model_as_it_was_mined(opened: dict[str, str], text: Path, tmp_path: Path) -> None:
    named = {"tokenizer": opened["words"], "adapter": opened["first"], **OPTIONS}
    whole = mine(opened["base"], text, out=tmp_path / "whole", **named)
    parts = [mine(opened["base"], text, out=tmp_path / f"part-{i}", part=(i, 2), **named) for i in (1, 2)]
    assert tables_of(merge(tmp_path / "merged", parts)) == tables_of(whole)
    Path(opened["first"]).rename(tmp_path / "moved")
    moved = merge(tmp_path / "again", parts, adapter=str(tmp_path / "moved"))
    assert tables_of(moved) == tables_of(whole)
    with pytest.raises(ModelDiffers, match="with model fingerprint"):
        merge(tmp_path / "other", parts, adapter=opened["second"])
    (tmp_path / "moved").rename(opened["first"])
    served = create_app(Settings(whole, opened["base"])).state.site
    assert (served.model.differs, served.model.model.opening.adapter) == ("", opened["first"])
    with pytest.raises(ModelDiffers, match="second is not the model"):
        create_app(Settings(whole, opened["base"], opening=ModelOptions(adapter=opened["second"])))


@pytest.mark.full
def test_a_model_that_is_loaded_is_opened_already(opened: dict[str, str], text: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="adapter"):
        mine(tiny_model("llama"), text, out=tmp_path / "a", adapter=opened["first"])
    model = load_model(opened["base"], tokenizer=opened["words"], adapter=opened["first"])
    atlas = open_atlas(mine(model, text, out=tmp_path / "b", **OPTIONS))
    assert atlas.manifest.plan["adapter"] == "first"


def test_what_a_plan_says_counts_where_nothing_else_was_said() -> None:
    plan = {"revision": "old", "adapter": "a", "dequantize": True, "triggers": 5}
    assert AS_USUAL.or_planned(plan) == ModelOptions(revision="old", adapter="a", dequantize=True)
    own = ModelOptions(adapter="b", trust_remote_code=True)
    planned = {"revision": "old", "adapter": "b", "dequantize": True, "trust_remote_code": True}
    assert own.or_planned(plan).keywords() == planned
    assert own.words() == ["--adapter", "b", "--trust-remote-code"]
    assert AS_USUAL.or_planned({}) == AS_USUAL
