"""Whose a folder is, and what is removed from it: an atlas's own files, and nothing of anybody else."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.atlas import open_atlas, verify
from mnemoscope.atlas.folder import FOLDERS, clear, is_named, occupancy, remove_work
from mnemoscope.atlas.form import Manifest
from mnemoscope.atlas.lock import lock_folder
from mnemoscope.atlas.manifest import begin
from mnemoscope.atlas.tables import Tables
from mnemoscope.errors import AtlasDamaged
from mnemoscope.foundation.files import file_hash
from mnemoscope.questions import QUESTIONS
from support.handbuilt_atlas import build_atlas, manifest, write_tables

BEGUN: dict[str, Any] = {"plan": {}, "part": None}
WEB_APP = {"name": "a web app", "icons": [], "files": {"index.html": "x"}}


def put(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(name)


def files(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def manifests() -> list[Any]:
    """What other tools call manifest.json, and what is nearly an atlas's."""
    whole = {"schema": 1, "plan_hash": "c", "files": {}, "model": {"fingerprint": "a"}, "corpus": {"fingerprint": "b"}}
    without = [{key: value for key, value in whole.items() if key != name} for name in whole]
    return [WEB_APP, [], 1, None, {}, {"files": None}, {**whole, "files": None}, {**whole, "schema": "1"}, *without]


@pytest.mark.parametrize("said", manifests())
def test_a_manifest_of_something_else_is_no_atlas(tmp_path: Path, said: Any) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(said))
    assert occupancy(tmp_path) == "foreign"


def test_nothing_of_a_web_app_is_removed(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(WEB_APP))
    (tmp_path / "manifest.sha256").write_text("0" * 64 + "\n")
    put(tmp_path, "report/2025.xlsx", "search/index.js", "values/a.csv", "customers.parquet", "work/a.md", "state/x.db")
    before = files(tmp_path) - {"manifest.sha256"}
    assert occupancy(tmp_path) == "foreign"
    clear(tmp_path)
    assert files(tmp_path) == before


FOREIGN = """
    my_notes.parquet annotations.sqlite report/my_comments.md report/figures/mine.png search/index.js values/a.csv
    values/mine.parquet triggers/layer-0.parquet analyses/mine.parquet analyses/notes.json work/mine.txt
    work/text/chapter.txt state/mine.db sentences/deep/part-000.parquet"""
OWN = """run.json state/state.safetensors work/state.safetensors work/removals-0123456789abcdef.safetensors
    work/text/copy.json work/text/text_starts.bin work/text/validation/tokens.bin report/index.html
    report/figures/value_rank.svg report/manifest.json analyses/value_rank.json analyses/manifest.json
    analyses/value_rank.parquet analyses/refinement_events.cases.parquet search/index.sqlite
    triggers/layer-007.parquet sentences/part-009.parquet predictions.parquet"""


@pytest.mark.parametrize("foreign", [FOREIGN.split(), []])
@pytest.mark.parametrize("part", [None, (1, 2)])
def test_an_atlas_s_own_files_go_and_others_stay(tmp_path: Path, part: Any, foreign: list[str]) -> None:
    """And their folders, where those are empty then."""
    directory = build_atlas(tmp_path / "a", part=part)
    put(directory, *foreign, *OWN.split())
    assert occupancy(directory) == "finished"
    clear(directory)
    assert files(directory) == set(foreign)
    assert any(directory.iterdir()) == bool(foreign)


def test_the_text_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    directory = build_atlas(tmp_path / "a")
    put(directory, *OWN.split())
    clear(directory, keep_text=True)
    assert files(directory) == {name for name in OWN.split() if name.startswith("work/text/")}
    put(directory, "work/text/chapter.txt")
    remove_work(directory)
    assert files(directory) == {"work/text/chapter.txt"}


@pytest.mark.parametrize(
    "stray", ["beats/.w-1.json", ".pattern-words.json.7-c0ffee00", "states/w-1/.state.safetensors"]
)
def test_what_a_killed_worker_left_half_written_goes_with_the_work(tmp_path: Path, stray: str) -> None:
    directory, elsewhere = build_atlas(tmp_path / "a"), tmp_path / "elsewhere"
    put(directory, *OWN.split(), f"work/{stray}.mnemoscope-tmp")
    remove_work(directory)
    assert not (directory / "work").exists()
    put(elsewhere, f"{stray}.mnemoscope-tmp")
    (directory / "work").symlink_to(elsewhere)
    remove_work(directory)
    assert files(elsewhere) == {f"{stray}.mnemoscope-tmp"}


def test_what_a_manifest_lists_goes_only_if_it_is_what_was_listed(tmp_path: Path) -> None:
    """A newer version's table goes; a file that was changed since, or lies elsewhere, stays."""
    directory = build_atlas(tmp_path / "a")
    put(directory, "lenses.parquet", "changed.parquet", "browse/page.html")
    put(tmp_path, "outside.parquet")
    path = directory / "manifest.json"
    said = json.loads(path.read_text())
    for name in ("lenses.parquet", "changed.parquet", "../outside.parquet", "browse/page.html"):
        said["files"][name] = {"sha256": file_hash(directory / name)}
    path.write_text(json.dumps(said))
    (directory / "changed.parquet").write_text("mine now")
    clear(directory)
    assert files(tmp_path) == {"a/changed.parquet", "a/browse/page.html", "outside.parquet"}


