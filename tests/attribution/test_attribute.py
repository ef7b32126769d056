"""Who pushed a prediction: against plain hooks on the network, which set, scale and read its down-projections."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mining.conftest import byte_tokenizer
from mnemoscope.attribution import Attributor, attribute, attribute_prompts
from mnemoscope.attribution.ablations import Grid, draw_controls, powers
from mnemoscope.attribution.contrast import choose_contrast
from mnemoscope.cli import main
from mnemoscope.errors import OptionError, PromptError
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.tracing.controls import WITHIN
from models.conftest import build
from models.expert_models import MIXTURES, build_mixture

BLOCKS = ("gpt2", "gptj", "opt-350m", "gemma2", "bloom", "mixtral", "gemma4")
"""Dense, parallel, post-norm, sandwich, other attention, experts, experts behind norms of their own."""
MORE = ("gpt_neox", "opt", "olmo2", "llama", "falcon", "granite", "qwen2_moe", "deepseek_v3", "gpt_oss", "granitemoe")
PROMPT = "the cat sat on"


def tiny(name: str) -> LanguageModel:
    network = build_mixture(name) if name in MIXTURES else build(name)
    return load_model(network, tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))


def slow_difference(
    model: LanguageModel,
    tokens: list[int],
    pair: tuple[int, int],
    layer: int,
    change: Callable[[Tensor], None] = lambda _: None,
) -> float:
    """z_a - z_b after the tokens, with a layer's coefficients `[1, position, memory]` changed in place; in float64."""
    network = copy.deepcopy(model.anatomy.model).double()
    down = dict(network.named_modules())[
        next(name for name, one in model.anatomy.model.named_modules() if one is model.layer(layer).ffn.exits[0])
    ]

    def hook(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        entered = inputs[0].clone()
        change(entered.view(1, -1, entered.shape[-1]))
        return (entered,)

    down.register_forward_pre_hook(hook)
    with torch.no_grad():
        logits = network(torch.tensor([[*model.beginning.tokens, *tokens]])).logits[0, -1].double()
    if model.anatomy.softcap is not None:
        logits = torch.atanh(logits / model.anatomy.softcap) * model.anatomy.softcap
    return float(logits[pair[0]] - logits[pair[1]])


@pytest.mark.parametrize("name", [*BLOCKS, *(pytest.param(name, marks=pytest.mark.full) for name in MORE)])
def test_direct_effects_add_up_in_every_kind_of_block(name: str) -> None:
    found = attribute(tiny(name), PROMPT, singles=4, top=4)
    assert abs(found.residual_error) <= found.limit < 1e-3
    assert found.difference == pytest.approx(found.parts()["direct"].sum(), abs=found.limit)
    assert found.layers["memories"].abs().sum() > 0
    assert found.to_dict()["direct"]["head"] == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["gpt2", *(pytest.param(name, marks=pytest.mark.full) for name in BLOCKS[2:])])
def test_in_half_precision_the_parts_may_miss_by_what_it_rounds(name: str, dtype: torch.dtype) -> None:
    network = build_mixture(name) if name in MIXTURES else build(name)
    model = load_model(network.to(dtype), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    found = [
        attribute(model, PROMPT, position=at, against=against, singles=0, top=0)
        for at in (0, 3)
        for against in (None, "mean")
    ]
    sizes = [one.parts()["direct"].abs().sum() for one in found]
    for one, size in zip(found, sizes, strict=True):
        assert abs(one.residual_error) <= one.limit < 10 * torch.finfo(dtype).eps * size
    assert any(abs(one.residual_error) > 1e-5 * size for one, size in zip(found, sizes, strict=True)), "as in float32"


@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        "gemma2",
        "opt-350m",
        *(pytest.param(n, marks=pytest.mark.full) for n in ("llama", "gpt_neox", "falcon", "olmo2")),
    ],
)
def test_attributions_are_slopes_and_ablations_are_runs_without(name: str) -> None:
    model = tiny(name)
    tokens = model.encode([PROMPT])[0]
    found = attribute(model, PROMPT, singles=6, top=6)
    pair = found.target.id, found.against.id if found.against is not None else -1
    assert found.difference == pytest.approx(slow_difference(model, tokens, pair, 0), abs=1e-5)
    for row in found.memories.to_dicts():
        layer, memory = (int(part[1:]) for part in row["memory"].split("."))
        column = row["position"] + model.reading.offset

        def scaled(factor: float, layer: int = layer, place: tuple[int, int] = (column, memory)) -> float:
            def change(coefficients: Tensor) -> None:
                coefficients[0, place[0], place[1]] *= factor

            return slow_difference(model, tokens, pair, layer, change)

        assert row["ablation"] == pytest.approx(found.difference - scaled(0.0), abs=1e-5)
        slope = (scaled(1.0005) - scaled(0.9995)) / 0.001  # some norms compute in float32
        assert row["attribution"] == pytest.approx(slope, rel=5e-3, abs=5e-4)
    ordered = found.memories["ablation"].abs().to_list()
    assert ordered == sorted(ordered, reverse=True)


