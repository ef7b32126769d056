"""Shares of a change of weights by layer and module, against differences of whole state dicts, and adapters merged."""

import copy
import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

import mnemoscope as ms
from mnemoscope.atlas.derived_manifest import describe_changes
from mnemoscope.attribution import diff_prompts
from mnemoscope.cli.app import run_verb
from mnemoscope.foundation.options.prompt_file import read_prompts
from mnemoscope.models import LanguageModel
from mnemoscope.models.modules import linear_maps
from mnemoscope.models.weight_changes import weight_changes
from models.conftest import HIDDEN, MEMORIES, build
from models.test_adapters import save_adapter, save_base, trained
from models.test_probed import load

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


def squares(before: Any, after: Any) -> dict[str, float]:
    """The squared norm of the difference by module, from state dicts."""
    found: dict[str, float] = {}
    others = after.state_dict()
    for name, weight in before.state_dict().items():
        apart = float((others[name].double() - weight.double()).square().sum())
        module = name.rpartition(".")[0]
        if apart:
            found[module] = found.get(module, 0.0) + apart
    return found


def named(model: LanguageModel, other: LanguageModel, blocks: str) -> dict[str, tuple[float, float]]:
    rows = weight_changes(model, other).to_dicts()
    return {
        (row["module"] if row["layer"] is None else f"{blocks}.{row['layer']}.{row['module']}"): (
            row["change"],
            row["share"],
        )
        for row in rows
    }


@pytest.mark.parametrize(("name", "blocks"), [("gpt2", "transformer.h"), ("llama", "model.layers")])
def test_a_fine_tune_against_its_state_dict(name: str, blocks: str) -> None:
    before = build(name)
    after = copy.deepcopy(before)
    torch.manual_seed(0)
    with torch.no_grad():
        for number, (path, weight) in enumerate(after.named_parameters()):
            if number % 3 == 0 or "norm" in path or "ln_" in path:
                weight.add_(0.01 * (number + 1) * torch.randn_like(weight))
    expected = squares(before, after)
    expected.pop("lm_head", None)  # tied
    found = named(load(before), load(after), blocks)
    assert found.keys() == expected.keys()
    whole = sum(expected.values())
    for path, (change, share) in found.items():
        assert (change**2, share) == pytest.approx((expected[path], expected[path] / whole), rel=1e-4)
    assert sum(share for _, share in found.values()) == pytest.approx(1)


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"use_rslora": True}])
def test_an_adapter_is_what_it_adds(options: dict[str, Any]) -> None:
    before = build("llama")
    targets = ["down_proj", "q_proj"]
    config = peft.LoraConfig(r=2, lora_alpha=8, target_modules=targets, layers_to_transform=[1], **options)
    adapted = trained(copy.deepcopy(before), config)
    merged = copy.deepcopy(adapted).merge_and_unload()
    expected = squares(before, merged)
    found = {name: row for name, row in named(load(before), load(adapted), "model.layers").items() if row[1] > 1e-6}
    assert found.keys() == expected.keys() == {"model.layers.1.mlp.down_proj", "model.layers.1.self_attn.q_proj"}
    for path, (change, _) in found.items():
        assert change**2 == pytest.approx(expected[path], rel=1e-3)
    backwards = weight_changes(load(adapted), load(before))
    assert backwards["change"][0] == pytest.approx(max(change for change, _ in found.values()), rel=1e-5)


INPUTS = {"down_proj": MEMORIES, "q_proj": HIDDEN, "c_fc": HIDDEN, "c_attn": HIDDEN}
LORA: dict[str, Any] = {"r": 3, "lora_alpha": 8, "target_modules": list(INPUTS)}


def outputs(module: Any, size: int) -> torch.Tensor:
    """A module's matrix and bias as one row, by what it gives for unit vectors and for zeros."""
    with torch.no_grad():
        bias = module(torch.zeros(1, size))
        return torch.cat([module(torch.eye(size)) - bias, bias]).double().flatten()


