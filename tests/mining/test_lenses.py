"""Lenses against textbook algebra and a slow model; stopped and gone on; what they say where the answer is known."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file

from mining.conftest import load_bytes, odd_text, tiny_model
from mining.slow_model import SlowTransformer
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.cli import main
from mnemoscope.errors import (
    AtlasDamaged,
    AtlasUnfinished,
    Interrupted,
    MnemoscopeError,
    ModelDiffers,
    NotFinite,
    OptionError,
)
from mnemoscope.mining.lenses.lens_pass import fit_lenses, read_lens
from mnemoscope.mining.lenses.readouts import reading_columns, targets_of
from mnemoscope.mining.lenses.ridge import PENALTIES, Moments, fit_ridge
from mnemoscope.mining.passes.vectors.values import ValuePass
from mnemoscope.mining.text.circle import next_in_circle
from mnemoscope.models import LanguageModel
from mnemoscope.models.readout.read_directions import read_directions
from mnemoscope.questions import answer
from mnemoscope.questions.beyond.lenses import estimate_values
from mnemoscope.runs.plan import MiningPlan
from mnemoscope.runs.run import Run
from mnemoscope.runs.workers.worker import Worker
from models.conftest import build
from models.expert_models import HandRead, build_mixture
from support.mined import mined_text
from web.served import client

DENSE = ("gpt2-relu", "llama", "gemma2")
"""Ungated, gated, sandwich."""


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in ("tuned", "lens_pass"):
        monkeypatch.setattr(f"mnemoscope.mining.lenses.{room}.STEPS", 6)


def mined(name: str, folder: Path) -> tuple[Any, LanguageModel, Path]:
    hf = build(name)
    model = load_bytes(hf)
    options: dict[str, Any] = {"split": "line", "triggers": 5, "prefixes": 8, "removals": 0, "batch_tokens": 128}
    return hf, model, mined_text(model, folder, odd_text(), **options).path


@pytest.mark.parametrize(
    ("turned", "noise", "chosen"),
    [(1.0, 0.0, 1e-4), (1.0, 0.1, 1e-3), (1.0, 0.5, 1e-2), (0.3, 1.0, 0.1), (0.1, 2.0, 1.0)],
)
def test_ridge_is_the_least_squares_of_the_textbook(turned: float, noise: float, chosen: float) -> None:
    """Penalised least squares as plain least squares with the penalty's rows beneath, in float64.

    The further the map is from the identity, beside the noise, the smaller is the penalty.
    """
    generator = torch.Generator().manual_seed(0)
    stream, added = (torch.randn(400, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))[0] * 2
    final = stream + turned * (stream @ rotation - stream) + 3 + noise * added
    fitted, judged = Moments.empty(6), Moments.empty(6)
    for start in range(0, 300, 50):
        fitted.add(stream[start : start + 50], final[start : start + 50])
    judged.add(stream[300:], final[300:])
    translator, fitted_with = fit_ridge(fitted, judged)
    errors = []
    for penalty in (1e-4, 1e-3, 1e-2, 1e-1, 1.0):
        h, t = stream[:300] - stream[:300].mean(0), final[:300] - final[:300].mean(0)
        strength = (300 * penalty * h.square().mean()).sqrt() * torch.eye(6, dtype=torch.float64)
        weight = torch.linalg.lstsq(torch.cat([h, strength]), torch.cat([t, strength])).solution
        bias = final[:300].mean(0) - stream[:300].mean(0) @ weight
        errors.append(float((stream[300:] @ weight + bias - final[300:]).square().sum(1).mean()))
        if penalty == fitted_with:
            torch.testing.assert_close(translator.weight.double(), weight, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(translator.bias.double(), bias, atol=1e-5, rtol=1e-4)
    assert PENALTIES[int(np.argmin(errors))] == fitted_with == chosen


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", DENSE)
def test_readings_and_readouts_are_those_of_a_slow_model(name: str, tmp_path: Path) -> None:
    hf, model, out = mined(name, tmp_path)
    done = fit_lenses(out, model)
    assert (done.lenses, done.fitted) == (("ridge", "tuned"), ("ridge", "tuned"))
    assert verify(out) == []
    atlas, slow = open_atlas(out), SlowTransformer(hf, beginning=0)
    prefixes = atlas.table("prefixes")
    said = atlas.table("readouts")
    assert said.height == prefixes.height * 2 * 3
    sentences = dict(atlas.sentences(prefixes["sentence"].to_list()).select("sentence", "tokens").iter_rows())
    lenses = {kind: read_lens(atlas, kind) for kind in ("ridge", "tuned")}
    circle = next_in_circle(prefixes.height, 0, 13)
    for prefix in prefixes.iter_rows(named=True):
        places, _ = slow.read(sentences[prefix["sentence"]][: prefix["position"] + 1])
        for layer, place in enumerate(places):
            for ruler in ("plain", "ridge", "tuned"):
                lens = lenses.get(ruler)
                weight = torch.eye(len(place.residual)).double() if lens is None else lens[layer].weight.double()
                bias = 0.0 if lens is None else lens[layer].bias.double()
                row = said.filter(prefix=prefix["prefix"], layer=layer, lens=ruler).row(0, named=True)
                log_p = slow.lens(place.residual @ weight + bias).log_softmax(-1)
                assert row["residual_loss"] == pytest.approx(-float(log_p[prefix["next_token"]]), abs=2e-3)
                wanted = float(log_p[prefix["final_top"]].exp())
                assert row["residual_final_probability"] == pytest.approx(wanted, abs=1e-3, rel=2e-3)
                assert float(log_p.max() - log_p[row["residual_top"]]) < 2e-3
                other = prefixes["final_top"][int(circle[prefix["prefix"]])]
                for column, token in (("residual_final_rank", prefix["final_top"]), ("residual_control_rank", other)):
                    better = (log_p > log_p[token] + 1e-3).sum()
                    assert better <= row[column] <= (log_p >= log_p[token] - 1e-3).sum()
                update = slow.lens(place.update @ weight)
                assert float(update.max() - update[row["ffn_top"]]) < 2e-3
                output = slow.lens(place.output @ weight + bias)
                assert float(output.max() - output[row["output_top"]]) < 2e-3
    for layer in (0, 1):
        table, targets = atlas.table("readings", layer=layer), targets_of(worker_of(out, model), layer)
        owners = np.flatnonzero(targets >= 0)
        control = np.full_like(targets, -1)
        control[owners] = targets[owners[next_in_circle(len(owners), 0, 13, layer)]]
        for ruler in ("plain", "ridge", "tuned"):
            own, lens = table.filter(pl.col("lens") == ruler), lenses.get(ruler)
            for memory in range(0, model.sizes.memories[layer], 5):
                value = slow.values(layer)[memory]
                if slow.sandwich_norm(layer) is not None:
                    value = value * (1 + slow.sandwich_norm(layer).weight)
                if lens is not None:
                    value = value @ lens[layer].weight.double()
                scores = slow.update_scores(layer, value)
                row = own.row(memory, named=True)
                assert row["memory"] == memory
                assert row["max_probability"] == pytest.approx(float(scores.softmax(-1).max()), rel=1e-3)
                assert float(scores.max() - scores[row["top_tokens"][0]]) < 1e-3
                for column, asked in (("target_rank", targets), ("control_rank", control)):
                    if asked[memory] < 0:
                        assert row[column] is None
                    else:
                        assert abs(row[column] - int((scores > scores[asked[memory]]).sum())) <= 1
    # No ruler is worse than the plain one at any layer.
    for ruler in ("ridge", "tuned"):
        assert all(loss <= plain for loss, plain in zip(done.losses[ruler], done.losses["plain"], strict=True))
        for layer in done.plain_layers[ruler]:
            assert torch.equal(load_file(out / f"lenses/{ruler}.safetensors")["weight"][layer], torch.eye(16))
    found = answer(atlas, "lenses")
    losses = found.filter((pl.col("name") == "loss_ridge") & pl.col("layer").is_not_null()).sort("layer")["value"]
    assert losses.to_list() == pytest.approx(list(done.losses["ridge"]), rel=1e-6)


def worker_of(out: Path, model: LanguageModel) -> Worker:
    plan = MiningPlan.from_document(open_atlas(out).manifest.plan, out)
    return Worker(Run(directory=out, plan=plan), model)


@pytest.mark.fast(0, full=1)
@pytest.mark.parametrize("name", ["llama", "gpt2-relu"])
def test_keys_are_compared_with_words_led_to_their_layer(name: str, tmp_path: Path) -> None:
    """The map by plain least squares of streams read one position at a time; ranks of dense cosines by counting."""
    hf, model, out = mined(name, tmp_path)
    fit_lenses(out, model)
    atlas, slow = open_atlas(out), SlowTransformer(hf, beginning=0)
    embed = hf.get_input_embeddings().weight.double()[: model.sizes.vocabulary]
    rows: dict[tuple[bool, int], list[torch.Tensor]] = {}
    stored = pl.read_parquet(out / "sentences/part-000.parquet").filter(~pl.col("held_out"))
    for document, tokens in stored.select("document", "tokens").rows():
        judged = document * 2654435761 % 2**32 % 10 == 0
        for end in range(1, len(tokens) + 1) if len(tokens) > 1 else ():
            for layer, place in enumerate(slow.read(tokens[:end])[0]):
                rows.setdefault((judged, layer), []).append(torch.cat([embed[tokens[end - 1]], place.residual]))
    found = load_file(out / "lenses/words.safetensors")
    for layer in (0, 1):
        fitted, other = (torch.stack(rows[judged, layer]) for judged in (False, True))
        x, y = fitted[:, :16], fitted[:, 16:]
        centred, least = x - x.mean(0), (float("inf"), torch.zeros(0), torch.zeros(0))
        for penalty in PENALTIES:
            size = len(x) * penalty * centred.square().mean()
            wanted = torch.cat([y - y.mean(0) - centred, torch.zeros(16, 16)])
            away = torch.linalg.lstsq(torch.cat([centred, size.sqrt() * torch.eye(16)]), wanted).solution
            weight = torch.eye(16) + away
            bias = y.mean(0) - x.mean(0) @ weight
            error = float((other[:, :16] @ weight + bias - other[:, 16:]).square().sum(1).mean())
            least = min(least, (error, weight, bias), key=lambda one: one[0])
        torch.testing.assert_close(found["weight"][layer].double(), least[1], atol=2e-3, rtol=1e-2)
        torch.testing.assert_close(found["bias"][layer].double(), least[2], atol=2e-3, rtol=1e-2)
        table, roles = atlas.table("key_readings", layer=layer), atlas.table("roles", layer=layer)
        plain, ridge = (table.filter(pl.col("lens") == lens) for lens in ("plain", "ridge"))
        for column in ("trigger_rank", "control_rank", "triggers_found", "controls_found", "key_top_tokens"):
            assert plain[column].equals(roles[column])
        moved = embed @ found["weight"][layer].double() + found["bias"][layer].double()
        moved = moved - moved.mean(1, keepdim=True)
        unit = torch.nn.functional.normalize
        cosines = unit(read_directions(model, layer).double()) @ unit(moved).T
        for row, own in zip(ridge.to_dicts(), cosines, strict=True):
            assert min(own[row["key_top_tokens"]]) >= own.sort().values[-25] - 1e-6
            for kind in ("trigger", "control"):
                token = roles[f"{kind}_token"][row["memory"]]
                if token is None:
                    assert row[f"{kind}_rank"] is None
                else:
                    above = int((own > own[token] + 1e-6).sum())
                    assert above <= row[f"{kind}_rank"] <= int((own >= own[token] - 1e-6).sum())


@pytest.mark.full
def test_values_and_keys_of_experts_are_read_as_those_of_layers(tmp_path: Path) -> None:
    """Every expert's matrices taken from the model by hand, expert by expert."""
    hf = build_mixture("mixtral")
    model = load_bytes(hf)
    out = mined_text(model, tmp_path, odd_text(), triggers=5, prefixes=8, removals=0)
    fit_lenses(out, model)
    assert verify(out) == []
    atlas, unit = open_atlas(out), torch.nn.functional.normalize
    ridge, words = (load_file(out / f"lenses/{kind}.safetensors") for kind in ("ridge", "words"))
    embed, head = hf.model.embed_tokens.weight.double(), hf.lm_head.weight.double()
    embed = embed[: model.sizes.vocabulary]
    for layer, block in enumerate(hf.model.layers):
        readings, keys = (atlas.table(name, layer=layer) for name in ("readings", "key_readings"))
        gate_up = block.mlp.experts.gate_up_proj.double()
        gates, ups = gate_up.chunk(2, dim=1)
        gain = block.post_attention_layernorm.weight.double()
        directions = unit((gates * gain).flatten(0, 1)) + unit((ups * gain).flatten(0, 1))
        directions = directions - directions.mean(1, keepdim=True)
        values = HandRead(hf, "mixtral").values(layer).double()
        led = embed @ words["weight"][layer].double() + words["bias"][layer].double()
        moved = {"plain": (values, embed), "ridge": (values @ ridge["weight"][layer].double(), led)}
        for lens, (value, word) in moved.items():
            scores = (value * hf.model.norm.weight.double()) @ head.T
            said = readings.filter(pl.col("lens") == lens)["top_tokens"].to_list()
            assert len(said) == len(values)
            assert all(float(own.max() - own[top[0]]) < 1e-4 for own, top in zip(scores, said, strict=True))
            cosines = unit(directions) @ unit(word - word.mean(1, keepdim=True)).T
            looked = keys.filter(pl.col("lens") == lens)["key_top_tokens"].to_list()
            assert all(float(own.max() - own[top[0]]) < 1e-5 for own, top in zip(cosines, looked, strict=True))
    assert answer(atlas, "lenses").filter(pl.col("name") == "key_agreement_ridge").height == 3