def test_the_mean_is_over_rows_that_have_a_token() -> None:
    model = tiny("gpt2")  # the head has more rows than the tokenizer tokens
    tokens = model.encode([PROMPT])[0]
    found = attribute(model, PROMPT, against="mean", singles=0, top=0)
    with torch.no_grad():
        logits = model.anatomy.model(torch.tensor([[*model.beginning.tokens, *tokens]])).logits[0, -1].double()
    known = [row for row, raw in enumerate(model.vocabulary()[1]) if raw]
    assert len(known) < model.sizes.vocabulary
    assert found.against is None
    assert found.difference == pytest.approx(float(logits.max() - logits[known].mean()), abs=1e-5)
    assert abs(found.residual_error) <= found.limit


@pytest.mark.parametrize("name", ["llama", "gemma2"])  # whose attention has no biases
def test_heads_add_up_to_their_layers_attention(name: str) -> None:
    found = attribute(tiny(name), PROMPT, singles=0, top=0)
    sums = found.heads.group_by("layer").agg(direct="direct").sort("layer")
    assert [sum(row) for row in sums["direct"].to_list()] == pytest.approx(
        found.layers["attention"].to_list(), abs=1e-5
    )


def test_heads_that_cannot_be_told_apart_are_null() -> None:
    found = attribute(tiny("bloom"), PROMPT, singles=0, top=0).to_dict()  # its attention adds to the stream itself
    assert found["heads"] == [{"layer": layer, "head": None, "direct": None} for layer in (0, 1)]
    assert all(found["direct"]["attention"])
    assert {"layer": 1, "head": 1} in [
        {name: row[name] for name in ("layer", "head")}
        for row in attribute(tiny("gpt2"), PROMPT, singles=0, top=0).to_dict()["heads"]
    ]


def test_prompts_on_which_no_memory_pushes_have_no_curve() -> None:
    rows = [{"prompt": text, "for": " mat", "against": " house"} for text in ("the old", "the old the")]
    found = attribute_prompts(load_model("handmade:planted"), rows)
    assert found.curve == ()
    assert (found.memories["attribution"] < 0).all()
    assert "switched off together" in str(found)


def test_the_frame_is_neither_listed_nor_switched_off() -> None:
    model = load_model(build("llama"), tokenizer=byte_tokenizer(), beginning="none")
    assert model.reading.first == 1  # without a beginning token position 0 is the frame
    found = attribute(model, PROMPT, singles=8, top=1000)
    assert found.memories["position"].min() == 1
    assert found.frame > 0
    nothing = attribute(model, "t", singles=8)
    assert nothing.memories.is_empty()
    assert nothing.curve == nothing.kept == ()
    assert "No memory outside the frame" in str(nothing)


def test_an_earlier_position_is_the_same_question_of_a_shorter_prompt() -> None:
    model = tiny("gpt2")
    long, short = attribute(model, "the cat sat", position=0), attribute(model, "the", position=-1)
    assert long.memories.drop("token").equals(short.memories.drop("token"))
    assert long.curve == short.curve


