"""An atlas that changes while it is served: a page is of one edition from beginning to end, and of the one it says."""

import gc
import json
import shutil
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from starlette.exceptions import HTTPException

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.manifest import MANIFEST, seal
from mnemoscope.atlas.schema import THE_PAPERS
from mnemoscope.errors import AtlasBusy, AtlasDamaged
from mnemoscope.foundation.files import file_hash, write_bytes, write_json
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.questions import QUESTIONS, write_all
from mnemoscope.questions import answers as answers_module
from mnemoscope.questions.answers import make_answer, with_patterns, write
from mnemoscope.search import index as search_index
from mnemoscope.show.pages import overview, questions
from mnemoscope.show.pages.edition import PAGES, Edition
from mnemoscope.show.pages.memory import memory_page
from mnemoscope.web import Settings
from mnemoscope.web import site as site_module
from mnemoscope.web.app import create_app
from mnemoscope.web.routes.search import BackgroundIndex
from mnemoscope.web.site import Site
from reports.reported_atlas import reported
from web.judging import annotated_atlas, host, served
from web.planted_atlas import SPEC
from web.served import client, make_page, patient

search_room = sys.modules["mnemoscope.search"]


class Held:
    """A function that stops at its end the first time, until it is let go."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.made, self.go = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        found = self._function(*arguments, **named)
        if not self.made.is_set():
            self.made.set()
            assert self.go.wait(120)
        return found


@pytest.fixture
def opened(tmp_path: Path) -> Atlas:
    return reported(tmp_path)


def mined_again(atlas: Path, *, seed: int = 8) -> str:
    """Another atlas in the place of this one: its hash."""
    manifest = json.loads((atlas / MANIFEST).read_bytes())
    for name in (MANIFEST, "manifest.sha256"):
        (atlas / name).unlink()
    shutil.rmtree(atlas / "analyses", ignore_errors=True)
    plan = manifest["plan"] | {"seed": seed}
    seal(atlas, {name: part for name, part in manifest.items() if name != "files"} | {"plan": plan})
    return file_hash(atlas / MANIFEST)


@pytest.mark.full
def test_memories_share_the_triggers_that_their_rows_say(planted: Path) -> None:
    opened = open_atlas(planted)
    own = {
        MemoryId(layer, memory): opened.best_triggers(layer, None, memories=[memory]).select("sentence", "position")
        for layer in opened.layers
        for memory in range(opened.memories(layer))
    }
    edition, shared = Edition(opened), 0
    for places in own.values():
        found = dict(edition.sharing(list(places.iter_rows()), 1_000))
        counts = {other: rows.join(places, on=["sentence", "position"]).height for other, rows in own.items()}
        assert found == {other: count for other, count in counts.items() if count}
        shared += len(found) > 1
    assert shared
    assert edition.sharing([], 1_000) == []


def test_pages_are_kept_up_to_so_many_bytes(tmp_path: Path) -> None:
    pages = Edition(open_atlas(reported(tmp_path).path)).pages
    kept: dict[str, Any] = {
        "page": (bytes(PAGES // 4), 200, "text/html"),
        "rows": pl.DataFrame({"rate": np.zeros(PAGES // 32)}),
        "titles": ["x" * (PAGES // 8) for _ in range(2)],
        "short": "x",
    }
    for name, value in kept.items():
        pages.get(name, lambda value=value: value)
    assert [name for name in kept if pages.find(name, None) is not None] == list(kept)
    pages.get("picture", lambda: "x" * (PAGES // 2))
    assert [name for name in kept if pages.find(name, None) is not None] == ["titles", "short"]


@pytest.mark.full
def test_a_page_that_is_made_while_the_atlas_changes_is_not_kept(
    opened: Atlas, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, before = client(opened.path), client(opened.path).get("/questions.json")
    held = Held(questions.questions_page)
    make_page(monkeypatch, "questions", held)
    with ThreadPoolExecutor(1) as slow:
        first = slow.submit(reader.get, "/questions.json")
        assert held.made.wait(120)
        write_all(opened)
        assert reader.get("/index.json").json()["unanswered"] == []
        held.go.set()
        answers = [first.result(120), reader.get("/questions.json")]
    fresh = client(opened.path).get("/questions.json")
    assert before.json() != fresh.json()
    # Who asked first is given the old page whole, under its own mark and not under the new one.
    for answer, expected in zip(answers, (before, fresh), strict=True):
        assert (answer.json(), answer.headers["etag"]) == (expected.json(), expected.headers["etag"])


@pytest.mark.full
def test_a_page_whose_answers_are_not_read_before_they_change_is_of_the_next_edition(
    opened: Atlas, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, begun, made = client(opened.path), threading.Event(), threading.Event()

    def late(edition: Edition) -> Any:
        begun.set()
        assert made.wait(120)
        return questions.questions_page(edition)

    make_page(monkeypatch, "questions", late)
    with ThreadPoolExecutor(1) as slow:
        first = slow.submit(reader.get, "/questions.json")
        assert begun.wait(120)
        write_all(opened)
        made.set()
        answer = first.result(120)
    fresh = client(opened.path).get("/questions.json")
    assert (answer.json(), answer.headers["etag"]) == (fresh.json(), fresh.headers["etag"])


def test_answers_that_change_at_every_look_end_in_a_sentence(opened: Atlas, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, tried = client(opened.path), []

    def never_the_same(edition: Edition) -> Any:
        tried.append(edition.state)
        write_json(opened.path / "analyses" / MANIFEST, {"atlas": opened.manifest_hash, "files": {}, "try": len(tried)})
        return questions.questions_page(edition)

    (opened.path / "analyses").mkdir(exist_ok=True)
    make_page(monkeypatch, "questions", never_the_same)
    answer = reader.get("/questions.json")
    assert (answer.status_code, "changed while it was being read" in answer.json()["message"]) == (503, True)
    assert len(set(tried)) == len(tried) == 10


def test_what_was_mined_is_read_once_for_all_answers_to_it(opened: Atlas) -> None:
    site = create_app(Settings(opened.path)).state.site
    first = site.edition()
    rows, answers = first.table("values", 0), questions.answers_of(first)
    assert memory_page(first, "L0.M0").data["patterns"] is not None
    write_all(opened)
    with_patterns(opened, QUESTIONS, anew=True)
    second = site.edition()
    assert second.state != first.state
    assert second.table("values", 0) is rows
    assert questions.answers_of(second)["key_patterns"].missing == "" != answers["key_patterns"].missing
    # The patterns were written anew, under the open atlas.
    assert memory_page(second, "L0.M0").data["patterns"] is not None
    mined_again(opened.path)
    third = site.edition()
    assert third.table("values", 0) is not rows
    assert third.table("values", 0).equals(rows)


@pytest.mark.full
def test_a_figure_is_drawn_once_and_anew_for_new_answers(opened: Atlas, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(opened)
    site, drawn, draw = create_app(Settings(opened.path)).state.site, [], questions.draw_answer

    def counted(answers: Any, question: str, **named: Any) -> str:
        drawn.append(question)
        return draw(answers, question, **named)

    monkeypatch.setattr(questions, "draw_answer", counted)

    def small_figures() -> list[str]:
        return [one["drawing"] for one in overview.overview_page(site.edition()).extra()["claimed"]]

    first, state = small_figures(), site.edition().state
    assert (small_figures(), sorted(drawn)) == (first, sorted(THE_PAPERS))
    written = make_answer(opened, "key_patterns")
    changed = written.table.with_columns(pl.col("value") / 2)
    monkeypatch.setattr(answers_module, "make_answer", lambda atlas, question: replace(written, table=changed))
    write(opened, ["key_patterns"])
    assert site.edition().state != state
    changes = [one != before for one, before in zip(small_figures(), first, strict=True)]
    assert changes == [question == "key_patterns" for question in THE_PAPERS]


def test_a_refusal_of_an_edition_that_is_gone_is_an_answer(opened: Atlas, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, tried = client(opened.path), []

    def refuse(edition: Edition) -> Any:
        tried.append(edition.state)
        write_all(opened)
        raise HTTPException(503, "Not yet; try again in a moment.")

    make_page(monkeypatch, "questions", refuse)
    assert (reader.get("/questions.json").status_code, len(tried)) == (503, 1)


def test_patterns_that_are_made_are_in_the_next_edition(opened: Atlas) -> None:
    (opened.path / "patterns.parquet").unlink()
    site = Site(Settings(opened.path))
    early, late = site.edition(), Edition(opened, site.edition().manifests)
    assert not early.has_patterns
    with_patterns(opened, QUESTIONS, anew=True)
    # What was read before is kept, what is read now is another edition's.
    assert early.patterns(MemoryId(0, 0)) is None
    with pytest.raises(AtlasBusy, match="changed while it was being read"):
        late.patterns(MemoryId(0, 0))
    assert site.edition().patterns(MemoryId(0, 0)) is not None


@pytest.mark.full
def test_what_an_old_page_needs_never_enters_the_new_edition(opened: Atlas) -> None:
    site = create_app(Settings(opened.path)).state.site
    old = site.edition()
    with site.reading(old):
        write_all(opened)
        with ThreadPoolExecutor(1) as other:
            new = other.submit(site.edition).result(120)
        assert new is not old
        # The old page goes on: it needs one more thing, made from what it has read.
        assert site.edition().tables.get("words", lambda: "old") == "old"
        assert (site.edition().pages.get("page", lambda: "old"), site.edition().state) == ("old", old.state)
    assert site.edition() is new
    assert site.edition().tables.get("words", lambda: "new") == "new"
    assert site.edition().pages.get("page", lambda: "new") == "new"


def test_the_citation_is_that_of_the_atlas_that_lies_there(opened: Atlas) -> None:
    reader = client(opened.path)
    before = reader.get("/L0.M0.json").json()["reference"]["atlas"]
    assert before == file_hash(opened.path / MANIFEST)
    hash = mined_again(opened.path)
    assert hash != before
    for _ in range(2):
        assert reader.get("/L0.M0.json").json()["reference"]["atlas"] == hash
        assert f"atlas sha256 {hash}" in reader.get("/L0.M0").text
        overview = reader.get("/index.json")
        assert (overview.json()["atlas"], overview.json()["plan"]["seed"]) == (hash, 8)
        assert hash[:16] in overview.headers["etag"]


def test_judgements_of_the_old_atlas_are_not_those_of_the_new(tmp_path: Path) -> None:
    atlas = annotated_atlas(tmp_path / "atlas")
    boss = host(served(atlas))
    assert boss.json("/annotate")["campaign"] is not None
    mined_again(atlas)
    for path in ("/annotate", "/annotate/results", "/annotate/export.csv"):
        assert "another atlas" in boss.page(path, status=409)
    assert "another atlas" in boss.post("/annotate/invite", {"name": "Eve"}, status=409)["message"]
    assert boss.web.get("/L0.M0").status_code == 200


def test_an_atlas_that_is_being_mined_anew_is_refused_until_it_is_there(tmp_path: Path, opened: Atlas) -> None:
    reader = client(opened.path)
    assert reader.get("/L0.M0").status_code == 200
    aside = (opened.path / MANIFEST).rename(tmp_path / "aside")
    for path in ("/", "/L0.M0", "/L0.M0.json", "/tokens", "/search?q=x"):
        answer = reader.get(path)
        assert answer.status_code == 409, path
        assert "bug" not in answer.text
    aside.rename(opened.path / MANIFEST)
    assert reader.get("/L0.M0").status_code == 200


def test_an_old_index_never_takes_the_place_of_a_new_one(opened: Atlas, monkeypatch: pytest.MonkeyPatch) -> None:
    site = create_app(Settings(opened.path)).state.site
    held = Held(search_room.open_index)
    monkeypatch.setattr(search_room, "open_index", held)
    opening = BackgroundIndex(site)
    opening.begin()
    assert held.made.wait(120)
    first = opening.begin()
    write_all(opened)
    # Answers are not searched.
    assert opening.begin() is first
    with_patterns(opened, QUESTIONS, anew=True)
    assert opening.begin().future.result(60)
    new = opening.index()
    assert "patterns" not in new.missing_fields
    held.go.set()
    for thread in [one for one in threading.enumerate() if one.name == "search index"]:
        thread.join()
    assert opening.index() is new
    assert new.search("the", fields=("triggers",)).total >= 0
    new.close()


def test_an_index_that_is_no_longer_wanted_is_not_finished(opened: Atlas, monkeypatch: pytest.MonkeyPatch) -> None:
    site = create_app(Settings(opened.path)).state.site
    begun, go = threading.Event(), threading.Event()

    def opens(atlas: Atlas, *, progress: Callable[..., None], annotations: Any) -> Any:
        if not begun.is_set():
            begun.set()
            assert go.wait(120)
        progress("index", 0, 1, "prefixes")
        return open_index(atlas, progress=progress, annotations=annotations)

    open_index = search_room.open_index
    monkeypatch.setattr(search_room, "open_index", opens)
    background = BackgroundIndex(site)
    first, old = background.begin(), site.edition()
    assert begun.wait(120)
    with_patterns(opened, QUESTIONS, anew=True)
    second = background.begin()
    assert second is not first
    go.set()
    assert second.future.result(60)
    assert first.future.exception(60) is not None
    # A page of the old edition that wants the index is made from the new one.
    with site.reading(old), pytest.raises(AtlasBusy, match="changed while it was being read"):
        background.index()
    assert background.begin() is second
    second.future.result().close()


def folder(atlas: Path) -> dict[str, bytes]:
    """Every file of the atlas but the search index, which `serve` makes."""
    return {
        str(path.relative_to(atlas)): path.read_bytes()
        for path in sorted(atlas.rglob("*"))
        if path.is_file() and path.relative_to(atlas).parts[0] != "search"
    }


DAMAGE = ("analyses/refinement_events.cases.parquet", "analyses/value_agreement.json", "patterns.parquet")


@pytest.mark.fast(1)
@pytest.mark.parametrize("damaged", DAMAGE)
def test_no_reading_writes_into_an_atlas_with_a_damaged_answer(
    answered_atlas: Path, tmp_path: Path, damaged: str
) -> None:
    atlas = shutil.copytree(answered_atlas, tmp_path / "atlas")
    path = atlas / damaged
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    before = folder(atlas)
    reader = client(atlas)
    there = {"name": "L0.M0", "layer": "0", "token": "6", "question": "refinement_events", "ending": "csv", "code": "0"}
    asked = [path for path, methods in reader.get("/openapi.json").json()["paths"].items() if "get" in methods]
    assert len(asked) > 15
    for address in asked:
        for name, value in there.items():
            address = address.replace(f"{{{name}}}", value)
        patient(reader, address)
        assert folder(atlas) == before, address
    if damaged.endswith("cases.parquet"):
        assert reader.get("/index.json").json()["unanswered"] == ["refinement_events"]
        assert "mnemoscope analyze" in reader.get("/").text


@pytest.mark.full
def test_the_mined_model_s_pages_end_with_its_atlas(planted: Path, copied: Callable[[Path], Path]) -> None:
    """A model that was right for the atlas before is named, or refused, as it would be at the start."""
    atlas = copied(planted)
    plain, forced = client(atlas, model=SPEC), client(atlas, model=SPEC, force_model=True)
    assert "is not the model" not in forced.get("/L1.M4").text
    manifest = json.loads((atlas / MANIFEST).read_bytes())
    manifest["model"]["fingerprint"] = "f" * 64
    for name in (MANIFEST, "manifest.sha256"):
        (atlas / name).unlink()
    seal(atlas, {name: part for name, part in manifest.items() if name != "files"})
    for path in ("/layers", "/trace?prompt=the+cat"):
        refused = plain.get(path)
        assert refused.status_code == 409
        assert "is not the model that" in refused.text
        assert "is not the model that was mined." in forced.get(path).text


def test_an_index_whose_atlas_is_being_cleared_is_said_to_come(opened: Atlas, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables go first and the manifest last; what cannot be written meanwhile is nothing for a reader to mend."""
    shutil.rmtree(opened.path / "search", ignore_errors=True)
    write_index, clearing = search_index.write_index, True

    def write(*arguments: Any, **named: Any) -> None:
        write_index(*arguments, **named)
        if clearing:
            (opened.path / "tokens.parquet").replace(opened.path / "taken away")
        shutil.rmtree(opened.path / "search")

    monkeypatch.setattr(search_index, "write_index", write)
    reader = client(opened.path)

    def ask() -> Any:
        while "is being built" in (answer := reader.get("/search.json?q=the")).json()["message"]:
            pass
        return answer

    answer = ask()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["message"].endswith("; the atlas may be being mined again; try again in a moment.")
    # With all tables there it is told what went wrong.
    (opened.path / "taken away").rename(opened.path / "tokens.parquet")
    clearing = False
    answer = ask()
    assert (answer.status_code, "cannot write" in answer.json()["message"]) == (503, True)


