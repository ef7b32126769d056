"""Whatever decides a number is in the plan or in a fingerprint: what changed between two runs or parts is refused."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mining.conftest import byte_tokenizer, odd_text, tables_of
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.errors import Interrupted, ModelDiffers, PartsDiffer, PlanDiffers
from mnemoscope.mining import merge, mine
from mnemoscope.mining.passes.vectors.values import ValuePass
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.runs import plan
from mnemoscope.tracing import causal_check
from models.conftest import build

OPTIONS: dict[str, Any] = {"split": "line", "triggers": 5, "batch_tokens": 150}
VERSIONS = {"torch": "0.1", "transformers": "0.2", "tokenizers": "0.3", "sentencex": "0.4"}


@pytest.fixture(scope="module")
def parts(model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two parts of the odd text."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "odd.txt").write_text(odd_text())
    return [mine(model, folder / "odd.txt", out=folder / f"p{i}", part=(i, 2), **OPTIONS).path for i in (1, 2)]


def stop_in(stage: str) -> Callable[..., None]:
    """A progress callback that presses Ctrl-C when a stage begins."""
    pressed: list[str] = []

    def progress(reached: str, done: float, total: float | None, note: str) -> None:
        if reached == stage and not pressed:
            pressed.append(stage)
            os.kill(os.getpid(), signal.SIGINT)

    return progress


def held_out(path: Path, lines: int, *, first: str) -> Path:
    """A validation text with so many prefixes, each line another one."""
    path.write_text("".join(f"{first} {number} cats sat on a mat\n" for number in range(lines)))
    return path


@pytest.mark.full
def test_a_validation_text_that_changed_meanwhile_is_another_plan(
    model: LanguageModel, text: Path, tmp_path: Path
) -> None:
    # More prefixes than fit one forward, and as many in both texts, so that arrays of answers have equal shapes.
    options = {**OPTIONS, "validation": held_out(tmp_path / "v.txt", 300, first="the dog ran to"), "prefixes": 300}
    with pytest.raises(Interrupted):
        mine(model, text, out=tmp_path / "atlas", progress=stop_in("predictions"), **options)
    before = (tmp_path / "v.txt").read_text()
    held_out(tmp_path / "v.txt", 300, first="a")
    with pytest.raises(PlanDiffers, match="validation fingerprint was '"):
        mine(model, text, out=tmp_path / "atlas", **options)
    clean = tables_of(mine(model, text, out=tmp_path / "clean", **options))
    assert tables_of(mine(model, text, out=tmp_path / "atlas", force=True, **options)) == clean
    (tmp_path / "v.txt").write_text(before)
    other = mine(model, text, out=tmp_path / "other", **options)
    assert open_atlas(other).manifest["plan_hash"] != open_atlas(tmp_path / "clean").manifest["plan_hash"]


def beginnings() -> dict[str, LanguageModel]:
    """One model whose tokenizers differ in their special tokens alone."""
    network = build("llama")
    network.config.bos_token_id = network.config.eos_token_id = None
    found = {}
    for kind, forgotten in {"bos": (), "end-of-text": ("bos_token",), "none": ("bos_token", "eos_token")}.items():
        tokenizer = byte_tokenizer(bos_token="<s>", eos_token="</s>")
        for name in forgotten:
            setattr(tokenizer, name, None)
        found[kind] = load_model(network, tokenizer=tokenizer)
    return found


@pytest.mark.full
def test_the_beginning_token_is_part_of_the_models_identity(text: Path, tmp_path: Path) -> None:
    models = beginnings()
    assert {kind: model.beginning.kind for kind, model in models.items()} == {kind: kind for kind in models}
    assert len({model.content for model in models.values()}) == 1
    assert len({model.fingerprint for model in models.values()}) == 3
    first = mine(models["bos"], text, out=tmp_path / "p1", part=(1, 2), **OPTIONS)
    second = mine(models["end-of-text"], text, out=tmp_path / "p2", part=(2, 2), **OPTIONS)
    with pytest.raises(PartsDiffer, match="model fingerprint differ"):
        merge(tmp_path / "out", [first, second], model=models["bos"])
    with pytest.raises(Interrupted):
        mine(models["bos"], text, out=tmp_path / "atlas", progress=stop_in("removals"), **OPTIONS)
    with pytest.raises(PlanDiffers, match="model fingerprint was"):
        mine(models["end-of-text"], text, out=tmp_path / "atlas", **OPTIONS)
    atlas = open_atlas(mine(models["bos"], text, out=tmp_path / "atlas", **OPTIONS))
    firing = atlas.table("triggers", layer=0).filter(pl.col("sign") == 1)["memory"][0]
    assert causal_check(models["bos"], atlas, f"L0.M{firing}").memory
    for kind in ("end-of-text", "none"):
        with pytest.raises(ModelDiffers, match="was mined from another model"):
            causal_check(models[kind], atlas, f"L0.M{firing}")


@pytest.mark.full
def test_other_versions_of_libraries_are_another_plan_unless_accepted(
    model: LanguageModel, text: Path, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = plan.library_versions()
    with pytest.raises(Interrupted):
        mine(model, text, out=tmp_path / "atlas", progress=stop_in("removals"), **OPTIONS)
    for name in ("mnemoscope.runs.plan", "mnemoscope.runs.run", "mnemoscope.mining.merging"):
        monkeypatch.setattr(f"{name}.library_versions", lambda: VERSIONS)
    with pytest.raises(PlanDiffers, match=r"sentencex was .*, now '0\.4'.*accept_versions=True"):
        mine(model, text, out=tmp_path / "atlas", **OPTIONS)
    with pytest.raises(PlanDiffers, match="triggers was 5, now 6"):  # is not accepted along with the versions
        mine(model, text, out=tmp_path / "atlas", accept_versions=True, **{**OPTIONS, "triggers": 6})
    atlas = open_atlas(mine(model, text, out=tmp_path / "atlas", accept_versions=True, **OPTIONS))
    assert atlas.manifest["versions"] == [here, VERSIONS]
    assert atlas.manifest["byte_identity_promised"] is False
    assert tables_of(atlas.path) == whole


def test_merging_with_other_versions_of_libraries(
    model: LanguageModel, parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = plan.library_versions()
    for name in ("mnemoscope.runs.plan", "mnemoscope.mining.merging"):
        monkeypatch.setattr(f"{name}.library_versions", lambda: {**here, "transformers": "0.2"})
    with pytest.raises(ModelDiffers, match=r"with transformers \S+ \(here 0\.2\)"):
        merge(tmp_path / "out", parts, model=model)
    out = merge(tmp_path / "out", parts, model=model, accept_versions=True)
    assert open_atlas(out).manifest["versions"] == [here, {**here, "transformers": "0.2"}]


@pytest.mark.full
def test_force_after_the_values_leaves_nothing_of_the_old_text(
    model: LanguageModel, text: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    before = text.read_text()
    text.write_text(before + "".join(f"one more bird {n} ran home and sat\n" for n in range(40)))
    with pytest.raises(Interrupted):
        mine(model, text, out=tmp_path / "atlas", progress=stop_in("removals"), **OPTIONS)
    assert (tmp_path / "atlas/values/layer-000.parquet").is_file()
    text.write_text(before)
    assert tables_of(mine(model, text, out=tmp_path / "atlas", force=True, **OPTIONS)) == whole
    assert verify(tmp_path / "atlas") == []


@pytest.mark.full
def test_values_of_another_origin_are_made_again(model: LanguageModel, text: Path, tmp_path: Path, whole: Any) -> None:
    foreign = mine(model, text, out=tmp_path / "foreign", **{**OPTIONS, "triggers": 3})
    with pytest.raises(Interrupted):
        mine(model, text, out=tmp_path / "atlas", progress=stop_in("removals"), **OPTIONS)
    name = "values/layer-000.parquet"
    (tmp_path / "atlas" / name).write_bytes((foreign / name).read_bytes())
    assert tables_of(mine(model, text, out=tmp_path / "atlas", **OPTIONS)) == whole


@pytest.mark.fast(1)
@pytest.mark.parametrize("stage", ["values", "removals", "scales"])
def test_a_stopped_merge_goes_on(
    stage: str, model: LanguageModel, parts: list[Path], whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "merged"
    with pytest.raises(Interrupted, match="run the same command again"):
        merge(out, parts, model=model, progress=stop_in(stage))
    made = list((out / "values").glob("*"))
    assert len(made) == (0 if stage in ("scales", "values") else 2)
    projected: list[int] = []
    whole_table = ValuePass.columns

    def note(values: ValuePass, layer: int, *rest: Any, **options: Any) -> dict[str, Any]:
        projected.append(layer)
        return whole_table(values, layer, *rest, **options)

    monkeypatch.setattr(ValuePass, "columns", note)
    merge(out, parts, model=model)
    assert projected == ([0, 1] if stage in ("scales", "values") else []), "values were made twice"
    assert tables_of(out) == whole
    assert verify(out) == []


def test_a_folder_begun_with_another_plan_is_no_place_to_merge(
    model: LanguageModel, text: Path, tmp_path: Path, parts: list[Path]
) -> None:
    with pytest.raises(Interrupted):
        mine(model, text, out=tmp_path / "out", progress=stop_in("mining"), **{**OPTIONS, "triggers": 3})
    with pytest.raises(PlanDiffers, match="triggers was 3, now 5"):
        merge(tmp_path / "out", parts, model=model)
    with pytest.raises(Interrupted):
        mine(model, text, out=tmp_path / "part", part=(1, 2), progress=stop_in("mining"), **OPTIONS)
    with pytest.raises(PlanDiffers, match=r"part was \(1, 2\), now None"):
        merge(tmp_path / "part", parts, model=model)
    merge(tmp_path / "out", parts, model=model, force=True)
    assert verify(tmp_path / "out") == []
