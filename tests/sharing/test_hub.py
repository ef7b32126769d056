"""An atlas on the hub: what is fetched and when, what refuses to be read, and that nothing is written but the cache."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

import mnemoscope as ms
from mnemoscope.agents.tools import Tools
from mnemoscope.annotations import open_store
from mnemoscope.atlas.manifest import open_as_mined
from mnemoscope.cli import main
from mnemoscope.errors import AnnotationError, AtlasDamaged, AtlasNotFound, AtlasTooNew, OptionError, StoreFailed
from mnemoscope.foundation.files import HubPath
from mnemoscope.foundation.options.model_options import AS_USUAL
from support.handbuilt_atlas import build_atlas, seal_as_is
from support.hub_server import Hub, Odd, Repository, ask_here
from web.served import client

NAME = "user/small"
ADDRESS = f"hf://datasets/{NAME}"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def repository(hub: Hub, handbuilt: Path) -> Repository:
    return hub.add(NAME, handbuilt)


def files_of(folder: Path) -> set[Path]:
    """All there is but the hub's cache."""
    return {path for path in folder.rglob("*") if not path.is_relative_to(folder / "home")}


# --- what is fetched --------------------------------------------------------------------------------------------------


def test_files_are_fetched_when_they_are_read(hub: Hub, repository: Repository, handbuilt: Path) -> None:
    here, there = ms.open_atlas(handbuilt), ms.open_atlas(ADDRESS)
    assert set(hub.sent) == {"manifest.json", "manifest.sha256"}
    assert str(there) == f"{ADDRESS}@{repository.head}"
    assert there["L0.M0"].triggers(None).equals(here["L0.M0"].triggers(None))
    assert there["L0.M0"].value().equals(here["L0.M0"].value())
    tables = {
        "triggers/layer-000.parquet",
        "values/layer-000.parquet",
        "vocabulary.parquet",
        "sentences/part-000.parquet",
    }
    assert set(hub.sent) == tables | {"manifest.json", "manifest.sha256"}
    before = len(hub.asked)
    assert there["L0.M2"].triggers().equals(here["L0.M2"].triggers())
    assert ms.open_atlas(there.path)["L0.M1"].value().equals(here["L0.M1"].value())
    assert len(hub.asked) == before, "a second memory of the layer asks nothing"
    assert there["L1.M0"].triggers().equals(here["L1.M0"].triggers())
    assert set(hub.sent) == {*tables, "manifest.json", "manifest.sha256", "triggers/layer-001.parquet"}
    assert there.table("activity").equals(here.table("activity"))
    assert there.scan("tokens").collect().equals(here.table("tokens"))
    assert max(hub.asked.count(one) for one in hub.asked if one.startswith("GET")) == 1


def test_neighbours_in_other_layers_are_named_and_not_fetched(hub: Hub, repository: Repository) -> None:
    rows = ms.open_atlas(ADDRESS)["L0.M0"].neighbours().select("name", "top_text").rows()
    assert rows == [("L1.M0", None), ("L0.M1", " Paris")]
    assert "values/layer-001.parquet" not in hub.sent


def test_a_revision_is_settled_once(hub: Hub, repository: Repository, handbuilt: Path, tmp_path: Path) -> None:
    first = ms.open_atlas(ADDRESS)
    other = build_atlas(tmp_path / "other", corpus={"spec": "another text"})
    hub.add("user/other", other)
    repository.commit(hub.repositories["user/other"].files)
    assert first["L0.M0"].value().height == 1
    assert first.manifest.corpus.spec == ms.open_atlas(f"{ADDRESS}@{first.path.revision}").manifest.corpus.spec
    second = ms.open_atlas(Path(ADDRESS))
    assert (second.manifest.corpus.spec, str(second)) == ("another text", f"{ADDRESS}@{repository.head}")


