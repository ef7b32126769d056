"""What a notebook leans on: mining again, an atlas as path and index, triggers and coefficients as frames, the bar."""

import io
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl
import pytest
import torch

import mnemoscope as ms
from mnemoscope.attribution import attribute_prompts, diff_prompts
from mnemoscope.auditing import audit
from mnemoscope.errors import AtlasExists, MemoryIdError, OptionError
from mnemoscope.foundation.progress import NOTE
from mnemoscope.mining.lenses.lens_pass import fit_lenses
from mnemoscope.models.opening.handmade.models import PLANTED_SENTENCES
from mnemoscope.search import open_index
from mnemoscope.show.export import write_report
from models import planted_experts

OPTIONS: dict[str, Any] = {"split": "line", "device": "cpu"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("manners") / "text.txt"
    path.write_text("\n".join(PLANTED_SENTENCES) + "\n")
    return path


@pytest.fixture(scope="module")
def atlas(text: Path) -> ms.Atlas:
    return ms.mine("handmade:planted", text, out=text.parent / "planted", **OPTIONS)


@pytest.fixture(scope="module")
def experts(text: Path) -> ms.Atlas:
    return ms.mine(planted_experts.load(), text, out=text.parent / "experts", **OPTIONS)


# --- mining again ------------------------------------------------------------------------------------------------


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that any model is run on."""
    seen: list[tuple[int, ...]] = []
    for name in ("backbone", "logits"):
        run = getattr(ms.LanguageModel, name)

        def counted(self: Any, ids: torch.Tensor, run: Any = run, **named: Any) -> Any:
            seen.append(tuple(ids.shape))
            return run(self, ids, **named)

        monkeypatch.setattr(ms.LanguageModel, name, counted)
    return seen


def test_a_finished_atlas_of_the_same_plan_is_returned_unread(
    text: Path, tmp_path: Path, forwards: list[tuple[int, ...]]
) -> None:
    model = ms.load_model("handmade:planted", device="cpu")
    made = ms.mine(model, text, out=tmp_path / "atlas", **OPTIONS)
    assert forwards
    before = files_of(made.path)
    forwards.clear()
    said: list[tuple[str, str]] = []
    again = ms.mine(
        model, text, out=tmp_path / "atlas", progress=lambda *report: said.append((report[0], report[3])), **OPTIONS
    )
    assert isinstance(again, ms.Atlas)
    assert (again.manifest_hash, forwards, files_of(made.path)) == (made.manifest_hash, [], before)
    assert any(stage == NOTE and "atlas is finished already" in note for stage, note in said)
    moved = tmp_path / "moved.txt"  # equal text elsewhere is the same plan
    moved.write_bytes(text.read_bytes())
    assert ms.mine(model, moved, out=tmp_path / "atlas", **OPTIONS).manifest_hash == made.manifest_hash


@pytest.mark.parametrize("change", ["text", "repeated", "weights", "option", "part"])
def test_what_has_changed_is_named_with_force(change: str, text: Path, tmp_path: Path) -> None:
    sentences = [*PLANTED_SENTENCES]
    own = tmp_path / "text.txt"
    own.write_text("\n".join(sentences))
    made = ms.mine("handmade:planted", own, out=tmp_path / "atlas", **OPTIONS)
    before = files_of(made.path)
    model, options = "handmade:planted", dict(OPTIONS)
    if change == "text":
        own.write_text("\n".join([*sentences[:-1], "the cat sat"]))
    elif change == "repeated":
        own.write_text("\n".join([*sentences, sentences[0]]))
    elif change == "weights":
        model = "handmade:worked-example"
    elif change == "option":
        options["triggers"] = 3
    else:
        options["part"] = "1/2"
    named = {
        "text": "corpus fingerprint was",
        "repeated": "the text's duplicates changed",
        "weights": "model fingerprint was",
        "option": "triggers was 50, now 3",
        "part": r"part was None, now \(1, 2\)",
    }
    refusal = rf"is finished already; choose another folder, or force=True to mine it again, .*{named[change]}"
    with pytest.raises(AtlasExists, match=refusal) as caught:
        ms.mine(model, own, out=tmp_path / "atlas", **options)
    assert "--" not in str(caught.value)
    assert files_of(made.path) == before
    if change in ("text", "repeated"):
        ms.mine(model, own, out=tmp_path / "atlas", force=True, **options)
        assert ms.mine(model, own, out=tmp_path / "atlas", **options).manifest_hash != made.manifest_hash


def test_a_finished_part_is_returned_and_opened(text: Path, tmp_path: Path) -> None:
    first, again = (ms.mine("handmade:planted", text, out=tmp_path / "1", part="1/2", **OPTIONS) for _ in range(2))
    assert (first.manifest_hash, str(again.manifest.part)) == (again.manifest_hash, "part 1 of 2")
    assert again[0].table().columns == ["name", "memory", "fires", "mean", "max"]


# --- an atlas is a path and an index -----------------------------------------------------------------------------


def test_a_table_made_later_is_seen_by_the_atlas_it_was_made_in(atlas: ms.Atlas) -> None:
    assert not atlas.has("width")
    ms.extend(atlas, tables=["width"])
    assert atlas.table("width").height


def test_an_atlas_is_its_path(atlas: ms.Atlas) -> None:
    assert isinstance(atlas, os.PathLike)
    assert os.fspath(atlas) == str(atlas) == str(atlas.path)
    assert (atlas / "manifest.json").is_file()
    assert (ms.open_atlas(atlas).manifest_hash, ms.verify(atlas)) == (atlas.manifest_hash, [])


@pytest.mark.parametrize(
    "key", ["L1.M4", (1, 4), "L1N4", "L1.N4", "1.4", ms.MemoryId(1, 4), (np.int64(1), np.int32(4))]
)
def test_every_way_to_name_a_memory(key: Any, atlas: ms.Atlas) -> None:
    assert str(atlas[key].id) == "L1.M4"
    assert key in atlas


@pytest.mark.parametrize(
    "key",
    ["L1", "L1.M", "L9.M0", "9.0", (1, 6), (1, -1), (0, 1, 2), (), None, 1.5, b"L0.M0", -1, 3, ("a", 0), slice("a")],
)
def test_what_names_nothing(key: Any, atlas: ms.Atlas) -> None:
    with pytest.raises(MemoryIdError) as caught:
        atlas[key]
    assert "\n" not in str(caught.value)
    assert key not in atlas


def test_layers(atlas: ms.Atlas) -> None:
    layer = atlas[1]
    assert (layer.number, len(layer), repr(layer)) == (1, 6, f"<Layer 1 of {atlas.path}: memories 0-5>")
    assert str(layer[4].id) == "L1.M4"
    assert [str(memory.id) for memory in layer] == [f"L1.M{number}" for number in range(6)]
    assert layer.table("triggers").equals(atlas.table("triggers", layer=1))
    table = layer.table()
    assert table["name"].to_list() == [f"L1.M{number}" for number in range(6)]
    assert table["max"].to_list() == [atlas[1, number].activity()["max"][0] for number in range(6)]
    assert table["top_text"].to_list() == [atlas[1, number].value()["top_texts"][0][0] for number in range(6)]
    assert ([one.number for one in atlas[1:3]], [one.number for one in atlas[-1:]], atlas[5:9]) == ([1, 2], [2], ())
    chart = layer.chart()
    assert isinstance(chart, alt.Chart)
    (rows,) = chart.to_dict()["datasets"].values()
    assert [row["name"] for row in rows] == table["name"].to_list()
    assert "L1.M4" in layer._repr_html_()


def test_memories_of_experts_are_counted_through(experts: ms.Atlas) -> None:
    layer = next(one for one in experts[:] if experts.numbering(one.number).routed is not None)
    names = [str(memory.id) for memory in layer]
    assert names[0] == f"L{layer.number}.E0.M0"
    assert [str(experts[layer.number, number].id) for number in range(len(layer))] == names
    assert str(experts[f"L{layer.number}N{len(names) - 1}"].id) == names[-1]
    with pytest.raises(MemoryIdError, match=rf"in a layer of experts write L{layer.number}\.E0\.M1$"):
        experts[f"L{layer.number}.M1"]


def test_iteration_length_and_completion_are_of_memories(atlas: ms.Atlas) -> None:
    names = [f"L{layer}.M{number}" for layer in range(3) for number in range(6)]
    assert len(atlas) == 18
    assert [str(memory.id) for memory in atlas] == names == atlas._ipython_key_completions_()


def test_triggers_of_many_memories_stand_in_one_frame(atlas: ms.Atlas) -> None:
    found = atlas.triggers(["L1.M4", "L0.M0", atlas[1, 4]], k=2)
    assert found["name"].unique(maintain_order=True).to_list() == [
        name for name in ("L1.M4", "L0.M0") if atlas[name].triggers(None).height
    ]
    shown = ["coefficient", "prefix", "trigger_text", "next_text", "text", "sign", "rank"]
    for name in ("L1.M4", "L0.M0"):
        own = atlas[name].triggers(None).filter(pl.col("rank") < 2)
        assert found.filter(pl.col("name") == name).select(shown).equals(own.select(shown))
    whole = atlas.triggers(layer=0, k=None)
    assert whole.select("memory", *shown[:1]).equals(atlas.table("triggers", layer=0).select("memory", *shown[:1]))
    assert set(atlas.triggers(layer=0, sign=1)["sign"]) == {1}
    assert (atlas.triggers()["layer"].unique().to_list(), atlas.triggers([]).height) == ([0, 1, 2], 0)
    assert atlas.triggers("L0.M0").equals(atlas.triggers(["L0.M0"]))


@pytest.mark.parametrize(
    ("given", "line"), [({"memories": ["L0.M0"], "layer": 1}, "not both"), ({"k": 0}, "k=0"), ({"sign": 2}, "sign 2")]
)
def test_impossible_triggers(given: dict[str, Any], line: str, atlas: ms.Atlas) -> None:
    with pytest.raises(OptionError, match=line):
        atlas.triggers(**given)
    with pytest.raises(MemoryIdError):
        atlas.triggers(layer=7)


# --- a model and its coefficients --------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [lambda: ms.load_model("handmade:planted", device="cpu"), planted_experts.load])
def test_coefficients_of_a_prompt(load: Callable[[], ms.LanguageModel]) -> None:
    model = load()
    prompt = PLANTED_SENTENCES[0]
    found = model.coefficients(prompt)
    assert found.columns == ["layer", "memory", "position", "token", "coefficient"]
    tokens = [token.text for token in ms.trace(model, prompt).tokens]
    assert found.height == sum(model.sizes.memories) * len(tokens)
    assert found.filter(pl.col("layer") == 0, pl.col("memory") == 0)["token"].to_list() == tokens
    for row in ms.trace(model, prompt, memories=3).places[0]:
        for dominant in row.memories:
            number = model.numbering(0).number(dominant.memory)
            place = (pl.col("layer") == 0, pl.col("memory") == number, pl.col("position") == row.position)
            assert found.filter(*place)["coefficient"].to_list() == pytest.approx([dominant.coefficient])
    assert model.coefficients(prompt, layers=[1]).equals(found.filter(pl.col("layer") == 1))
    with pytest.raises(MemoryIdError):
        model.coefficients(prompt, layers=[99])


def test_what_a_notebook_prints_is_short(atlas: ms.Atlas) -> None:
    model = ms.load_model("handmade:planted", device="cpu")
    shown = [model, model.sizes, model.proof, atlas.manifest, atlas, atlas[0], ms.trace(model, PLANTED_SENTENCES[0])]
    for each in shown:
        assert len(repr(each)) < 300, repr(each)
    assert "3 layers of 6 memories" in repr(model)
    assert "handmade:planted" in repr(atlas.manifest)


# --- the bar -----------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("terminal", "progress", "drawn"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_bar_in_a_terminal_unless_it_is_not_wanted(
    terminal: bool, progress: bool, drawn: bool, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    for _ in range(2):
        ms.mine("handmade:planted", text, out=tmp_path / "atlas", progress=progress, **OPTIONS)
    written = stream.getvalue()
    assert ("%" in written, "is finished already" in written) == (drawn, drawn)


def test_what_else_is_long_has_the_bar_too(atlas: ms.Atlas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is run with and without the bar, which asks for a terminal."""
    model = ms.load_model("handmade:planted", device="cpu")
    two = PLANTED_SENTENCES[:2]
    prompts = [{"prompt": prompt, "other_prompt": " ".join(reversed(prompt.split()))} for prompt in two]
    alone = tmp_path / "atlas"
    shutil.copytree(atlas, alone)
    asked: dict[str, Callable[..., Any]] = {
        "prompts attributed": partial(attribute_prompts, model, prompts),
        "prompts compared": partial(diff_prompts, model, prompts),
        "audit": partial(audit, model, list(two), alternatives=19),
        "index": lambda progress: open_index(_without_search(alone), progress=progress).close(),
        "report": partial(write_report, alone, tmp_path / "report"),
        "lenses": partial(fit_lenses, alone, model, ["ridge"], max_tokens=60, force=True),
    }
    for what, ask in asked.items():
        for progress in (True, False):
            stream = Terminal()
            monkeypatch.setattr(sys, "stderr", stream)
            ask(progress=progress)
            assert ("/s]" in stream.getvalue()) is progress, (what, progress, stream.getvalue())


def _without_search(atlas: Path) -> Path:
    shutil.rmtree(atlas / "search", ignore_errors=True)
    return atlas