@pytest.mark.full
def test_a_fit_that_was_stopped_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    _, model, out = mined("gpt2-relu", tmp_path)
    whole = Path(shutil.copytree(out, tmp_path / "whole"))
    fit_lenses(whole, model)
    stops = {("lens ridge", 1), ("lens tuned", 3), ("readings", 1)}
    begun: list[float] = []

    def stop(stage: str, done: float, total: float | None, note: str) -> None:
        if stage == "readings":
            begun.append(done)
        if (stage, done) in stops:
            stops.remove((stage, done))
            raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(Interrupted):
            fit_lenses(out, model, progress=stop, checkpoint_every=0)
    fit_lenses(out, model, progress=stop)
    assert not stops
    assert begun.count(0) == 1  # the layers that were read are not read again
    names = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.suffix in (".safetensors", ".parquet"))
    assert Path("lenses/tuned.safetensors") in names
    for name in names:
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    assert not (out / "work").exists()
    assert verify(out) == []


def test_what_cannot_be_fitted_or_read_is_said(tmp_path: Path) -> None:
    hf, model, out = mined("gpt2-relu", tmp_path)
    with pytest.raises(OptionError, match="'glass' is not a kind of lens"):
        fit_lenses(out, model, ["glass"])
    with pytest.raises(AtlasUnfinished, match=r"no table readings"):
        answer(open_atlas(out), "lenses")
    assert fit_lenses(out, model, ["ridge"]).fitted == ("ridge",)
    assert fit_lenses(out, model, ["ridge"]).fitted == ()
    assert answer(open_atlas(out), "lenses").filter(pl.col("name").str.ends_with("_tuned")).is_empty()
    path = out / "lenses/ridge.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(AtlasDamaged, match="sha256 differs"):
        fit_lenses(out, model, ["tuned"])
    assert verify(out) == ["lenses/ridge.safetensors: the content is not what was written (its sha256 differs)"]
    assert fit_lenses(out, model, ["ridge"], force=True).fitted == ("ridge",)
    assert verify(out) == []
    hf.transformer.h[0].mlp.c_proj.weight[:, 0] = float("nan")
    model.usage = None  # nobody sees that it was changed
    with pytest.raises(NotFinite, match="layer 0 are not finite under the lens plain"):
        reading_columns(ValuePass(model), 0, targets_of(worker_of(out, model), 0), {"plain": {}}, seed=0)


