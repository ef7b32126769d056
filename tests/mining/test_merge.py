"""Parts of one plan make the very atlas of a single run; whatever is not all parts of one plan is refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mining.conftest import byte_tokenizer, tables_of, tiny_model
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.errors import (
    AtlasDamaged,
    AtlasExists,
    AtlasNotFound,
    AtlasUnfinished,
    ModelDiffers,
    OptionError,
    PartsDiffer,
)
from mnemoscope.foundation.files import file_entry, file_hash
from mnemoscope.kernels import devices
from mnemoscope.mining import merge, mine
from mnemoscope.mining.text.state import StateFacts
from mnemoscope.models import LanguageModel, load_model
from models.conftest import build

OPTIONS: dict[str, Any] = {"split": "line", "triggers": 5, "batch_tokens": 150}


Parts = Callable[..., list[Path]]


@pytest.fixture
def parts(model: LanguageModel, text: Path, tmp_path: Path) -> Parts:
    def make(of: int, *, only: tuple[int, ...] | None = None, name: str = "part", **changes: Any) -> list[Path]:
        return [
            mine(model, text, out=tmp_path / f"{name}-{i}-{of}", part=(i, of), **{**OPTIONS, **changes}).path
            for i in only or range(1, of + 1)
        ]

    return make


@pytest.mark.fast(1)
@pytest.mark.parametrize("of", [2, 1, 7])
def test_merged_parts_are_byte_identical_to_one_run(
    of: int, model: LanguageModel, tiny_atlas: Path, tmp_path: Path, parts: Parts
) -> None:
    made = parts(of)
    before = [{p: p.read_bytes() for p in part.rglob("*") if p.is_file()} for part in made]
    for part in made:
        assert verify(part) == []
        assert open_atlas(part).manifest["part"]["of"] == of
    out = merge(tmp_path / "merged", made[::-1], model=model)
    assert tables_of(out) == tables_of(tiny_atlas)
    assert verify(out) == []
    assert open_atlas(out).manifest == open_atlas(tiny_atlas).manifest
    assert before == [{p: p.read_bytes() for p in part.rglob("*") if p.is_file()} for part in made]
    assert not (out / "state").exists()
    assert not (out / "unfinished.json").exists()


def test_more_parts_than_batches(model: LanguageModel, text: Path, tmp_path: Path, parts: Parts) -> None:
    text.write_text("the cat\na dog\n")
    whole = mine(model, text, out=tmp_path / "whole", **OPTIONS)
    made = parts(4)
    assert set(open_atlas(made[-1]).table("activity", layer=0).lazy().collect()["prefixes"]) == {0}
    assert tables_of(merge(tmp_path / "merged", made, model=model)) == tables_of(whole)


def test_a_missing_repeated_or_foreign_part_is_named(
    model: LanguageModel, tiny_atlas: Path, tmp_path: Path, parts: Parts
) -> None:
    one, two, three = parts(3)
    other, half = parts(3, only=(2,), name="other", triggers=6)[0], parts(2, only=(2,))[0]
    for given, line in (
        ([one, three], r"part 2/3 is missing; mine it with the same options and part='2/3'"),
        ([one], r"part 2/3, 3/3 is missing"),
        ([one, two, three, two], r"repeats part 2 of 3, which is .*part-2-3"),
        ([one, other], r"other-2-3 is part of another plan than .*part-1-3 \(triggers differ\)"),
        ([one, half], r"is part 2 of 2, .* part 1 of 3; merge parts of one division"),
        ([one, tiny_atlas], r"is a whole atlas, not a part; .*--part I/N"),
    ):
        with pytest.raises(PartsDiffer, match=line):
            merge(tmp_path / "out", given, model=model)
    assert not (tmp_path / "out").exists()


def test_a_damaged_unfinished_or_absent_part_is_refused(model: LanguageModel, tmp_path: Path, parts: Parts) -> None:
    made = parts(2)
    state = made[1] / "state/state.safetensors"
    good = state.read_bytes()
    state.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(AtlasDamaged, match=r"part-2-2 is damaged"):
        merge(tmp_path / "out", made, model=model)
    state.unlink()
    with pytest.raises(AtlasDamaged, match="part-2-2"):
        merge(tmp_path / "out", made, model=model)
    (made[1] / "manifest.json").rename(made[1] / "unfinished.json")
    with pytest.raises(AtlasUnfinished, match="part-2-2"):
        merge(tmp_path / "out", made, model=model)
    shutil.rmtree(made[1])
    with pytest.raises(AtlasNotFound, match="part-2-2"):
        merge(tmp_path / "out", made, model=model)
    with pytest.raises(OptionError, match="needs the folders"):
        merge(tmp_path / "out", [], model=model)
    assert not (tmp_path / "out").exists()


def test_a_part_sealed_with_damaged_prefixes_is_one_line(model: LanguageModel, tmp_path: Path, parts: Parts) -> None:
    (one,) = parts(1)
    reseal(one / "state/prefixes.safetensors", b"no tensors")
    with pytest.raises(AtlasDamaged, match=r"prefixes\.safetensors .*mine that part again$") as refused:
        merge(tmp_path / "out", [one], model=model)
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "out").glob("manifest.*"))


def reseal(file: Path, content: bytes) -> None:
    """Writes a file of a part, and the part's manifest and seal as if mining had written it so."""
    file.write_bytes(content)
    manifest = file.parents[1] / "manifest.json"
    document = json.loads(manifest.read_text())
    document["files"][file.relative_to(manifest.parent).as_posix()] = file_entry(file)
    manifest.write_text(json.dumps(document))
    manifest.with_suffix(".sha256").write_text(file_hash(manifest) + "\n")


