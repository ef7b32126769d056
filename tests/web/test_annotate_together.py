"""Many annotators at one server at once, and databases that are elsewhere, of another version, or locked."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from mnemoscope.annotate.campaigns.import_export import rows
from mnemoscope.annotations import open_store
from mnemoscope.atlas import open_atlas
from mnemoscope.errors import AnnotationError
from web.judging import GOOD, JSON, Reader, Visitor, codes, host, invited, served
from web.served import running

PEOPLE, SAVES = 20, 6


def judge(url: str, token: str) -> list[str]:
    """One annotator's work over HTTP: every judgement sent twice, as after a lost answer; the keys used."""
    visitor = Visitor(url, token)
    items, keys = visitor.codes(), []
    for number in range(SAVES):
        keys.append(f"{token[:8]}-{number:04}")
        for again in (False, True):
            assert visitor.save(items[number], keys[-1], f"said by {token}")["again"] is again
    return keys


@pytest.mark.full
def test_twenty_people_who_save_at_once_lose_nothing(atlas: Path) -> None:
    with open_store(open_atlas(atlas)) as store:
        store.start_campaign(keys_per_layer=3)
        tokens = [store.invite(f"person {number}").token for number in range(PEOPLE)]
        with running(atlas) as url, ThreadPoolExecutor(PEOPLE) as crowd:
            sent = [key for keys in crowd.map(lambda token: judge(url, token), tokens) for key in keys]
        found = rows(store)
    assert (len(set(sent)), sorted(row["key"] for row in found)) == (PEOPLE * SAVES, sorted(sent))
    assert {row["description"] for row in found} == {f"said by {token}" for token in tokens}


def test_a_database_elsewhere_is_shared_by_two_servers(untouched: Path, atlas: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "team.sqlite")
    first, second = served(atlas, annotations=place), served(untouched, annotations=place)
    boss = host(first)
    ada = invited(first, boss, "Ada")
    assert [one["name"] for one in host(second, begin=False).json("/annotate")["people"]] == ["Ada"]
    ada.post(f"/annotate/items/{codes(ada)[0]}/save", GOOD)
    assert not (atlas / "annotations.sqlite").exists()


def test_a_database_of_another_version_refuses_its_pages_alone(atlas: Path) -> None:
    with open_store(open_atlas(atlas)):
        pass
    with sqlite3.connect(atlas / "annotations.sqlite") as database:
        database.execute("UPDATE annotations_version SET version = 7")
    database.close()
    reader = Reader(served(atlas)).web
    page = reader.get("/annotate")
    assert page.status_code == 409
    assert "version 7" in page.text
    assert reader.get("/annotate.json").json()["status"] == 409
    assert reader.get("/L0.M0").status_code == 200, "memories are read all the same"
    with pytest.raises(AnnotationError, match="version 7"):
        served(atlas, annotations=str(atlas / "annotations.sqlite"))


def test_a_database_that_stays_locked_is_503_until_it_is_free(atlas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemoscope.annotate.campaigns.database.WAIT_SECONDS", 0.05)
    boss = host(served(atlas))
    form = {"name": "Ada", "csrf": boss.csrf}
    with closing(sqlite3.connect(atlas / "annotations.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        answer = boss.web.post("/annotate/invite", data=form, headers=JSON)
        assert answer.status_code == 503
        assert "nothing was stored (database is locked)" in answer.json()["message"]
        assert boss.web.get("/annotate").status_code == 200, "what is stored is read all the same"
    assert boss.web.post("/annotate/invite", data=form, headers=JSON).status_code == 201


def test_a_server_that_ends_gives_its_connections_back(atlas: Path) -> None:
    app = served(atlas)
    host(app)
    log = atlas / "annotations.sqlite-wal"
    assert log.exists(), "an open store writes a log beside the file"
    app.state.site.close()
    assert not log.exists()
    assert host(app, begin=False).json("/annotate")["people"] == [], "a store that was closed is opened again"
    app.state.site.close()
