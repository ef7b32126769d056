"""SAEDashboard's batches: read back by its own class, and the numbers of a small atlas, which can be read off it.

SAEDashboard's dependencies are not among the tests' own; `.ci/run` puts its wheel aside, of which one file needs numpy.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import mnemoscope as ms
from mining.conftest import odd_text, tiny_model
from support.handbuilt_atlas import build_atlas
from support.mined import mined_text
from web.layer_atlas import Row, layered


def batch(folder: Path, path: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / path).read_text(encoding="utf-8"))
    return read


@pytest.fixture(scope="module")
def gelu(tmp_path_factory: pytest.TempPathFactory) -> ms.Atlas:
    """Of memories whose coefficients have both signs, at every token of the best examples."""
    folder, options = tmp_path_factory.mktemp("gelu"), {"token_activations": True, "triggers": 12}
    return mined_text(tiny_model("gpt2"), folder, odd_text(), **options)


@pytest.fixture
def exported(gelu: ms.Atlas, tmp_path: Path) -> Path:
    return ms.export(gelu, tmp_path / "out", to="neuronpedia", progress=False).directory


def test_the_dashboards_own_class_reads_every_batch(exported: Path, gelu: ms.Atlas) -> None:
    reason = "needs the wheel of SAEDashboard 0.8 (see .ci/run)"
    dashboard = pytest.importorskip("sae_dashboard.neuronpedia.neuronpedia_dashboard", reason=reason)
    counted = {"neurons": 0, "neg-neurons": 0}
    for path in sorted(exported.glob("*/layer-*/batch-*.json")):
        stored = batch(exported, path.relative_to(exported).as_posix())
        read = dashboard.NeuronpediaDashboardBatch(**stored)
        assert read.to_dict() == stored | {"features": [one | {"vector": []} for one in stored["features"]]}
        assert (read.sae_set, f"layer-{read.layer:03}") == path.parts[-3:-1]
        counted[read.sae_set] += len(read.features)
        for feature in read.features:
            assert len(feature.pos_str) == len(feature.pos_values) == len(feature.neg_str) == 20
            for example in feature.activations:
                assert len(example.tokens) == len(example.values) > example.qualifying_token_index
    below = {(row["layer"], row["memory"]) for row in gelu.table("triggers").to_dicts() if row["sign"] == -1}
    assert counted == {"neurons": len(gelu), "neg-neurons": len(below)}
    assert len(below) > 0


def test_numbers_that_can_be_read_off_the_atlas(handbuilt: Path, tmp_path: Path) -> None:
    out = ms.export(handbuilt, tmp_path / "out", to="neuronpedia", progress=False).directory
    stored = batch(out, "neurons/layer-000/batch-0.json")
    assert (stored["model_id"], stored["layer"], stored["sae_set"], stored["sae_id_suffix"]) == (
        *("handbuilt", 0, "neurons"),
        None,
    )
    first, *_, never = stored["features"]
    assert [one["feature_index"] for one in stored["features"]] == [0, 1, 2, 3]
    assert (first["pos_str"][0], first["pos_values"][0], first["neg_str"][0]) == (" Paris", 2.0, "<|end|>")
    assert first["frac_nonzero"] == 8 / 19
    bars = dict(zip(first["freq_hist_data_bar_values"], first["freq_hist_data_bar_heights"], strict=True))
    assert {middle: count for middle, count in bars.items() if count} == {0.75: 8}, "0.5 to 1; zeros are in no bar"
    assert (min(bars), max(bars), len(bars)) == (0.0014648, 48.0, 16)
    # The atlas lacks token_activations: no number is made up for the other tokens.
    shown = [(one["tokens"], one["values"], one["qualifying_token_index"]) for one in first["activations"]]
    assert shown == [([" is"], [3.0], 0), (["The"], [2.0], 0), (["é"], [1.5], 0)], "equal prefixes once"
    assert {(one["bin_min"], one["bin_max"], one["bin_contains"]) for one in first["activations"]} == {(-1, 3.0, -1)}
    assert (never["activations"], never["frac_nonzero"]) == ([], 0.0)
    (minus,) = batch(out, "neg-neurons/layer-000/batch-0.json")["features"]
    assert (minus["feature_index"], minus["pos_str"][0], minus["neg_str"][0]) == (0, "<|end|>", " Paris")
    assert minus["neg_values"][0] == -2.0
    assert [(one["tokens"], one["values"]) for one in minus["activations"]] == [([" Italy"], [0.5])]
    assert not (out / "neg-neurons/layer-001").exists()


def test_examples_are_whole_where_the_atlas_has_them(exported: Path, gelu: ms.Atlas) -> None:
    for name, sign in (("neurons", 1), ("neg-neurons", -1)):
        for feature in batch(exported, f"{name}/layer-001/batch-0.json")["features"]:
            memory = gelu[1, feature["feature_index"]]
            rows = memory.triggers(sign).to_dicts()
            best = [row for row in rows if row["rank"] == row["prefix_group"]][:10]
            for row, example in zip(best, feature["activations"], strict=True):
                at = example["qualifying_token_index"]
                assert at == row["position"]
                assert example["values"][at] == pytest.approx(sign * row["coefficient"], rel=2e-3)
                assert "".join(example["tokens"][: at + 1]) == row["prefix"]
            assert not best or feature["activations"][0]["bin_max"] == pytest.approx(
                sign * best[0]["coefficient"], rel=1e-4
            )


def test_a_head_that_is_not_linear_has_no_scores_of_the_opposite(tmp_path: Path) -> None:
    atlas = build_atlas(tmp_path / "atlas", model={"head": "adaptive softmax", "hub": "openai-community/gpt2"})
    out = ms.export(atlas, tmp_path / "out", to="neuronpedia", progress=False).directory
    stored = batch(out, "neg-neurons/layer-000/batch-0.json")
    assert stored["model_id"] == "gpt2-small"
    assert (stored["features"][0]["pos_str"][0], stored["features"][0]["neg_str"]) == ("<|end|>", [])


def test_a_layer_comes_in_batches_of_128(tmp_path: Path) -> None:
    rows: list[Row] = [(1 + i % 50, 3, 3, 0.01 + i / 1000, 1.0, "none") for i in range(130)]
    atlas = layered(tmp_path / "atlas", rows)
    for memories, expected in (("L0", [128, 2]), ("L0.M129,L0.M5", [2])):
        out = ms.export(atlas, tmp_path / "out", to="neuronpedia", memories=memories, progress=False).directory
        paths = sorted(path.relative_to(out).as_posix() for path in out.glob("neurons/*/*.json"))
        assert paths == [f"neurons/layer-000/batch-{number}.json" for number in range(len(expected))]
        assert [len(batch(out, path)["features"]) for path in paths] == expected
    assert [one["feature_index"] for one in batch(out, paths[0])["features"]] == [5, 129]
