"""The page, the report's section and the contents of an atlas with a saved comparison, and of one without."""

import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import mnemoscope as ms
from mnemoscope.show.export import write_report
from web.parts import Parts
from web.served import client


@pytest.fixture(scope="module")
def compared(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    atlas, second, third = (shutil.copytree(planted, folder / name) for name in ("atlas", "second", "third"))
    ms.compare(atlas, second, third).save()
    return atlas


def test_a_saved_comparison_has_a_page_with_a_drawing(compared: Path, tmp_path: Path) -> None:
    reader = client(compared)
    page, data = reader.get("/compare"), reader.get("/compare.json").json()
    assert page.status_code == 200
    assert [pair["second"] for pair in data["comparisons"][0]["pairs"]] == ["second", "third"]
    assert data["comparisons"][0]["pairs"][0]["table"][0][:4] == ["layer", "memories", "jaccard", "control jaccard"]
    assert page.text.count("No feature was born, died or was repurposed.") == 2
    assert "<svg" in page.text
    assert ">Compare<" in reader.get("/").text
    alone = client(shutil.copytree(compared, tmp_path / "alone", ignore=shutil.ignore_patterns("comparisons")))
    assert "--save" in alone.get("/compare").text
    assert alone.get("/compare").status_code == 404
    assert ">Compare<" not in alone.get("/").text


def test_changed_memories_are_links(compared: Path, tmp_path: Path) -> None:
    atlas = shutil.copytree(compared, tmp_path / "atlas", ignore=shutil.ignore_patterns("comparisons"))
    found = ms.compare(atlas, compared)
    row = {"memory": "L0.M3", "sign": -1, "kind": "died", "jaccard": 0.0, "rate_before": 0.25, "rate_after": 0.0}
    pair = {**found.pairs[0], "changed": found.changed.vstack(_row(found.changed, row))}
    replace(found, pairs=[pair]).save()
    page = client(atlas).get("/compare").text
    assert 'href="/L0.M3">L0.M3</a> below zero' in page
    assert "1 features changed" not in page
    assert "1 feature changed" in page


def test_which_weights_changed(compared: Path, tmp_path: Path) -> None:
    atlas = shutil.copytree(compared, tmp_path / "atlas", ignore=shutil.ignore_patterns("comparisons"))
    found = ms.compare(atlas, compared)
    columns = ("layer", "module", "change", "relative", "share")
    rows = [
        (1, "mlp", 2.0, 0.5, 0.4),
        (0, "mlp", 1.0, 0.5, 0.1),
        (None, "norm", 2.0, 0.5, 0.5),
        (1, "odd", *[None] * 3),
    ]
    replace(found, pairs=[{**found.pairs[0], "weights": pl.DataFrame(rows, schema=columns, orient="row")}]).save()
    shown = "".join(Parts(client(atlas).get("/compare").text).text.split())
    assert "Weightschangedin4modules" in shown
    assert "Bymodule,overalllayersmodulesharemlp50.0%norm50.0%By" in shown
    assert "Bylayer,overallmoduleslayershare140.0%010.0%" in shown
    assert "Weights changed" not in client(compared).get("/compare").text
    assert "Weights changed in 4 modules" in (write_report(atlas).directory / "index.html").read_text()


def test_a_document_of_another_form_is_refused(compared: Path, tmp_path: Path) -> None:
    atlas = shutil.copytree(compared, tmp_path / "atlas", ignore=shutil.ignore_patterns("comparisons"))
    found = ms.compare(atlas, compared)
    for change in ({"memory": "/elsewhere"}, {"layers": 3}):
        row = {"memory": "L0.M0", "sign": 1, "kind": "born", "jaccard": 0.0, "rate_before": 0.0, "rate_after": 0.5}
        pair = {**found.pairs[0], "changed": found.changed.vstack(_row(found.changed, row | change)), **change}
        replace(found, pairs=[pair]).save()
        page = client(atlas).get("/compare")
        assert page.status_code >= 400
        assert "a saved comparison is damaged" in page.text


def _row(frame: pl.DataFrame, row: dict[str, object]) -> pl.DataFrame:
    whole = {**row, "tokens_before": ["<b>"], "tokens_after": ["x"]}
    return pl.DataFrame([{name: whole[name] for name in frame.columns if name in whole}], schema=frame.schema)


def test_the_report_has_the_section_only_then(compared: Path, tmp_path: Path) -> None:
    text = (write_report(compared).directory / "index.html").read_text()
    assert 'id="comparison-title"' in text
    assert ms.verify(compared) == []
    atlas = shutil.copytree(compared, tmp_path / "alone", ignore=shutil.ignore_patterns("comparisons"))
    assert "comparison-title" not in (write_report(atlas).directory / "index.html").read_text()
