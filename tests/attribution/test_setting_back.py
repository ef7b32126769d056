"""Memories set back while the second model writes, and on prompts on which they were not found: beside plain hooks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attribution.test_diff import PROMPT, tiny, with_other_values
from mining.conftest import byte_tokenizer
from mnemoscope import open_result
from mnemoscope.attribution import Differ, diff, diff_prompts
from mnemoscope.cli import main
from mnemoscope.errors import OptionError
from mnemoscope.models import LanguageModel, load_model
from models.conftest import LAYERS, build

LAST = LAYERS - 1
TEXTS = "the cat,a dog sat,on the mat,cats,he said,x y,we are,no one,my,of it,then,so do I,what is,old,new,big cats"
ROWS = [{"prompt": text} for text in TEXTS.split(",")]


def slow_scores(
    first: LanguageModel, second: LanguageModel, words: list[int], memories: list[str], start: int
) -> torch.Tensor:
    """The second network's logits `[position, vocab]`, its memories' m2 v2 replaced by m1 v1 from a column on."""
    ids = torch.tensor([[*first.reading.before, *words]])
    entered: dict[tuple[str, int], torch.Tensor] = {}
    networks = {"first": first.anatomy.model, "second": second.anatomy.model}

    def seen(name: str, layer: int) -> Any:
        return lambda _, inputs: entered.update({(name, layer): inputs[0].detach().clone()})

    def changed(layer: int, numbers: list[int]) -> Any:
        def change(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
            output = output.clone()
            for name, sign in (("first", 1), ("second", -1)):
                matrix = networks[name].model.layers[layer].mlp.down_proj.weight.detach()
                for number in numbers:
                    output[0, start:] += sign * entered[name, layer][0, start:, number, None] * matrix[:, number]
            return output

        return change

    hooks = []
    for layer in range(LAYERS):
        numbers = [int(name.partition(".M")[2]) for name in memories if name.startswith(f"L{layer}.")]
        hooks += [
            net.model.layers[layer].mlp.down_proj.register_forward_pre_hook(seen(name, layer))
            for name, net in networks.items()
        ]
        hooks.append(
            second.anatomy.model.model.layers[layer].mlp.down_proj.register_forward_hook(changed(layer, numbers))
        )
    with torch.no_grad():
        networks["first"](ids)
        scores: torch.Tensor = networks["second"](ids).logits[0]
    for hook in hooks:
        hook.remove()
    return scores


def slow_text(
    first: LanguageModel, second: LanguageModel, begun: list[int], memories: list[str], count: int
) -> list[int]:
    words = list(begun)
    for _ in range(count):
        start = len(first.reading.before) + len(begun) - 1
        words.append(int(slow_scores(first, second, words, memories, start)[-1].argmax()))
    return words[len(begun) :]


@pytest.mark.parametrize("layer", [0, LAST])
def test_the_second_writes_with_memories_set_back(layer: int) -> None:
    first, second = tiny("llama"), with_other_values("llama", layer, keys=True)
    found = diff(first, PROMPT, other=second, generate=5, restored=3)
    names, begun = found.memories["memory"].head(3).to_list(), list(found.ids[1])
    ids = {one.by: [step.token.id for step in one.steps] for one in found.written}
    assert ids == {
        "first": slow_text(first, first, begun, [], 5),
        "second": slow_text(first, second, begun, [], 5),
        "set back": slow_text(first, second, begun, names, 5),
    }
    assert found.said is not None
    assert (ids["first"][0], ids["second"][0]) == tuple(token.id for token in found.said)
    assert [one.memories for one in found.written] == [None, None, 3]
    again = diff(first, PROMPT, other=second, generate=1, restored=4)
    assert again.written[2].steps[0].token.id == next(one.top_token.id for one in found.patched if one.k == 4)
    assert "set back, 3 memories, writes" in str(found)
    assert found.to_dict()["written"][2]["memories"] == 3


def slightly_other(noise: float) -> LanguageModel:
    """Answers some prompts as the tiny model does."""
    network = build("llama")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        weight = network.model.layers[LAST].mlp.down_proj.weight
        weight += noise * torch.randn(weight.shape, generator=generator)
    return load_model(network, tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))


def test_held_out_prompts_are_told_from_those_that_found_the_memories(tmp_path: Path) -> None:
    first, second = tiny("llama"), slightly_other(0.015)
    whole = diff_prompts(first, ROWS, other=second, seed=3)
    with Differ(first, second) as differ:
        asked = [differ.find_parting(row["prompt"], None, None, None) for row in ROWS]
        every = [differ.explain(one, both=True, top=1000, patched=False) for one in asked]
    parted, agreed = ([one for one in every if (one.said is None) == never] for never in (False, True))
    assert len(parted) > 2
    assert whole.never_parted == len(agreed) > 0
    order = np.random.default_rng((3, 4)).permutation(len(parted))
    half = (len(parted) + 1) // 2
    assert whole.halves == (half, len(parted) - half)
    sums: dict[str, float] = {}
    for at in order[:half]:
        for name, change in parted[at].memories.select("memory", "change").rows():
            sums[name] = sums.get(name, 0.0) + change
    best = sorted((name for name in sums if sums[name] > 0), key=lambda name: -sums[name])
    assert [one["k"] for one in whole.held_out][-1] == len(best)
    before = len(first.reading.before)
    for row in whole.held_out:
        chosen, gone, as_first, changed = best[: row["k"]], 0, 0, 0
        for at in order[half:]:
            words, said = list(parted[at].ids[1]), parted[at].said
            assert said is not None
            token = int(slow_scores(first, second, words, chosen, before + len(words) - 1)[-1].argmax())
            gone, as_first = gone + (token != said[1].id), as_first + (token == said[0].id)
        for one in agreed:
            words, asked = list(one.ids[1]), len(first.prompt_tokens(one.prompts[0]))
            answer = words[asked : asked + 8]
            scores = slow_scores(first, second, words[: asked + len(answer) - 1], chosen, before + asked - 1)
            changed += scores[-len(answer) :].argmax(1).tolist() != answer
        held = len(parted) - half
        assert row["gone"] == pytest.approx(gone / held)
        assert row["as_first"] == pytest.approx(as_first / held)
        assert row["changed"] == pytest.approx(changed / len(agreed))
        assert 0 <= (row["control_gone"] or 0) <= 1
    assert "answer gone" in str(whole)
    path = whole.save(tmp_path / "saved.json")
    assert open_result(path).held_out == whole.held_out
    assert [row["memory"] for row in json.loads(whole.save_list(tmp_path / "list").read_text())["memories"]]


def test_one_prompt_alone_holds_nothing_out() -> None:
    whole = diff_prompts(tiny("llama"), [{"prompt": PROMPT}], other=with_other_values("llama", LAST))
    assert (whole.held_out, whole.halves) == ((), (1, 0))


def test_nothing_is_written_where_answers_never_part() -> None:
    model = tiny("llama")
    assert diff(model, PROMPT, other=tiny("llama"), generate=4, restored=2).written == ()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"other_prompt": "the on", "generate": 2}, "are for two models"),
        ({"other_prompt": "the on", "restored": 2}, "are for two models"),
        ({"restored": 129}, "at most the 128 memories that are listed"),
        ({"restored": -1}, "restored=-1 is impossible; it must be 1 or more"),
        ({"generate": -1}, "generate=-1 is impossible; it must be 0 or more"),
    ],
)
def test_what_cannot_be_set_back_is_refused(options: dict[str, Any], sentence: str) -> None:
    other = {} if "other_prompt" in options else {"other": with_other_values("llama", LAST)}
    with pytest.raises(OptionError, match=sentence):
        diff(tiny("llama"), PROMPT, **other, **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--other-prompt", "b", "--restored", "2", "--generate", "2"], "are for two models"),
        (["--other", "x", "--restored", "2"], "--restored needs --generate N, --save FOLDER or --fail-if EXPR"),
        (["--other", "x", "--save", "new"], "--save needs --restored K"),
        (["--other", "x", "--restored", "0", "--generate", "2"], "--restored 0 is impossible"),
        (["--other", "builtin:pydocs", "--restored", "2", "--save", "."], ". holds something; choose another folder"),
    ],
)
def test_the_command_refuses_before_anything_is_loaded(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    assert main(["diff", "builtin:pydocs", "a", *options]) == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]
