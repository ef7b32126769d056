"""Manifests beside an atlas: what they keep, that verification believes them, and what they never name."""

from pathlib import Path

import pytest

from mnemoscope.atlas import Atlas, open_atlas, verify
from mnemoscope.atlas import derived_manifest as beside
from mnemoscope.atlas.lock import lock_folder
from mnemoscope.atlas.manifest import seal
from mnemoscope.errors import AtlasBusy
from support.handbuilt_atlas import build_atlas, manifest


def test_what_is_covered_is_verified(tmp_path: Path) -> None:
    directory = build_atlas(tmp_path / "atlas")
    atlas = open_atlas(directory)
    (directory / "analyses").mkdir()
    one, two = directory / "analyses" / "one.json", directory / "analyses" / "two.json"
    one.write_text("1")
    two.write_text("2")
    beside.record_hashes(atlas, "analyses", ["analyses/one.json"])
    beside.record_hashes(atlas, "analyses", ["analyses/two.json"])
    assert sorted(atlas.made_later("analyses")) == ["analyses/one.json", "analyses/two.json"]
    assert verify(directory) == []
    one.write_text("changed")
    assert verify(directory) == ["analyses/one.json: the content is not what was written (its sha256 differs)"]
    one.unlink()
    beside.record_hashes(atlas, "analyses", ["analyses/two.json"])
    assert list(atlas.made_later("analyses")) == ["analyses/two.json"]


def mined_again(atlas: Atlas) -> Atlas:
    """Another atlas in the place of this one."""
    seal(atlas.path, manifest(plan={"triggers": 51}))
    return open_atlas(atlas.path)


def test_files_of_another_atlas_are_forgotten(tmp_path: Path) -> None:
    old = open_atlas(build_atlas(tmp_path / "atlas"))
    (old.path / "report").mkdir()
    (old.path / "report" / "index.html").write_text("page")
    beside.record_hashes(old, "report", ["report/index.html"])
    new = mined_again(old)
    assert new.manifest_hash != old.manifest_hash
    assert new.made_later("report") == {}
    beside.record_hashes(new, "report", ["report/index.html"])
    assert old.made_later("report") == {}


def hold(atlas: Atlas) -> None:
    with beside.write_beside(atlas):
        pass


def test_nothing_is_written_beside_an_atlas_that_took_this_one_s_place(tmp_path: Path) -> None:
    old = open_atlas(build_atlas(tmp_path / "atlas"))
    hold(old)
    new = mined_again(old)
    with pytest.raises(AtlasBusy, match="was mined again while it was being read"):
        hold(old)
    hold(new)
    with lock_folder(new.path), pytest.raises(AtlasBusy, match="by another process"):
        hold(new)
    (new.path / "manifest.json").unlink()
    with pytest.raises(AtlasBusy, match="was mined again"):
        hold(new)
