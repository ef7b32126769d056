"""The table `width` against forwards made one sentence at a time; copies that were planted; stops; odd layers."""

import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import mnemoscope as ms
from mining.conftest import assert_goes_on, load_bytes, odd_text
from mining.slow_model import SlowTransformer
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.atlas.features import mean_magnitude
from mnemoscope.errors import NotFinite
from mnemoscope.foundation.memory_names import HISTOGRAM_EDGES
from mnemoscope.mining.passes import width
from mnemoscope.mining.passes.width import find_duplicates, usefulness
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward import partial_forward
from mnemoscope.models.forward.partial_forward import PartialForward
from models.conftest import build
from models.expert_models import HandRead, blocks_of, build_mixture
from support.mined import mined_text

pytestmark = pytest.mark.full

DENSE = ("gpt2-relu", "gpt_neox", "gemma2")
MIXED = ("qwen2_moe",)
HELD_OUT = ("the cat sat on the mat", "a dog ran home", "the bird in the tree and a cat", "on the mat sat a dog")


def atlas_of(model: LanguageModel, folder: Path) -> Path:
    return mined_text(model, folder, odd_text(40), other="\n".join(HELD_OUT) + "\n", triggers=5, removals=0).path


def slow_order(directory: Path, layer: int) -> list[int]:
    """The memories by mean |m| times the norm of the value: bin by bin, memory by memory."""
    activity = pl.read_parquet(directory / f"activity/layer-{layer:03d}.parquet").rows(named=True)
    norms = pl.read_parquet(directory / f"values/layer-{layer:03d}.parquet")["value_norm"].to_list()
    found = []
    for number, (row, norm) in enumerate(zip(activity, norms, strict=True)):
        below = 0.0
        for bin_number, count in enumerate(row["histogram"]):
            if bin_number <= HISTOGRAM_EDGES.index(0.0) and row["min"] < 0:
                low = max(row["min"], HISTOGRAM_EDGES[bin_number - 1] if bin_number else -math.inf)
                below += count * min(0.0, (low + HISTOGRAM_EDGES[bin_number]) / 2) / max(1, row["sampled"])
        size = min(max(abs(row["mean"]), row["mean"] - 2 * below), max(abs(row["min"]), abs(row["max"])))
        found.append((size * norm, number))
    return [number for _, number in sorted(found)]


def slow_dense(hf: Any) -> Callable[[int, list[int], np.ndarray, list[int]], Any]:
    slow = SlowTransformer(hf, beginning=0)

    def logits(layer: int, gone: list[int], mean: np.ndarray, ids: list[int]) -> Any:
        def ablate(_: Any, inputs: Any) -> Any:
            shape, flat = inputs[0].shape, inputs[0].reshape(len(ids), -1).clone()
            for memory in gone:
                flat[1:, memory] = float(mean[memory])
            return (flat.reshape(shape),)

        hook = slow.downs[layer].register_forward_pre_hook(ablate)
        with torch.no_grad():
            found = slow.hf(input_ids=torch.tensor([ids])).logits[0]
        hook.remove()
        return found

    return logits


def slow_mixture(hf: Any, name: str) -> Callable[[int, list[int], np.ndarray, list[int]], Any]:
    """What the layer writes is changed by (mean - m) v, where the token was routed to the memory's expert."""
    hand = HandRead(hf, name)

    def logits(layer: int, gone: list[int], mean: np.ndarray, ids: list[int]) -> Any:
        coefficients, weights = hand.read(ids)
        values, widths = hand.values(layer), hand.widths(layer)
        starts = [sum(widths[:e]) for e in range(len(widths))]
        more = torch.zeros(len(ids), values.shape[1])
        for memory in gone:
            expert = max(e for e in range(len(widths)) if starts[e] <= memory)
            for token in range(1, len(ids)):
                if weights[layer][token, expert] != 0:
                    more[token] += (float(mean[memory]) - coefficients[layer][token, memory]) * values[memory]

        def add(_: Any, inputs: Any, output: Any) -> Any:
            if isinstance(output, tuple):
                return (output[0] + more.reshape(output[0].shape), *output[1:])
            return output + more.reshape(output.shape)

        hook = blocks_of(hf)[layer].mlp.register_forward_hook(add)
        with torch.no_grad():
            found = hf(input_ids=torch.tensor([ids])).logits[0]
        hook.remove()
        return found

    return logits


