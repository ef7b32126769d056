"""What changed between two runs: against plain sums, and with changes planted where they are known."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import polars as pl
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from mining.conftest import byte_tokenizer
from mnemoscope.attribution import diff, diff_prompts
from mnemoscope.cli import main
from mnemoscope.errors import ModelDiffers, OptionError, PromptError
from mnemoscope.models import LanguageModel, load_model
from models.conftest import LAYERS, build
from models.expert_models import build_mixture
from models.small_tokenizers import byte_fallback

# Peft asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

PROMPT = "the cat sat on"


def tiny(name: str) -> LanguageModel:
    return load_model(build(name), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))


def with_other_values(name: str, layer: int, *, keys: bool = False) -> LanguageModel:
    """The tiny model with changed values (and keys) in one layer."""
    network = build(name)
    ffn = load_model(network, tokenizer=byte_tokenizer()).layer(layer).ffn
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in [*ffn.exits, *([ffn.entry] if keys else [])]:
            module.weight += 0.3 * torch.randn(module.weight.shape, generator=generator)
    return load_model(network, tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))


def test_a_model_and_itself_never_part_and_nothing_of_them_differs() -> None:
    model = tiny("llama")
    never = diff(model, PROMPT, other=model)
    assert (never.said, never.to_dict()["memories"]) == (None, [])
    assert "never part within 64 tokens" in str(never)
    asked = diff(model, PROMPT, other=tiny("llama"), target="x", against="y")
    assert asked.parts.is_empty()
    assert asked.memories.is_empty()
    assert (asked.first, [one.k for one in asked.patched]) == (asked.second, ["all", "everywhere"])


@pytest.mark.parametrize(
    ("recovered", "explained"), [(1.51, True), (-0.2, True), (1.0, False), (0.0, False), (None, False)]
)
def test_more_than_the_whole_change_recovered_is_explained(recovered: float | None, explained: bool) -> None:
    found = diff(tiny("llama"), PROMPT, other=with_other_values("llama", 0), target="x", against="y")
    points = tuple(replace(one, recovered=recovered) for one in found.patched)
    assert ("recovered: the share of the change" in str(replace(found, patched=points))) == explained


@pytest.mark.parametrize("name", ["llama", "gpt2", "gptj", pytest.param("falcon", marks=pytest.mark.full)])
def test_layers_below_a_changed_one_have_no_change_and_all_set_back_is_the_first(name: str) -> None:
    first, second = tiny(name), with_other_values(name, LAYERS - 1)
    found = diff(first, PROMPT, other=second, target="x", against="y", top=1000, both=True)
    assert set(found.parts["layer"].drop_nulls()) == {LAYERS - 1}
    assert set(found.memories["memory"].str.slice(0, 2)) == {f"L{LAYERS - 1}"}
    assert found.parts["change"].sum() == pytest.approx(found.second - found.first, abs=found.limit)
    assert abs(found.residual_error) <= found.limit
    memories = float(found.parts.filter(part="memories")["change"].sum())
    assert found.memories["change"].sum() == pytest.approx(memories, abs=1e-6)
    for one in found.patched:  # only the last position counts, since nothing comes after this layer
        if one.k in ("all", "everywhere"):
            assert one.difference == pytest.approx(found.first, abs=1e-5)
            assert one.recovered == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", ["gemma2", "opt-350m", "gpt_neox", pytest.param("olmo2", marks=pytest.mark.full)])
def test_changes_add_up_and_everything_set_back_everywhere_is_the_first(name: str) -> None:
    first, second = tiny(name), with_other_values(name, 0, keys=True)
    found = diff(first, PROMPT, other=second, target="x", against="y")
    assert abs(found.residual_error) <= found.limit
    assert found.parts["change"].sum() == pytest.approx(found.second - found.first, abs=found.limit)
    assert found.patched[-1].k == "everywhere"
    assert found.patched[-1].difference == pytest.approx(found.first, abs=1e-5)  # only memories differ


def test_the_prompt_is_as_it_was_asked_and_what_both_write_stands_beside_it() -> None:
    """Both begin the text with a space of the tokenizer's, which is not the prompt's."""
    networks = build("llama"), build("llama", num_hidden_layers=2)
    with torch.no_grad():
        networks[1].lm_head.weight[:3] += 9.0
    first, second = (
        load_model(network, tokenizer=PreTrainedTokenizerFast(tokenizer_object=byte_fallback(), bos_token="<s>"))
        for network in networks
    )
    found = diff(first, "a b", other=second, target=" aab", against=" aaa", top=0).to_dict()
    assert (found["prompt"], found["continued"], found["ids"]) == ("a b", " aa", first.encode(["a b aa"])[0])
    again = diff(first, found["prompt"] + found["continued"], other=second, target="b", against="a", top=0).to_dict()
    assert (again["difference"], again["prompt"], again["continued"]) == (found["difference"], "a b aa", "")
    two = diff(first, "a b", other_prompt="b", target=" ab", against=" aa", top=0).to_dict()
    assert (two["prompts"], two["continued"]) == ({"first": "a b", "second": "b"}, " a")
    assert two["ids"] == {"first": first.encode(["a b a"])[0], "second": first.encode(["b a"])[0]}


def test_no_line_of_two_long_names_is_cut() -> None:
    model = load_model("handmade:planted")
    found = diff(model, "the old", other_prompt="the new", target=" mat", against=" house", top=4)
    named = replace(found, names=("a" * 90, "b" * 90))
    first = str(named).splitlines()[0]
    assert first.startswith(f"first ({'a' * 90}) predicts ·house, second ({'b' * 90}) ·mat: logit")
    assert first.endswith(f"{found.first:+.2f}, then {found.second:+.2f}")


def test_a_value_set_back_by_coefficient_stays_the_seconds_value() -> None:
    first, second = tiny("llama"), with_other_values("llama", LAYERS - 1)
    found = diff(first, PROMPT, other=second, target="x", against="y", patch="coefficient")
    assert found.patched[-1].difference == pytest.approx(found.second, abs=1e-5)  # only values were changed


def test_two_prompts_of_equal_length_are_compared_at_every_position() -> None:
    model = tiny("gpt2")
    found = diff(model, "the cat sat", other_prompt="the on sat", target="x", against="y", top=1000, both=True)
    assert found.memories["effect"].to_list() == sorted(found.memories["effect"], reverse=True)
    assert found.memories["position"].n_unique() > 1
    earlier = found.memories.filter(pl.col("position") < found.memories["position"].max())
    assert (earlier["direct_first"] == 0).all()
    assert abs(found.residual_error) <= found.limit
    other = diff(model, "the cat sat on", other_prompt="the cat", target="x", against="y")
    assert "effect" not in other.memories.columns
    assert other.memories["position"].n_unique() == 1
    assert any("differ in length" in note for note in other.notes)


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "glm4_moe"])
def test_memories_of_experts_that_only_the_first_prompt_chose_are_ranked_and_set_back(name: str) -> None:
    """Beside a run in which the modules' outputs are replaced by the first's, whatever experts they came from."""
    network = build_mixture(name)
    model = load_model(network, tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    prompts = "the cat sat", "the on sat"
    found = diff(model, prompts[0], other_prompt=prompts[1], target="x", against="y", both=True, top=100_000)
    outputs: list[torch.Tensor] = []
    back: list[torch.Tensor] = []
    since = [0]

    def see(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        if back:
            output = torch.cat([output[:, : since[0]], back[len(outputs)][:, since[0] :]], 1)
        outputs.append(output.detach().requires_grad_() if not output.requires_grad else output)
        return outputs[-1]

    hooks = [layer.mlp.register_forward_hook(see) for layer in network.model.layers]

    def run(prompt: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
        outputs.clear()
        logits = network(torch.tensor([[model.reading.before[0], *model.prompt_tokens(prompt)]])).logits[0, -1]
        one, other = (model.prompt_tokens(text)[0] for text in ("x", "y"))
        return logits[one] - logits[other], list(outputs)

    with torch.enable_grad():
        first, second = run(prompts[0]), run(prompts[1])
        slope = torch.autograd.grad(second[0], second[1][-1])[0]
    effect = ((second[1][-1] - first[1][-1]) * slope)[0, 1:].sum().item()
    upper = found.memories.filter(pl.col("memory").str.starts_with(f"L{LAYERS - 1}."))
    assert found.memories.filter(pl.col("coefficient_second") == 0).height > 0
    assert upper["effect"].sum() == pytest.approx(effect, abs=1e-6)
    back += [one.detach() for one in first[1]]
    for since[0], k in ((len(model.prompt_tokens(prompts[1])), "all"), (1, "everywhere")):
        (patched,) = (one for one in found.patched if one.k == k)
        assert patched.difference == pytest.approx(run(prompts[1])[0].item(), abs=1e-5)
    for hook in hooks:
        hook.remove()


def test_two_states_of_one_network_are_no_two_models() -> None:
    """Both would be read anew as what is active now, and answer alike."""

    def lora() -> Any:
        return peft.LoraConfig(r=2, target_modules=["down_proj"], init_lora_weights=False)

    def load(network: Any) -> LanguageModel:
        return load_model(network, tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))

    network = build("llama")
    plain, alone = load(network), load(copy.deepcopy(network))
    torch.manual_seed(1)
    adapted = peft.get_peft_model(network, lora()).eval()
    adapted.add_adapter("second", lora())
    first = load(adapted)
    adapted.set_adapter("second")
    second = load(adapted)
    with adapted.disable_adapter():
        off = load(adapted)
    shallow = load(copy.copy(network))  # another object with the same adapters inside
    rows = [{"prompt": PROMPT}]
    for one, other in ((first, second), (second, first), (first, off), (plain, second), (second, shallow)):
        said = r"^both models hold one network \(memory:LlamaForCausalLM\+?\w*\), and are what is active in it now"
        for ask in (lambda a, b: diff(a, PROMPT, other=b), lambda a, b: diff_prompts(a, rows, other=b)):
            with pytest.raises(OptionError, match=said) as refused:
                ask(one, other)
            assert "\n" not in str(refused.value)
    # As the line says: a network of its own.
    own = load(copy.deepcopy(adapted))
    adapted.set_adapter("default")
    found = diff(own, PROMPT, other=first, target="x", against="y")
    assert found.first != found.second
    assert diff(alone, PROMPT, other=first, target="x", against="y").second == found.second


def test_networks_that_share_a_part_which_nothing_switches_are_two_models() -> None:
    network, other = build("llama"), build("llama")
    other.model.layers[0] = network.model.layers[0]
    with torch.no_grad():
        other.model.layers[-1].mlp.down_proj.weight += 0.3
    first, second = (load_model(each, tokenizer=byte_tokenizer(bos_token="<|endoftext|>")) for each in (network, other))
    found = diff(first, PROMPT, other=second, target="x", against="y")
    assert set(found.parts["layer"].drop_nulls()) == {LAYERS - 1}


def test_over_prompts_the_changed_memories_come_first(tmp_path: Path) -> None:
    first, second = tiny("llama"), with_other_values("llama", LAYERS - 1)
    rows = [{"prompt": text, "for": "x", "against": "y"} for text in ("the cat", "a dog sat", "on the mat")]
    found = diff_prompts(first, [*rows, {"prompt": ""}], other=second, top=1000, both=True)
    assert (found.prompts, found.never_parted, len(found.refused)) == (3, 0, 1)
    single = [diff(first, row["prompt"], other=second, target="x", against="y", top=1000, both=True) for row in rows]
    for row in found.memories.head(5).to_dicts():
        each = [dict(zip(*one.memories.select("memory", "change"), strict=True)) for one in single]
        assert row["change"] == pytest.approx(sum(one.get(row["memory"], 0.0) for one in each) / 3, abs=1e-9)
        assert row["low"] <= row["change"] <= row["high"]
    assert found.patched[-1]["recovered"] == pytest.approx(1, abs=1e-3)


def test_impossible_comparisons_are_refused_in_one_line(tmp_path: Path) -> None:
    model = tiny("gpt2")
    for options, said in (
        ({}, "give one of --other"),
        ({"other": model, "other_prompt": "a"}, "give one of --other"),
        ({"other": model, "target": "x"}, "give both"),
        ({"other": model, "patch": "value"}, "patch.*choose one of contribution, coefficient"),
        ({"other_adapter": "lora"}, "the model was given in memory"),
    ):
        with pytest.raises(OptionError, match=said.replace("--", "(--)?").replace("other", "other(_\\w+)?")):
            diff(model, PROMPT, **options)  # type: ignore[arg-type]
    with pytest.raises(ModelDiffers, match="layers and memories"):
        diff(model, PROMPT, other=load_model("handmade:planted"))
    with pytest.raises(PromptError, match="the other prompt is the prompt itself"):
        diff(model, PROMPT, other_prompt=PROMPT)
    with pytest.raises(PromptError, match=r"answers .* are one"):
        diff(model, PROMPT, other=model, target="x", against="x")


def test_the_command_prints_the_document_of_the_contract(capsys: Any, tmp_path: Path) -> None:
    asked = ["--other-prompt", "the new", "--for", " mat", "--against", " house", "--json"]
    assert main(["diff", "handmade:planted", "the old", *asked]) == 0
    found = json.loads(capsys.readouterr().out)
    names = {"prompts", "tokens", "difference", "parts", "residual_error", "memories", "patched", "turns_at"}
    assert set(found) >= names
    assert found["made_by"]["seed"] == 0
    (tmp_path / "p.jsonl").write_text('{"prompt": "the old"}\n{"text": 1}\n')
    for verb in ("diff", "attribute"):  # before the model, which there is not, is looked for
        assert main([verb, "handmade:nothing", "--prompts", str(tmp_path / "p.jsonl")]) == 2
        assert "p.jsonl:2 is not" in capsys.readouterr().err.splitlines()[-1]
    (tmp_path / "p.jsonl").write_text('{"prompt": "the old"}\n')
    assert main(["diff", "handmade:nothing", "--prompts", str(tmp_path / "p.jsonl")]) == 2
    assert "every prompt has an other_prompt, or --other" in capsys.readouterr().err.splitlines()[-1]
    assert main(["attribute", "handmade:planted", "the old", "--json", "--singles", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["direct"]) == {"embedding", "attention", "memories", "other", "biases", "head"}
    assert main(["attribute", "handmade:planted"]) == 2
