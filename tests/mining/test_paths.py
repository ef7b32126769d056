"""Full paths stand in run.json alone: nothing that is shared tells where model and texts lay, nor depends on it."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mining.conftest import byte_tokenizer, odd_text, stop_at, tables_of
from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.manifest import mined_from
from mnemoscope.atlas.tables import rebuild_command
from mnemoscope.errors import Interrupted, ModelNotFound, PlanDiffers
from mnemoscope.foundation.options.model_options import ModelOptions, display_name, full_name
from mnemoscope.mining import extend, merge, mine
from mnemoscope.mining.lenses.lens_pass import fit_lenses
from mnemoscope.models import load_model
from mnemoscope.questions import write_all
from mnemoscope.show.export import write_report, writing
from mnemoscope.web.static_export import write_pages
from models.checkpoints import KINDS, args_of, weights_of
from models.checkpoints import write as write_checkpoint
from models.conftest import build
from models.gguf_files import gguf, network
from models.gguf_files import write as write_gguf
from models.test_probed import adapted, network_of
from web.served import client

pytestmark = [pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"), pytest.mark.full]

OPTIONS: dict[str, Any] = {"split": "line", "triggers": 3, "batch_tokens": 200, "removals": 2, "prefixes": 20}


@dataclass
class Opened:
    """A MODEL with how it is opened, and what it is called."""

    model: str
    spec: str
    options: dict[str, Any] = field(default_factory=dict)


def a_folder(room: Path) -> Opened:
    network_of("llama").save_pretrained(room / "bases" / "base")
    adapted("llama").save_pretrained(room / "adapters" / "mine")
    byte_tokenizer().save_pretrained(room / "tokenizers" / "words")
    options = {"adapter": str(room / "adapters" / "mine"), "tokenizer": str(room / "tokenizers" / "words")}
    return Opened(str(room / "bases" / "base"), "base+mine", options)


def a_gguf(room: Path) -> Opened:
    (room / "files").mkdir()
    return Opened(write_gguf(room / "files" / "small.gguf", "llama", network("llama")), "small")


def a_checkpoint(room: Path) -> Opened:
    kind = KINDS["tied"]
    model = write_checkpoint(room / "checkpoints", args_of(kind), weights_of(kind))
    (room / "dictionaries").mkdir()
    shutil.move(room / "checkpoints" / "dict.txt", room / "dictionaries" / "words.txt")
    return Opened(model, "fairseq:model.pt", {"dict": str(room / "dictionaries" / "words.txt")})


def a_folder_with_code(room: Path) -> Opened:
    folder = room / "codes" / "own"
    build("llama").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    code = "from transformers import LlamaForCausalLM\n\n\nclass Own(LlamaForCausalLM):\n    pass\n"
    (folder / "own.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModelForCausalLM": "own.Own"}}))
    return Opened(str(folder), "own", {"trust_remote_code": True})


MAKERS = [a_folder, a_gguf, a_checkpoint, a_folder_with_code]


def opening_of(opened: Opened) -> ModelOptions:
    return ModelOptions(**{"dictionary" if name == "dict" else name: each for name, each in opened.options.items()})


@pytest.fixture(scope="module", params=MAKERS, ids=lambda make: str(make.__name__))
def mined(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Opened]]:
    """A room that holds a model, its texts and, as `out/atlas`, all that can be made of them."""
    room = tmp_path_factory.mktemp("room")
    with pytest.MonkeyPatch.context() as patch:
        # Where transformers copies code to, which is otherwise in the user's home.
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(room / "modules"))
        patch.syspath_prepend(str(room / "modules"))
        yield make_atlas(request.param, room)


def make_atlas(make: Callable[[Path], Opened], room: Path) -> tuple[Path, Opened]:
    opened = make(room)
    (room / "texts").mkdir()
    (room / "texts" / "odd.txt").write_text(odd_text(40))
    (room / "texts" / "held.txt").write_text(odd_text(20, seed=1))
    named = {"out": room / "out" / "atlas", "validation": room / "texts" / "held.txt", "keep_work": True}
    out = mine(opened.model, room / "texts" / "odd.txt", **named, **opened.options, **OPTIONS)
    # What is not said is looked up; whether code is trusted is no part of that.
    trusted = {"trust_remote_code": True} if "trust_remote_code" in opened.options else {}
    extend(out, **trusted)
    fit_lenses(out, kinds=("ridge",), max_tokens=500, **trusted)
    write_all(open_atlas(out))
    return room, opened


def said_in(path: Path) -> str:
    """What a file says: of a table, which is compressed, all that is in it."""
    if path.suffix != ".parquet":
        return path.read_bytes().decode("latin-1")
    table = pq.read_table(path)
    return f"{table.schema.metadata} {table.to_pydict()}"


def leaks(folder: Path, room: Path) -> list[str]:
    """The files of a folder, but for run.json, that tell where the room is or the user's home."""
    hidden = (str(room), str(room.resolve()), f"{Path.home()}/")
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "run.json"]
    assert len(files) > 10
    return [path.name for path in files if any(each in said_in(path) for each in hidden)]


