"""A power cut after a writer returns takes nothing: every file is flushed, then named, then its folder is flushed."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.derived_manifest import record_hashes
from mnemoscope.atlas.folder import clear
from mnemoscope.atlas.manifest import begin
from mnemoscope.atlas.store import write_free_table, write_sentences, write_table
from mnemoscope.cluster.state_folders import StateFolder
from mnemoscope.foundation.files import copy_file, make_folder, write_bytes, write_json
from mnemoscope.foundation.progress import ignore_progress
from mnemoscope.mining.record import RunRecord
from mnemoscope.search import build_index
from support.durable import Disk
from support.handbuilt_atlas import PROVENANCE, build_atlas, sentence_columns, trigger_columns, trigger_rows


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    (tmp_path / "source").write_text("source")
    (tmp_path / "root").mkdir()
    return Disk(tmp_path / "root", monkeypatch)


def free_table(path: Path) -> None:
    write_free_table(path, pa.table({"a": [1]}), name="a", provenance=PROVENANCE)


WRITERS: dict[str, Any] = {
    "bytes": lambda path: write_bytes(path, b"data"),
    "json": lambda path: write_json(path, {}),
    "copy": lambda path: copy_file(path.parents[2] / "source", path),
    "table": lambda path: write_table(path, trigger_columns(trigger_rows()[0]), name="triggers", provenance=PROVENANCE),
    "free table": free_table,
    "sentences": lambda path: write_sentences(path, [sentence_columns([[1, 2]])], provenance=PROVENANCE),
    "folder": make_folder,
    "begun": lambda path: begin(path, plan={"plan": {}, "part": None}),
    "atlas": lambda path: build_atlas(path),
    "part": lambda path: build_atlas(path, part=(1, 2)),
}
LEFT_ALONE = {"part": ["new/state: its parent was not flushed", "new/state/accumulators.npz: not flushed"]}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_of_the_store(disk: Disk, writer: str) -> None:
    place = disk.root / "new" if writer in ("begun", "atlas", "part", "sentences") else disk.root / "new" / "file"
    WRITERS[writer](place)
    assert any(disk.root.rglob("*"))
    # What the test itself put there by hand.
    assert [line for line in disk.at_risk() if line not in LEFT_ALONE.get(writer, [])] == []


def test_the_manifest_comes_last_and_its_seal_before_it(disk: Disk) -> None:
    atlas = build_atlas(disk.root / "new")
    last = max(disk.named.values())
    assert disk.named[atlas / "manifest.json"] == last
    sealed = disk.named[atlas / "manifest.sha256"]
    assert sealed < last
    assert all(when < sealed for path, when in disk.named.items() if path.suffix == ".parquet")


def test_what_a_finished_or_cleared_folder_loses_it_does_not_get_back(disk: Disk) -> None:
    begin(disk.root / "new", plan={"plan": {}, "part": None})
    atlas = build_atlas(disk.root / "new")
    assert disk.removed[atlas / "unfinished.json"] < disk.folders[atlas]
    clear(atlas)
    assert disk.removed[atlas / "manifest.json"] < disk.folders[atlas]


def test_the_state_of_a_worker(disk: Disk) -> None:
    folder, record = StateFolder(disk.root, "worker-1"), RunRecord(disk.root, "a plan", name="worker-1")
    folder.make()
    record.take_up(ignore_progress)
    assert disk.at_risk() == []
    folder.save(b"a state", record)
    assert disk.at_risk() == []
    recorded = (disk.root / "work/records/worker-1.jsonl").stat()
    assert disk.flushed[recorded.st_ino, recorded.st_size] < disk.named[folder.state]


def test_what_is_made_later(disk: Disk) -> None:
    atlas = open_atlas(build_atlas(disk.root / "new"))
    write_json(atlas.path / "analyses" / "value_rank.json", {})
    record_hashes(atlas, "analyses", ["analyses/value_rank.json"])
    build_index(atlas)
    assert disk.at_risk() == []


def test_the_one_who_follows_notices(disk: Disk) -> None:
    (disk.root / "file").write_text("data")
    assert disk.at_risk() == ["file: not flushed"]