def test_a_file_that_holds_no_lens_of_this_atlas_is_refused(tmp_path: Path) -> None:
    """Its hash is right; what it holds is what nobody fitted."""
    (tmp_path / "lenses").mkdir()
    path = tmp_path / "lenses/ridge.safetensors"
    manifest = SimpleNamespace(model=SimpleNamespace(fingerprint="m"), plan_hash="p")
    hashes = ["lenses/ridge.safetensors"]
    known = {
        "path": tmp_path,
        "hashes": hashes,
        "local": tmp_path.joinpath,
        "checked_file": tmp_path.joinpath,
        "manifest": manifest,
        "layers": range(2),
    }
    atlas: Any = SimpleNamespace(**known)
    whole = {"weight": torch.ones(2, 3, 3), "bias": torch.ones(2, 3)}
    said = {"model": "m", "plan": "p", "layers": [0, 1]}
    wrong, odd = "does not hold a lens of this atlas's layers", r"does not hold a lens \(.*\); fit it again"
    save_file(whole, path, {"mnemoscope": json.dumps(said)})
    assert (read_lens(atlas, "ridge") or {}).keys() == {0, 1}
    assert read_lens(atlas, "tuned") is None
    cases: list[tuple[dict[str, Any], dict[str, Any], type[MnemoscopeError], str]] = [
        *(
            (whole, {**said, name: "another"}, ModelDiffers, "was fitted for another model or atlas; fit it again with")
            for name in ("model", "plan")
        ),
        (whole, {**said, "layers": [0]}, AtlasDamaged, wrong),
        ({**whole, "weight": torch.ones(1, 3, 3)}, said, AtlasDamaged, wrong),
        ({**whole, "weight": whole["weight"] * float("nan")}, said, AtlasDamaged, wrong),
        (whole, {"model": "m", "plan": "p"}, AtlasDamaged, odd),
        ({"weight": whole["weight"]}, said, AtlasDamaged, odd),
    ]
    for tensors, words, error, line in cases:
        save_file(tensors, path, {"mnemoscope": json.dumps(words)})
        with pytest.raises(error, match=line):
            read_lens(atlas, "ridge")
    path.unlink()
    with pytest.raises(AtlasDamaged, match="does not hold a lens"):
        read_lens(atlas, "ridge")


