"""Verification finds every flipped byte, every missing file, and every table that does not belong."""

import json
import random
import shutil
from pathlib import Path

import pytest

from mnemoscope.atlas import open_atlas, verify
from mnemoscope.atlas.derived_manifest import record_hashes
from mnemoscope.atlas.manifest import seal
from mnemoscope.atlas.schema import SCHEMA_VERSION, Provenance
from mnemoscope.atlas.store import write_table
from mnemoscope.errors import AtlasDamaged, AtlasNotFound, AtlasTooNew, AtlasUnfinished
from mnemoscope.foundation.files import file_hash, write_json
from support.handbuilt_atlas import PROVENANCE, build_atlas, manifest, seal_as_is, write_tables


@pytest.fixture
def atlas(tmp_path: Path) -> Path:
    return build_atlas(tmp_path / "atlas")


def covered(directory: Path) -> list[Path]:
    """Every file that verification answers for."""
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "run.json")


def is_damaged(directory: Path) -> bool:
    try:
        return bool(verify(directory))
    except (AtlasTooNew, AtlasNotFound, AtlasUnfinished):
        return True


def test_any_flipped_byte_is_found(tmp_path: Path) -> None:
    directory = build_atlas(tmp_path / "p", part=(1, 2))
    draw = random.Random(0)
    for path in covered(directory):
        whole = path.read_bytes()
        places = {0, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(8))}
        for place in places:
            flipped = bytes([whole[place] ^ (1 << draw.randrange(8))])
            path.write_bytes(whole[:place] + flipped + whole[place + 1 :])
            assert is_damaged(directory), (path, place)
        path.write_bytes(whole)
    assert verify(directory) == []


@pytest.mark.parametrize("name", ["manifest.json", "manifest.sha256"])
def test_every_bit_of_the_manifest_and_its_seal(atlas: Path, name: str) -> None:
    whole = (atlas / name).read_bytes()
    for place in range(0, len(whole), 1 if name == "manifest.sha256" else 97):
        for bit in range(8):
            (atlas / name).write_bytes(whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :])
            assert is_damaged(atlas), (place, bit)


def test_any_missing_or_longer_file_is_found(atlas: Path) -> None:
    for path in covered(atlas):
        whole = path.read_bytes()
        path.unlink()
        assert is_damaged(atlas), path
        path.write_bytes(whole + b"\n")
        assert is_damaged(atlas), path
        path.write_bytes(whole)
    assert verify(atlas) == []


def test_damage_is_listed_by_file(atlas: Path) -> None:
    (atlas / "tokens.parquet").unlink()
    (atlas / "values/layer-001.parquet").write_bytes(b"")
    assert verify(atlas) == [
        "tokens.parquet: missing",
        "values/layer-001.parquet: the content is not what was written (its sha256 differs)",
    ]


def test_a_table_that_no_manifest_lists(atlas: Path) -> None:
    shutil.copy(atlas / "triggers/layer-000.parquet", atlas / "triggers/layer-002.parquet")
    shutil.copy(atlas / "tokens.parquet", atlas / "removals.parquet")
    assert verify(atlas) == [
        "removals.parquet: a table that no manifest lists",
        "triggers/layer-002.parquet: a table that no manifest lists",
    ]


def test_the_run_and_foreign_files_are_not_covered(atlas: Path) -> None:
    (atlas / "run.json").unlink()
    (atlas / "notes.txt").write_text("mine")
    (atlas / "annotations.sqlite").write_text("ours")
    assert verify(atlas) == []


def test_a_table_of_another_model_is_found_though_its_hash_is_listed(tmp_path: Path) -> None:
    directory = tmp_path / "a"
    write_tables(directory)
    write_tables(tmp_path / "b", provenance=Provenance("d" * 64, PROVENANCE.corpus, PROVENANCE.plan))
    shutil.copy(tmp_path / "b/tokens.parquet", directory / "tokens.parquet")
    shutil.copy(directory / "values/layer-000.parquet", directory / "values/layer-001.parquet")
    shutil.copy(directory / "values/layer-000.parquet", directory / "triggers/layer-001.parquet")
    seal(directory, manifest())
    assert verify(directory) == [
        f"tokens.parquet: it says mnemoscope.model = {'d' * 64}, the manifest {'a' * 64}",
        "triggers/layer-001.parquet: it says mnemoscope.table = values, the manifest triggers",
    ]


def test_an_atlas_sealed_without_a_layer_s_values(tmp_path: Path) -> None:
    write_tables(tmp_path)
    (tmp_path / "values/layer-001.parquet").unlink()
    seal(tmp_path, manifest())
    assert verify(tmp_path) == ["values/layer-001.parquet: missing from the manifest"]


