"""`compare` on small atlases: with itself, a planted swap, refusals, saving, cosines, samples; against brute force."""

import json
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import mnemoscope as ms
from mining.conftest import WORDS, byte_tokenizer
from mnemoscope.cli.app import run_verb
from mnemoscope.comparison import saved_comparisons
from mnemoscope.errors import AtlasesDiffer, AtlasUnfinished, ModelDiffers, OptionError
from mnemoscope.mining.text import batch_loader
from mnemoscope.models import LanguageModel, load_model
from models.conftest import build
from models.expert_models import build_mixture

SWAPPED = (3, 17)
END = "<|endoftext|>"


def text_of(sentences: int, seed: int = 0) -> str:
    chance = random.Random(seed)
    return "\n".join(" ".join(chance.choices(WORDS, k=chance.randint(2, 9))) for _ in range(sentences)) + "\n"


def load(hf: Any, **options: Any) -> LanguageModel:
    return load_model(hf, tokenizer=byte_tokenizer(bos_token=END, eos_token=END), **options)


def swap(hf: Any, layer: int = 0) -> Any:
    """The same network with the keys, biases and values of two memories of a layer exchanged."""
    block, (a, b) = hf.transformer.h[layer].mlp, SWAPPED
    for tensor, dim in ((block.c_fc.weight, 1), (block.c_fc.bias, 0), (block.c_proj.weight, 0)):
        tensor.data.index_copy_(dim, *_pair(tensor, dim, a, b))
    return hf


def _pair(tensor: Any, dim: int, a: int, b: int) -> tuple[Any, Any]:
    import torch

    return torch.tensor([a, b]), tensor.data.index_select(dim, torch.tensor([b, a]))


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("compared")

    def make(name: str, hf: Any, *, sentences: int = 400, **options: Any) -> Path:
        if not (folder / name).is_dir():
            path = folder / f"{sentences}.txt"
            path.write_text(text_of(sentences))
            usual: dict[str, Any] = {"split": "line", "triggers": 4, "prefixes": 5, "removals": 0}
            ms.mine(hf if isinstance(hf, LanguageModel) else load(hf), path, out=folder / name, **usual | options)
        return folder / name

    return make


@pytest.fixture(scope="module")
def usual(make: Callable[..., Path]) -> Path:
    return make("usual", build("gpt2-relu"))


@pytest.fixture(scope="module")
def swapped(make: Callable[..., Path]) -> Path:
    return make("swapped", swap(build("gpt2-relu")))


def test_an_atlas_with_itself_has_changed_in_nothing(usual: Path, tmp_path: Path) -> None:
    found = ms.compare(usual, shutil.copytree(usual, tmp_path / "copy"))
    assert found.changed.is_empty()
    assert (found.layers["jaccard"].to_list(), found.layers["rate_change"].to_list()) == ([1.0, 1.0], [0.0, 0.0])
    assert max(found.layers["control_jaccard"]) < 0.2


def test_a_planted_swap_is_found_and_nothing_else(usual: Path, swapped: Path) -> None:
    found = ms.compare(usual, swapped)
    assert found.changed.select("memory", "kind").rows() == [(f"L0.M{one}", "repurposed") for one in SWAPPED]
    assert found.changed["tokens_before"].to_list() == found.changed["tokens_after"].reverse().to_list()
    before, after = (ms.open_atlas(path)["L0.M3"].value()["top_texts"][0].to_list()[:5] for path in (usual, swapped))
    assert found.changed.row(0, named=True)["tokens_before"] == before != after
    assert (found.layers["repurposed"].to_list(), found.pairs[0]["note"]) == ([2, 0], "")