def test_offline_what_was_read_is_read(
    hub: Hub, repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    rows = ms.open_atlas(ADDRESS)["L0.M0"].triggers()
    with client(ms.open_atlas(ADDRESS).path) as reader:
        assert reader.get("/L0.M0.json").status_code == 200
    assert not [one for one in hub.asked if "comparisons" in one]
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        there = ms.open_atlas(ADDRESS)
        assert there["L0.M0"].triggers().equals(rows)
        assert not there.has("patterns")
        with client(there.path) as reader:
            assert reader.get("/L0.M0.json").status_code == 200
        with pytest.raises(AtlasNotFound, match=r"background.parquet cannot be fetched .*; check the network$"):
            there.table("background")
    ask_here(monkeypatch, "http://127.0.0.1:9", tmp_path / "home")  # nobody listens there
    assert ms.open_atlas(ADDRESS)["L0.M0"].triggers().equals(rows)
    assert main(["show", "hf://datasets/user/another", "L0.M0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_cut_transfer_goes_on(
    hub: Hub, repository: Repository, handbuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "values/layer-000.parquet"
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 500)  # what is kept of a cut transfer
    repository.odd[path] = Odd(cut_after=1000)
    assert ms.open_atlas(ADDRESS).table("values", layer=0).equals(ms.open_atlas(handbuilt).table("values", layer=0))
    assert hub.sent[path] == (handbuilt / path).stat().st_size, "what had come was not sent again"
    assert hub.ranges == [(path, 1000)]


# --- verbs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("show", ADDRESS, "L0.M0", "--json"),
        ("show", ADDRESS, "L0.M0-1"),
        ("verify", ADDRESS),
        ("inspect", ADDRESS),
        ("search", ADDRESS, "Paris"),
        ("compare", ADDRESS, ADDRESS),
        ("export", ADDRESS, "--to", "jsonl", "--out", "lines", "--memories", "L0"),
        ("report", ADDRESS, "--browse", "--out", "pages"),
    ],
    ids=lambda words: words[0],
)
def test_what_reads_an_atlas_reads_one_on_the_hub(
    repository: Repository, words: tuple[str, ...], capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(list(words)) == 0, capsys.readouterr().err
    said = capsys.readouterr()
    assert words[0] == "inspect" or f"{ADDRESS} is read as {ADDRESS}@{repository.head}\n" in said.err
    made = {"export": "lines/layer-000.jsonl", "report": "pages/index.html"}.get(words[0])
    text = said.out if made is None else (tmp_path / made).read_text()
    assert re.search(f"handbuilt|{repository.head}|L0.M1", text)


def test_an_agent_s_question_fetches_what_it_needs(hub: Hub, repository: Repository) -> None:
    """A layer's tables for a memory; all triggers for the first search alone."""
    tools = Tools({"small": ms.open_atlas(ADDRESS)})
    (told,) = json.loads(tools.show("L0.M0"))["memories"]
    assert told["value"]["untrusted_text"]["top_texts"]
    assert "triggers/layer-000.parquet" in hub.sent
    assert "triggers/layer-001.parquet" not in hub.sent
    assert json.loads(tools.search("Paris"))["hits"]
    assert "triggers/layer-001.parquet" in hub.sent
    tools.index("small").close()


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    "words",
    [
        ("mine", "handmade:planted", "zen.txt", "--out", ADDRESS),
        ("compare", ADDRESS, ADDRESS, "--save"),
        ("extend", ADDRESS, "--model", "handmade:planted"),
        ("lens", ADDRESS, "--model", "handmade:planted"),
    ],
    ids=lambda words: words[0],
)
def test_what_writes_into_an_atlas_says_that_the_hub_s_is_read_only(
    repository: Repository, words: tuple[str, ...], capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zen.txt").write_text("Readability counts.\n")
    before = files_of(tmp_path)
    assert main(list(words)) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "read only; download it with `hf download user/small --repo-type dataset --revision " in last, last
    assert files_of(tmp_path) == before


def test_answers_are_shown_and_not_made(
    hub: Hub, repository: Repository, answered_atlas: Path, capsys: Capture
) -> None:
    hub.add("user/answered", answered_atlas)
    assert main(["analyze", "hf://datasets/user/answered", "key_patterns", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["answers"]) == {"key_patterns"}
    assert main(["analyze", ADDRESS, "value_confidence"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_pages(repository: Repository, tmp_path: Path) -> None:
    atlas = ms.open_atlas(ADDRESS)
    with client(atlas.path) as reader:
        for address in ("/", "/L0.M0", "/layers/0", "/L0.M0.json"):
            assert reader.get(address).status_code == 200, address
        assert repository.head in reader.get("/").text
    with pytest.raises(AnnotationError, match=r"annotations.sqlite cannot be made there"):
        open_store(atlas)
    with open_store(atlas, tmp_path / "mine.sqlite") as store:
        assert store.atlas is atlas


# --- strangers --------------------------------------------------------------------------------------------------------


def listed_as(folder: Path, path: str, data: bytes, **changed: Any) -> bytes:
    """The manifest of the atlas with another entry for this file, sealed."""
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} | changed
    manifest["files"][path] = entry
    seal_as_is(folder, manifest)
    return (folder / "manifest.json").read_bytes()


def wrong_hash(hub: Hub, folder: Path) -> str:
    data = (folder / "values/layer-000.parquet").read_bytes()
    hub.add(NAME, folder, **{"values/layer-000.parquet": data[:-1] + bytes([data[-1] ^ 1])})
    return "values/layer-000.parquet is not the file that was mined (its sha256 differs)"


def wrong_size(hub: Hub, folder: Path) -> str:
    data = (folder / "values/layer-000.parquet").read_bytes()
    hub.add(NAME, folder, **{"values/layer-000.parquet": data + b"more"})
    return f"values/layer-000.parquet has {len(data) + 4:,} bytes, and its manifest says {len(data):,}"


def name_that_leads_out(hub: Hub, folder: Path) -> str:
    listed_as(folder, "../../outside.parquet", b"")
    hub.add(NAME, folder, **{"../../outside.parquet": b"PAR1"})
    return "../../outside.parquet is no file of an atlas"


def symlink(hub: Hub, folder: Path) -> str:
    """What git keeps of a link is the path that it leads to."""
    hub.add(NAME, folder, **{"values/layer-000.parquet": b"../../../../../etc/passwd"})
    hub.repositories[NAME].entries.append(
        {"type": "symlink", "path": "values/layer-000.parquet", "size": 25, "oid": "0"}
    )
    return "values/layer-000.parquet has 25 bytes"


def two_of_one_name(hub: Hub, folder: Path) -> str:
    text = (folder / "manifest.json").read_text()
    first = '"values/layer-000.parquet": {\n'
    assert text.count(first) == 1
    twice = text.replace(first, '"values/layer-000.parquet": {"bytes": 1, "sha256": "%s"},\n' % ("0" * 64) + first)
    (folder / "manifest.json").write_text(twice)
    (folder / "manifest.sha256").write_text(hashlib.sha256(twice.encode()).hexdigest() + "\n")
    hub.add(NAME, folder)
    return "two entries of one name"


def manifest_of_2_gb(hub: Hub, folder: Path) -> str:
    hub.add(NAME, folder).odd["manifest.json"] = Odd(announced=2 << 30)
    return "manifest.json has 2,147,483,648 bytes, and 16,777,216 are the most"


def endless(hub: Hub, folder: Path) -> str:
    hub.add(NAME, folder).odd["values/layer-000.parquet"] = Odd(endless=True)
    return "values/layer-000.parquet has "


def endless_manifest(hub: Hub, folder: Path) -> str:
    hub.add(NAME, folder).odd["manifest.json"] = Odd(endless=True)
    return "manifest.json has "


HOSTILE: list[Callable[[Hub, Path], str]] = [
    *(
        wrong_hash,
        wrong_size,
        name_that_leads_out,
        symlink,
        two_of_one_name,
        manifest_of_2_gb,
        endless,
        endless_manifest,
    )
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda one: one.__name__)
def test_a_hostile_repository_is_refused_in_one_line(
    hub: Hub,
    hostile: Callable[[Hub, Path], str],
    handbuilt: Path,
    copied: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    said = hostile(hub, copied(handbuilt))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    before = files_of(tmp_path)
    for words, line in ((["show", ADDRESS, "L0.M0"], said), (["verify", ADDRESS], said.partition(" ")[0])):
        assert main(words) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert line in last, last
        assert last.startswith("mnemoscope: ")
        assert files_of(tmp_path) == before
    assert not list((tmp_path / "home").rglob("*.incomplete"))
    assert hub.bytes_sent < 100 << 20


def test_markup_and_control_codes_are_shown_as_text(hub: Hub, tmp_path: Path, capsys: Capture) -> None:
    odd = "<script>alert(1)</script>\x1b[31m\x9b"
    atlas = build_atlas(tmp_path / "odd", model={"spec": odd}, corpus={"spec": odd})
    hub.add(NAME, atlas)
    for words in (["show", ADDRESS, "L0.M0"], ["inspect", ADDRESS], ["show", ADDRESS, "L9.M9"], ["verify", ADDRESS]):
        main(words)
        said = capsys.readouterr()
        assert not {"\x1b", "\x9b"} & set(said.out + said.err)
    with client(ms.open_atlas(ADDRESS).path) as reader:
        page = reader.get("/").text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
        assert "<script>alert" not in page


def test_only_names_of_the_format_are_fetched(hub: Hub, handbuilt: Path, copied: Any, tmp_path: Path) -> None:
    """No judgements, search index or record of a run, whoever lists them; nor is one read that lies in the cache."""
    folder = copied(handbuilt)
    extra = dict.fromkeys(("annotations.sqlite", "search/index.sqlite"), b"SQLite format 3\x00")
    extra |= dict.fromkeys(("run.json", "report/index.html", "work/state.json", "state/text.safetensors"), b"{}")
    entries = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in extra.items()}
    listed = {"atlas": hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest(), "files": entries}
    extra["extensions/manifest.json"] = json.dumps(listed).encode()
    repository = hub.add(NAME, folder, **extra)
    atlas = ms.open_atlas(ADDRESS)
    snapshot = atlas.local("manifest.json").parent
    for name, data in extra.items():  # as another program may have left them there
        (snapshot / name).parent.mkdir(exist_ok=True)
        if not (snapshot / name).exists():
            (snapshot / name).write_bytes(data)
    assert all(name in atlas.hashes for name in entries)
    for name in entries:
        assert not atlas.local(name).exists(), name
        assert not (atlas / name).exists()
    assert ms.answer(atlas, "value_confidence").height  # counts judgements where there are some
    assert ms.search(atlas, "Paris").height
    with client(atlas.path) as reader:
        assert reader.get("/L0.M0").status_code == 200
    assert not [one for one in hub.asked if one.rpartition(f"{repository.head}/")[2] in entries]
    assert len(ms.verify(ADDRESS)) == len(entries), "they are missing"


def test_a_stranger_s_plan_does_not_say_how_a_model_is_opened(hub: Hub, tmp_path: Path) -> None:
    plan = {"seed": 0, "triggers": 4, "model": "gpt2", "adapter": "some/adapter", "trust_remote_code": True}
    hub.add(NAME, build_atlas(tmp_path / "odd", plan=plan))
    assert open_as_mined(ms.open_atlas(ADDRESS).path, "gpt2", AS_USUAL) == ("gpt2", AS_USUAL)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "error", "said"),
    [
        ("hf://datasets/user/none", AtlasNotFound, "the hub shows no such data set"),
        ("hf://datasets/user/hidden", AtlasNotFound, "the hub shows no such data set; .* `hf auth login`"),
        ("hf://datasets/user/small@none", AtlasNotFound, "there is no such revision"),
        ("hf://datasets/user/texts", AtlasNotFound, "does not hold an atlas"),
        ("hf://datasets/user/older", AtlasTooNew, "unreleased version"),
        ("hf://datasets/user", OptionError, "write hf://datasets/USER/NAME"),
        ("hf://user/small", OptionError, "write hf://datasets/USER/NAME"),
        ("hf://datasets/user/../small", OptionError, "write hf://datasets/USER/NAME"),
    ],
)
def test_what_is_no_atlas(
    hub: Hub,
    repository: Repository,
    handbuilt: Path,
    copied: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    address: str,
    error: type[Exception],
    said: str,
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    hub.add("user/hidden", handbuilt, private=True)
    hub.repositories["user/texts"] = Repository(False)
    hub.repositories["user/texts"].commit({"README.md": b"texts"})
    older = copied(handbuilt)
    seal_as_is(older, json.loads((older / "manifest.json").read_text()) | {"schema": 1})
    hub.add("user/older", older)
    for open_it in (ms.open_atlas, ms.verify):
        with pytest.raises(error, match=said):
            open_it(address)
    assert main(["show", address, "L0.M0"]) == 2
    assert "\n" not in capsys.readouterr().err.strip().replace(f"{address} is read as", "").split("mnemoscope: ")[1]


def test_a_private_atlas_needs_a_token(hub: Hub, handbuilt: Path) -> None:
    hub.add(NAME, handbuilt, private=True)
    assert ms.open_atlas(ADDRESS)["L0.M0"].value().height == 1


def test_a_place_on_the_hub_is_no_place_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mnemoscope.foundation.files import is_writable, locate, make_folder, write_json

    monkeypatch.chdir(tmp_path)
    place = locate(f"{ADDRESS}@main")
    assert isinstance(place, HubPath)
    assert locate(str(Path(ADDRESS))) == locate(ADDRESS) == locate(f"{ADDRESS}/")
    assert (place.repository, place.revision, str(place / "a" / "b.json")) == (NAME, "main", f"{ADDRESS}@main/a/b.json")
    assert locate(place) is place
    assert locate(tmp_path) == tmp_path
    assert not is_writable(place)
    assert not place.exists()
    for write in (make_folder, lambda place: write_json(place / "a.json", {})):
        with pytest.raises(StoreFailed, match="read only"):
            write(place)
    assert not list(tmp_path.iterdir())


def test_a_damaged_atlas_lists_its_damage(hub: Hub, handbuilt: Path) -> None:
    hub.add(NAME, handbuilt, **{"tokens.parquet": None, "vocabulary.parquet": b"short"})
    first, second = ms.verify(ADDRESS)
    assert first == "tokens.parquet: missing"
    assert second.startswith("vocabulary.parquet: hf://")
    with pytest.raises(AtlasDamaged, match=r"tokens.parquet is missing"):
        ms.open_atlas(ADDRESS).table("tokens")


def test_the_cache_is_huggingface_hub_s(hub: Hub, repository: Repository, tmp_path: Path) -> None:
    place = ms.open_atlas(ADDRESS).local("tokens.parquet")
    assert place.parent == tmp_path / "home/hub/datasets--user--small/snapshots" / repository.head
    shutil.rmtree(tmp_path / "home")
