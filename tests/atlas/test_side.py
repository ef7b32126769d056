"""Manifests beside an atlas: what they keep, and that verification believes them."""

from pathlib import Path

from handbuilt_atlas import build_atlas
from mnemoscope.atlas import verify
from mnemoscope.atlas.side import cover, covered


def test_what_is_covered_is_verified(tmp_path: Path) -> None:
    atlas = build_atlas(tmp_path / "atlas")
    (atlas / "analyses").mkdir()
    one, two = atlas / "analyses" / "one.json", atlas / "analyses" / "two.json"
    one.write_text("1")
    two.write_text("2")
    cover(atlas, "analyses", ["analyses/one.json"])
    cover(atlas, "analyses", ["analyses/two.json"])
    assert sorted(covered(atlas, "analyses")) == ["analyses/one.json", "analyses/two.json"]
    assert verify(atlas) == []
    one.write_text("changed")
    assert verify(atlas) == ["analyses/one.json: the content is not what was written (its sha256 differs)"]
    cover(atlas, "analyses", ["analyses/two.json"], anew=True)
    assert list(covered(atlas, "analyses")) == ["analyses/two.json"]


def test_files_of_another_atlas_are_forgotten(tmp_path: Path) -> None:
    atlas = build_atlas(tmp_path / "atlas")
    (atlas / "report").mkdir()
    (atlas / "report" / "index.html").write_text("page")
    cover(atlas, "report", ["report/index.html"])
    (atlas / "manifest.json").write_text("{}")
    assert covered(atlas, "report") == {}