@pytest.fixture(scope="module", params=[*DENSE, *MIXED])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Path]:
    name = str(request.param)
    hf = build(name) if name in DENSE else build_mixture(name)
    out = atlas_of(load_bytes(hf), tmp_path_factory.mktemp(name))
    assert ms.extend(out, load_bytes(hf), ["width"]).made == ("width",)
    return name, hf, out


def test_losses_are_those_of_one_sentence_at_a_time(case: tuple[str, Any, Path]) -> None:
    name, hf, out = case
    logits = slow_dense(hf) if name in DENSE else slow_mixture(hf, name)
    table, prefixes = pl.read_parquet(out / "width.parquet"), pl.read_parquet(out / "prefixes.parquet")
    sentences = pl.read_parquet(out / "sentences/part-000.parquet")
    seed = open_atlas(out).manifest.plan["seed"]
    chosen = sentences.filter(pl.col("sentence").is_in(prefixes["sentence"].to_list()))

    def losses(layer: int, gone: list[int], mean: np.ndarray) -> dict[int, float]:
        found: dict[int, float] = defaultdict(float)
        for document, tokens in chosen.select("document", "tokens").rows():
            scores = logits(layer, gone, mean, [0, *tokens]).double().log_softmax(-1)
            found[document] -= sum(float(scores[1 + place, tokens[place + 1]]) for place in range(len(tokens) - 1))
        return found

    asked: list[dict[str, Any]] = [{"kind": "whole"}]
    for layer in (0, 1):
        for count in sorted(set(table.filter(layer=layer, kind="least")["memories"]))[4::5]:
            asked += [
                {"kind": "least", "layer": layer, "memories": count},
                {"kind": "random", "layer": layer, "memories": count, "draw": 2},
            ]
    for given in asked:
        mean, gone, own = np.zeros(0), [], given.get("layer", 0)
        if "layer" in given:
            mean = pl.read_parquet(out / f"activity/layer-{own:03d}.parquet")["mean"].to_numpy()
            drawn = np.random.default_rng((seed, 14, own, 2)).permutation(len(mean)).tolist()
            gone = (drawn if "draw" in given else slow_order(out, own))[: given["memories"]]
        rows = table.filter(**given)
        expected = losses(own, gone, mean)
        assert dict(rows.select("document", "loss").rows()) == pytest.approx(expected, rel=2e-5), given


def test_early_exits_are_those_of_one_position_at_a_time(case: tuple[str, Any, Path]) -> None:
    name, hf, out = case
    if name not in DENSE:
        pytest.skip("the streams of experts are read as those of dense layers")
    slow = SlowTransformer(hf, beginning=0)
    table = pl.read_parquet(out / "width.parquet").filter(kind="exit")
    sentences, found = pl.read_parquet(out / "sentences/part-000.parquet"), defaultdict(lambda: [0, 0])
    thresholds = table["threshold"].unique().to_list()
    for sentence in pl.read_parquet(out / "prefixes.parquet")["sentence"].to_list():
        document, tokens = sentences.filter(sentence=sentence).select("document", "tokens").row(0)
        for end in range(1, len(tokens)):
            places, final = slow.read(tokens[:end])
            for layer, place in enumerate(places):
                scores = slow.lens(place.residual).softmax(-1)
                for threshold in thresholds:
                    stops = float(scores.max()) > threshold
                    found[layer, document, threshold][0] += stops
                    found[layer, document, threshold][1] += stops and int(scores.argmax()) != int(final.argmax())
    rows = table.select("layer", "document", "threshold", "stopped", "wrong").rows()
    assert {tuple(row[:3]): list(row[3:]) for row in rows} == dict(found)