def test_what_changed_is_sorted_by_effect_and_the_effect_is_that_of_a_slow_count(
    usual: Path, make: Callable[..., Path]
) -> None:
    """Mean coefficients over all prefixes, read from the models' own forward passes, times norms of weights."""
    import torch

    def stronger() -> Any:
        hf = swap(build("gpt2-relu"))
        block = hf.transformer.h[0].mlp
        block.c_proj.weight.data[3] *= 30
        return hf

    other = make("stronger", stronger())
    found = ms.compare(usual, other)
    names = found.changed["memory"].to_list()
    assert names[:1] == ["L0.M3"]
    assert found.changed["effect"].to_list() == sorted(found.changed["effect"], reverse=True)
    threshold = ms.open_atlas(usual).manifest.corpus.counts["held_out_threshold"]
    lines = dict.fromkeys(text_of(400).splitlines())
    mined = [line for line in lines if int(blake2b(line.encode()).hexdigest(), 16) % 10_000 >= threshold]
    tokenizer = byte_tokenizer(bos_token=END, eos_token=END)
    tokens = [tokenizer(line, add_special_tokens=False)["input_ids"] for line in mined]
    sizes = []
    for hf in (build("gpt2-relu"), stronger()):
        mlp, seen = hf.transformer.h[0].mlp, []
        watched = mlp.c_proj.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0][0]))
        start = tokenizer.convert_tokens_to_ids(END)
        with torch.inference_mode():
            for sentence in tokens:
                hf(torch.tensor([[start, *sentence]]))
        watched.remove()
        rows = torch.cat([one[1:] for one in seen]).double()
        sizes.append((rows * mlp.c_proj.weight.double().norm(dim=1), len(rows)))
    (before, count), (after, _) = sizes
    assert count == ms.open_atlas(usual).table("activity", layer=0)["prefixes"][0]
    expected = (after.mean(0) - before.mean(0)).abs()
    noise = [1.96 * 2 * one.std(0, correction=0) / count**0.5 for one in (before, after)]
    for row in found.changed.filter(pl.col("memory").str.starts_with("L0.")).to_dicts():
        number = int(row["memory"].removeprefix("L0.M"))
        assert row["effect"] == pytest.approx(float(expected[number]), rel=1e-3, abs=1e-6)
        assert row["halves_effect"] == pytest.approx(float(max(one[number] for one in noise)), rel=0.02)
    assert found.layers["effect"][0] == pytest.approx(float(expected.mean()), rel=1e-3)
    assert found.layers["effect"][0] < found.layers["control_effect"][0]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_feature_dies_and_is_born(make: Callable[..., Path], sign: int) -> None:
    quiet = build("gpt2-relu" if sign == 1 else "gpt2")
    quiet.transformer.h[1].mlp.c_fc.bias.data[5] = -100.0 if sign == 1 else 100.0
    kind = "relu" if sign == 1 else "gelu"
    paths = make(f"loud-{kind}", build("gpt2-relu" if sign == 1 else "gpt2")), make(f"quiet-{kind}", quiet)
    for pair, change in ((paths, "died"), (paths[::-1], "born")):
        changed = ms.compare(*pair).changed.filter(pl.col("memory") == "L1.M5", pl.col("sign") == sign)
        assert changed["kind"].to_list() == [change]


def test_the_json_is_the_contracts(
    usual: Path, swapped: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_verb(["compare", str(usual), str(swapped), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) >= {"first", "second", "layers", "changed", "made_by"}
    row = {"layer", "memories", "jaccard", "control_jaccard", "rate_change", "born", "died", "repurposed"}
    assert row <= set(document["layers"][0])
    assert {"memory", "sign", "kind", "tokens_before", "tokens_after"} <= set(document["changed"][0])
    assert set(document["made_by"]) == {"model", "atlas", "package", "options", "seed"}
    found = ms.compare(usual, swapped)
    saved = json.loads(found.save(tmp_path / "saved.json").read_text())
    assert saved.pop("saved")["kind"] == "AtlasComparison"  # what opens it again
    assert found.to_dict() == document == saved
    several = ms.compare(usual, swapped, usual)
    assert [set(pair) for pair in several.to_dict()["pairs"]] == [{"first", "second", "layers", "changed", "note"}] * 2
    assert several.layers["first"].to_list() == ["usual", "usual", "swapped", "swapped"]
    assert [len(rows) for rows in several.chart().to_dict()["datasets"].values()] == [8]
    assert "features changed" in several._repr_html_()


def test_the_terminal_fits_80_columns(usual: Path, swapped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["compare", str(usual), str(swapped)]) == 0
    out = capsys.readouterr().out
    assert "usual, then swapped" in out
    assert "2 features changed" in out
    assert max(map(len, out.splitlines())) <= 80


def test_cosines_need_the_models(usual: Path, swapped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = load(build("gpt2-relu")), load(swap(build("gpt2-relu")))
    found = ms.compare(usual, swapped, models=[one, other])
    layers, weights = found.layers, found.to_dict()["weights"]
    assert {(row["layer"], row["module"]) for row in weights} == {(0, "mlp.c_fc"), (0, "mlp.c_proj")}
    assert sum(row["share"] for row in weights) == pytest.approx(1)
    assert layers["value_cosine"][0] < layers["value_cosine"][1] == pytest.approx(1)
    assert layers["key_cosine"][1] == pytest.approx(1)
    assert abs(layers["control_value_cosine"][1]) < 0.3
    with pytest.raises(ModelDiffers, match="mined from another model"):
        ms.compare(usual, swapped, models=[other, one])
    with pytest.raises(OptionError, match="names 1 models for 2 atlases"):
        ms.compare(usual, swapped, models=[one])
    assert run_verb(["compare", str(usual), str(swapped), "--models", "nothing", "nowhere"]) == 2
    assert "nothing" in capsys.readouterr().err.splitlines()[-1]
    assert run_verb(["compare", str(usual), str(swapped), "--models", "nothing"]) == 2
    assert "--models names 1 models for 2 atlases" in capsys.readouterr().err.splitlines()[-1]


def test_comparing_needs_no_torch(usual: Path, swapped: Path) -> None:
    script = "import sys, mnemoscope as ms; ms.compare(*sys.argv[1:]).chart(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script, usual, swapped], check=True)


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"triggers": 3}, r"triggers \(4, 3\)"),
        ({"sentences": 390}, r"the text \("),
        ({"split": "document"}, r"split \(line, document\)"),
        ({"max_tokens": 1500}, r"max_tokens \(None, 1500\)"),
        ({"per_sentence": "all"}, r"per_sentence \(1, all\)"),
    ],
)
def test_atlases_of_another_text_or_other_triggers_are_refused(
    make: Callable[..., Path], usual: Path, options: dict[str, Any], difference: str
) -> None:
    other = make("-".join(map(str, options.items())), build("gpt2-relu"), **options)
    with pytest.raises(AtlasesDiffer, match=f"differ in {difference}") as refused:
        ms.compare(usual, other)
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith("; mine one text alike")