def test_no_file_of_an_atlas_tells_a_path(mined: tuple[Path, Opened]) -> None:
    room, opened = mined
    atlas = open_atlas(room / "out" / "atlas")
    assert leaks(atlas.path, room) == []
    assert (atlas.manifest.model.spec, atlas.manifest["corpus"]["spec"]) == (opened.spec, "odd.txt")
    assert atlas.manifest["plan"]["validation"] == "held.txt"
    assert atlas.manifest.model.hub is None
    paths = json.loads((atlas.path / "run.json").read_text())["paths"]
    assert paths.pop("corpus") == str(room / "texts" / "odd.txt")
    assert paths.pop("validation") == str(room / "texts" / "held.txt")
    known = {name: value for name, value in vars(opening_of(opened)).items() if isinstance(value, str)}
    assert paths == {"model": opened.model, **known}


@pytest.mark.fast(0, full=1)
def test_no_page_or_report_tells_a_path(mined: tuple[Path, Opened], tmp_path: Path, monkeypatch: Any) -> None:
    room, opened = mined
    atlas = room / "out" / "atlas"
    # All that a figure says stands in its specification; drawing it takes a second each.
    monkeypatch.setattr(writing, "export_figure", lambda drawn: {"svg": json.dumps(drawn).encode()})
    write_report(atlas, tmp_path / "shared" / "report")
    write_pages(atlas, tmp_path / "shared" / "pages", memories="1")
    assert leaks(tmp_path / "shared", room) == []
    assert opened.spec in (tmp_path / "shared" / "report" / "index.html").read_text()
    for given in ({}, {"model": opened.model, "opening": opening_of(opened)}):
        with client(atlas, **given) as web:
            traced = [f"/trace{kind}?prompt=the+cat" for kind in ("", ".json", ".py")]
            for address in ("/", "/index.json", "/L1.M3", "/L1.M3.json", "/layers/1", "/trace", *traced, "/audit"):
                page = web.get(address).text
                assert len(page) > 20
                assert str(room) not in page.replace(str(atlas), ""), address


def test_the_model_is_found_by_what_an_atlas_calls_it(mined: tuple[Path, Opened], tmp_path: Path) -> None:
    room, opened = mined
    copied = shutil.copytree(room / "out" / "atlas", tmp_path / "copied")
    called, opening = opened.spec.partition("+")[0], opening_of(opened)
    trusted = {"trust_remote_code": opening.trust_remote_code}
    assert extend(copied, called, ["width"], force=True, **trusted).made == ("width",)
    with client(copied, model=called, opening=ModelOptions(**trusted)) as web:
        assert web.get("/trace.json?prompt=the+cat").status_code == 200
    manifest = open_atlas(copied).manifest
    assert f"--model {called}" in rebuild_command(copied, "width", manifest)
    assert f"mine {called} " in rebuild_command(copied, "triggers", manifest)
    (copied / "run.json").unlink()
    if called == "base":
        with pytest.raises(ModelNotFound):
            extend(copied, None, ["width"], force=True)
    assert extend(copied, opened.model, ["width"], force=True, **opened.options).made == ("width",)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    build("llama").save_pretrained(tmp_path / "here" / "tiny")
    byte_tokenizer().save_pretrained(tmp_path / "here" / "tiny")
    (tmp_path / "here" / "odd.txt").write_text(odd_text(30))
    return tmp_path / "here"


def test_the_place_and_the_names_decide_no_byte(llama: Path, tmp_path: Path) -> None:
    one = mine(str(llama / "tiny"), llama / "odd.txt", out=tmp_path / "one", **OPTIONS)
    there = shutil.copytree(llama, tmp_path / "somewhere" / "else")
    (there / "tiny").rename(there / "other")
    (there / "odd.txt").rename(there / "even.txt")
    two = mine(str(there / "other"), there / "even.txt", out=tmp_path / "two", **OPTIONS)
    three = mine(str(there / "other"), there / "even.txt", out=tmp_path / "three", name="T", text_name="B", **OPTIONS)
    assert tables_of(one) == tables_of(two) == tables_of(three)
    found = [open_atlas(path).manifest for path in (one, two, three)]
    assert len({manifest.plan_hash for manifest in found}) == 1
    specs = [(manifest["model"]["spec"], manifest["corpus"]["spec"]) for manifest in found]
    assert specs == [("tiny", "odd.txt"), ("other", "even.txt"), ("T", "B")]


