"""A manifest that agrees with its seal and with nothing else: one plain line, whatever it holds, and nothing allocated.

The atlas is mined; one entry of its manifest is taken away or replaced, and the whole is sealed again.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mnemoscope.atlas import open_atlas, verify
from mnemoscope.atlas.form import Manifest
from mnemoscope.cli.app import app
from mnemoscope.cli.runner import run
from mnemoscope.errors import AtlasDamaged, AtlasTooNew
from support.handbuilt_atlas import seal_as_is
from support.hostile_json import ABSENT, ODD, Place, changed, entries

pytestmark = pytest.mark.full

Capture = pytest.CaptureFixture[str]
NEEDED = "schema model corpus plan plan_hash layers files projections package out_of_memory_batches"


@pytest.fixture
def atlas(planted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(planted, tmp_path / "atlas"))


def said_by(directory: Path) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads((directory / "manifest.json").read_text())
    return whole


def opens(directory: Path) -> bool:
    """Whether the atlas opens; verification says the same of its manifest. Any other exception gets out."""
    try:
        open_atlas(directory)
    except AtlasTooNew:
        return False
    except AtlasDamaged:
        assert verify(directory) != []
        return False
    verify(directory)
    return True


def fault_of(document: dict[str, Any]) -> str:
    try:
        Manifest.of(document)
    except AtlasDamaged as damage:
        return str(damage)
    return ""


def test_every_entry_of_every_kind(planted: Path) -> None:
    """The form alone, without the disk: it never fails, and no entry that is needed may be missing."""
    manifest = said_by(planted)
    Manifest.of(manifest)
    for at in entries(manifest, few=("files",)):
        for new in ODD:
            said = fault_of(changed(manifest, at, new))
            assert len(said.splitlines()) <= 1, (at, new)
            if new is ABSENT and len(at) == 1:
                assert bool(said) == (at[0] in NEEDED.split()), at


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_an_atlas_with_one_hostile_entry_opens_or_is_damaged(
    planted: Path, tmp_path: Path, data: st.DataObject
) -> None:
    atlas, manifest = tmp_path / "atlas", said_by(planted)
    if not atlas.is_dir():
        shutil.copytree(planted, atlas)
    at = data.draw(st.sampled_from(list(entries(manifest, few=("files",)))))
    new = data.draw(st.sampled_from(ODD))
    seal_as_is(atlas, changed(manifest, at, new))
    good = opens(atlas)
    for words in (["show", str(atlas), "L1.M0"], ["verify", str(atlas)], ["analyze", str(atlas), "value_rank"]):
        assert run(app, words) in ((0, 2) if good else (2,)), (words, at, new)


HOSTILE: dict[str, tuple[Place, Any]] = {
    "a plan that is a list": (("plan",), ["seed"]),
    "a model that is a string": (("model",), "gpt2"),
    "files that are a list": (("files",), ["tokens.parquet"]),
    "a file of no name": (("files", "a\0b"), {"bytes": 3, "sha256": "0" * 64}),
    "a file of 5,000 digits": (("files", f"sentences/part-{'1' * 5000}.parquet"), {"bytes": 3, "sha256": "0" * 64}),
    "a hash that no encoding holds": (("plan_hash",), "\ud800"),
    "an infinite share": (("corpus", "held_out_share"), float("inf")),
    "a schema that is true": (("schema",), True),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_hostile_is_refused(atlas: Path, name: str, capsys: Capture) -> None:
    seal_as_is(atlas, changed(said_by(atlas), *HOSTILE[name]))
    with pytest.raises(AtlasDamaged, match=r"manifest"):
        open_atlas(atlas)
    for words in (["verify"], ["show"], ["analyze"], ["report"]):
        capsys.readouterr()
        assert run(app, [*words, str(atlas), *(["L0.M0"] if words == ["show"] else [])]) == 2, words
        assert len(capsys.readouterr().err.splitlines()) == 1
