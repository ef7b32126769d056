"""Who pushed the prediction at a mask, beside a slow reading: its own gradients, ablations and setting back."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mnemoscope as ms
from mnemoscope.attribution import Attribution, attribute, attribute_prompts, diff, diff_prompts
from mnemoscope.cli import main
from mnemoscope.errors import OptionError, PromptError
from mnemoscope.models import LanguageModel
from models.masked_models import KINDS, MASK, SlowMasked, build_masked, load_masked, masked_pair, masked_tokenizer
from support.mined import mined_text

TEXT = "w9 w8 w12 w17 w30"
AT = 1
ASKED = [9, MASK, 12, 17, 30]
PAIR = (20, 33)


@pytest.fixture(scope="module")
def bert() -> tuple[LanguageModel, SlowMasked]:
    return masked_pair("bert")


def slow_difference(
    slow: SlowMasked, tokens: list[int], changes: Any = None, pair: tuple[int, int] = PAIR
) -> tuple[float, list[Tensor]]:
    """z_a - z_b at the mask, and the coefficients of every layer."""
    with torch.no_grad():
        blocks, logits = slow.read(tokens, changes or {})
    row = logits[tokens.index(MASK) + 1]
    return float(row[pair[0]] - row[pair[1]]), [block.coefficients for block in blocks]


def put(layer: int, column: int, memory: int, value: float) -> dict[int, Any]:
    def change(coefficients: Tensor) -> None:
        coefficients[column, memory] = value

    return {layer: change}


def place(row: dict[str, Any], name: str = "memory", at: str = "position") -> tuple[int, int, int]:
    layer, memory = (int(part[1:]) for part in row[name].split("."))
    return layer, row[at] + 1, memory


def asked(model: LanguageModel, **options: Any) -> Attribution:
    return attribute(model, TEXT, mask=AT, target="w20", against=" w33", progress=False, **options)


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_add_up_to_f_at_the_mask(kind: str) -> None:
    model, slow = masked_pair(kind)
    found = asked(model, singles=0, top=200)
    value, coefficients = slow_difference(slow, ASKED)
    assert (found.target.id, found.against.id if found.against else 0) == PAIR
    assert found.difference == pytest.approx(value, abs=1e-5)
    assert abs(found.residual_error) <= found.limit < 1e-3
    assert found.parts()["direct"].sum() == pytest.approx(value, abs=found.limit)
    assert (found.position, found.mask, found.tokens[found.mask or 0]) == (AT, AT + 1, "<mask>")
    assert found.head != 0  # every such head has a function inside
    for row in found.memories.to_dicts():
        layer, column, memory = place(row)
        assert row["coefficient"] == pytest.approx(float(coefficients[layer][column, memory]), abs=1e-4)
        assert row["direct"] == 0 or row["position"] == AT


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", KINDS)
def test_attributions_are_gradients_and_ablations_are_runs_without(kind: str) -> None:
    model, slow = masked_pair(kind)
    found = asked(model, singles=12, top=1_000)
    added = {layer: torch.zeros(7, 24, dtype=torch.float64, requires_grad=True) for layer in range(3)}
    adding = {layer: lambda m, zero=zero: m.add_(zero) for layer, zero in added.items()}
    blocks, logits = slow.read(ASKED, adding)
    row, read = logits[AT + 1], [block.coefficients.detach() for block in blocks]
    gradients = torch.autograd.grad(row[PAIR[0]] - row[PAIR[1]], list(added.values()))
    listed = found.memories.to_dicts()
    assert len(listed) > 200
    assert {row["position"] for row in listed} == {*range(5)}  # on both sides of the mask, in no end of the frame
    for row_of in listed:
        layer, column, memory = place(row_of)
        expected = read[layer][column, memory] * gradients[layer][column, memory]
        assert row_of["attribution"] == pytest.approx(float(expected), abs=2e-5)
    frame = sum(float((m * gradient)[[0, -1]].abs().sum()) for m, gradient in zip(read, gradients, strict=True))
    assert found.frame == pytest.approx(frame, abs=1e-4)
    for row_of in listed[:12]:
        without, _ = slow_difference(slow, ASKED, put(*place(row_of), 0.0))
        assert row_of["ablation"] == pytest.approx(found.difference - without, abs=2e-5)
    best = max(listed[:12], key=lambda one: one["ablation"])
    assert found.curve[0].without == pytest.approx(found.difference - best["ablation"], abs=1e-6)


def test_edges_lead_to_every_position_of_a_later_layer(bert: tuple[LanguageModel, SlowMasked]) -> None:
    model, slow = bert
    found = asked(model, singles=60, top=60)
    _, before = slow_difference(slow, ASKED)
    edges = found.edges.to_dicts()
    assert any(edge["target_position"] < edge["source_position"] for edge in edges)
    assert any(edge["target_position"] > edge["source_position"] for edge in edges)
    for edge in edges[:: max(1, len(edges) // 20)]:
        source, target = place(edge, "source", "source_position"), place(edge, "target", "target_position")
        assert target[0] > source[0]
        _, without = slow_difference(slow, ASKED, put(*source, 0.0))
        change = float(before[target[0]][target[1:]] - without[target[0]][target[1:]])
        assert edge["change"] == pytest.approx(change, abs=1e-5)


def test_a_graph_has_its_outputs_at_the_mask(bert: tuple[LanguageModel, SlowMasked], tmp_path: Path) -> None:
    found = asked(bert[0], singles=8, top=8)
    folder = ms.write_graph(found, tmp_path / "graph")
    documents = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    (graph,) = [one for one in documents if "nodes" in one]
    outputs = [node["ctx_idx"] for node in graph["nodes"] if node["feature_type"] == "logit"]
    assert outputs == [AT + 1, AT + 1]
    columns = {row["position"] + 1 for row in found.memories.to_dicts()}
    assert {node["ctx_idx"] for node in graph["nodes"] if node["feature_type"] != "logit"} == columns
    assert graph["metadata"]["prompt_tokens"][AT + 1] == "<mask>"
    assert ms.open_result(found.save(tmp_path / "saved.json")).to_dict() == found.to_dict()


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", KINDS[:3])
def test_two_prompts_are_compared_at_their_masks(kind: str) -> None:
    model, slow = masked_pair(kind)
    other = [9, MASK, 40, 17, 30]
    found = diff(
        model, TEXT, other_prompt="w9 w8 w40 w17 w30", mask=AT, target="w20", against="w33", top=500, progress=False
    )
    (first, before), (second, after) = (slow_difference(slow, tokens) for tokens in (ASKED, other))
    assert (found.first, found.second) == pytest.approx((first, second), abs=1e-5)
    assert abs(found.residual_error) <= found.limit < 1e-2
    best = found.memories.to_dicts()[0]
    layer, column, memory = place(best)
    assert best["coefficient_first"] == pytest.approx(float(before[layer][column, memory]), abs=1e-4)
    assert best["coefficient_second"] == pytest.approx(float(after[layer][column, memory]), abs=1e-4)
    value, _ = slow_difference(slow, other, put(layer, column, memory, float(before[layer][column, memory])))
    assert found.patched[0].difference == pytest.approx(value, abs=2e-5)
    assert {row["position"] for row in found.memories.to_dicts()} == {*range(5)}

    def everything(layer: int, columns: slice) -> Any:
        return lambda m: m[columns].copy_(before[layer][columns])

    whole, _ = slow_difference(slow, other, {layer: everything(layer, slice(1, 6)) for layer in range(3)})
    here, _ = slow_difference(slow, other, {layer: everything(layer, slice(AT + 1, AT + 2)) for layer in range(3)})
    sizes = {one.k: one.difference for one in found.patched}
    assert (sizes["all"], sizes["everywhere"]) == pytest.approx((here, whole), abs=5e-5)


def test_prompts_whose_masks_stand_elsewhere_are_compared_there_alone(bert: tuple[LanguageModel, SlowMasked]) -> None:
    model, slow = bert
    tokens = [[9, MASK, 12], [40, 9, 8, MASK]]
    found = diff(
        model, "w9 <mask> w12", other_prompt="w40 w9 w8 <mask>", target="w20", against="w33", top=99, progress=False
    )
    (first, before), (second, after) = (slow_difference(slow, one) for one in tokens)
    assert (found.first, found.second) == pytest.approx((first, second), abs=1e-5)
    assert "The prompts differ in length or mask: only the mask is compared." in found.notes
    for row in found.memories.to_dicts():
        layer, column, memory = place(row)
        assert (row["position"], column) == (3, 4)
        assert row["coefficient_first"] == pytest.approx(float(before[layer][2, memory]), abs=1e-4)
        assert row["coefficient_second"] == pytest.approx(float(after[layer][4, memory]), abs=1e-4)

    def here(layer: int) -> Any:
        return lambda m: m[4].copy_(before[layer][2])

    value, _ = slow_difference(slow, tokens[1], {layer: here(layer) for layer in range(3)})
    assert {one.k: one.difference for one in found.patched}["all"] == pytest.approx(value, abs=5e-5)


def test_two_models_part_at_the_mask_or_agree_there() -> None:
    networks = build_masked("bert"), build_masked("bert")
    for network in networks:
        network.cls.predictions.bias *= 0
    networks[1].bert.encoder.layer[2].output.dense.weight *= -8
    (model, slow), (other, its) = ((load_masked(network), SlowMasked(network)) for network in networks)
    tops = []
    for one in (slow, its):
        with torch.no_grad():
            tops.append(int(one.read(ASKED)[1][AT + 1].argmax()))
    assert tops[0] != tops[1]
    found = diff(model, TEXT, other=other, mask=AT, progress=False)
    assert found.said is not None
    assert [token.id for token in found.said] == tops
    assert found.continued == ""
    both = (tops[1], tops[0])
    values = [slow_difference(one, ASKED, pair=both)[0] for one in (slow, its)]
    assert (found.first, found.second) == pytest.approx(values, abs=1e-4)
    undone = {one.k: one.difference for one in found.patched}["everywhere"]
    assert undone == pytest.approx(values[0], abs=1e-3)  # what differs are values of memories alone
    alike = diff(model, TEXT, other=load_masked(copy.deepcopy(networks[0])), mask=AT, progress=False)
    assert alike.said is None
    assert "never part at the mask" in alike.notes[0]
    rows = [{"prompt": "w9 <mask> w12 w17 w30"}, *({"prompt": f"w{n} w8 <mask>"} for n in range(9, 29))]
    many = diff_prompts(model, rows, other=other, progress=False)
    assert many.prompts > 1
    assert many.prompts + many.never_parted == len(rows)
    assert [row["changed"] for row in many.held_out] == [None] * len(many.held_out)  # nothing is continued
    assert all(row["gone"] is not None for row in many.held_out)


def test_many_prompts_and_a_prompt_without_a_mask(bert: tuple[LanguageModel, SlowMasked]) -> None:
    rows = [{"prompt": f"w{n} <mask> w8"} for n in range(9, 13)]
    found = attribute_prompts(bert[0], [*rows, {"prompt": "w9 w8"}], top=5, progress=False)
    assert (found.prompts, found.memories.height) == (4, 5)
    assert "0 masks" in found.refused[0].reason


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", KINDS[:3])
def test_importance_is_what_attributions_at_the_masks_say(kind: str, tmp_path: Path) -> None:
    model, _ = masked_pair(kind)
    numbers = np.random.default_rng(5).integers(5, 60, (40, 6)).tolist()
    lines = [" ".join(f"w{number}" for number in row) + "\n" for row in numbers]
    made = mined_text(model, tmp_path, "".join(lines[:20]), other="".join(lines[20:]), prefixes=6, removals=0)
    ms.extend(made.path, model, ["importance"])
    atlas = ms.open_atlas(made.path)
    asked = atlas.table("prefixes").select("sentence", "position").rows()
    stored = dict(atlas.sentences([one for one, _ in asked], columns=["sentence", "tokens"]).rows())
    names, sums = ("attribution", "direct"), np.zeros((2, 3, 24))
    for sentence, position in asked:
        text = " ".join(f"w{token}" for token in stored[sentence])
        found = attribute(model, text, mask=position, singles=0, top=1_000, progress=False)
        for row in found.memories.filter(position=position).to_dicts():
            layer, _, memory = place(row)
            sums[:, layer, memory] += [abs(row[name]) for name in names]
    for layer in range(3):
        table = atlas.table("importance", layer=layer)
        for name, expected in zip(names, sums[:, layer] / len(asked), strict=True):
            np.testing.assert_allclose(table[name], expected, atol=1e-5)


def test_an_answer_is_one_token_with_a_space_or_without(bert: tuple[LanguageModel, SlowMasked]) -> None:
    model, _ = bert
    for text in ("w20", " w20"):
        assert attribute(model, "w9 <mask> w12", target=text, singles=0, progress=False).target.id == 20
    for options, line in (
        ({"target": "w20 w21"}, "is 2 tokens, and a mask stands for one"),
        ({"target": "w20", "against": "w20"}, "are one, or one begins"),
        ({"target": ""}, "an answer is empty"),
    ):
        with pytest.raises(PromptError, match=line):
            attribute(model, TEXT, mask=AT, **options)
    with pytest.raises(OptionError, match="asked at the mask; leave position out"):
        attribute(model, TEXT, mask=AT, position=2)


def test_the_commands_take_a_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "bert"
    build_masked("bert").save_pretrained(folder)
    masked_tokenizer().save_pretrained(folder)
    words = ("attribute", str(folder), TEXT, "--for", "w20", "--against", "w33", "--singles", "8", "--top", "4")
    assert main([*words, "--mask", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["mask"], found["position"], found["made_by"]["options"]["mask"]) == (2, 1, 1)
    assert main([*words, "--mask", "1"]) == 0
    assert "·w20 over ·w33 in w9·w8" in capsys.readouterr().out
    both = ("diff", str(folder), TEXT, "--other-prompt", "w9 w8 w40 w17 w30", "--for", "w20", "--against", "w33")
    assert main([*both, "--mask", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["made_by"]["options"]["mask"] == 1
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "w9 <mask>"}\n')
    for wrong, line in (
        ((*words,), "the prompt holds 0 masks"),
        ((*both,), "the prompt holds 0 masks"),
        ((*words, "--mask", "9"), "position 9 is not in the prompt"),
        (("attribute", str(folder), "--prompts", str(tmp_path / "prompts.jsonl"), "--mask", "1"), "--mask is for one"),
        (("attribute", "handmade:planted", "the old", "--mask", "1"), "has no mask token"),
        (("diff", "handmade:planted", "the old", "--other-prompt", "the new", "--mask", "1"), "has no mask token"),
        ((*both, "--mask", "1", "--generate", "2"), "--generate and --restored are for two models"),
    ):
        assert main([*wrong]) == 2, line
        assert line in capsys.readouterr().err.splitlines()[-1]