def test_values_that_know_nothing_agree_above_the_control_no_more_often_than_stated() -> None:
    """200 layers of random values: of two-sided intervals of 95 %, one side."""
    generator, called = np.random.default_rng(0), 0
    for _ in range(200):
        ranks = generator.integers(0, 25, (2, 300))
        rows = pl.DataFrame({"target_rank": ranks[0], "control_rank": ranks[1], "max_probability": ranks[0] / 25})
        low = estimate_values(rows)["above_control"].low
        assert low is not None
        called += low > 0
    assert called <= 10


@pytest.mark.full
def test_a_memory_shows_its_value_and_key_through_every_lens(tmp_path: Path) -> None:
    _, model, out = mined("gpt2-relu", tmp_path)

    def shown() -> tuple[dict[str, Any], str]:
        """The memory as JSON and as a page."""
        web = client(out)
        return web.get("/L1.M3.json").json(), web.get("/L1.M3").text

    def tops(readings: list[dict[str, Any]]) -> list[list[int]]:
        return [[token["token"] for token in one["top"]] for one in readings]

    # What its key looks for, mining has found; through the words' own embeddings.
    memory, role = open_atlas(out)["L1.M3"], open_atlas(out).table("roles", layer=1).row(3, named=True)
    plain, before_keys = memory.value()["top_texts"][0].to_list(), memory.key_readings()
    said, page = shown()
    assert said["readings"] == []
    assert [(one["lens"], one["trigger_rank"]) for one in said["key_readings"]] == [("plain", role["trigger_rank"])]
    assert tops(said["key_readings"]) == [role["key_top_tokens"][:8]]
    assert "leads them to each layer" in page
    fit_lenses(out, model)
    readings, keys = open_atlas(out)["L1.M3"].readings(), open_atlas(out)["L1.M3"].key_readings()
    said, page = shown()
    assert [one["lens"] for one in said["readings"]] == readings["lens"].to_list() == ["plain", "ridge", "tuned"]
    assert readings["top_texts"][0].to_list() == plain
    assert tops(said["readings"]) == [tokens[:8] for tokens in readings["top_tokens"].to_list()]
    assert "Through the lenses of its layer" in page
    assert "leads them to each layer" not in page
    assert keys["lens"].to_list() == ["plain", "ridge"]
    assert keys.head(1).equals(before_keys)
    assert tops(said["key_readings"]) == [tokens[:8] for tokens in keys["key_top_tokens"].to_list()]
    assert [one["trigger_rank"] for one in said["key_readings"]] == keys["trigger_rank"].to_list()
    assert keys["key_top_texts"][0].to_list() == open_atlas(out).token_text(keys["key_top_tokens"][0].to_list())