def test_a_run_goes_on_with_a_model_and_a_text_that_moved_but_with_no_other_text(llama: Path, tmp_path: Path) -> None:
    out, model, text = tmp_path / "atlas", str(llama / "tiny"), llama / "odd.txt"
    whole = mine(model, text, out=tmp_path / "whole", **OPTIONS)
    with pytest.raises(Interrupted):
        mine(model, text, out=out, progress=stop_at("values"), **OPTIONS)
    assert mined_from(out)["model"] == model
    (llama / "other.txt").write_text("another text\n" * 9)
    (llama / "equal.txt").write_text(text.read_text().swapcase())
    kept = (out / "work" / "text" / "tokens.bin").read_bytes()
    with pytest.raises(PlanDiffers, match=r"corpus was '.*/odd.txt', now '.*/other.txt'"):
        mine(model, llama / "other.txt", out=out, **OPTIONS)
    assert (out / "work" / "text" / "tokens.bin").read_bytes() == kept, "told before it is read"
    with pytest.raises(PlanDiffers, match=r"'odd.txt', now 'equal.txt'.*corpus fingerprint"):
        mine(model, llama / "equal.txt", out=out, **OPTIONS)
    with pytest.raises(PlanDiffers, match=r"validation was None, now 'other.txt'"):
        mine(model, text, out=out, validation=llama / "other.txt", **OPTIONS)
    moved = llama.rename(tmp_path / "moved")
    (moved / "odd.txt").rename(moved / "renamed.txt")
    again = mine(str(moved / "tiny"), moved / "renamed.txt", out=out, **OPTIONS)
    assert tables_of(again) == tables_of(whole)
    assert mined_from(again)["corpus"] == str(moved / "renamed.txt")


def test_parts_that_are_called_otherwise_are_joined(llama: Path, tmp_path: Path) -> None:
    there = shutil.copytree(llama, tmp_path / "there")
    one = mine(str(llama / "tiny"), llama / "odd.txt", out=tmp_path / "1", part=(1, 2), name="Tiny", **OPTIONS)
    two = mine(str(there / "tiny"), there / "odd.txt", out=tmp_path / "2", part=(2, 2), **OPTIONS)
    merged = merge(tmp_path / "merged", [one, two])
    assert open_atlas(merged).manifest.model.spec == "Tiny"
    assert mined_from(merged)["model"] == str(llama / "tiny")
    assert mined_from(merged)["corpus"] == str(llama / "odd.txt")


def test_a_gguf_is_called_as_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what its metadata say: converters put the folder's name there, and quantisers leave it."""
    begin = gguf.GGUFWriter.__init__

    def named(self: Any, *given: Any) -> None:
        begin(self, *given)
        self.add_name("Tiny Llama 0.1 Ep2")

    monkeypatch.setattr(gguf.GGUFWriter, "__init__", named)
    assert load_model(write_gguf(tmp_path / "small.Q4.gguf", "llama", network("llama"))).spec == "small.Q4"


NAMES = """
    gpt2 gpt2; org/name org/name; builtin:pydocs builtin:pydocs; /a/b-c/m m; ./m/ m; ~/models/m m; a/b/c c
    m.gguf m.gguf; d/m.gguf m.gguf; fairseq:/a/m.pt fairseq:m.pt; C:\\models\\m m; memory:GPT2 memory:GPT2
"""


@pytest.mark.parametrize("pair", re.split(r"; |\n *", NAMES.strip()))
def test_display_names(pair: str) -> None:
    given, shown = pair.split()
    assert display_name(given) == shown
    assert display_name(display_name(given)) == shown


def test_names_of_texts_and_full_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert display_name("texts/wiki.txt", of_text=True) == "wiki.txt"
    assert display_name("/d/*.txt", of_text=True) == "*.txt"
    assert display_name("hub:org/name:config", of_text=True) == "hub:org/name:config"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert full_name("org/name") == str(tmp_path / "org" / "name")
    assert full_name("org/other") == "org/other"
    assert full_name("*.txt", of_text=True) == str(tmp_path / "*.txt")
    assert full_name("fairseq:m.pt") == f"fairseq:{tmp_path / 'm.pt'}"
    assert full_name("hub:a/b", of_text=True) == "hub:a/b"
