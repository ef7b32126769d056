"""What a push sends, what it shows first, and that nothing else goes: no other file, no document, no token."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from huggingface_hub import metadata_load

import mnemoscope as ms
from mnemoscope.annotations import open_store
from mnemoscope.atlas.derived_manifest import record_hashes
from mnemoscope.atlas.manifest import table_files
from mnemoscope.atlas.store import write_table
from mnemoscope.cli import main
from mnemoscope.errors import AtlasDamaged, AtlasExists, AtlasUnfinished, OptionError, StoreFailed
from mnemoscope.foundation.files import file_hash, write_json
from support.handbuilt_atlas import PROVENANCE, build_atlas
from support.hub_server import TOKEN, Hub, Repository, environment, serving

NAME = "user/small"
ADDRESS = f"hf://datasets/{NAME}"
LICENSE = "cc-by-sa-4.0"
Capture = pytest.CaptureFixture[str]

# huggingface_hub 2.4 sends a file in a way that its own HTTP library calls old.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


def push(atlas: Path, name: str = NAME, **options: Any) -> Any:
    return ms.push(atlas, name, **{"text_license": LICENSE, "progress": False, **options})


@pytest.fixture
def planted_copy(planted: Path, copied: Any) -> Path:
    """A mined atlas, beside which lies all that its folder may hold, and something else."""
    atlas: Path = copied(planted)
    ms.search(atlas, "cat")
    open_store(atlas).close()
    for name in (
        "work/copy.json",
        "report/index.html",
        "comparisons/other.json",
        "notes.txt",
        "lenses/ridge.safetensors",
    ):
        (atlas / name).parent.mkdir(exist_ok=True)
        (atlas / name).write_text("{}")
    return atlas


def with_memorised(atlas: Path) -> Path:
    """With the table that quotes documents, its answer, and another answer."""
    columns = {"document": [1], "held_out": [False], "agreed": [2], "loss": [0.5], "text": ["the secret text"]}
    columns |= {"sentences": [[3]], "inside": [[1]]}
    write_table(atlas / "memorised.parquet", columns, name="memorised", provenance=PROVENANCE)
    record_hashes(ms.open_atlas(atlas), "extensions", ["memorised.parquet"])
    (atlas / "analyses").mkdir()
    names = [f"analyses/{name}.json" for name in ("memorised", "value_rank")]
    for name in names:
        (atlas / name).write_text(json.dumps({"question": name}))
    record_hashes(ms.open_atlas(atlas), "analyses", names)
    return atlas


def test_sent_are_the_files_that_the_manifests_list(hub: Hub, planted_copy: Path) -> None:
    shown: list[dict[str, int]] = []

    def before(sizes: Any) -> None:
        assert not hub.repositories
        shown.append(dict(sizes))

    place = push(planted_copy, before=before)
    sent = hub.repositories[NAME].files
    listed = set(json.loads((planted_copy / "manifest.json").read_text())["files"])
    later = {"patterns.parquet", "labels.parquet"}
    marks = {"README.md", "manifest.json", "manifest.sha256", "analyses/manifest.json", ".gitattributes"}
    assert set(sent) == listed | later | marks
    assert listed | later == set(table_files(planted_copy))
    assert shown == [{path: len(data) for path, data in sent.items() if path != ".gitattributes"}]
    for path in {*sent} - {"README.md", ".gitattributes"}:
        assert sent[path] == (planted_copy / path).read_bytes(), path
    assert hub.repositories[NAME].private
    assert str(place) == f"{ADDRESS}@{hub.repositories[NAME].head}"
    there = ms.open_atlas(place)
    assert ms.verify(place) == []
    assert there.table("patterns").equals(ms.open_atlas(planted_copy).table("patterns"))


def test_what_the_command_says(hub: Hub, handbuilt: Path, capsys: Capture) -> None:
    words = ["push", str(handbuilt), NAME, "--text-license", LICENSE]
    assert main(words) == 0
    out = capsys.readouterr().out
    sent = hub.repositories[NAME]
    for path, data in sent.files.items():
        assert path == ".gitattributes" or re.search(rf"^ +{len(data):,}  {re.escape(path)}$", out, re.M), path
    assert out.endswith(f"private: {ADDRESS}@{sent.head}\n")
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["files"] == [{"path": path, "bytes": len(data)} for path, data in sent.files.items() if path[0] != "."]
    assert (said["memories"], said["repository"], said["revision"]) == (8, NAME, sent.head)
    assert main(["push", str(handbuilt), NAME]) == 2
    assert "--text-license" in capsys.readouterr().err
    assert main(["push", str(handbuilt), "user/open", "--text-license", LICENSE, "--public"]) == 0
    assert not hub.repositories["user/open"].private


def test_what_quotes_single_documents_goes_only_when_asked(hub: Hub, handbuilt: Path, copied: Any) -> None:
    atlas = with_memorised(copied(handbuilt))
    push(atlas)
    sent = hub.repositories[NAME].files
    assert not [path for path in sent if "memorised" in path]
    assert not [path for path, data in sent.items() if b"memorised" in data or b"secret" in data]
    assert "extensions/manifest.json" not in sent
    assert set(json.loads(sent["analyses/manifest.json"])["files"]) == {"analyses/value_rank.json"}
    assert ms.verify(ADDRESS) == []
    assert not ms.open_atlas(ADDRESS).has("memorised")
    push(atlas, include_memorised=True)
    assert ms.verify(ADDRESS) == []
    assert ms.open_atlas(ADDRESS).table("memorised")["text"].to_list() == ["the secret text"]
    push(atlas)
    assert not [path for path in hub.repositories[NAME].files if "memorised" in path]


@pytest.mark.parametrize(
    "files",
    [
        {"README.md": b"my data"},
        {"data.csv": b"a,b"},
        {"manifest.json": b'{"name": "an extension of a browser"}', "manifest.sha256": b"0" * 64},
        {"manifest.json": b"{}"},
    ],
)
def test_a_data_set_of_something_else_is_left_alone(hub: Hub, handbuilt: Path, files: dict[str, bytes]) -> None:
    repository = hub.repositories[NAME] = Repository(private=True)
    repository.commit({".gitattributes": b"", **files})
    with pytest.raises(AtlasExists, match=f"{NAME} holds {min(files)} and no atlas; choose another name"):
        push(handbuilt)
    assert len(repository.commits) == 1
    assert not hub.received


def test_another_atlas_takes_the_place_of_one(hub: Hub, handbuilt: Path, planted: Path) -> None:
    """Its own files go; what else lies there stays, and so does who may see it."""
    push(handbuilt)
    repository = hub.repositories[NAME]
    repository.commit({**repository.files, "picture.png": b"PNG"})
    push(planted)
    assert ms.verify(ADDRESS) == []
    assert "picture.png" in repository.files
    assert "values/layer-001.parquet" in repository.commits[1][1]
    assert set(repository.files) - set(ms.open_atlas(ADDRESS).hashes) == {
        *("picture.png", ".gitattributes", "README.md"),
        *("manifest.json", "manifest.sha256", "analyses/manifest.json"),
    }
    with pytest.raises(AtlasExists, match=r"is there and private; leave out public"):
        push(planted, public=True)
    repository.private = False
    with pytest.raises(AtlasExists, match="public; add"):
        push(planted)


def test_a_push_that_was_cut_goes_on(hub: Hub, handbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    hub.refuse_upload_after = 4
    with pytest.raises(StoreFailed, match=f"^{NAME} cannot be written .*; run it again: what has arrived") as refused:
        push(handbuilt)
    assert "\n" not in str(refused.value)
    assert set(hub.repositories[NAME].files) == {".gitattributes"}, "readers see all of it or nothing"
    first, hub.refuse_upload_after = len(hub.received), None
    assert first >= 4
    push(handbuilt)
    assert not {*hub.received[:first]} & {*hub.received[first:]}, "what had arrived was sent again"
    assert ms.verify(ADDRESS) == []


def test_bad_input(hub: Hub, handbuilt: Path, copied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("small", "user/", "user/a b", "hf://datasets/user/small"):
        with pytest.raises(OptionError, match="write hf://datasets/USER/NAME"):
            push(handbuilt, name)
    for license in ("", "CC BY-SA", "../x"):
        with pytest.raises(OptionError, match="is no licence's id"):
            push(handbuilt, text_license=license)
    with pytest.raises(AtlasUnfinished, match="part 1 of 2"):
        push(build_atlas(tmp_path / "part", part=(1, 2)))
    damaged = copied(handbuilt)
    (damaged / "tokens.parquet").write_bytes(b"PAR1")
    with pytest.raises(AtlasDamaged, match=r"tokens.parquet is not what its manifest says"):
        push(damaged)
    with pytest.raises(StoreFailed, match=r"other/small cannot be written \(403 Forbidden: You don't have the rights"):
        push(handbuilt, "other/small")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(StoreFailed, match="without a token; `hf auth login`"):
        push(handbuilt)
    assert not hub.repositories
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(StoreFailed, match="401"):
        push(handbuilt)


@pytest.mark.full
def test_the_token_is_nowhere(handbuilt: Path, copied: Any, tmp_path: Path) -> None:
    """Not in what a failing command says, though the server repeats it, nor in any file, here or there."""
    atlas, home = copied(handbuilt), tmp_path / "home"
    with serving() as hub:
        hub.echo = True
        said = environment(hub.address, home)
        told = []
        for words in (["user/small"], ["other/small"], ["user/small", "--public"], ["user/small", "--json"]):
            command = [sys.executable, "-m", "mnemoscope", "push", str(atlas), *words, "--text-license", LICENSE]
            told.append(subprocess.run([*command, "--debug"], env=said, capture_output=True, text=True, cwd=tmp_path))
        show = [sys.executable, "-m", "mnemoscope", "show", "L0.M0", "--debug"]
        for name in (NAME, "user/none", "user/small@none"):
            command = [*show[:-2], f"hf://datasets/{name}", *show[-2:]]
            told.append(subprocess.run(command, env=said, capture_output=True, text=True, cwd=tmp_path))
        assert [one.returncode for one in told] == [0, 2, 2, 0, 0, 2, 2]
        assert f"Bearer {TOKEN}" not in "".join(one.stdout + one.stderr for one in told)
        assert any("(token)" in one.stderr for one in told)
        kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        for data in [*kept, *(data for one in hub.repositories.values() for data in one.files.values())]:
            assert TOKEN.encode() not in data
        assert all(TOKEN not in one.stdout + one.stderr for one in told)


# --- the card ---------------------------------------------------------------------------------------------------------


def card_of(atlas: Path, hub: Hub, tmp_path: Path) -> tuple[dict[str, Any], str]:
    """What the hub reads of the card, and its text."""
    push(atlas)
    text = hub.repositories[NAME].files["README.md"].decode()
    (tmp_path / "README.md").write_text(text)
    return metadata_load(tmp_path / "README.md") or {}, text


def test_the_card(hub: Hub, answered_atlas: Path, tmp_path: Path) -> None:
    about, text = card_of(answered_atlas, hub, tmp_path)
    assert about["license"] == LICENSE
    assert about["configs"] == [
        {"config_name": name, "data_files": f"{name}/*.parquet"} for name in ("triggers", "values")
    ]
    rows = dict(re.findall(r"^\| (.*) \| (.*) \|$", text.partition("## Open")[0], re.M))
    assert set(rows) > {"model", "text", "proof at loading, largest errors"}
    assert rows["licence of the model, by its own file"] == "unknown"
    assert rows["licence of the text"] == LICENSE.replace(".", r"\.")
    numbers = re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", text.partition("## Some numbers")[2], re.M)[2:]
    assert len(numbers) == 5
    assert numbers[0][0] == "keys with at least one pattern"
    memories = text.partition("## Some memories")[2].partition("## Made by")[0]
    assert re.findall(r"^\* \*\*(\S+)\*\*: \S", memories, re.M) == ["L0.M0"], "the only striking one of this atlas"
    assert len(re.findall(r"^  \* .* \*\*.+\*\* then \S", memories, re.M)) == 3
    assert re.search(r"^    mnemoscope mine .* --out atlas", text, re.M)
    assert f"    mnemoscope show {ADDRESS} L0.M0\n" in text


def test_nothing_in_a_card_acts_as_markup(hub: Hub, tmp_path: Path) -> None:
    odd = (
        "</table><script>alert(1)</script>\n# x\n[a](http://b.c) ![d](e) www.f.g `h`\n\n---\nlicense: mit\n---\x1b[31m"
    )
    plan = {"seed": 0, "triggers": 4, "model": odd, "corpus": odd}
    about, text = card_of(
        build_atlas(tmp_path / "odd", model={"spec": odd}, corpus={"spec": odd}, plan=plan), hub, tmp_path
    )
    assert about["license"] == LICENSE
    assert "\x1b" not in text
    body = text.split("---\n", 2)[2]
    lines = [line for line in body.splitlines() if not line.startswith("    ")]  # those are code
    for line in lines:
        assert "<" not in line
        assert not re.search(r"(?<!\\)[\[\]!`]|(?<!\\)\w+://|www\.", line), line
    assert [line for line in lines if line.startswith("#")][1:] == ["## Some numbers", "## Some memories", "## Made by"]
    assert not [line for line in lines if line.startswith(("license", "---"))]


@pytest.mark.parametrize(
    ("files", "license"),
    [
        ({"README.md": "---\nlicense: apache-2.0\n---\n# Model"}, "apache-2.0"),
        ({"README.md": "---\nlicense:\n- mit\n- other\n---\n"}, "mit, other"),
        ({"README.md": "# Model without a word"}, "unknown"),
        ({"README.md": "---\n{: not YAML\n---\n"}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_the_licence_of_a_model_is_its_own_file_s(
    hub: Hub, handbuilt: Path, copied: Any, tmp_path: Path, files: dict[str, str], license: str
) -> None:
    atlas, model = copied(handbuilt), tmp_path / "model"
    model.mkdir()
    for name, text in {"config.json": "{}", **files}.items():
        (model / name).write_text(text)
    write_json(atlas / "run.json", {"paths": {"model": str(model)}})
    assert (
        f"| licence of the model, by its own file | {license.replace('.', chr(92) + '.')} |"
        in card_of(atlas, hub, tmp_path)[1]
    )


@pytest.mark.parametrize("license", ["gemma", None])
def test_the_licence_in_a_gguf(hub: Hub, handbuilt: Path, copied: Any, tmp_path: Path, license: str | None) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    if license is not None:
        writer.add_license(license)
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()
    atlas = copied(handbuilt)
    write_json(atlas / "run.json", {"paths": {"model": str(tmp_path / "model.gguf")}})
    assert f"by its own file | {license or 'unknown'} |" in card_of(atlas, hub, tmp_path)[1]


def test_a_copy_of_a_pushed_atlas_is_the_atlas(hub: Hub, handbuilt: Path, tmp_path: Path) -> None:
    """As `hf download` makes it, which the line about read-only atlases advises."""
    push(handbuilt)
    copy = tmp_path / "copy"
    for path, data in hub.repositories[NAME].files.items():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes(data)
    assert ms.verify(copy) == []
    assert file_hash(copy / "manifest.json") == file_hash(handbuilt / "manifest.json")
    shutil.rmtree(copy)