def test_models_are_run_from_the_middle_and_whole_ones_say_the_same(
    case: tuple[str, Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, hf, out = case
    assert PartialForward(load_bytes(hf)).possible
    assert verify(out) == []
    before = pl.read_parquet(out / "width.parquet")
    monkeypatch.setattr(partial_forward, "same", lambda one, other: False)  # so no run from the middle is proved
    assert not PartialForward(load_bytes(hf)).possible
    ms.extend(out, load_bytes(hf), ["width"], force=True)
    after = pl.read_parquet(out / "width.parquet")
    assert before.drop("loss").equals(after.drop("loss"))
    assert after["loss"].drop_nulls().to_list() == pytest.approx(before["loss"].drop_nulls().to_list(), rel=1e-5)


@pytest.mark.full
def test_interrupted_and_gone_on_with_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_bytes(build("gpt2"))
    out = atlas_of(model, tmp_path)
    ms.extend(out, model, ["width"])
    assert_goes_on(monkeypatch, out, model, "width", width.WidthPass)


def test_the_blocks_have_their_own_forward_back() -> None:
    model = load_bytes(build("gpt2"))
    partial = PartialForward(model)
    with pytest.raises(ZeroDivisionError), partial.install():
        raise ZeroDivisionError
    assert all("forward" not in layer.block.__dict__ for layer in model.anatomy.layers)


def test_layers_of_one_memory(tmp_path: Path) -> None:
    model = load_bytes(build("gpt2-relu", n_inner=1))
    out = atlas_of(model, tmp_path)
    ms.extend(out, model, ["width"])
    table = pl.read_parquet(out / "width.parquet")
    assert set(table["memories"].drop_nulls()) == {0, 1}
    found = ms.answer(out, "width")
    assert found.filter(pl.col("name") == "random_above_least")["value"].to_list() == [None]
    assert set(found.filter(pl.col("name") == "width_needed")["value"]) <= {0.0, 1.0}


def test_mean_magnitudes_are_as_near_as_the_histogram_allows() -> None:
    rng = np.random.default_rng(0)
    gelu = torch.nn.functional.gelu(torch.from_numpy(rng.normal(-0.5, 1.5, (4000, 40)))).numpy()
    for coefficients, near in ((gelu, 0.02), (rng.normal(0, 1, (4000, 40)), 0.15), (np.maximum(gelu, 0), 1e-12)):
        edges = [-np.inf, *HISTOGRAM_EDGES, np.inf]
        bins = [np.histogram(one, bins=edges)[0].tolist() for one in coefficients.T]
        ends = {"mean": coefficients.mean(0), "min": coefficients.min(0), "max": coefficients.max(0)}
        rows = pl.DataFrame(ends | {"histogram": bins, "sampled": [4000] * 40})
        assert mean_magnitude(rows) == pytest.approx(np.abs(coefficients).mean(0), rel=near)
        with pytest.raises(NotFinite, match="layer 3"):
            usefulness(rows, np.full(40, np.nan), layer=3)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_duplicates_are_those_that_were_planted(name: str) -> None:
    hf = build(name)
    mlp = hf.model.layers[0].mlp if name == "llama" else hf.transformer.h[0].mlp
    with torch.no_grad():
        if name == "llama":  # 2 copies 1 but for one up key; 5 copies 4; 7 and 8 have nothing
            for module in (mlp.gate_proj, mlp.up_proj):
                module.weight[2], module.weight[5] = module.weight[1], 3 * module.weight[4]
                module.weight[7:9] = 0
            mlp.up_proj.weight[2] *= -1
            mlp.down_proj.weight[:, 2], mlp.down_proj.weight[:, 5] = mlp.down_proj.weight[:, [1, 4]].T
            mlp.down_proj.weight[:, 7:9] = 0
        else:  # 2 has the key of 1 alone, 5 key and value of 4, turned a little
            mlp.c_fc.weight[:, 2], mlp.c_fc.weight[:, 5] = mlp.c_fc.weight[:, 1], 3 * mlp.c_fc.weight[:, 4]
            mlp.c_proj.weight[5] = mlp.c_proj.weight[4] + 0.05 * mlp.c_proj.weight[3]
    assert np.flatnonzero(find_duplicates(load_bytes(hf), 0)).tolist() == [4, 5]
    assert not find_duplicates(load_bytes(hf), 1).any()