def test_of_one_document_no_lens_is_stored_and_the_question_is_undecided(tmp_path: Path, capsys: Any) -> None:
    model = tiny_model("gpt2-relu")
    lines = odd_text().splitlines()
    (tmp_path / "held.txt").write_text("\n\n".join(lines))
    options: dict[str, Any] = {"split": "sentence", "triggers": 5, "prefixes": 8, "removals": 0}
    options["validation"] = tmp_path / "held.txt"
    out = mined_text(model, tmp_path, "\n".join(line for line in lines if line.strip()), **options)
    with pytest.raises(AtlasUnfinished, match="from one document"):
        fit_lenses(out, model)
    assert not (tmp_path / "atlas/lenses").exists()
    assert verify(tmp_path / "atlas") == []
    assert main(["analyze", str(out), "lenses"]) == 2
    assert "one document only, which cannot both fit a lens and judge it; mine more" in capsys.readouterr().err


def test_an_entry_that_is_large_everywhere_leaves_its_covariance() -> None:
    """As the massive entries of real streams are: mean 3,000, deviation 1; float32 has 7 digits of the square."""
    generator, moments, streams = torch.Generator().manual_seed(0), Moments.empty(4), []
    for _ in range(10):
        stream = torch.randn(2000, 4, generator=generator)
        stream[:, 0] += 3000
        streams.append(stream.double())
        moments.add(stream, stream.roll(1, 1))
    covariance, shared = moments.covariances()[2:]
    whole = torch.cov(torch.cat(streams).T, correction=0)
    torch.testing.assert_close(covariance, whole, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(shared, whole.roll(1, 1), rtol=1e-3, atol=1e-3)