@pytest.mark.full
def test_parts_of_different_devices_are_merged_only_when_asked(
    model: LanguageModel, tiny_atlas: Path, tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for part, name in ((1, "NVIDIA B"), (2, "NVIDIA A"), (3, "NVIDIA B")):
        monkeypatch.setattr(devices, "device_name", lambda device, name=name: name)
        made += parts(3, only=(part,))
    assert [StateFacts.read(part / "state/state.safetensors").device for part in made][:2] == ["NVIDIA B", "NVIDIA A"]
    line = r"NVIDIA A and NVIDIA B have counted parts of this text, .*allow_mixed_devices=True"
    with pytest.raises(PartsDiffer, match=line):
        merge(tmp_path / "merged", made, model=model)
    assert not (tmp_path / "merged").exists()
    out = merge(tmp_path / "merged", made, model=model, allow_mixed_devices=True)
    assert tables_of(out) == tables_of(tiny_atlas)
    assert verify(out) == []
    single, merged = (dict(open_atlas(atlas).manifest) for atlas in (tiny_atlas, out))
    assert merged.pop("devices") == ["NVIDIA A", "NVIDIA B"]
    assert merged.pop("equality") == "equal to tolerance"
    assert merged == {**single, "byte_identity_promised": False}
    assert not {"devices", "equality"} & single.keys()


def test_another_model_is_refused(tmp_path: Path, model: LanguageModel, parts: Parts) -> None:
    made = parts(2)
    with pytest.raises(ModelDiffers, match=r"model fingerprint \w+ \(here \w+\)"):
        merge(tmp_path / "out", made, model=tiny_model("gpt2-relu"))
    with pytest.raises(ModelDiffers, match=r"model fingerprint .*not handmade:planted"):
        merge(tmp_path / "out", made, model="handmade:planted")
    tokenizer = byte_tokenizer(bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    half = load_model(build("gpt2"), tokenizer=tokenizer, dtype="bfloat16")
    assert half.fingerprint == model.fingerprint
    with pytest.raises(ModelDiffers, match=r"dtype float32 \(here bfloat16\)"):
        merge(tmp_path / "out", made, model=half)


@pytest.mark.full
def test_the_output_folder(tmp_path: Path, model: LanguageModel, parts: Parts) -> None:
    made = parts(2)
    with pytest.raises(OptionError, match="is one of the parts"):
        merge(made[0], made, model=model, force=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("x")
    for force in (False, True):
        with pytest.raises(AtlasExists, match="is not an atlas"):
            merge(tmp_path / "mine", made, model=model, force=force)
    out = merge(tmp_path / "out", made, model=model)
    before = tables_of(out)
    with pytest.raises(AtlasExists, match="force=True"):
        merge(out, made, model=model)
    assert tables_of(merge(out, made, model=model, force=True)) == before
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.full
def test_a_model_without_a_beginning_token_and_all_prefixes(text: Path, tmp_path: Path) -> None:
    plain = load_model(build("opt"), tokenizer=byte_tokenizer())
    options = {**OPTIONS, "per_sentence": "all", "layers": "1"}
    whole = mine(plain, text, out=tmp_path / "whole", **options)
    made = [mine(plain, text, out=tmp_path / f"part-{i}", part=f"{i}/3", **options) for i in (1, 2, 3)]
    assert tables_of(merge(tmp_path / "merged", made, model=plain)) == tables_of(whole)
