"""The one writer of folders that are made from an atlas: what it takes for its own, and what it never removes."""

from hashlib import sha256
from pathlib import Path

import pytest

from mnemoscope.errors import AtlasExists, OptionError
from mnemoscope.foundation.files import write_json
from mnemoscope.show.export.folder import MadeFolder

FILES = {"index.html": b"page", "figures/one.svg": b"<svg/>"}
LISTED = {name: {"sha256": sha256(data).hexdigest(), "bytes": len(data)} for name, data in FILES.items()}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "atlas").mkdir()
    return tmp_path / "atlas"


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_a_manifest_lists_is_known_again(home: Path, tmp_path: Path) -> None:
    path, made = tmp_path / "out/manifest.json", MadeFolder(tmp_path / "out", home, "report")
    assert made.made_before() == {}
    pages = MadeFolder(tmp_path / "out", home, "browse", "pages")
    for entry, reader, other in (("files", made, pages), ("pages", pages, made)):
        write_json(path, {"atlas": "a" * 64, entry: LISTED})
        assert (reader.made_before(), other.made_before()) == (LISTED, {})
    for said in (
        *({"atlas": "a" * 63, "files": LISTED}, {"atlas": 1, "files": LISTED}, {"atlas": "a" * 64, "files": [LISTED]}),
        *({"atlas": "a" * 64, "files": LISTED, "name": "another tool's"}, {"files": LISTED}),
    ):
        write_json(path, said)
        assert made.made_before() == {}, said


def test_a_folder_is_replaced_if_it_is_empty_or_one_s_own(home: Path, tmp_path: Path) -> None:
    made = MadeFolder(tmp_path / "out", home, "report")
    made.check("pages")
    (tmp_path / "out").mkdir()
    made.check("pages")
    (tmp_path / "out/thesis.tex").write_text("")
    with pytest.raises(AtlasExists, match="other than pages"):
        made.check("pages")
    with pytest.raises(AtlasExists, match=r"thesis\.tex is not a folder"):
        MadeFolder(tmp_path / "out/thesis.tex", home, "report").check("pages")
    write_json(tmp_path / "out/manifest.json", {"atlas": "a" * 64, "files": {"analyses/value_rank.json": {}}})
    with pytest.raises(AtlasExists, match="other than pages"):  # the answers of another atlas have such a manifest
        made.check("pages")
    write_json(tmp_path / "out/manifest.json", {"atlas": "a" * 64, "files": LISTED})
    made.check("pages")
    for place in (home, home / "triggers", tmp_path):
        with pytest.raises(OptionError, match="holds the atlas or lies inside the atlas"):
            MadeFolder(place, home, "report").check("pages")


@pytest.mark.parametrize("side", ["report", "browse"])
def test_earlier_files_go_and_others_stay(side: str, home: Path) -> None:
    """In the atlas, where the manifest that `verify` reads names files as they lie there; and again."""
    made = MadeFolder(home / side, home, side)
    sizes = made.replace(FILES.items(), source="a" * 64)
    assert {name: len(data) for name, data in files(home / side).items()} == sizes
    assert made.made_before() == LISTED
    assert (b'"report/index.html"' in files(home / side)["manifest.json"]) == (side == "report")
    (home / side / "figures/notes.md").write_text("mine")
    made.replace([("index.html", iter([b"n", b"ew"]))], source="b" * 64)  # in pieces
    assert files(home / side).keys() == {"index.html", "manifest.json", "figures/notes.md"}
    assert files(home / side)["index.html"] == b"new"


def test_a_manifest_that_points_outside_removes_nothing_there(home: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    for name in ("../precious", str(tmp_path / "precious")):
        write_json(tmp_path / "out/manifest.json", {"atlas": "a" * 64, "pages": {"index.html": 4, name: 4}})
        MadeFolder(tmp_path / "out", home, "browse", "pages").replace(FILES.items(), source="b" * 64)
        assert (tmp_path / "precious").read_text() == "mine"