def test_other_tokenizers_and_beginnings_and_parts_are_refused(
    make: Callable[..., Path], usual: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hf, ends = build("gpt2-relu"), {"bos_token": END, "eos_token": END}
    other = make("tokenizer", load_model(hf, tokenizer=byte_tokenizer(["a very other text"], rows=262, **ends)))
    with pytest.raises(AtlasesDiffer, match="differ in the tokenizer"):
        ms.compare(usual, other)
    other = make("beginning", load(hf, beginning="none"))
    with pytest.raises(AtlasesDiffer, match=r"differ in the token before every sentence \(0, None\)"):
        ms.compare(usual, other)
    with pytest.raises(AtlasUnfinished, match="part 1 of 2"):
        ms.compare(usual, make("part", hf, part=(1, 2)))
    assert run_verb(["compare", str(usual)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("one atlas cannot be compared; name two or more")


def test_a_saved_comparison_belongs_to_the_atlas(
    usual: Path, swapped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = shutil.copytree(usual, tmp_path / "kept")
    assert run_verb(["compare", str(kept), str(swapped), "--save"]) == 0
    assert "kept in" in capsys.readouterr().err
    atlas = ms.open_atlas(kept)
    assert (ms.verify(kept), saved_comparisons(atlas)) == ([], [ms.compare(kept, swapped).to_dict()])
    (kept / "comparisons" / "swapped.json").write_text("{}")
    assert saved_comparisons(atlas) == []
    assert ms.verify(kept) == ["comparisons/swapped.json: the content is not what was written (its sha256 differs)"]


def test_samples_find_the_memories_that_fire_alike(make: Callable[..., Path], tmp_path: Path) -> None:
    hf = build("gpt2")
    paths = [shutil.copytree(make("loud-gelu", hf), tmp_path / "one")]
    paths.append(shutil.copytree(make("swapped-gelu", swap(build("gpt2"))), tmp_path / "two"))
    for path, model in zip(paths, (hf, swap(build("gpt2"))), strict=True):
        assert (ms.extend(path, load(model), ["samples"]).made, ms.verify(path)) == (("samples",), [])
    found = ms.compare(*paths)
    matches = found.pairs[0]["matches"].rows_by_key("memory", named=True, unique=True)
    assert (matches["L0.M3"]["other"], matches["L0.M17"]["other"]) == ("L0.M17", "L0.M3")
    assert (matches["L1.M5"]["other"], matches["L1.M5"]["correlation"]) == ("L1.M5", pytest.approx(1, abs=1e-3))
    assert all(row["excess"] == pytest.approx(row["correlation"] - row["control"]) for row in matches.values())
    assert found.layers["left_out"].to_list() == [0, 0]
    wide = build("gpt2", n_inner=40)
    other = make("wide", wide)
    with pytest.raises(AtlasesDiffer, match="no layer of the same memories"):
        ms.compare(paths[0], other)
    ms.extend(other, load(wide), ["samples"])
    found = ms.compare(paths[0], other)
    assert set(found.layers.columns) == {"layer", "memories", "excess", "universal", "left_out"}
    assert found.changed.is_empty()
    assert len(found.chart().to_dict()) > 0


def test_samples_of_other_prefixes_are_refused_in_one_line(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(batch_loader, "BACKGROUND", 500)
    hf = build("gpt2")
    paths = [make(f"seed-{seed}", hf, seed=seed) for seed in (0, 1)]
    assert len(ms.compare(*paths).layers) == 2  # by the same text, without samples
    for path in paths:
        ms.extend(path, load(hf), ["samples"])
    assert run_verb(["compare", *map(str, paths)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(f"{paths[0]} and {paths[1]} have samples of different prefixes; mine with one --seed")


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_samples_are_the_coefficients(name: str, make: Callable[..., Path], tmp_path: Path) -> None:
    model = load(build_mixture(name) if name == "mixtral" else build(name))
    path = shutil.copytree(make(f"sampled-{name}", model, sentences=60), tmp_path / "atlas")
    ms.extend(path, model, ["samples"])
    atlas = ms.open_atlas(path)
    places = atlas.table("background").head(2_048).select("sentence", "position").rows()
    texts = dict(atlas.sentences([place[0] for place in places]).select("sentence", "tokens").iter_rows())
    for layer in atlas.layers:
        table = atlas.table("samples", layer=layer).sort("memory")
        stored = np.array(table["coefficients"].to_list(), np.float64) * table["scale"].to_numpy()[:, None]
        for column, (sentence, position) in list(enumerate(places))[::37]:
            own = slow_coefficients(model, [0, *texts[sentence][: position + 1]], layer)
            assert stored[:, column] == pytest.approx(own, abs=2e-3 * table["scale"].max())


def slow_coefficients(model: LanguageModel, ids: Any, layer: int) -> Any:
    import torch

    from mnemoscope.models.forward.hooks import read_coefficients

    found: list[Any] = []
    with torch.inference_mode(), read_coefficients(model, lambda _, own: found.append(own), layers=[layer]):
        model.backbone(torch.tensor(ids)[None].long())
    return found[0].reshape(-1, found[0].shape[-1])[-1].numpy()


@pytest.mark.full
def test_jaccard_kinds_and_control_are_those_of_brute_force(make: Callable[..., Path]) -> None:
    """Sets of Python, a loop over features, and the mean over all pairs of different memories."""
    tuned = build("gpt2")
    for block in tuned.transformer.h:
        block.mlp.c_fc.weight.data += 0.1 * block.mlp.c_fc.weight.data.flip(0)
    paths = make("loud-gelu", build("gpt2")), make("tuned-gelu", tuned)
    found = ms.compare(*paths)
    named = {(row["memory"], row["sign"]): row for row in found.changed.to_dicts()}
    for layer in (0, 1):
        sets: list[dict[tuple[int, int], set[tuple[int, int]]]] = []
        for path in paths:
            rows = pl.read_parquet(path / f"triggers/layer-00{layer}.parquet")
            own: dict[tuple[int, int], set[tuple[int, int]]] = {(m, s): set() for m in range(24) for s in (1, -1)}
            for memory, sign, sentence, position in rows.select("memory", "sign", "sentence", "position").iter_rows():
                own[memory, sign].add((sentence, position))
            sets.append(own)
        index = {key: len(one & sets[1][key]) / len(one | sets[1][key]) for key, one in sets[0].items()}
        row = found.layers.row(layer, named=True)
        assert row["jaccard"] == pytest.approx(statistics.mean(index.values()))
        every = [
            len(sets[0][a, s] & sets[1][b, s]) / len(sets[0][a, s] | sets[1][b, s])
            for s in (1, -1)
            for a in range(24)
            for b in range(24)
            if a != b
        ]
        # One permutation has 24 of the 552 pairs of each sign.
        spread = statistics.pstdev(every) / 48**0.5
        assert abs(row["control_jaccard"] - statistics.mean(every)) < 4 * spread
        limit = min(0.1 - 1e-9, float(np.quantile(every, 0.95)))
        for (memory, sign), value in index.items():
            kind = named.get((f"L{layer}.M{memory}", sign), {}).get("kind")
            assert kind in (("repurposed", "born", "died") if value <= limit else (None, "born", "died"))
            if kind == "repurposed":
                assert named[f"L{layer}.M{memory}", sign]["jaccard"] == pytest.approx(value)


@pytest.mark.full
def test_a_rotation_keeps_no_match_and_excess_is_pearsons(make: Callable[..., Path], tmp_path: Path) -> None:
    hf = build("gpt2")
    path = shutil.copytree(make("loud-gelu", hf), tmp_path / "atlas")
    ms.extend(path, load(hf), ["samples"])
    atlas = ms.open_atlas(path)
    rows = [
        np.array(table["coefficients"].to_list(), np.float64) * table["scale"].to_numpy()[:, None]
        for table in (atlas.table("samples", layer=layer).sort("memory") for layer in (0, 1))
    ]
    slow = np.corrcoef(np.concatenate(rows))
    np.fill_diagonal(slow, -1)
    other = shutil.copytree(make("swapped-gelu", swap(build("gpt2"))), tmp_path / "other")
    ms.extend(other, load(swap(build("gpt2"))), ["samples"])
    matches = ms.compare(path, other).pairs[0]["matches"]
    assert matches["correlation"].to_list() == pytest.approx([1.0] * 48, abs=1e-3)
    assert 0 < matches["control"].mean() < 0.95
    assert slow.max() < 1