@pytest.mark.parametrize("content", [b"\xff{}", b"", None])
@pytest.mark.parametrize("name", ["manifest.json", "manifest.sha256"])
def test_a_damaged_atlas_is_still_an_atlas(tmp_path: Path, name: str, content: bytes | None) -> None:
    directory = build_atlas(tmp_path / "a")
    (directory / name).unlink()
    if content is not None:
        (directory / name).write_bytes(content)
    assert occupancy(directory) == "finished"
    clear(directory)
    assert list(directory.iterdir()) == []


def removals(most: int, remove: Any) -> Any:
    """A removal that stops the program after so many."""
    left = iter(range(most))

    def one(path: Path, missing_ok: bool = False) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        remove(path, missing_ok=missing_ok)

    return one


@pytest.mark.parametrize("damage", [False, True])
def test_a_clearing_that_is_stopped_can_be_gone_on_with(tmp_path: Path, monkeypatch: Any, damage: bool) -> None:
    """At every removal: what is left is known as an atlas, or is nothing."""
    whole = build_atlas(tmp_path / "whole")
    if damage:
        (whole / "manifest.json").write_text("{")
    after = 0
    while True:
        directory = shutil.copytree(whole, tmp_path / str(after))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", removals(after, Path.unlink))
            try:
                clear(directory)
            except KeyboardInterrupt:
                stopped = True
            else:
                stopped = False
        assert occupancy(directory) in ("finished", "free"), sorted(files(directory))
        if not stopped:
            break
        clear(directory)
        assert occupancy(directory) == "free"
        after += 1
    assert after > 12


@pytest.mark.parametrize("said", [{}, [], {"plan": 1, "part": None}, {"plan": {}}, {"installer": "half"}])
def test_an_unfinished_json_of_something_else(tmp_path: Path, said: Any) -> None:
    (tmp_path / "unfinished.json").write_text(json.dumps(said))
    assert occupancy(tmp_path) == "foreign"
    clear(tmp_path)
    assert files(tmp_path) == {"unfinished.json"}


def test_an_unfinished_atlas_beside_a_manifest_of_something_else(tmp_path: Path) -> None:
    begin(tmp_path, plan=BEGUN)
    assert occupancy(tmp_path) == "unfinished"
    (tmp_path / "manifest.json").write_text(json.dumps(WEB_APP))
    assert occupancy(tmp_path) == "foreign"
    clear(tmp_path)
    assert (tmp_path / "manifest.json").exists()


def test_an_unfinished_atlas_goes_whole(tmp_path: Path) -> None:
    begin(tmp_path, plan=BEGUN)
    write_tables(tmp_path)
    put(tmp_path, "state/state.safetensors", "work/text/tokens.bin")
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "left",
    [
        [".lock", ".unfinished.json.30039-dd9742b6.mnemoscope-tmp"],  # by a power cut
        ["work/text/copy.json", "work/text/tokens.bin", "work/state.safetensors"],
    ],
)
@pytest.mark.parametrize("chapter", ["work/chapter.txt", "work/text/chapter.txt"])
def test_a_working_copy_alone_is_nothing_and_a_folder_called_work_is_not(
    tmp_path: Path, left: list[str], chapter: str
) -> None:
    (tmp_path / "work").mkdir()
    put(tmp_path, *left)
    assert occupancy(tmp_path) == "free"
    put(tmp_path, chapter)
    assert occupancy(tmp_path) == "foreign"


def test_links_are_neither_followed_nor_written_through(tmp_path: Path) -> None:
    whole = build_atlas(tmp_path / "whole")
    for number, folder in enumerate(FOLDERS):
        directory, elsewhere = tmp_path / str(number) / "atlas", tmp_path / str(number) / "elsewhere"
        shutil.copytree(whole, directory)
        put(elsewhere, "index.sqlite", "layer-000.parquet", "part-000.parquet", "value_rank.json", "index.html")
        place = directory / folder
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            place.rename(tmp_path / str(number) / "moved")
        place.symlink_to(elsewhere)
        before = files(elsewhere)
        with pytest.raises(AtlasDamaged, match="is a symbolic link"), lock_folder(directory):
            pass
        clear(directory)
        assert files(elsewhere) == before
        assert place.is_symlink()


def test_a_lock_that_is_a_link_is_not_written(tmp_path: Path) -> None:
    directory = build_atlas(tmp_path / "a")
    put(tmp_path, "precious")
    (directory / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(AtlasDamaged, match="is a symbolic link"), lock_folder(directory):
        pass
    assert (tmp_path / "precious").read_text() == "precious"


def test_verification_leaves_foreign_files_alone(tmp_path: Path) -> None:
    directory = build_atlas(tmp_path / "a")
    put(directory, *FOREIGN.split())
    assert verify(directory) == []
    assert open_atlas(directory)["L0.M0"].triggers().height == 4


def test_files_are_named_as_the_format_says(tmp_path: Path) -> None:
    places = ("sentences/part-000.parquet", "sentences/mine.parquet")
    listed = {place: {"sha256": "0" * 64} for place in places}
    tables = Tables(tmp_path, Manifest.of(manifest() | {"files": listed}), "")
    assert tables.paths("sentences") == ["sentences/part-000.parquet"]
    assert all(is_named(f"analyses/{question}.json") for question in QUESTIONS)
    assert not is_named("analyses/notes.json")


def test_tables_without_a_mark_are_somebody_s(tmp_path: Path) -> None:
    write_tables(tmp_path)
    assert occupancy(tmp_path) == "foreign"