def test_the_curve_ends_with_all_that_push_and_what_is_kept_begins_with_nothing() -> None:
    model = tiny("llama")
    with model.in_use(), model.lock:
        asked = Attributor(model, choose_contrast(model, PROMPT, target=None, against=None), singles=16)
        chosen, lost = asked.singles
        order, curve, kept = asked.order, asked.curve, asked.with_a_share
    pushing = int((lost > 0).sum())
    assert order[0] == chosen[lost.argmax()]
    assert not np.isin(order[pushing:], chosen).any()
    assert (asked.attributions[order[pushing:]] > 0).all()
    assert [one.k for one in curve] == powers(len(order), 1024)
    assert curve[0].without == pytest.approx(asked.value - lost.max(), abs=1e-5)
    assert all(one.controls[0] <= one.controls[1] <= one.controls[2] for one in curve)
    assert (kept[0].only, kept[-1].only) == (kept[0].random, pytest.approx(asked.value, abs=1e-5))


def test_a_control_is_as_strong_at_the_same_place_and_never_one_of_the_chosen() -> None:
    generator = np.random.default_rng(1)
    grid = Grid((40, 40), 3)
    sizes = np.abs(generator.normal(size=int(grid.firsts[-1]))) + 0.01
    chosen = generator.choice(int(grid.firsts[-1]), 60, replace=False)
    found = draw_controls(grid, sizes, chosen, barred=np.arange(5), generator=generator)
    drawn = found[found >= 0].tolist()
    assert len(set(drawn)) == len(drawn)
    assert set(drawn).isdisjoint([*chosen.tolist(), *range(5)])
    asked = chosen[found >= 0]
    assert [each.tolist() for each in grid.split(found[found >= 0])[:2]] == [
        each.tolist() for each in grid.split(asked)[:2]
    ]
    ratios = np.abs(np.log(sizes[drawn] / sizes[asked]))
    assert (ratios <= np.log(WITHIN)).mean() > 0.3  # else the nearest that is left
    none = draw_controls(Grid((2,), 1), np.ones(2), np.arange(2), barred=np.arange(2), generator=generator)
    assert none.tolist() == [-1, -1]


def test_answers_that_begin_alike_are_asked_about_where_they_part() -> None:
    model = tiny("gpt2")
    found = attribute(model, "the cat", target="xyt", against="xyd", singles=0, top=0)
    assert (found.target.text, found.against and found.against.text, found.shared) == ("t", "d", 2)
    same = attribute(model, "the catxy", target="t", against="d", singles=0, top=0)
    assert found.difference == pytest.approx(same.difference, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": " sat", "against": " sat"}, "are one"),
        ({"target": "xyz", "against": "xy"}, "begins with the other"),
        ({"target": ""}, "an answer is empty"),
        ({"position": 99}, "position 99 is not in the prompt"),
        ({"target": "x" * 200 + "a", "against": "x" * 200 + "b"}, "the model reads at most"),
    ],
)
def test_an_impossible_question_is_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PromptError, match=said):
        attribute(tiny("gpt2"), PROMPT, **options)
    with pytest.raises(OptionError):
        attribute(tiny("gpt2"), PROMPT, by="size")  # type: ignore[arg-type]


def test_the_first_line_and_the_last_hold_all_of_a_long_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    prompt = " ".join(["the", "old", "cat", "sat", "on"] * 4)
    found = attribute(load_model("handmade:planted"), prompt, singles=2, top=2)
    first, *_, last = str(found).splitlines()
    assert first.endswith(f"after {prompt.replace(' ', '·')}")
    assert last.startswith("F with only a share kept: 0%: ")
    assert last.endswith("of random ones)")
    assert last.count("%: ") == 7
    assert len(repr(found)) < 200
    assert main(["attribute", "handmade:planted", prompt, "--singles", "2", "--top", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == str(found).splitlines()


def test_the_models_own_answer_against_itself_is_refused() -> None:
    model = load_model("handmade:planted")
    own = attribute(model, "the old", singles=0, top=0).target.text
    assert own.strip() == "house"
    with pytest.raises(PromptError, match="compared with itself"):
        attribute(model, "the old", against=own)