def test_a_manifest_that_points_outside_is_not_followed(atlas: Path) -> None:
    listed = json.loads((atlas / "manifest.json").read_text())
    listed["files"]["../secret"] = {"sha256": "0" * 64}
    seal_as_is(atlas, listed)
    assert verify(atlas) == [f"{atlas / 'manifest.json'}: the manifest's files: ../secret is no file of an atlas"]


def test_what_might_be_read_without_end_is_not_read(atlas: Path) -> None:
    """A pipe or a device in the place of a table; the null device, so that this test has an end where it fails."""
    for path in ("tokens.parquet", "sentences/part-000.parquet"):
        (atlas / path).unlink()
        (atlas / path).symlink_to("/dev/null")
    said = "cannot be read (not a regular file)"
    assert verify(atlas) == [f"sentences/part-000.parquet: {said}", f"tokens.parquet: {said}"]
    with pytest.raises(AtlasDamaged, match=r"part-000.parquet .*not a regular file"):
        open_atlas(atlas).sentences([0])
    with pytest.raises(AtlasDamaged, match=r"tokens.parquet .*not a regular file"):
        open_atlas(atlas).table("tokens")


def test_a_seal_that_might_be_read_without_end_is_not_read(atlas: Path) -> None:
    (atlas / "manifest.sha256").unlink()
    (atlas / "manifest.sha256").symlink_to("/dev/null")
    with pytest.raises(AtlasDamaged, match=r"manifest.sha256 .*not a regular file"):
        open_atlas(atlas)


def test_the_folders_made_later_have_their_own_manifest(atlas: Path) -> None:
    (atlas / "analyses").mkdir()
    answer = atlas / "analyses" / "value_rank.json"
    answer.write_text("{}")
    assert verify(atlas) == ["analyses/manifest.json: missing"]
    files = {"analyses/value_rank.json": {"sha256": file_hash(answer)}}
    write_json(atlas / "analyses/manifest.json", {"atlas": file_hash(atlas / "manifest.json"), "files": files})
    assert verify(atlas) == []
    answer.write_text("{ }")
    assert verify(atlas) == ["analyses/value_rank.json: the content is not what was written (its sha256 differs)"]
    write_json(atlas / "analyses/manifest.json", {"atlas": "0" * 64, "files": {}})
    assert verify(atlas) == ["analyses/manifest.json: made from another atlas"]


def test_manifests_beside_an_atlas_that_nobody_writes(atlas: Path) -> None:
    for said in ({"atlas": file_hash(atlas / "manifest.json"), "files": []}, {"files": {}}, {}):
        write_json(atlas / "report/manifest.json", said)
        assert verify(atlas) == ["report/manifest.json: not a manifest that mnemoscope writes"]
    shutil.rmtree(atlas / "report")
    (atlas / "report").mkdir()
    assert verify(atlas) == []
    (atlas / "report" / "notes.md").write_text("mine")
    assert verify(atlas) == []


@pytest.mark.parametrize("model", ["a" * 64, "d" * 64])
def test_tables_that_were_made_later_must_belong(atlas: Path, model: str) -> None:
    """An optional table is covered by the manifest of the extensions, its hash, its columns and its origin."""
    columns = {"document": [1], "held_out": [False], "agreed": [2], "loss": [0.5], "text": ["x"]}
    columns |= {"sentences": [[3]], "inside": [[1]]}
    provenance = Provenance(model, PROVENANCE.corpus, PROVENANCE.plan)
    write_table(atlas / "memorised.parquet", columns, name="memorised", provenance=provenance)
    record_hashes(open_atlas(atlas), "extensions", ["memorised.parquet"])
    said = [f"memorised.parquet: it says mnemoscope.model = {model}, the manifest {'a' * 64}"]
    assert verify(atlas) == (said if model != PROVENANCE.model else [])
    assert open_atlas(atlas).has("memorised")
    (atlas / "memorised.parquet").unlink()
    assert verify(atlas) == ["memorised.parquet: missing"]


def test_a_table_that_is_none_is_told_by_name(tmp_path: Path) -> None:
    """Files whose hash is right, because the manifest was made for them."""
    write_tables(tmp_path)
    (tmp_path / "tokens.parquet").write_bytes(b"no Parquet at all")
    seal(tmp_path, manifest())
    (said,) = verify(tmp_path)
    assert said.startswith("tokens.parquet: not a Parquet file (")
    listed = json.loads((tmp_path / "manifest.json").read_text())
    shutil.copy(tmp_path / "vocabulary.parquet", tmp_path / "lenses.parquet")
    listed["files"]["lenses.parquet"] = listed["files"]["vocabulary.parquet"]
    seal_as_is(tmp_path, listed)
    assert verify(tmp_path)[0] == f"lenses.parquet: not a table of schema {SCHEMA_VERSION}"
