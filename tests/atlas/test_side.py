"""Manifests beside an atlas: what they keep, that verification believes them, and what they never name."""

from pathlib import Path

import pytest

from handbuilt_atlas import build_atlas, manifest
from mnemoscope.atlas import Atlas, open_atlas, verify
from mnemoscope.atlas.lock import locked
from mnemoscope.atlas.manifest import seal
from mnemoscope.atlas.side import cover, covered, written_beside
from mnemoscope.errors import AtlasBusy


def test_what_is_covered_is_verified(tmp_path: Path) -> None:
    directory = build_atlas(tmp_path / "atlas")
    atlas = open_atlas(directory)
    (directory / "analyses").mkdir()
    one, two = directory / "analyses" / "one.json", directory / "analyses" / "two.json"
    one.write_text("1")
    two.write_text("2")
    cover(atlas, "analyses", ["analyses/one.json"])
    cover(atlas, "analyses", ["analyses/two.json"])
    assert sorted(covered(atlas, "analyses")) == ["analyses/one.json", "analyses/two.json"]
    assert verify(directory) == []
    one.write_text("changed")
    assert verify(directory) == ["analyses/one.json: the content is not what was written (its sha256 differs)"]
    cover(atlas, "analyses", ["analyses/two.json"], anew=True)
    assert list(covered(atlas, "analyses")) == ["analyses/two.json"]


def mined_again(atlas: Atlas) -> Atlas:
    """Another atlas in the place of this one."""
    seal(atlas.path, manifest(plan={"triggers": 51}))
    return open_atlas(atlas.path)


def test_files_of_another_atlas_are_forgotten(tmp_path: Path) -> None:
    old = open_atlas(build_atlas(tmp_path / "atlas"))
    (old.path / "report").mkdir()
    (old.path / "report" / "index.html").write_text("page")
    cover(old, "report", ["report/index.html"])
    new = mined_again(old)
    assert new.manifest_hash != old.manifest_hash
    assert covered(new, "report") == {}
    cover(new, "report", ["report/index.html"])
    assert covered(old, "report") == {}


def hold(atlas: Atlas) -> None:
    with written_beside(atlas):
        pass


def test_nothing_is_written_beside_an_atlas_that_took_this_one_s_place(tmp_path: Path) -> None:
    old = open_atlas(build_atlas(tmp_path / "atlas"))
    hold(old)
    new = mined_again(old)
    with pytest.raises(AtlasBusy, match="was mined again while it was being read"):
        hold(old)
    hold(new)
    with locked(new.path), pytest.raises(AtlasBusy, match="by another process"):
        hold(new)
    (new.path / "manifest.json").unlink()
    with pytest.raises(AtlasBusy, match="was mined again"):
        hold(new)
