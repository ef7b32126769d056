"""Atlases of rules 7: read as ever; given what later rules left alone, else refused.

The archive was made at commit 51d95a5 by tests/atlas/rules_7.py, which commit 2c976b2 was the last to hold.
"""

import hashlib
import json
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from mnemoscope.atlas import open_atlas, verify
from mnemoscope.atlas.manifest import unfinished_plan
from mnemoscope.atlas.schema import LENS_TABLES, TABLES
from mnemoscope.cli import main
from mnemoscope.cluster.worker import new_name, work
from mnemoscope.errors import CorpusNotFound, PartsDiffer, PlanDiffers
from mnemoscope.foundation.options.model_options import AS_USUAL
from mnemoscope.mining import extend, merge, mine
from mnemoscope.mining.lenses.lens_pass import fit_lenses
from mnemoscope.mining.plan.changed_rules import check_rules
from mnemoscope.mining.plan.mining_plan import RULES, MiningPlan
from mnemoscope.neuron_names import names
from mnemoscope.questions import answer
from mnemoscope.search import open_index
from mnemoscope.show.export import write_report
from mnemoscope.web.static_export import write_pages
from web.served import client

ARCHIVE = Path(__file__).parents[1] / "atlas" / "rules-7.tar.gz"
OLD = "/tmp/somebody"
"""Where everything was, as the manifests say."""
OPTIONAL = [name for name, kind in TABLES.items() if kind.optional]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of everything that rules 7 left; the model and the texts lie elsewhere than they did."""
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(folder, filter="data")
    return folder


def test_the_archive_is_small_and_of_its_rules(old: Path) -> None:
    assert ARCHIVE.stat().st_size < 1_000_000
    assert open_atlas(old / "atlas").manifest["plan"]["rules"] == 7 < RULES


@pytest.mark.parametrize("name", ["atlas", "long", "parts/1", "parts/2"])
def test_an_old_plan_keeps_its_hash(old: Path, name: str) -> None:
    atlas = open_atlas(old / name)
    plan = MiningPlan.from_document(atlas.manifest["plan"], atlas.path)
    assert plan.model.startswith(OLD)
    assert plan.document() == atlas.manifest["plan"]
    assert plan.hash() == atlas.manifest.plan_hash
    stored = json.dumps(atlas.manifest["plan"], sort_keys=True).encode()
    assert hashlib.sha256(stored).hexdigest() == atlas.manifest.plan_hash


def test_it_is_whole_read_and_searched(old: Path) -> None:
    atlas = open_atlas(old / "atlas")
    assert verify(atlas.path) == []
    assert (atlas.manifest.model.spec, atlas.manifest.corpus.spec) == ("tiny", "lines.txt")
    plan = atlas.manifest.plan
    assert (plan["model"], plan["corpus"], plan["validation"]) == ("tiny", "lines.txt", "held.txt")
    assert atlas["L1.M3"].triggers().height > 0
    with open_index(atlas) as index:
        assert index.search("cat").hits


def test_it_is_analysed(old: Path, tmp_path: Path) -> None:
    path = shutil.copytree(old / "atlas", tmp_path / "atlas")
    stored = pl.read_parquet(path / "analyses" / "value_rank.parquet")
    shutil.rmtree(path / "analyses")
    assert main(["analyze", str(path)]) == 0
    again = pl.read_parquet(path / "analyses" / "value_rank.parquet")
    assert again.equals(stored)
    assert not answer(open_atlas(path), "value_agreement").is_empty()


@pytest.mark.full
def test_no_page_or_report_of_it_tells_a_path(old: Path, tmp_path: Path) -> None:
    write_pages(old / "atlas", tmp_path / "pages", memories="1")
    write_report(old / "atlas", tmp_path / "report")
    for folder in (tmp_path / "pages", tmp_path / "report"):
        written = [path for path in folder.rglob("*") if path.is_file()]
        assert len(written) > 10
        assert not [path for path in written if OLD.encode() in path.read_bytes()]
        assert "lines.txt" in (folder / "index.html").read_text()


@pytest.mark.full
def test_it_is_served_with_its_model(old: Path) -> None:
    with client(old / "atlas", model=str(old / "models" / "tiny")) as web:
        for address in ("/", "/index.json", "/L1.M3", "/layers/1", "/questions/value_agreement", "/trace"):
            found = web.get(address)
            assert (found.status_code, OLD in found.text) == (200, False), address
        assert "tiny" in web.get("/").text


def test_a_model_of_a_folder_has_no_page_at_neuronpedia(old: Path) -> None:
    assert names("L1.M3", model=open_atlas(old / "atlas"))["neuronpedia"] is None
    assert names("L1.M3", model=str(old / "models" / "tiny"))["neuronpedia"] is None


@pytest.mark.full
def test_what_later_rules_left_alone_is_made_as_it_was(old: Path, tmp_path: Path) -> None:
    path, model = shutil.copytree(old / "atlas", tmp_path / "atlas"), str(old / "models" / "tiny")
    tables = {name: pl.read_parquet(path / f"{name}.parquet") for name in ("width", "memorised")}
    assert extend(path, model, ["width"], force=True).made == ("width",)
    with pytest.raises(CorpusNotFound, match=rf"no such text: '{OLD}/texts/lines.txt'"):
        extend(path, model, ["memorised"], force=True)
    run = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(run | {"paths": {"corpus": str(old / "texts" / "lines.txt")}}))
    assert extend(path, model, ["memorised"], force=True).made == ("memorised",)
    for name, table in tables.items():
        assert_frame_equal(pl.read_parquet(path / f"{name}.parquet"), table, check_exact=False, rel_tol=1e-5)
    assert verify(path) == []


def test_what_later_rules_changed_is_refused_by_name(old: Path, tmp_path: Path) -> None:
    path, model = shutil.copytree(old / "long", tmp_path / "long"), str(old / "models" / "long")
    said = rf"^{path} was mined by rules 7, and rules 8 changed width \(.*\); mine it again, or use the version"
    with pytest.raises(PlanDiffers, match=said):
        extend(path, model, ["width"])
    with pytest.raises(PlanDiffers, match=r"rules 8 changed key_readings, readings, readouts \("):
        fit_lenses(path, model)
    assert verify(path) == []
    assert verify(old / "long") == []


@pytest.mark.parametrize(
    ("config", "ids_field", "refused"),
    [
        ({}, None, []),
        ({"rope_parameters": {"rope_type": "yarn"}}, None, []),
        ({"rope_parameters": {"full": {"rope_type": "dynamic"}, "sliding": {"rope_type": "default"}}}, None, OPTIONAL),
        ({"model_type": "falcon", "alibi": True}, None, ["attention"]),
        ({"model_type": "falcon", "alibi": False}, None, []),
        ({}, "ids", ["memorised"]),
    ],
)
def test_which_tables_rules_8_changed(
    old: Path, config: dict[str, Any], ids_field: str | None, refused: list[str]
) -> None:
    plan = replace(MiningPlan.from_document(open_atlas(old / "atlas").manifest["plan"], old), ids_field=ids_field)
    model: Any = SimpleNamespace(anatomy=SimpleNamespace(model=SimpleNamespace(config=SimpleNamespace(**config))))

    def is_refused(table: str, rules: int) -> bool:
        try:
            check_rules(old, replace(plan, rules=rules), model, [table])
        except PlanDiffers:
            return True
        return False

    changed_later = {"similar_words"}  # by rules 10
    assert {table for table in OPTIONAL if is_refused(table, 7)} == {*LENS_TABLES, *refused, *changed_later}
    assert not [table for table in OPTIONAL if is_refused(table, RULES)]


def test_parts_of_other_rules_are_not_joined(old: Path, tmp_path: Path) -> None:
    parts = [old / "parts" / "1", old / "parts" / "2"]
    with pytest.raises(PartsDiffer, match="has atlas schema 2, a merge writes 3; mine that part again"):
        merge(tmp_path / "merged", parts, model=str(old / "models" / "tiny"))
    assert not (tmp_path / "merged").exists()


@pytest.mark.full
def test_a_run_of_other_rules_does_not_go_on(old: Path, tmp_path: Path) -> None:
    path = shutil.copytree(old / "unfinished", tmp_path / "unfinished")
    options: dict[str, Any] = {
        "triggers": 4, "batch_tokens": 128, "removals": 2, "prefixes": 40, "neighbours": 2,
        "validation": old / "texts" / "held.txt", "out": path,
    }  # fmt: skip
    model, text, before = str(old / "models" / "tiny"), old / "texts" / "lines.txt", unfinished_plan(path)
    said = rf"begun with another plan \(rules was 7, now {RULES}\); use the version"
    with pytest.raises(PlanDiffers, match=said) as told:
        mine(model, text, **options)
    assert "\n" not in str(told.value)
    assert unfinished_plan(path) == before
    assert (path / "work" / "state.safetensors").is_file()
    mine(model, text, **options, force=True)
    assert open_atlas(path).manifest["plan"]["rules"] == RULES


def test_a_worker_does_not_join_a_run_of_other_rules(old: Path, tmp_path: Path) -> None:
    path = shutil.copytree(old / "unfinished", tmp_path / "unfinished")
    begun = json.loads((path / "unfinished.json").read_text())
    work_of_it = {
        "batches": 1, "lease_batches": 1, "tokens": 1, "text": "0" * 64, "pieces": 1, "checkpoint_every": 1.0,
        "patience": 1.0, "mixed_devices": False,
    }  # fmt: skip
    (path / "unfinished.json").write_text(json.dumps({**begun, "work": work_of_it}))
    with pytest.raises(PartsDiffer, match=re.escape(f"was begun by rules 7, this worker mines by rules {RULES};")):
        work(path, new_name(), opening=AS_USUAL)