@pytest.mark.full
def test_editions_whose_index_could_not_be_made_are_let_go(opened: Atlas, monkeypatch: pytest.MonkeyPatch) -> None:
    """An atlas that is mined again before its index is there: what its pages held does not stay in memory."""

    def fail(*_: object, **__: object) -> None:
        raise AtlasDamaged("a table is missing")

    monkeypatch.setattr(search_room, "open_index", fail)
    site = Site(Settings(opened.path))
    background, editions = BackgroundIndex(site), []
    for _ in range(4):
        with pytest.raises(AtlasDamaged):
            background.index()
        editions.append(weakref.ref(site.edition()))
        mined_again(opened.path, seed=len(editions))
    with pytest.raises(AtlasDamaged):
        background.index()
    for one in threading.enumerate():
        if one.name == "search index":
            one.join()
    gc.collect()
    # The one before may be held by what was raised last.
    assert [edition() for edition in editions[:3]] == [None] * 3


def test_an_edition_s_hash_is_of_the_manifest_that_was_opened(opened: Atlas, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another atlas takes the folder between opening and showing: its hash is not put beside the old one's numbers."""

    def changed(path: Path) -> Atlas:
        found = open_atlas(path)
        write_bytes(path / "manifest.json", (path / "manifest.json").read_bytes() + b" ")
        return found

    before = file_hash(opened.path / "manifest.json")
    monkeypatch.setattr(site_module, "open_atlas", changed)
    assert Site(Settings(opened.path)).latest.atlas.manifest_hash == before