@pytest.mark.parametrize("case", ["llama", "gpt2", "two", "merged", "off", "other base", "both", "bias", "dora"])
def test_a_lora_is_multiplied_out_as_its_outputs_are(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conv = case in ("gpt2", "bias")
    before, blocks = (build("gpt2"), "transformer.h") if conv else (build("llama"), "model.layers")
    adapted = trained(
        copy.deepcopy(before),
        peft.LoraConfig(**LORA, lora_bias=case == "bias", use_dora=case == "dora", fan_in_fan_out=conv),
    )
    if case == "two":
        adapted.add_adapter("second", peft.LoraConfig(**{**LORA, "r": 2}))
        adapted.base_model.set_adapter(["default", "second"])
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B.second" in name or (case == "other base" and "q_proj.base_layer" in name):
                weight.add_(0.1 * torch.randn_like(weight))
    if case == "both":
        before = trained(before, peft.LoraConfig(**{**LORA, "r": 1})).base_model.model
    if case == "merged":
        adapted.merge_adapter()
    if case == "off":
        adapted.base_model.disable_adapter_layers()
    after = adapted.base_model.model
    expected = {}
    for path, module in before.named_modules():
        if (size := INPUTS.get(path.rpartition(".")[2])) is not None:
            expected[path] = outputs(module, size), outputs(after.get_submodule(path), size)
    first, second = load(before), load(after)
    probe, probed = linear_maps.probe, []

    def counted(module: Any) -> torch.Tensor:
        probed.append(module)
        return probe(module)

    monkeypatch.setattr(linear_maps, "probe", counted)
    for pair, swapped in (((first, second), False), ((second, first), True)):
        rows = {f"{blocks}.{row['layer']}.{row['module']}": row for row in weight_changes(*pair).to_dicts()}
        assert rows.keys() == (set() if case == "off" else expected.keys())
        for path, row in rows.items():
            change, size = (expected[path][1] - expected[path][0]).norm(), expected[path][swapped].norm()
            assert (row["change"], row["relative"]) == pytest.approx((float(change), float(change / size)), rel=1e-4)
    assert bool(probed) == (case in ("bias", "dora"))
    assert weight_changes(second, second).is_empty()


def test_one_model_and_models_of_other_shapes_have_no_rows() -> None:
    one = load(build("llama"))
    assert weight_changes(one, load(build("llama"))).is_empty()
    assert weight_changes(one, load(build("gpt2"))).is_empty()


def test_diff_of_many_prompts_tells_which_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, adapter = save_base(tmp_path / "base", "llama"), save_adapter(tmp_path / "adapter", "llama")
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": "a b", "for": "c", "against": "d"}))
    words = ["diff", base, "--prompts", str(file), "--other-adapter", adapter]
    assert run_verb([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["weights"]
    one = ms.diff(ms.load_model(base), "a b", other_adapter=adapter, target="c", against="d")
    assert rows == one.weights.to_dicts()
    assert run_verb(words) == 0
    assert describe_changes(one.weights)[0] in capsys.readouterr().out.splitlines()
    found = diff_prompts(ms.load_model(base), read_prompts(file), other_adapter=adapter)
    assert ms.open_result(found.save(tmp_path / "saved.json")).weights.equals(one.weights)
    twice = [{"prompt": "a b", "other_prompt": "a c", "for": "c", "against": "d"}]
    assert diff_prompts(ms.load_model(base), twice).weights.is_empty()


def test_diff_tells_which_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, adapter = save_base(tmp_path / "base", "llama"), save_adapter(tmp_path / "adapter", "llama")
    words = ["diff", base, "a b", "--other-adapter", adapter, "--for", "c", "--against", "d"]
    assert run_verb([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["weights"]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert run_verb(words) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Weights changed")]
    shares: dict[str, float] = {}
    for row in rows:
        shares[row["module"]] = shares.get(row["module"], 0) + row["share"]
    best = max(shares, key=lambda one: shares[one])
    assert f": {best} {shares[best]:.1%}, " in line
    found = ms.diff(ms.load_model(base), "a b", other_adapter=adapter, target="c", against="d")
    opened = ms.open_result(found.save(tmp_path / "saved.json"))
    assert opened.weights.equals(found.weights)
    assert describe_changes(found.weights) == [line]
    assert ms.diff(ms.load_model(base), "a b", other_prompt="a c", target="c", against="d").weights.is_empty()
